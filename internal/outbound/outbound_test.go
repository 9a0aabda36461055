package outbound_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/outbound"
)

// TestFailuresAreAlike: what fails tells nothing of the server's network, neither by
// what is said nor by when. The log tells the operator.
func TestFailuresAreAlike(t *testing.T) {
	addresses := func(ips ...string) func(context.Context, string) ([]netip.Addr, error) {
		return func(context.Context, string) (out []netip.Addr, err error) {
			for _, ip := range ips {
				out = append(out, netip.MustParseAddr(ip))
			}
			return out, nil
		}
	}
	for name, test := range map[string]struct {
		resolve func(context.Context, string) ([]netip.Addr, error)
		connect error
		logged  string
	}{
		"unknown name": {func(_ context.Context, host string) ([]netip.Addr, error) {
			return nil, &net.DNSError{Err: "no such host", Name: host, Server: "10.9.9.9:53", IsNotFound: true}
		}, nil, "no such host"},
		"name without address": {addresses(), nil, "no address"},
		"private address":      {addresses("10.1.2.3"), nil, "10.1.2.3 is not a public address"},
		"loopback":             {addresses("::1", "127.0.0.1"), nil, "127.0.0.1 is not a public address"},
		"metadata service":     {addresses("169.254.169.254"), nil, "169.254.169.254 is not a public address"},
		"server that refuses":  {addresses("8.8.8.8"), syscall.ECONNREFUSED, "connection refused"},
		"no route":             {addresses("8.8.8.8"), syscall.EHOSTUNREACH, "no route to host"},
		"name service hangs": {func(ctx context.Context, _ string) ([]netip.Addr, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, nil, "deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				d := outbound.Dialer{
					Timeout: 7 * time.Second, Resolve: test.resolve, Hint: "Ask.", Log: slog.New(slog.NewTextHandler(&log, nil)),
					Connect: func(context.Context, string, string) (net.Conn, error) { return nil, test.connect },
				}
				start := time.Now() // of the bubble, in which only waiting takes time
				_, err := d.Dial(t.Context(), "a.example", 443)
				if err == nil || err.Error() != "a.example:443 cannot be connected to" || !fault.Is(err, fault.Unavailable) || fault.HintOf(err) != "Ask." {
					t.Errorf("%v", err)
				}
				if took := time.Since(start); took != d.Timeout {
					t.Errorf("told after %s", took)
				}
				if !strings.Contains(log.String(), test.logged) {
					t.Errorf("logged: %s", &log)
				}
			})
		})
	}
}

func TestDial(t *testing.T) {
	for name, test := range map[string]struct {
		host, names string
		permit      bool
		want        string
	}{
		"public":                      {"a.example", "8.8.8.8", false, "8.8.8.8:443"},
		"private one is passed over":  {"a.example", "127.0.0.1 8.8.8.8", false, "8.8.8.8:443"},
		"private one that is allowed": {"a.example", "10.1.2.3", true, "10.1.2.3:443"},
		"address":                     {"8.8.4.4", "", false, "8.8.4.4:443"},
		"mapped address":              {"::ffff:8.8.4.4", "", false, "8.8.4.4:443"},
		"private address":             {"10.1.2.3", "", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var dialled string
				d := outbound.Dialer{
					Permit: func(netip.AddrPort) bool { return test.permit },
					Resolve: func(context.Context, string) (out []netip.Addr, err error) {
						for ip := range strings.FieldsSeq(test.names) {
							out = append(out, netip.MustParseAddr(ip))
						}
						return out, nil
					},
					Connect: func(_ context.Context, _, address string) (net.Conn, error) {
						dialled = address
						return &net.TCPConn{}, nil
					},
				}
				_, err := d.Dial(t.Context(), test.host, 443)
				if dialled != test.want || (err == nil) != (test.want != "") {
					t.Errorf("dialled %q: %v", dialled, err)
				}
			})
		})
	}
}

// TestCallerLeaves: who no longer waits is not waited for.
func TestCallerLeaves(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var d outbound.Dialer
	if _, err := d.Dial(ctx, "10.1.2.3", 443); err == nil || fault.Is(err, fault.Unavailable) {
		t.Errorf("%v", err)
	}
}

func TestPublicAddresses(t *testing.T) {
	for text, want := range map[string]bool{
		"8.8.8.8": true, "1.1.1.1": true, "2606:4700:4700::1111": true, "::ffff:8.8.8.8": true, "172.15.0.1": true, "172.32.0.1": true,
		"127.0.0.1": false, "127.255.255.254": false, "10.0.0.1": false, "172.16.0.1": false, "172.31.255.255": false, "192.168.0.1": false,
		"169.254.169.254": false, "0.0.0.0": false, "0.1.2.3": false, "100.64.0.1": false, "198.18.0.1": false, "192.0.2.1": false,
		"224.0.0.1": false, "239.255.255.250": false, "240.0.0.1": false, "255.255.255.255": false, "168.63.129.16": false,
		"::": false, "::1": false, "fe80::1%eth0": false, "fc00::1": false, "fd00:ec2::254": false, "ff02::1": false, "fec0::1": false,
		"::ffff:127.0.0.1": false, "::127.0.0.1": false, "64:ff9b::a9fe:a9fe": false, "2002:a9fe:a9fe::": false, "2001:db8::1": false, "2001::1": false, "100::1": false,
	} {
		if got := outbound.Public(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	if outbound.Public(netip.Addr{}) {
		t.Error("no address is public")
	}
}
