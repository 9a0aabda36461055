package share

import (
	"container/list"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// maxConnections is the default limit where the system allows many files.
	maxConnections = 1 << 14
	// freshTime is how long a connection may take for its first request before it
	// may be closed for another one.
	freshTime = time.Second
)

// Files is how many files this process may open. Go raises the soft limit to the
// hard one at the start.
func Files() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || l.Cur > 1<<30 {
		return 1 << 20
	}
	return int(l.Cur)
}

// Connections bounds the open connections of all listeners that it wraps, below the
// limit on open files: half of the files are for the server's own work. A quarter of
// the connections is for those that have authenticated; of the others an address has
// at most a quarter. A principal has at most a quarter, a project half; the sockets of
// jobs have half together.
//
// When a share is used up, the connection in it that was idle longest is closed for a
// new one; when none is idle, the new one is closed. A connection that waits for its
// first request counts as idle after a second. Safe for concurrent use.
type Connections struct {
	usage *usage

	most, strangers                   int
	perAddress, perPrincipal, perProj int

	mu       sync.Mutex
	total    int
	unproved int                 // not authenticated
	groups   map[groupKey]*group // those with connections
	idle     list.List           // of *Conn that have not authenticated, longest idle first
	proved   list.List           // of *Conn that have authenticated, longest idle first
}

// groupKey names those that share connections: an address, a principal or a project.
type groupKey struct{ kind, name string }

type group struct {
	key  groupKey
	n    int
	idle list.List // of *Conn, longest idle first
}

// NewConnections makes the limit for a process that may open so many files; most is
// the number of connections, 0 is half of the files, and no more than 16,384.
func NewConnections(files, most int) *Connections {
	if most <= 0 {
		most = min(files/2, maxConnections)
	}
	most = max(min(most, files/2), 8)
	c := &Connections{
		usage: usageOf("connections"), most: most, strangers: most * 3 / 4,
		perAddress: most / 4, perPrincipal: most / 4, perProj: most / 2, groups: map[groupKey]*group{},
	}
	c.usage.slots.Store(int64(most))
	return c
}

// Most is the limit on open connections.
func (c *Connections) Most() int { return c.most }

// Listen wraps a listener: what it accepts counts.
func (c *Connections) Listen(l net.Listener) net.Listener { return &limited{Listener: l, of: c} }

// ListenJob wraps a socket that only a job reaches: its connections are the job's from
// the beginning. A nil Connections bounds nothing.
func (c *Connections) ListenJob(l net.Listener, project, job string) net.Listener {
	if c == nil {
		return l
	}
	return &limited{Listener: l, of: c, job: &Owner{project, job}}
}

// Serve makes a server tell which of its connections are at work, and lets Proved
// find the connection of a request.
func (c *Connections) Serve(s *http.Server) {
	if c == nil {
		return
	}
	s.ConnState = func(conn net.Conn, state http.ConnState) {
		if x := connOf(conn); x != nil {
			switch state {
			case http.StateActive:
				x.work()
			case http.StateIdle:
				x.rest()
			case http.StateNew, http.StateHijacked, http.StateClosed:
			}
		}
	}
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, connOf(conn))
	}
}

type connKey struct{}

func connOf(conn net.Conn) *Conn {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	x, _ := conn.(*Conn)
	return x
}

// Proved says that the request of ctx is of a principal, and of a project if its
// token is bound to one: the connection is now in their shares. Error:
// fault.Exhausted when a share is used up and none of its connections is idle; the
// connection should be closed then.
func Proved(ctx context.Context, o Owner) error {
	x, _ := ctx.Value(connKey{}).(*Conn)
	if x == nil {
		return nil
	}
	if before := x.owner.Load(); x.job || before != nil && *before == o {
		return nil
	}
	return x.of.prove(x, o)
}

type limited struct {
	net.Listener
	of  *Connections
	job *Owner // nil: anybody
}

// Accept closes connections for which there is no room and waits for the next.
func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		var x *Conn
		if l.job != nil {
			x = l.of.admitJob(conn, *l.job)
		} else {
			x = l.of.admit(conn, AddressKey(conn.RemoteAddr().String()))
		}
		if x != nil {
			return x, nil
		}
		_ = conn.Close() // there is nobody to tell
	}
}

// Conn is a connection that counts.
type Conn struct {
	net.Conn
	of    *Connections
	owner atomic.Pointer[Owner] // nil: not authenticated
	job   bool                  // its owner does not change

	// Guarded by of.mu.
	groups []member
	resting
	closed bool
}

// member is a connection's place in a group.
type member struct {
	of   *group
	idle *list.Element // nil while at work
}

// resting is a connection's place among all that are idle.
type resting struct {
	since time.Time
	fresh bool          // before the first request
	at    *list.Element // nil while at work
}

// Close closes the connection, which counts no more.
func (x *Conn) Close() error {
	c := x.of
	c.mu.Lock()
	c.forget(x)
	c.mu.Unlock()
	return x.Conn.Close()
}

// CloseWrite lets net/http end an answer in order.
func (x *Conn) CloseWrite() error {
	if half, ok := x.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// admit counts a new connection, in place of an idle one when the share is used up.
// It gives nil when there is no room.
func (c *Connections) admit(conn net.Conn, address string) *Conn {
	c.mu.Lock()
	var victim *Conn
	key := groupKey{"address", address}
	full := false
	if g := c.groups[key]; g != nil && g.n >= c.perAddress {
		victim, full = ripe(&g.idle), true
	} else if c.unproved >= c.strangers || c.total >= c.most {
		full = true
		if victim = ripe(&c.idle); victim == nil && c.unproved < c.strangers {
			victim = ripe(&c.proved)
		}
	}
	if full && victim == nil {
		c.mu.Unlock()
		c.usage.refused.Add(1)
		return nil
	}
	if victim != nil {
		c.forget(victim)
		c.usage.refused.Add(1)
	}
	x := &Conn{Conn: conn, of: c}
	c.total++
	c.unproved++
	c.usage.held.Add(1)
	c.usage.granted.Add(1)
	x.groups = []member{c.join(key)}
	x.fresh = true
	c.lay(x)
	c.mu.Unlock()
	if victim != nil {
		_ = victim.Conn.Close()
	}
	return x
}

// admitJob counts a new connection of a job.
func (c *Connections) admitJob(conn net.Conn, o Owner) *Conn {
	c.mu.Lock()
	quotas := []quota{{groupKey{"job", o.Principal}, max(1, c.most/8)}, {groupKey{"jobs of project", o.Project}, c.most / 4}, {groupKey{"jobs", ""}, c.most / 2}}
	victims, over := c.clear(nil, quotas)
	if over == nil && c.total >= c.most {
		victim := ripe(&c.idle)
		if victim == nil {
			victim = ripe(&c.proved)
		}
		if victim == nil {
			over = &quotas[0]
		} else {
			c.forget(victim)
			victims = append(victims, victim)
		}
	}
	if over != nil {
		c.mu.Unlock()
		closeAll(victims)
		c.usage.refused.Add(1)
		return nil
	}
	x := &Conn{Conn: conn, of: c, job: true}
	x.owner.Store(&o)
	c.total++
	c.usage.held.Add(1)
	c.usage.granted.Add(1)
	for _, q := range quotas {
		x.groups = append(x.groups, c.join(q.key))
	}
	x.fresh = true
	c.lay(x)
	c.mu.Unlock()
	closeAll(victims)
	return x
}

// clear makes room for x in the groups, by connections of theirs that are idle. over is
// the one that has none.
func (c *Connections) clear(x *Conn, quotas []quota) (victims []*Conn, over *quota) {
	for i, q := range quotas {
		g := c.groups[q.key]
		if g == nil || g.n < q.most || x != nil && x.in(g) {
			continue
		}
		victim := ripe(&g.idle)
		if victim == nil || victim == x {
			return victims, &quotas[i]
		}
		c.forget(victim)
		c.usage.refused.Add(1)
		victims = append(victims, victim)
	}
	return victims, nil
}

// ripe is the connection that was idle longest, unless it is fresh.
func ripe(idle *list.List) *Conn {
	for e := idle.Front(); e != nil; e = e.Next() {
		x := e.Value.(*Conn)
		if !x.fresh || time.Since(x.since) >= freshTime {
			return x
		}
	}
	return nil
}

func (c *Connections) join(key groupKey) member {
	g := c.groups[key]
	if g == nil {
		g = &group{key: key}
		c.groups[key] = g
	}
	g.n++
	return member{of: g}
}

// lay puts a connection among the idle ones.
func (c *Connections) lay(x *Conn) {
	if x.closed || x.at != nil {
		return
	}
	x.since = time.Now()
	if x.owner.Load() == nil {
		x.at = c.idle.PushBack(x)
	} else {
		x.at = c.proved.PushBack(x)
	}
	for i := range x.groups {
		x.groups[i].idle = x.groups[i].of.idle.PushBack(x)
	}
}

// raise takes a connection out of the idle ones.
func (c *Connections) raise(x *Conn) {
	if x.at == nil {
		return
	}
	if x.owner.Load() == nil {
		c.idle.Remove(x.at)
	} else {
		c.proved.Remove(x.at)
	}
	x.at = nil
	for i := range x.groups {
		x.groups[i].of.idle.Remove(x.groups[i].idle)
		x.groups[i].idle = nil
	}
}

func (c *Connections) leave(x *Conn) {
	for _, m := range x.groups {
		if m.of.n--; m.of.n == 0 {
			delete(c.groups, m.of.key)
		}
	}
	x.groups = nil
}

func (c *Connections) forget(x *Conn) {
	if x.closed {
		return
	}
	x.closed = true
	c.raise(x)
	c.leave(x)
	c.total--
	if x.owner.Load() == nil {
		c.unproved--
	}
	c.usage.held.Add(-1)
}

func (x *Conn) work() {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	x.of.raise(x)
	x.fresh = false
}

func (x *Conn) rest() {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	x.of.lay(x)
}

// prove moves a connection into the shares of its owner.
func (c *Connections) prove(x *Conn, o Owner) error {
	c.mu.Lock()
	if x.closed {
		c.mu.Unlock()
		return nil
	}
	quotas := c.shares(o)
	victims, over := c.clear(x, quotas)
	if over != nil {
		c.mu.Unlock()
		closeAll(victims)
		return Refused("connections", fmt.Sprintf("%s %s has %d connections at work, the share of one %s", over.key.kind, over.key.name, over.most, over.key.kind),
			"Use fewer connections: one of HTTP/2 carries many requests.", retryAfter)
	}
	rested := x.at != nil
	c.raise(x)
	c.leave(x)
	if x.owner.Swap(&o) == nil {
		c.unproved--
	}
	for _, q := range quotas {
		x.groups = append(x.groups, c.join(q.key))
	}
	if rested {
		c.lay(x)
	}
	c.mu.Unlock()
	closeAll(victims)
	return nil
}

func closeAll(conns []*Conn) {
	for _, v := range conns {
		_ = v.Conn.Close()
	}
}

func (x *Conn) in(g *group) bool {
	for _, m := range x.groups {
		if m.of == g {
			return true
		}
	}
	return false
}

type quota struct {
	key  groupKey
	most int
}

func (c *Connections) shares(o Owner) []quota {
	all := make([]quota, 0, 2)
	if o.Principal != "" {
		all = append(all, quota{groupKey{"principal", o.Principal}, c.perPrincipal})
	}
	if o.Project != "" {
		all = append(all, quota{groupKey{"project", o.Project}, c.perProj})
	}
	return all
}
