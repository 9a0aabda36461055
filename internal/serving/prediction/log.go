package prediction

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/lifecycle"
)

// Keys gives derived keys; the ring of governance/keys does. Error: fault.Gone
// for a destroyed key.
type Keys interface {
	DataKey(ctx context.Context, project, owner, use string) ([]byte, error)
}

// Config is what a Log is made of.
type Config struct {
	Dir  string
	Keys Keys
	// Retention is how long records are kept after they were received: 90 days
	// when 0, for ever when negative. A replay of old times is not old.
	Retention time.Duration
	// MaxBytes bounds the whole log; the oldest segments go first. 10 GiB when 0.
	MaxBytes int64
	// Erased are those who were erased from a project: what their rows say is not
	// logged. It is asked when a deployment is first used, and each second. nil is nobody.
	Erased func(ctx context.Context, project string) ([]Person, error)
	Now    func() time.Time // time.Now when nil
	Logger *slog.Logger     // slog.Default() when nil
}

const (
	defaultRetention = 90 * 24 * time.Hour
	defaultMaxBytes  = 10 << 30
	syncEvery        = time.Second      // what a loss of power may take
	trimEvery        = 10 * time.Minute // between looks for what is too old
	keyAge           = time.Second      // how long a destroyed key may still work
	keyTimeout       = 10 * time.Second
)

// Log keeps the records of all deployments. Safe for concurrent use by one
// process, which owns the directory; Close it.
type Log struct {
	cfg  Config
	loop *lifecycle.Loop

	mu      sync.RWMutex
	journal map[Place]*journal
	closed  bool
	trimmed time.Time
	// Of journals that left.
	lost, appended int64

	// dirs is held while a deployment's directory is made, and while that of a project
	// without deployments is removed.
	dirs sync.Mutex
}

// Open opens the log in a directory, which it makes. What a crash cut short is
// mended when the deployment is first used.
func Open(cfg Config) (*Log, error) {
	if cfg.Retention == 0 {
		cfg.Retention = defaultRetention
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = defaultMaxBytes
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fault.Wrap(err, "open the prediction log")
	}
	l := &Log{cfg: cfg, journal: map[Place]*journal{}}
	l.loop = &lifecycle.Loop{Name: "prediction log", Every: syncEvery, Run: l.RunOnce, Logger: cfg.Logger}
	return l, nil
}

// Service syncs, seals and trims in the background.
func (l *Log) Service() lifecycle.Service { return l.loop.Service() }

// RunOnce brings to disk what was appended, seals what is full or old, and every
// ten minutes removes what is too old.
func (l *Log) RunOnce(ctx context.Context) error {
	var errs []error
	for _, j := range l.open() {
		errs = append(errs, j.sync(false), j.knowErased(ctx))
	}
	now := l.cfg.Now()
	l.mu.Lock()
	due := now.Sub(l.trimmed) >= trimEvery
	if due {
		l.trimmed = now
	}
	l.mu.Unlock()
	if due {
		errs = append(errs, l.Retain(ctx))
		l.leaveEmpty()
	}
	return errors.Join(errs...)
}

// Close seals what is being written. Append fails afterwards. It may be called
// twice.
func (l *Log) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	var errs []error
	for _, j := range l.open() {
		errs = append(errs, j.sync(true))
	}
	return errors.Join(errs...)
}

// open lists the journals that are in use.
func (l *Log) open() []*journal {
	l.mu.RLock()
	defer l.mu.RUnlock()
	all := make([]*journal, 0, len(l.journal))
	for _, j := range l.journal {
		all = append(all, j)
	}
	return all
}

// of is the journal of a deployment.
func (l *Log) of(p Place) (*journal, error) {
	l.mu.RLock()
	j := l.journal[p]
	closed := l.closed
	l.mu.RUnlock()
	if closed {
		return nil, fault.New(fault.Unavailable, "the prediction log is closed")
	}
	if j != nil {
		return j, nil
	}
	if err := errors.Join(id.CheckName("project", p.Project), id.CheckMixedName("deployment name", p.Deployment)); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if j = l.journal[p]; j == nil {
		j = &journal{log: l, place: p, dir: filepath.Join(l.cfg.Dir, p.Project, id.FileName(p.Deployment))}
		l.journal[p] = j
	}
	return j, nil
}

// Append records an answer; see the package's guarantees. The record is not used
// afterwards. Errors: fault.Exhausted when the disk is full; fault.Gone when the
// project's key was destroyed; fault.TooLarge; fault.Invalid. A record that could
// not be appended is counted in Stats.
func (l *Log) Append(ctx context.Context, r *Record) error {
	for {
		j, err := l.of(Place{r.Project, r.Deployment})
		if err != nil {
			return err
		}
		if err := j.append(ctx, r); !errors.Is(err, errDropped) {
			return err
		}
	}
}

// Places lists the deployments that have records, by project and name.
func (l *Log) Places() ([]Place, error) {
	var out []Place
	projects, err := os.ReadDir(l.cfg.Dir)
	if err != nil {
		return nil, err
	}
	for _, p := range projects {
		names, err := os.ReadDir(filepath.Join(l.cfg.Dir, p.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, n := range names {
			if name, ok := id.FromFileName(n.Name()); ok && n.IsDir() {
				out = append(out, Place{Project: p.Name(), Deployment: name})
			}
		}
	}
	return out, nil
}

// Place is a deployment that has records.
type Place struct{ Project, Deployment string }

// Stats is what the log holds of a deployment.
type Stats struct {
	Records  int64     `json:"records"`
	Bytes    int64     `json:"bytes"`
	Segments int       `json:"segments"`
	From     time.Time `json:"from,omitzero"` // the earliest At
	To       time.Time `json:"to,omitzero"`   // the latest At
	// Lost counts the records that could not be appended since the server started,
	// and Trouble says why the last one could not.
	Lost    int64  `json:"lost"`
	Trouble string `json:"trouble,omitempty"`
	// Damaged counts segments of which a part cannot be read.
	Damaged int `json:"damaged,omitempty"`
}

// Stats is what the log holds of a deployment. Error: fault.Gone.
func (l *Log) Stats(ctx context.Context, project, deployment string) (Stats, error) {
	j, err := l.of(Place{project, deployment})
	if err != nil {
		return Stats{}, err
	}
	if _, err := j.load(ctx); err != nil {
		return Stats{}, err
	}
	return j.stats(), nil
}

// Lost counts the records that could not be appended since the server started,
// for metrics.
func (l *Log) Lost() (n int64) {
	l.mu.RLock()
	n = l.lost
	l.mu.RUnlock()
	for _, j := range l.open() {
		n += j.lost.Load()
	}
	return n
}

// Appended counts the records appended since the server started, for metrics.
func (l *Log) Appended() (n int64) {
	l.mu.RLock()
	n = l.appended
	l.mu.RUnlock()
	for _, j := range l.open() {
		n += j.appended.Load()
	}
	return n
}

// list reads the segments of a directory in order; those whose header was never
// written are removed.
func (j *journal) list(key []byte) ([]*segment, error) {
	entries, err := os.ReadDir(j.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []*segment
	for _, e := range entries {
		number, ok := parseSegmentName(e.Name())
		if !ok {
			continue
		}
		path := filepath.Join(j.dir, e.Name())
		sg, sealed, err := look(path, number, key, j.bound())
		if err != nil {
			return nil, fault.Wrap(err, "inspect segment %s of the prediction log", e.Name())
		}
		if !sealed {
			if sg.span.records == 0 {
				if err := setAside(path); err != nil {
					return nil, err
				}
				continue
			}
			if err := finish(&sg, key, j.bound()); err != nil { // it is read all the same, and mended after another start
				j.log.cfg.Logger.Warn("sealing a segment of the prediction log failed", slog.String("file", path), slog.Any("error", err))
			}
		}
		out = append(out, &sg)
	}
	slices.SortFunc(out, func(a, b *segment) int {
		if a.number < b.number {
			return -1
		}
		return 1
	})
	return out, nil
}

// setAside takes a segment without a whole frame out of the way. One that has
// bytes is kept under another name: they may be torn, or of another key, which
// somebody may find again. They go with the deployment.
func setAside(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() <= headerSize {
		return os.Remove(path)
	}
	return os.Rename(path, path+".torn")
}
