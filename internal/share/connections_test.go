package share

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// peer is a connection that only counts.
type peer struct {
	net.Conn
	closed bool
}

func (p *peer) Close() error { p.closed = true; return nil }

func admit(c *Connections, address string) *Conn { return c.admit(&peer{}, address) }

func shut(x *Conn) bool { return x == nil || x.Conn.(*peer).closed }

func proved(x *Conn, o Owner) error {
	return Proved(context.WithValue(context.Background(), connKey{}, x), o)
}

// served is a connection that has had a request and is idle.
func served(c *Connections, address string) *Conn {
	x := admit(c, address)
	if x != nil {
		x.work()
		x.rest()
	}
	return x
}

func TestOneAddressLeavesRoomForOthers(t *testing.T) {
	c := NewConnections(512, 0)
	var flood []*Conn
	for range 700 {
		flood = append(flood, served(c, "10.0.0.9"))
	}
	open := 0
	for _, x := range flood {
		if !shut(x) {
			open++
		}
	}
	if open != 64 || shut(flood[699]) || !shut(flood[0]) {
		t.Errorf("%d of 700 idle connections stay, want the newest 64", open)
	}
	for range 60 {
		if x := admit(c, "10.0.0.1"); shut(x) {
			t.Fatal("another address finds no room")
		}
	}
	if c.total != 64+60 || c.unproved != c.total {
		t.Errorf("%d connections count, %d of them without a token", c.total, c.unproved)
	}
}

// TestAuthenticatedAreKept: strangers of many addresses close no connection that has
// authenticated, and leave a quarter for those that will.
func TestAuthenticatedAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewConnections(512, 0)
		mine := served(c, "10.0.0.1")
		if err := proved(mine, Owner{Principal: "engineer"}); err != nil {
			t.Fatal(err)
		}
		for n := range 1000 {
			admit(c, fmt.Sprint("10.0.1.", n%250)) // asks nothing
		}
		if shut(mine) || c.unproved != 192 || c.total != 193 {
			t.Errorf("closed: %v; %d strangers of %d connections", shut(mine), c.unproved, c.total)
		}
		if x := admit(c, "10.0.0.2"); x != nil {
			t.Error("a fresh connection was closed for another one")
		}
		<-time.After(freshTime)
		next := admit(c, "10.0.0.2")
		if shut(next) {
			t.Fatal("connections that ask nothing keep others out")
		}
		if err := proved(next, Owner{Principal: "scientist"}); err != nil || c.unproved != 191 {
			t.Errorf("%v; %d strangers", err, c.unproved)
		}
	})
}

func TestSharesOfPrincipals(t *testing.T) {
	c := NewConnections(512, 0)
	o := Owner{Principal: "greedy"}
	var all []*Conn
	for n := range 100 {
		x := served(c, fmt.Sprint("10.0.2.", n))
		if err := proved(x, o); err != nil {
			t.Fatal(err)
		}
		all = append(all, x)
	}
	if !shut(all[35]) || shut(all[36]) {
		t.Error("of one principal's idle connections the newest 64 stay")
	}
	for _, x := range all {
		x.work()
	}
	x := admit(c, "10.0.3.1")
	x.work()
	if err := proved(x, o); !fault.Is(err, fault.Exhausted) || !strings.Contains(err.Error(), "connections") {
		t.Errorf("with 64 at work one more is refused with %v", err)
	}
	if err := proved(x, Owner{Principal: "other"}); err != nil {
		t.Errorf("another principal: %v", err)
	}
	for n := range 200 {
		x := admit(c, fmt.Sprint("job", n))
		x.work()
		err := proved(x, Owner{Project: "busy", Principal: fmt.Sprint("attempt", n)})
		if (err == nil) != (n < 128) {
			t.Fatalf("connection %d of the jobs of one project: %v", n, err)
		}
		if err != nil {
			_ = x.Close()
		}
	}
	for _, x := range all {
		_ = x.Close()
		_ = x.Close()
	}
	if c.total != 129 {
		t.Errorf("%d connections count, want 129", c.total)
	}
}

// TestAcceptRefuses: the listener passes on what there is room for, and closes the rest.
func TestAcceptRefuses(t *testing.T) {
	c := NewConnections(64, 16)
	raw, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := c.Listen(raw)
	defer l.Close()
	go func() {
		for {
			x, err := l.Accept()
			if err != nil {
				return
			}
			x.(*Conn).work()
			_, _ = x.Write([]byte("!"))
		}
	}()
	for n := range 10 {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		got, _ := conn.Read(make([]byte, 1))
		if (got == 1) != (n < 4) {
			t.Errorf("connection %d: %d bytes; an address has 4 of 16", n, got)
		}
	}
}
