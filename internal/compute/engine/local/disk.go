package local

import (
	"cmp"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
)

// What workloads keep on disk is bounded twice. Each shim ends a workload that keeps
// more than its own limits (package shim). The limits of several workloads may add up to
// more than there is: when the disk runs low all the same, the driver evicts the
// workload that has grown most since there was enough.

// Kinds of what a workload keeps on disk.
const (
	kindScratch     = "scratch"
	kindOutput      = "output"
	kindCheckpoints = "checkpoints"
	kindOther       = "other" // tables, and what a build makes
)

// Disk is what workloads may keep on disk. Zero fields are the defaults in brackets.
type Disk struct {
	Default engine.Disk // of a workload that asks for nothing [100 GiB scratch, 64 GiB output, 1 TiB checkpoints, a million files]
	Most    engine.Disk // of a workload, whatever it asks [no limit]
	// Project is what the running workloads of a project keep together [no limit].
	Project Room
	// Reserve is what is left to the server: below it workloads are evicted [64 MiB and 1,000 files].
	Reserve Room
}

// Room is space for bytes and for files.
type Room = shim.Use

func (d *Disk) setDefaults() {
	d.Default = merge(d.Default, engine.Disk{Scratch: 100 * resource.GiB, Output: 64 * resource.GiB, Checkpoints: 1024 * resource.GiB, Files: 1_000_000})
	d.Reserve.Bytes = cmp.Or(d.Reserve.Bytes, 64*resource.MiB)
	d.Reserve.Files = cmp.Or(d.Reserve.Files, 1000)
}

// merge fills what a lacks from b.
func merge(a, b engine.Disk) engine.Disk {
	return engine.Disk{
		Scratch: cmp.Or(a.Scratch, b.Scratch), Output: cmp.Or(a.Output, b.Output),
		Checkpoints: cmp.Or(a.Checkpoints, b.Checkpoints), Files: cmp.Or(a.Files, b.Files),
	}
}

// lowered lowers a to what most says; zero fields of most lower nothing.
func lowered(a, most engine.Disk) engine.Disk {
	least := func(x, y resource.Bytes) resource.Bytes {
		if y > 0 {
			return min(x, y)
		}
		return x
	}
	return engine.Disk{
		Scratch: least(a.Scratch, most.Scratch), Output: least(a.Output, most.Output), Checkpoints: least(a.Checkpoints, most.Checkpoints),
		Files: int64(least(resource.Bytes(a.Files), resource.Bytes(most.Files))),
	}
}

// diskShare of what is free beside the reserve is the most that one workload gets, so that
// none alone can use up the disk.
const (
	diskShare   = 3
	diskShareOf = 4
)

// disk is what a workload may keep where.
func (d *Driver) disk(spec engine.Spec) shim.Disk {
	var out shim.Disk
	for _, m := range spec.Mounts {
		if !m.Writable || m.Role == engine.Shared {
			continue
		}
		p := shim.Tree{Dir: m.Path}
		switch {
		case m.Role == engine.Scratch, m.Path == spec.Dir:
			p.Kind, p.Drop = kindScratch, true
		case m.Role == engine.Output:
			p.Kind = kindOutput
		case m.Role == engine.Checkpoints:
			p.Kind = kindCheckpoints
		default:
			p.Kind, p.Others = kindOther, true
		}
		out.Trees = append(out.Trees, p)
	}
	if len(out.Trees) == 0 {
		return out
	}
	if supervised(spec) {
		out.Trees = append(out.Trees, shim.Tree{Dir: filepath.Join(d.c.Dir, spec.ID, gangDir), Kind: kindScratch})
	}
	// The first place says on which file system the rest is.
	slices.SortStableFunc(out.Trees, func(a, b shim.Tree) int { return cmp.Compare(order(a.Kind), order(b.Kind)) })
	want := lowered(merge(spec.Disk, d.c.Disk.Default), d.c.Disk.Most)
	all := shim.Limit{Bytes: want.Scratch + want.Output + want.Checkpoints, Files: want.Files}
	if free, ok := freeOn(out.Trees[0].Dir); ok {
		bytes := max(free.Bytes-d.c.Disk.Reserve.Bytes, 0) / diskShareOf * diskShare
		files := max(free.Files-d.c.Disk.Reserve.Files, 0) / diskShareOf * diskShare
		if bytes < all.Bytes || files < all.Files {
			all.Why = fmt.Sprintf("when it started, %s and %d files were free on the server's disk, and it gets %d/%d of the free space beside the reserve",
				mebibytes(free.Bytes), free.Files, diskShare, diskShareOf)
		}
		all.Bytes, all.Files = max(min(all.Bytes, bytes), leastDisk), max(min(all.Files, files), leastFiles)
	}
	out.Limits = []shim.Limit{
		{Kind: kindScratch, Bytes: want.Scratch}, {Kind: kindOutput, Bytes: want.Output}, {Kind: kindCheckpoints, Bytes: want.Checkpoints}, all,
	}
	return out
}

// mebibytes leaves out the digits that no reader needs.
func mebibytes(b resource.Bytes) resource.Bytes { return b / resource.MiB * resource.MiB }

// The least that a workload may keep, so that one can start on a disk that is nearly
// full and say so itself.
const (
	leastDisk  = 4 * resource.MiB
	leastFiles = 200
)

func order(kind string) int {
	return slices.Index([]string{kindScratch, kindOutput, kindCheckpoints, kindOther}, kind)
}

// freeOn is what a file system has left.
func freeOn(dir string) (shim.Use, bool) {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return shim.Use{}, false
	}
	u := shim.Use{Bytes: resource.Bytes(int64(s.Bavail) * s.Bsize), Files: int64(s.Ffree)} //nolint:gosec // A disk's blocks fit.
	if s.Files == 0 {
		u.Files = 1 << 62 // it makes inodes as they are needed
	}
	return u, true
}

// fileSize is the largest file that a workload may make, in bytes: as large as what it may
// keep, or as a file in its memory.
func fileSize(d shim.Disk, memory resource.Bytes) resource.Bytes {
	if len(d.Limits) == 0 {
		return 0
	}
	return max(d.Limits[len(d.Limits)-1].Bytes, memory)
}

// pressureEvery is how often the driver asks how much is free.
const pressureEvery = 500 * time.Millisecond

// settleTime is how long the driver waits for an eviction to give room before it evicts
// another workload, and how often it notes what each keeps while there is enough.
const settleTime = 3 * time.Second

// pressure is what the driver knows of the disk.
type pressure struct {
	relaxed map[engine.Handle]shim.Use // what each kept while there was enough
	noted   time.Time
	evicted time.Time
	checked time.Time
}

// watchPressure evicts workloads while the disk, or process numbers, are low, until the driver
// is closed.
func (d *Driver) watchPressure() {
	p := &pressure{relaxed: map[engine.Handle]shim.Use{}}
	tick := time.NewTicker(pressureEvery)
	defer tick.Stop()
	for {
		select {
		case <-d.stopped:
			return
		case now := <-tick.C:
			d.relieve(p, now)
			d.relieveTasks()
		}
	}
}

// relieve is one look at the disk.
func (d *Driver) relieve(p *pressure, now time.Time) {
	free, ok := freeOn(d.c.Dir)
	if !ok {
		return
	}
	r := d.c.Disk.Reserve
	low := free.Bytes < r.Bytes+r.Bytes/2 || free.Files < r.Files+r.Files/2
	if !low {
		if now.Sub(p.noted) >= settleTime {
			p.noted = now
			d.note(p)
		}
		if now.Sub(p.checked) >= settleTime {
			p.checked = now
			d.boundProjects()
		}
		return
	}
	if now.Sub(p.evicted) < settleTime {
		return
	}
	what := fmt.Sprintf("the server's disk had %s and %d files left", mebibytes(free.Bytes), free.Files)
	if w, use, grown := d.grown(p, free.Bytes < r.Bytes+r.Bytes/2); w != nil {
		p.evicted = now
		d.evict(w, shim.OutOfDisk, fmt.Sprintf("%s, and it had grown most since there was enough: by %s and %d files to %s and %d files", what,
			mebibytes(grown.Bytes), grown.Files, mebibytes(use.Bytes), use.Files))
	}
}

// note remembers what each workload keeps, as its shim last measured.
func (d *Driver) note(p *pressure) {
	relaxed := map[engine.Handle]shim.Use{}
	for _, w := range d.running() {
		relaxed[w.handle] = w.recorded()
	}
	p.relaxed = relaxed
}

func (d *Driver) running() []*workload {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.notOver()
}

// recorded is what a workload's shim last measured.
func (w *workload) recorded() shim.Use {
	st, err := shim.Read[shim.Status](w.dir, shim.StatusFile)
	if err != nil {
		return shim.Use{}
	}
	return shim.Total(st.Disk)
}

// grown finds the workload that has grown most since the disk had room, first by project:
// a project with many small workloads is one tenant. What has hardly grown
// is not the reason.
func (d *Driver) grown(p *pressure, byBytes bool) (most *workload, use, by shim.Use) {
	type growth struct {
		*workload
		use, by shim.Use
	}
	size := func(u shim.Use) int64 {
		if byBytes {
			return int64(u.Bytes)
		}
		return u.Files
	}
	projects := map[string]int64{}
	var all []growth
	for _, w := range d.running() {
		used, _ := shim.Disk{Trees: w.disk.Trees}.Measure(nil)
		g := growth{workload: w, use: shim.Total(used)}
		before := p.relaxed[w.handle]
		g.by = shim.Use{Bytes: max(g.use.Bytes-before.Bytes, 0), Files: max(g.use.Files-before.Files, 0)}
		projects[w.extras.Project] += size(g.by)
		all = append(all, g)
	}
	least := int64(resource.MiB)
	if !byBytes {
		least = 100
	}
	var best growth
	for _, g := range all {
		if size(g.by) < least {
			continue
		}
		if best.workload == nil || cmp.Or(cmp.Compare(projects[g.extras.Project], projects[best.extras.Project]), cmp.Compare(size(g.by), size(best.by))) > 0 {
			best = g
		}
	}
	return best.workload, best.use, best.by
}

// boundProjects evicts the largest workload of each project that exceeds its disk limit.
func (d *Driver) boundProjects() {
	most := d.c.Disk.Project
	if most == (Room{}) {
		return
	}
	sums, largest, uses := map[string]shim.Use{}, map[string]*workload{}, map[*workload]shim.Use{}
	for _, w := range d.running() {
		u := w.recorded()
		uses[w] = u
		sums[w.extras.Project] = sums[w.extras.Project].Plus(u)
		if l := largest[w.extras.Project]; l == nil || u.Bytes > uses[l].Bytes {
			largest[w.extras.Project] = w
		}
	}
	for name, sum := range sums {
		if most.Bytes > 0 && sum.Bytes > most.Bytes || most.Files > 0 && sum.Files > most.Files {
			d.evict(largest[name], shim.OutOfDisk, fmt.Sprintf("the running jobs of project %s kept %s and %d files on disk, and their limit is %s and %d; it used the most",
				name, mebibytes(sum.Bytes), sum.Files, mebibytes(most.Bytes), most.Files))
		}
	}
}

// evict ends a workload because of its use of the disk, or of process numbers.
func (d *Driver) evict(w *workload, reason shim.Reason, why string) {
	st, err := shim.Read[shim.Status](w.dir, shim.StatusFile)
	if err != nil {
		return
	}
	d.c.Log.Warn("a workload is evicted", slog.String("id", w.id), slog.String("why", why))
	if err := shim.Write(w.dir, shim.StopFile, shim.Stop{Reason: reason, Message: why}); err != nil {
		d.c.Log.Warn("the order to evict a workload cannot be recorded", slog.String("id", w.id), slog.Any("err", err))
	}
	_ = w.signal(st.Shim, syscall.SIGTERM)
}

// diskUse sets a workload's disk usage.
func (w *workload) diskUse(u *engine.Usage) {
	sum := w.recorded()
	u.Disk, u.Files = sum.Bytes, sum.Files
	if n := len(w.disk.Limits); n > 0 {
		u.DiskLimit, u.FilesLimit = w.disk.Limits[n-1].Bytes, w.disk.Limits[n-1].Files
	}
}
