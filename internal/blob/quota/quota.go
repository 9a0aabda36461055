// Package quota counts what each project stores, and refuses what is beyond its quota.
//
// # Map
//
//   - Accounts has what every project stores, by kind; Over puts it over a driver.
//   - Limit is a project's quota, which the caller looks up for each object.
//
// # Guarantees
//
// An object counts with its stored bytes from when they are written until it is deleted, in
// the project that its key names ("projects/P/KIND/…"); what fails counts nothing. Two objects
// that are written at once share what is left: the sum is never beyond the quota. Objects
// are counted when a project is first asked for; from then on each change is counted
// by itself. So a process that was killed has lost nothing: the next one counts anew.
//
// # What the caller owes
//
// Every change of the store goes through the driver that Over gives. What other programs, and
// other servers of the installation, change in the store is counted within an hour.
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
}

// Used is what is stored.
type Used struct {
	Kind    string // third part of the keys, such as "artifacts"
	Bytes   int64
	Objects int64
}

// Accounts are those of all projects. Safe for concurrent use.
type Accounts struct {
	limit func(ctx context.Context, project string) (Limit, error)

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
	loading sync.Mutex // held while the store is counted
	loaded  time.Time  // when that began; zero: never. Under loading

	mu     sync.Mutex
	active int // operations under way
	kinds  map[string]*Used
	sum    Used
	moving map[place]*turn // objects that are changed
}

// place is an object: a driver and a key.
type place struct {
	on  *Driver
	key blob.Key
}

// turn is for who changes one object: one at a time.
type turn struct {
	sync.Mutex
	waiting int
}

// Driver counts what goes through it. It implements blob.Driver.
type Driver struct {
	blob.Driver
	of *Accounts
}

var _ blob.Driver = (*Driver)(nil)

// Over puts the accounts over a driver. Call it for all drivers before one is used.
func (a *Accounts) Over(d blob.Driver) *Driver {
	a.mu.Lock()
	defer a.mu.Unlock()
	over := &Driver{Driver: d, of: a}
	a.drivers = append(a.drivers, over)
	return over
}

// fresh is how long a count is believed, if nothing is under way then.
const fresh = time.Hour

// Used is what a project stores, by kind in alphabetical order, and their sum. It counts the
// store the first time.
func (a *Accounts) Used(ctx context.Context, project string) (sum Used, kinds []Used, err error) {
	acc, err := a.account(ctx, project)
	if err != nil {
		return Used{}, nil, err
	}
	defer acc.leave()
	sum, kinds = acc.used()
	return sum, kinds, nil
}

// Each gives what each project stores that was counted already, by name.
func (a *Accounts) Each(yield func(project string, kinds []Used)) {
	a.mu.Lock()
	counted := maps.Clone(a.all)
	a.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(counted)) {
		if _, kinds := counted[name].used(); len(kinds) > 0 {
			yield(name, kinds)
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

// account is that of a project, counted. Nothing of the project changes before it is. Call
// leave when the operation has ended.
func (a *Accounts) account(ctx context.Context, project string) (*account, error) {
	a.mu.Lock()
	acc, drivers := a.all[project], a.drivers
	if acc == nil {
		acc = &account{kinds: map[string]*Used{}, moving: map[place]*turn{}}
		a.all[project] = acc
	}
	a.mu.Unlock()
	acc.loading.Lock()
	defer acc.loading.Unlock()
	acc.mu.Lock()
	known := !acc.loaded.IsZero() && (acc.active > 0 || time.Since(acc.loaded) < fresh)
	if known {
		acc.active++
	}
	acc.mu.Unlock()
	if known {
		return acc, nil
	}
	began, found := time.Now(), map[string]*Used{}
	for _, d := range drivers {
		err := blob.Sizes(ctx, d.Driver, blob.Key("projects/"+project+"/"), func(key blob.Key, size int64) error {
			_, kind, _ := owner(key)
			u := found[kind]
			if u == nil {
				u = &Used{Kind: kind}
				found[kind] = u
			}
			u.Bytes += size
			u.Objects++
			return nil
		})
		if err != nil {
			return nil, fault.Wrap(err, "count what project %s stores", project)
		}
	}
	acc.mu.Lock()
	defer acc.mu.Unlock()
	acc.kinds, acc.sum = found, Used{}
	for _, u := range found {
		acc.sum.Bytes += u.Bytes
		acc.sum.Objects += u.Objects
	}
	acc.loaded = began
	acc.active++
	return acc, nil
}

func (acc *account) leave() {
	acc.mu.Lock()
	defer acc.mu.Unlock()
	acc.active--
}

// owner is the project and the kind of a key; ok is false for a key of no project.
func owner(key blob.Key) (project, kind string, ok bool) {
	rest, ok := strings.CutPrefix(string(key), "projects/")
	project, rest, found := strings.Cut(rest, "/")
	kind, _, deeper := strings.Cut(rest, "/")
	return project, kind, ok && found && deeper && project != ""
}

// add counts; over says that the quota would be passed, and nothing was counted then.
func (acc *account) add(kind string, bytes, objects int64, l Limit) (over bool) {
	acc.mu.Lock()
	defer acc.mu.Unlock()
	if bytes > 0 && l.Bytes > 0 && acc.sum.Bytes+bytes > l.Bytes || objects > 0 && l.Objects > 0 && acc.sum.Objects+objects > l.Objects {
		return true
	}
	u := acc.kinds[kind]
	if u == nil {
		u = &Used{Kind: kind}
		acc.kinds[kind] = u
	}
	u.Bytes += bytes
	u.Objects += objects
	acc.sum.Bytes += bytes
	acc.sum.Objects += objects
	return false
}

// take waits until nobody else changes the object.
func (acc *account) take(p place) (done func()) {
	acc.mu.Lock()
	t := acc.moving[p]
	if t == nil {
		t = &turn{}
		acc.moving[p] = t
	}
	t.waiting++
	acc.mu.Unlock()
	t.Lock()
	return func() {
		t.Unlock()
		acc.mu.Lock()
		defer acc.mu.Unlock()
		if t.waiting--; t.waiting == 0 {
			delete(acc.moving, p)
		}
	}
}

// full is the refusal.
func full(project string, l Limit, acc *account) error {
	sum, _ := acc.used()
	why := "of " + resource.Bytes(l.Bytes).Words() + ", and stores " + resource.Bytes(sum.Bytes).Words()
	if l.Objects > 0 && (l.Bytes == 0 || sum.Objects >= l.Objects) {
		why = fmt.Sprintf("of %d objects, and stores %d", l.Objects, sum.Objects)
	}
	return share.Refused("stored_objects", fmt.Sprintf("project %s has a quota %s", project, why),
		fmt.Sprintf("Delete what is no longer needed, or have spec.quota of the project raised. `falaj project usage %s` shows what it stores.", project), 0).
		WithCause(fault.ErrFull)
}

// Put implements blob.Driver. Errors: also fault.Exhausted with fault.ErrFull beyond the
// quota; nothing is stored then.
func (d *Driver) Put(ctx context.Context, key blob.Key, body io.Reader) error {
	project, kind, ok := owner(key)
	if !ok {
		return d.Driver.Put(ctx, key, body)
	}
	limit, err := d.of.limit(ctx, project)
	if err != nil {
		return err
	}
	acc, err := d.of.account(ctx, project)
	if err != nil {
		return err
	}
	defer acc.leave()
	defer acc.take(place{d, key})()
	before, there, err := blob.SizeOf(ctx, d.Driver, key)
	if err != nil {
		return err
	}
	own := limit
	if there && own.Bytes > 0 {
		own.Bytes += before // it is replaced
	}
	counted := &counted{Reader: body, acc: acc, kind: kind, limit: own, full: func() error { return full(project, limit, acc) }}
	if !there {
		if acc.add(kind, 0, 1, own) {
			return counted.full()
		}
		counted.objects = 1
	}
	if err := d.Driver.Put(ctx, key, counted); err != nil {
		acc.add(kind, -counted.bytes, -counted.objects, Limit{})
		return err
	}
	acc.add(kind, -before, 0, Limit{})
	return nil
}

// counted is a body whose bytes count while they are read.
type counted struct {
	io.Reader
	acc            *account
	kind           string
	limit          Limit
	full           func() error
	bytes, objects int64
	err            error
}

func (c *counted) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.Reader.Read(p)
	if n > 0 {
		if c.acc.add(c.kind, int64(n), 0, c.limit) {
			c.err = c.full()
			return 0, c.err
		}
		c.bytes += int64(n)
	}
	return n, err
}

// Delete implements blob.Driver.
func (d *Driver) Delete(ctx context.Context, key blob.Key) error {
	project, kind, ok := owner(key)
	if !ok {
		return d.Driver.Delete(ctx, key)
	}
	acc, err := d.of.account(ctx, project)
	if err != nil {
		return err
	}
	defer acc.leave()
	defer acc.take(place{d, key})()
	size, there, err := blob.SizeOf(ctx, d.Driver, key)
	if err != nil {
		return err
	}
	if err := d.Driver.Delete(ctx, key); err != nil || !there {
		return err
	}
	acc.add(kind, -size, -1, Limit{})
	return nil
}

// Written is when an object was put, as far as the driver knows. Errors: fault.NotFound;
// fault.Unsupported.
func (d *Driver) Written(ctx context.Context, key blob.Key) (time.Time, error) {
	return blob.Written(ctx, d.Driver, key)
}
