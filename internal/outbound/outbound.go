// Package outbound connects to hosts that users name: receivers of alerts and
// webhooks, and what a job's allow-list names.
//
// Guarantees: a name is resolved here, once, and the address that was checked is
// the one that is dialled (no DNS rebinding). Only public addresses are dialled,
// and those that the caller permits. A caller learns nothing of the network that
// the server stands in: a name that does not resolve, one that resolves to a
// private address and one whose server refuses the connection fail with the same
// error after the same time. The log says which it was.
package outbound

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

const (
	defaultTimeout = 5 * time.Second
	maxAddresses   = 8 // of one name that are tried
)

// Dialer connects. The zero value reaches public addresses only. Safe for
// concurrent use.
type Dialer struct {
	// Timeout bounds looking the name up and connecting, together; 0 is 5 s. A
	// failure is told when it is over, and not before.
	Timeout time.Duration
	// Permit adds addresses that are not public; nil adds none.
	Permit func(netip.AddrPort) bool
	// Hint says what the user can do about a failure; may be empty.
	Hint string
	Log  *slog.Logger // nil logs nothing

	// Resolve gives a host's addresses, and Connect connects to a checked one; nil
	// asks the system.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	Connect func(ctx context.Context, network, address string) (net.Conn, error)
}

// Dial connects to a host by TCP. Error: fault.Unavailable, which says no more
// than that; that of ctx when it ends first.
func (d *Dialer) Dial(ctx context.Context, host string, port uint16) (net.Conn, error) {
	timeout := d.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	dialling, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := d.dial(dialling, host, port)
	if err == nil {
		return conn, nil
	}
	if d.Log != nil {
		level := slog.LevelInfo
		if fault.Is(err, fault.PermissionDenied) {
			level = slog.LevelWarn
		}
		d.Log.Log(ctx, level, "a connection that a user asked for failed",
			slog.String("host", host), slog.Int("port", int(port)), slog.Any("error", err))
	}
	<-dialling.Done() // how long the failure took would tell its cause
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, fault.New(fault.Unavailable, "%s cannot be connected to", net.JoinHostPort(host, strconv.Itoa(int(port)))).WithHint("%s", d.Hint)
}

// dial is Dial with the reason of a failure.
func (d *Dialer) dial(ctx context.Context, host string, port uint16) (net.Conn, error) {
	addresses, err := d.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	connect := d.Connect
	if connect == nil {
		connect = new(net.Dialer).DialContext
	}
	failure := errors.New("the name has no address")
	for _, ip := range addresses[:min(len(addresses), maxAddresses)] {
		to := netip.AddrPortFrom(ip.Unmap(), port)
		if !Public(ip) && (d.Permit == nil || !d.Permit(to)) {
			failure = fault.New(fault.PermissionDenied, "%s is not a public address", to.Addr())
			continue
		}
		conn, err := connect(ctx, "tcp", to.String())
		if err == nil {
			return conn, nil
		}
		failure = err
	}
	return nil, failure
}

func (d *Dialer) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	if d.Resolve != nil {
		return d.Resolve(ctx, host)
	}
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// special are the ranges of the IANA special-purpose registries that netip has no
// method for, and addresses at which clouds keep credentials.
var special = func() (ps []netip.Prefix) {
	for _, p := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15",
		"198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4", "168.63.129.16/32",
		"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
	} {
		ps = append(ps, netip.MustParsePrefix(p))
	}
	return ps
}()

var globalIPv6 = netip.MustParsePrefix("2000::/3")

// Public reports whether an address is on the public internet. Of IPv6 only global
// unicast is, without the ranges that carry an IPv4 address inside.
func Public(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if !a.IsValid() || !a.IsGlobalUnicast() || a.IsPrivate() || a.Is6() && !globalIPv6.Contains(a) {
		return false
	}
	return !slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(a) })
}
