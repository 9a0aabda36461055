// Package quota counts what each project stores, and refuses what is beyond its quota.
//
// # Map
//
//   - Accounts has what every project stores, by kind; Over puts it over a driver.
//   - Limit is a project's quota, of all it stores and of single kinds, which the caller looks
//     up for each object. Replacing says that an object is stored instead of others.
//   - Reached tells of a quota at which something was refused: reached.go.
//
// # Guarantees
//
// An object counts with its stored bytes from when they are written until it is deleted, in
// the project that its key names ("projects/P/KIND/…"); what fails counts nothing. Two objects
// that are written at once share what is left: the sum is never beyond the quota, but by what
// an object replaces, until that is deleted. Where the quota was lowered below what is stored,
// an object may still be replaced by one that is not larger. Objects
// are counted when a project is first asked for; from then on each change is counted
// by itself. So a process that was killed has lost nothing: the next one counts anew.
//
// Counting a large bucket takes minutes. It waits for no client and ends with none. Only the
// writes of a project with a quota wait for it, and only until the first count of a process.
//
// # What the caller owes
//
// Every change of the store goes through the driver that Over gives. What other programs, and
// other servers of the installation, change in the store is counted at the first change or
// question after an hour.
package quota

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/share"
)

// Limit is how much a project may store; a part that is 0 has no limit.
type Limit struct {
	Bytes   int64
	Objects int64
	Kinds   map[string]Amount // of one kind, beside the sum
}

// Amount is of bytes and objects.
type Amount struct{ Bytes, Objects int64 }

// none reports whether nothing is limited.
func (l Limit) none() bool { return l.Bytes <= 0 && l.Objects <= 0 && len(l.Kinds) == 0 }

// Used is what is stored.
type Used struct {
	Kind    string // third part of the keys, such as "artifacts"
	Bytes   int64
	Objects int64
}

// Accounts are those of all projects. Safe for concurrent use.
type Accounts struct {
	limit   func(ctx context.Context, project string) (Limit, error)
	reached reachedQuotas

	mu      sync.Mutex
	drivers []*Driver
	all     map[string]*account
}

// New makes accounts. limit gives a project's quota.
func New(limit func(ctx context.Context, project string) (Limit, error)) *Accounts {
	return &Accounts{limit: limit, all: map[string]*account{}}
}

// account is what one project stores.
type account struct {
	project string
	drivers []*Driver

	mu        sync.Mutex
	loaded    time.Time // when the count began that kinds continues; zero: never counted
	tried     time.Time // when the last count began
	counting  *count    // nil: none is under way
	kinds     byKind
	sum       Used
	limit     Limit // of the last write
	of        *Accounts
	moving    map[place]*turn    // objects that are changed
	claims    map[place]*claim   // objects that others are stored instead of
	unsettled byKind             // what is being written, as far as it counts already
	told      map[string]crossed // quotas whose refusal was told of, by kind
}

// place is an object: a driver and a key.
type place struct {
	on  *Driver
	key blob.Key
}

// turn is for who changes one object: one at a time.
type turn struct {
	taken   chan struct{} // one place: of who changes it
	waiting int           // and who changes it

	// Of who changes it, under the account's mu.
	begun          bool   // and the rest is known
	before         Used   // what was stored, with its kind
	instead        Amount // what it replaces: before, and what it claimed
	bytes, objects int64  // counted since
}

// claim is of an object that is replaced by one at another place. While it is there, the other
// one may be as large, in addition to the quota. One replaces it: of several at once, each
// would be allowed as much.
type claim struct {
	to   place
	by   *turn // nil: the other one is stored
	size int64
}

// count is a listing of what a project stores. It goes on beside changes: whoever changes an
// object takes it over, with the size that it had before, so that an object counts once, and
// the listing passes it by. Under the account's mu, but for done and err.
type count struct {
	began   time.Time
	at      int      // number of the driver that is listed
	last    blob.Key // of the last object that was listed there
	changed map[place]bool
	kinds   byKind
	done    chan struct{} // closed at its end
	err     error         // after done
}

// Driver counts what goes through it. It implements blob.Driver.
type Driver struct {
	blob.Driver
	of     *Accounts
	number int // in the order in which they are counted
}

var _ blob.Driver = (*Driver)(nil)

// Over puts the accounts over a driver. Call it for all drivers before one is used.
func (a *Accounts) Over(d blob.Driver) *Driver {
	a.mu.Lock()
	defer a.mu.Unlock()
	over := &Driver{Driver: d, of: a, number: len(a.drivers)}
	a.drivers = append(a.drivers, over)
	return over
}

const (
	// fresh is how long a count is believed; then the store is counted anew, and the old count
	// continues to hold until that ends.
	fresh = time.Hour
	// countTime is the longest time of a count: tens of millions of objects of a bucket.
	countTime = time.Hour
	// pause is the least time between counts that fail.
	pause = time.Minute
)

// Used is what a project stores, by kind in alphabetical order, and their sum. It counts the
// store the first time, and waits for that as long as ctx lets it.
func (a *Accounts) Used(ctx context.Context, project string) (sum Used, kinds []Used, err error) {
	acc := a.account(ctx, project)
	if err := acc.counted(ctx); err != nil {
		return Used{}, nil, err
	}
	sum, kinds = acc.used()
	return sum, kinds, nil
}

// Each gives what each project stores that was counted already, by name, and the quota of its
// last write.
func (a *Accounts) Each(yield func(project string, kinds []Used, limit Limit)) {
	a.mu.Lock()
	counted := maps.Clone(a.all)
	a.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(counted)) {
		acc := counted[name]
		if !acc.known() {
			continue
		}
		_, kinds := acc.used()
		acc.mu.Lock()
		limit := acc.limit
		acc.mu.Unlock()
		if len(kinds) > 0 {
			yield(name, kinds, limit)
		}
	}
}

func (acc *account) used() (sum Used, kinds []Used) {
	acc.mu.Lock()
	defer acc.mu.Unlock()
	for _, u := range acc.kinds {
		if u.Bytes != 0 || u.Objects != 0 {
			kinds = append(kinds, *u)
		}
	}
	slices.SortFunc(kinds, func(a, b Used) int { return cmp.Compare(a.Kind, b.Kind) })
	return acc.sum, kinds
}

// account is that of a project. If its count is too old, a new one begins.
func (a *Accounts) account(ctx context.Context, project string) *account {
	a.mu.Lock()
	defer a.mu.Unlock()
	acc := a.all[project]
	if acc == nil {
		acc = &account{
			of: a, project: project, drivers: a.drivers, kinds: byKind{}, unsettled: byKind{},
			moving: map[place]*turn{}, claims: map[place]*claim{}, told: map[string]crossed{},
		}
		a.all[project] = acc
	}
	acc.mu.Lock()
	defer acc.mu.Unlock()
	if now := time.Now(); now.Sub(acc.loaded) >= fresh && now.Sub(acc.tried) >= pause {
		acc.begin(ctx, now)
	}
	return acc
}

// counted waits until what is stored was counted once. A count that failed is made again.
func (acc *account) counted(ctx context.Context) error {
	acc.mu.Lock()
	if !acc.loaded.IsZero() {
		acc.mu.Unlock()
		return nil
	}
	acc.begin(ctx, time.Now())
	c := acc.counting
	acc.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return fault.New(fault.Timeout, "the storage of project %s is still being counted: %w", acc.project, context.Cause(ctx)).
			WithHint("Try again in a minute. Counting continues in the background.")
	}
}

// begin counts beside what goes on, if that is not under way. Under mu.
func (acc *account) begin(ctx context.Context, now time.Time) {
	if acc.counting != nil {
		return
	}
	c := &count{began: now, changed: map[place]bool{}, kinds: byKind{}, done: make(chan struct{})}
	acc.tried, acc.counting = now, c
	for p, t := range acc.moving {
		if t.begun {
			c.takeOver(p, t)
		}
	}
	// Whoever asked first may leave: the count is for all.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), countTime)
	go func() {
		defer cancel()
		err := acc.list(ctx, c)
		acc.mu.Lock()
		defer acc.mu.Unlock()
		if acc.counting, c.err = nil, err; err == nil {
			acc.loaded, acc.kinds, acc.sum = c.began, c.kinds, c.kinds.sum()
		}
		close(c.done)
	}()
}

// list goes through the drivers, whose listings are in the order of the keys.
func (acc *account) list(ctx context.Context, c *count) error {
	for _, d := range acc.drivers {
		acc.mu.Lock()
		c.at, c.last = d.number, ""
		acc.mu.Unlock()
		err := blob.Sizes(ctx, d.Driver, blob.Key("projects/"+acc.project+"/"), func(key blob.Key, size int64) error {
			_, kind, _ := owner(key)
			acc.mu.Lock()
			defer acc.mu.Unlock()
			c.last = key
			if !c.changed[place{d, key}] {
				c.kinds.add(kind, size, 1)
			}
			return nil
		})
		if err != nil {
			return fault.Wrap(err, "count the storage of project %s", acc.project)
		}
	}
	return nil
}

// passed reports whether the listing is behind an object, or leaves it to who changes it.
func (c *count) passed(p place) bool {
	return c.changed[p] || p.on.number < c.at || p.on.number == c.at && p.key <= c.last
}

// takeOver has an object count by who changes it.
func (c *count) takeOver(p place, t *turn) {
	c.changed[p] = true
	c.kinds.add(t.before.Kind, t.before.Bytes+t.bytes, t.before.Objects+t.objects)
}

// byKind is what is stored of each kind.
type byKind map[string]*Used

// of is what is stored of a kind.
func (b byKind) of(kind string) Used {
	if u := b[kind]; u != nil {
		return *u
	}
	return Used{Kind: kind}
}

func (b byKind) add(kind string, bytes, objects int64) {
	u := b[kind]
	if u == nil {
		u = &Used{Kind: kind}
		b[kind] = u
	}
	u.Bytes += bytes
	u.Objects += objects
}

func (b byKind) sum() (sum Used) {
	for _, u := range b {
		sum.Bytes += u.Bytes
		sum.Objects += u.Objects
	}
	return sum
}

// known reports whether what is stored was counted once.
func (acc *account) known() bool {
	acc.mu.Lock()
	defer acc.mu.Unlock()
	return !acc.loaded.IsZero()
}

// owner is the project and the kind of a key; ok is false for a key of no project.
func owner(key blob.Key) (project, kind string, ok bool) {
	rest, ok := strings.CutPrefix(string(key), "projects/")
	project, rest, found := strings.Cut(rest, "/")
	kind, _, deeper := strings.Cut(rest, "/")
	return project, kind, ok && found && deeper && project != ""
}

// add counts what the turn's holder changed; passed is a quota that would be passed, and nothing
// was counted then.
func (acc *account) add(t *turn, bytes, objects int64, l Limit) (passed *over) {
	acc.mu.Lock()
	defer acc.mu.Unlock()
	kind := t.before.Kind
	passes := func(most Amount, stored Used) bool {
		return bytes > 0 && most.Bytes > 0 && stored.Bytes+bytes > most.Bytes+t.instead.Bytes && t.bytes+bytes > t.instead.Bytes ||
			objects > 0 && most.Objects > 0 && stored.Objects+objects > most.Objects+t.instead.Objects && t.objects+objects > t.instead.Objects
	}
	for _, q := range []struct {
		kind   string
		most   Amount
		stored Used
	}{{"", Amount{l.Bytes, l.Objects}, acc.sum}, {kind, l.Kinds[kind], acc.kinds.of(kind)}} {
		if passes(q.most, q.stored) {
			// What is given up with this refusal is not stored.
			q.stored.Bytes -= t.bytes
			q.stored.Objects -= t.objects
			return &over{project: acc.project, kind: q.kind, most: q.most, stored: q.stored}
		}
	}
	acc.kinds.add(kind, bytes, objects)
	acc.unsettled.add(kind, bytes, objects)
	acc.sum.Bytes += bytes
	acc.sum.Objects += objects
	t.bytes += bytes
	t.objects += objects
	if c := acc.counting; c != nil {
		c.kinds.add(kind, bytes, objects)
	}
	return nil
}

// claim lets the turn's holder store, beyond the quota, as much as the objects have that its
// object replaces. Those of another kind, those that are being changed, and those that
// another object replaces already count nothing.
func (acc *account) claim(ctx context.Context, t *turn, to place, keys []blob.Key) error {
	for _, key := range keys {
		p := place{to.on, key}
		if project, kind, ok := owner(key); !ok || project != acc.project || kind != t.before.Kind {
			continue
		}
		c := &claim{to: to, by: t}
		acc.mu.Lock()
		free := acc.claims[p] == nil && acc.moving[p] == nil
		if free {
			acc.claims[p] = c
		}
		acc.mu.Unlock()
		if !free {
			continue
		}
		size, there, err := blob.SizeOf(ctx, p.on.Driver, p.key)
		acc.mu.Lock()
		switch {
		case acc.claims[p] != c: // deleted meanwhile
		case err != nil || !there:
			delete(acc.claims, p)
		default:
			c.size = size
			t.instead.Bytes += size
			t.instead.Objects++
		}
		acc.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// settled ends the right to more of who replaced objects: its object is stored. What it
// replaces is replaced by nothing else, until one of them is deleted. Or it failed, and they
// may be replaced by others.
func (acc *account) settled(to place, stored bool) {
	acc.mu.Lock()
	defer acc.mu.Unlock()
	for p, c := range acc.claims {
		if c.to != to {
			continue
		}
		if c.by = nil; !stored {
			delete(acc.claims, p)
		}
	}
}

// unclaim ends the claim of an object that is deleted, and those of what was stored instead of
// others. Under mu.
func (acc *account) unclaim(p place) {
	if c := acc.claims[p]; c != nil {
		if c.by != nil && c.size > 0 {
			c.by.instead.Bytes -= c.size
			c.by.instead.Objects--
		}
		delete(acc.claims, p)
	}
	for old, c := range acc.claims {
		if c.to == p {
			delete(acc.claims, old)
		}
	}
}

// change waits until nobody else changes the object, and finds what is stored of it. Call
// done when it is changed.
func (acc *account) change(ctx context.Context, p place, kind string) (t *turn, done func(), err error) {
	acc.mu.Lock()
	t = acc.moving[p]
	if t == nil {
		t = &turn{taken: make(chan struct{}, 1)}
		acc.moving[p] = t
	}
	t.waiting++
	acc.mu.Unlock()
	leave := func() { // under mu
		if t.waiting--; t.waiting == 0 {
			delete(acc.moving, p)
		}
	}
	select {
	case t.taken <- struct{}{}:
	case <-ctx.Done():
		acc.mu.Lock()
		defer acc.mu.Unlock()
		leave()
		return nil, nil, fault.New(fault.Timeout, "another change of the same object of project %s is in progress: %w", acc.project, context.Cause(ctx)).
			WithHint("Try again when it has ended.")
	}
	done = func() {
		acc.mu.Lock()
		defer acc.mu.Unlock()
		t.begun = false
		acc.unsettled.add(kind, -t.bytes, -t.objects)
		t.bytes, t.objects = 0, 0
		acc.moved("")
		acc.moved(kind)
		<-t.taken
		leave()
	}
	size, there, err := blob.SizeOf(ctx, p.on.Driver, p.key)
	if err != nil {
		done()
		return nil, nil, err
	}
	acc.mu.Lock()
	defer acc.mu.Unlock()
	t.begun, t.before, t.bytes, t.objects = true, Used{Kind: kind}, 0, 0
	if there {
		t.before.Bytes, t.before.Objects = size, 1
	}
	t.instead = Amount{t.before.Bytes, t.before.Objects}
	if c := acc.counting; c != nil && !c.passed(p) {
		c.takeOver(p, t)
	}
	return t, done, nil
}

// over is a quota that a write would pass.
type over struct {
	project, kind string // kind "" is all that the project stores
	most          Amount
	stored        Used // without the write
}

// refusal is the error of the write.
func (o *over) refusal() error {
	of, field := "", "spec.quota"
	if o.kind != "" {
		of, field = " for "+o.kind, "spec.quota.kinds."+o.kind
	}
	why := fmt.Sprintf("of %s%s, and stores %s", resource.Bytes(o.most.Bytes).Words(), of, resource.Bytes(o.stored.Bytes).Words())
	if o.most.Objects > 0 && (o.most.Bytes == 0 || o.stored.Objects >= o.most.Objects) {
		why = fmt.Sprintf("of %d objects%s, and stores %d", o.most.Objects, of, o.stored.Objects)
	}
	return share.Refused("stored_objects", fmt.Sprintf("project %s has a quota %s", o.project, why),
		fmt.Sprintf("Delete unused data, or ask an administrator to raise %s of the project. `falaj project usage %s` shows its storage.", field, o.project), 0).
		WithCause(fault.ErrFull)
}

type exemptKey struct{}

// Exempt marks what an erasure, a redaction or the relocation of a table writes: it counts,
// and no quota refuses it. An erasure deletes what it replaces only afterwards, and a server
// that cannot tell where its tables are does not start. Nothing else may be marked.
func Exempt(ctx context.Context) context.Context {
	return context.WithValue(ctx, exemptKey{}, true)
}

type replacingKey struct{}

// Replacing marks the write of an object that is stored instead of others of its project and
// kind, which the caller deletes once it is stored. It may be as large as they are, also at
// the quota. Of several writes at once one has that right. others is asked at the quota only.
func Replacing(ctx context.Context, others func(ctx context.Context) ([]blob.Key, error)) context.Context {
	return context.WithValue(ctx, replacingKey{}, others)
}

// Put implements blob.Driver. Errors: also fault.Exhausted with fault.ErrFull beyond the
// quota; nothing is stored then.
func (d *Driver) Put(ctx context.Context, key blob.Key, body io.Reader) error {
	project, kind, ok := owner(key)
	if !ok {
		return d.Driver.Put(ctx, key, body)
	}
	own, err := d.of.limit(ctx, project)
	if err != nil {
		return err
	}
	limit := own
	if exempt, _ := ctx.Value(exemptKey{}).(bool); exempt {
		limit = Limit{}
	}
	acc := d.of.account(ctx, project)
	acc.mu.Lock()
	acc.limit = own
	acc.mu.Unlock()
	if !limit.none() {
		if err := acc.counted(ctx); err != nil {
			return err
		}
	}
	at := place{d, key}
	t, done, err := acc.change(ctx, at, kind)
	if err != nil {
		return err
	}
	defer done()
	w := &write{ctx: ctx, acc: acc, turn: t, at: at, limit: limit}
	w.others, _ = ctx.Value(replacingKey{}).(func(context.Context) ([]blob.Key, error))
	if t.before.Objects == 0 {
		if err := w.add(0, 1); err != nil {
			acc.settled(at, false)
			return err
		}
	}
	err = d.Driver.Put(ctx, key, &counted{Reader: body, write: w})
	acc.settled(at, err == nil)
	if err != nil {
		acc.add(t, -t.bytes, -t.objects, Limit{})
		return err
	}
	acc.add(t, -t.before.Bytes, 0, Limit{})
	return nil
}

// write is one object that is written.
type write struct {
	ctx    context.Context //nolint:containedctx // of one Put
	acc    *account
	turn   *turn
	at     place
	limit  Limit
	others func(context.Context) ([]blob.Key, error) // which it replaces; nil: none, or they were claimed
}

// add counts what is written. Error: the refusal.
func (w *write) add(bytes, objects int64) error {
	over := w.acc.add(w.turn, bytes, objects, w.limit)
	if over != nil && w.others != nil {
		keys, err := w.others(w.ctx)
		if w.others = nil; err != nil {
			return err
		}
		if err := w.acc.claim(w.ctx, w.turn, w.at, keys); err != nil {
			return err
		}
		over = w.acc.add(w.turn, bytes, objects, w.limit)
	}
	if over == nil {
		return nil
	}
	w.acc.refused(over)
	return over.refusal()
}

// counted is a body whose bytes count while they are read.
type counted struct {
	io.Reader
	write *write
	err   error
}

func (c *counted) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.Reader.Read(p)
	if n > 0 {
		if c.err = c.write.add(int64(n), 0); c.err != nil {
			return 0, c.err
		}
	}
	return n, err
}

// Delete implements blob.Driver.
func (d *Driver) Delete(ctx context.Context, key blob.Key) error {
	project, kind, ok := owner(key)
	if !ok {
		return d.Driver.Delete(ctx, key)
	}
	acc := d.of.account(ctx, project)
	t, done, err := acc.change(ctx, place{d, key}, kind)
	if err != nil {
		return err
	}
	defer done()
	if err := d.Driver.Delete(ctx, key); err != nil {
		return err
	}
	acc.mu.Lock()
	acc.unclaim(place{d, key})
	acc.mu.Unlock()
	acc.add(t, -t.before.Bytes, -t.before.Objects, Limit{})
	return nil
}

// Written is when an object was put, as far as the driver knows. Errors: fault.NotFound;
// fault.Unsupported.
func (d *Driver) Written(ctx context.Context, key blob.Key) (time.Time, error) {
	return blob.Written(ctx, d.Driver, key)
}
