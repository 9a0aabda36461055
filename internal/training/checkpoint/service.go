package checkpoint

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/worker/settled"
)

// Authorizer is the question this package asks before it acts.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Blobs keeps chunks. It is *blob.Store.
type Blobs interface {
	Put(ctx context.Context, ref blob.Ref, body io.Reader, opts ...blob.Option) (blob.Info, error)
	Open(ctx context.Context, ref blob.Ref) (*blob.Reader, error)
	Stat(ctx context.Context, ref blob.Ref) (blob.Info, error)
	Delete(ctx context.Context, ref blob.Ref) error
	List(ctx context.Context, prefix blob.Key, yield func(blob.Key) error) error
}

var _ Blobs = (*blob.Store)(nil)

// Config is what the service needs.
type Config struct {
	DB         *store.DB
	Store      Store
	Authorizer Authorizer
	Journal    audit.Journal // reads of classified checkpoints
	Blobs      Blobs
	// Dir has one directory per job, named by its identifier.
	Dir string
	// Every is the time between two checks of the directories; 0 is one second.
	Every time.Duration
	// Settle is the settle time of jobs that say none; 0 is settled.Default, and a negative
	// one takes what has a final name at once.
	Settle time.Duration
	// ChunkSize is what is stored once; 0 is 4 MiB, the most.
	ChunkSize int64
	// MaxBytes bounds one checkpoint; 0 is 1 TiB.
	MaxBytes int64
	// Room refuses what the disk has no room for; nil refuses nothing.
	Room func(bytes, files int64) error
	// Saved is told, in the transaction, of the attempt that had saved what it did
	// by a time; nil is none.
	Saved func(ctx context.Context, tx *store.Tx, attempt string, at time.Time) error
	Log   *slog.Logger     // nil discards
	Now   func() time.Time // nil is time.Now
}

// Service keeps checkpoints. Safe for concurrent use.
type Service struct {
	cfg     Config
	log     *slog.Logger
	now     func() time.Time
	pins    *pins
	buffers *buffers
	zeros   sync.Once
	zero    string // digest of a chunk of zeros

	mu     sync.Mutex
	bad    map[string]bool          // keys of chunks that are to be stored anew
	jobs   map[string]chan struct{} // of jobs in progress; closed when done
	looked map[string]look          // by job/name: what came of it last
	rules  map[string]settled.Rules // of jobs whose directories were checked
	halted map[string]settled.End   // jobs of which no program runs: how the last one ended
	aside  map[string][]string      // what was set aside of a job, until its next attempt says so
	found  map[string]string        // by job/name: the state in which it is about to be taken
	queued map[string]bool          // jobs whose checkpoints are being taken, or wait for it
	// released jobs have ended, and their directories go.
	released map[string]bool
	cancel   context.CancelFunc
	wake     chan struct{} // of the loop; holds one

	seen settled.Seen // by job/name, and job/files/file

	takes   chan struct{} // one for each job whose checkpoints may be taken at a time
	running sync.WaitGroup
}

// New makes the service.
func New(cfg Config) *Service {
	if cfg.Every == 0 {
		cfg.Every = time.Second
	}
	if cfg.ChunkSize <= 0 || cfg.ChunkSize > chunkSize {
		cfg.ChunkSize = chunkSize
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 1 << 40
	}
	if cfg.Settle == 0 {
		cfg.Settle = settled.Default
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Service{
		cfg: cfg, log: cfg.Log, now: cfg.Now, pins: newPins(), buffers: newBuffers(), bad: map[string]bool{},
		rules: map[string]settled.Rules{}, halted: map[string]settled.End{}, aside: map[string][]string{}, found: map[string]string{}, jobs: map[string]chan struct{}{}, looked: map[string]look{}, queued: map[string]bool{}, released: map[string]bool{},
		wake: make(chan struct{}, 1), takes: make(chan struct{}, maxTakes),
	}
}

func (s *Service) dir(job string) string { return filepath.Join(s.cfg.Dir, job) }

// lock has the caller work on a job's directory alone until it calls the answer.
func (s *Service) lock(job string) (unlock func()) {
	for {
		s.mu.Lock()
		busy, taken := s.jobs[job]
		if !taken {
			mine := make(chan struct{})
			s.jobs[job] = mine
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.jobs, job)
				s.mu.Unlock()
				close(mine)
			}
		}
		s.mu.Unlock()
		<-busy
	}
}

func (s *Service) isBad(p project.Name, digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bad[string(Chunk{Digest: digest}.ref(p).Key)]
}

// both reads a job and its records.
func (s *Service) both(ctx context.Context, job string) (j Job, all []Record, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		if j, err = s.cfg.Store.Job(ctx, tx, job); err != nil {
			return err
		}
		all, err = s.cfg.Store.Checkpoints(ctx, tx, job)
		return err
	})
	return j, all, err
}

// allow asks for a job of the project; what the caller may not know of is
// fault.NotFound.
func (s *Service) allow(ctx context.Context, action policy.Action, p project.Name, j Job) error {
	return s.cfg.Authorizer.Allow(ctx, action, policy.Object{
		Project: string(p), Kind: "job", Name: j.ID, Owner: j.Owner, Classification: string(j.Classification), Residency: j.Residency,
	})
}

func (s *Service) permitted(ctx context.Context, action policy.Action, p project.Name, job string) (Job, []Record, error) {
	if err := s.allow(ctx, action, p, Job{}); err != nil {
		return Job{}, nil, err
	}
	j, all, err := s.both(ctx, job)
	if err == nil && j.Project != p {
		err = fault.New(fault.NotFound, "job %.64q not found", job)
	}
	if err != nil {
		return Job{}, nil, err
	}
	return j, all, s.allow(ctx, action, p, j)
}

// List gives the checkpoints of a job by number, each with why it is kept.
// Needs job.read. Error: fault.NotFound.
func (s *Service) List(ctx context.Context, p project.Name, job string) ([]Record, error) {
	j, all, err := s.permitted(ctx, ActionList, p, job)
	if err != nil {
		return nil, err
	}
	why := kept(all, j.Rules, j.Ended, s.now())
	for i := range all {
		all[i].Kept = why[all[i].ID]
	}
	return all, nil
}

// find gives a record by identifier, or the newest of a name.
func find(all []Record, name string) (Record, error) {
	i := slices.IndexFunc(all, func(r Record) bool { return r.ID == name })
	if i < 0 {
		i = lastNamed(all, name)
	}
	if i < 0 {
		return Record{}, fault.New(fault.NotFound, "checkpoint %.80q not found", name).
			WithHint("List checkpoints with `falaj job checkpoints`; only complete ones are kept.")
	}
	return all[i], nil
}

// Archive gives a checkpoint and a function that writes it as a tar stream;
// the stream is broken off at what is damaged. Needs checkpoint.read; a read of what
// is classified is in the journal. Error: fault.NotFound.
func (s *Service) Archive(ctx context.Context, p project.Name, job, name string) (Record, func(context.Context, io.Writer) error, error) {
	j, all, err := s.permitted(ctx, ActionRead, p, job)
	if err != nil {
		return Record{}, nil, err
	}
	r, err := find(all, name)
	if err != nil {
		return Record{}, nil, err
	}
	if err := s.note(ctx, j, r, "read a checkpoint"); err != nil {
		return Record{}, nil, err
	}
	return r, func(ctx context.Context, w io.Writer) error {
		m, release, err := s.manifest(ctx, r)
		defer release()
		if err != nil {
			return err
		}
		return s.archive(ctx, r, m, w)
	}, nil
}

func (s *Service) note(ctx context.Context, j Job, r Record, what string) error {
	return audit.RecordRead(ctx, s.cfg.Journal, string(j.Classification), audit.Entry{
		Project: string(j.Project), Action: string(ActionRead), Object: "job " + j.ID,
		Detail: map[string]any{"act": what, "checkpoint": r.ID, "name": r.Name},
	})
}

// Delete drops a checkpoint by name or identifier. Needs checkpoint.delete.
// Errors: fault.NotFound; fault.Conflict for the newest good one of a job that
// has not ended.
func (s *Service) Delete(ctx context.Context, p project.Name, job, name string) error {
	if _, _, err := s.permitted(ctx, ActionDelete, p, job); err != nil {
		return err
	}
	var digests []string
	err := s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		j, err := s.cfg.Store.Job(ctx, tx, job)
		if err != nil {
			return err
		}
		all, err := s.cfg.Store.Checkpoints(ctx, tx, job)
		if err != nil {
			return err
		}
		r, err := find(all, name)
		if err != nil {
			return err
		}
		newest := slices.ContainsFunc(first(good(all)), func(n Record) bool { return n.ID == r.ID })
		if j.Ended.IsZero() && newest {
			return fault.New(fault.Conflict, "checkpoint %s is in use: job %s resumes from it", r.Name, job).
				WithHint("Wait for the next one, or cancel the job.")
		}
		digests, err = s.drop(ctx, tx, r, "deleted by a user")
		return err
	})
	if err != nil {
		return err
	}
	return s.collect(ctx, p, digests)
}

// drop deletes a record in the caller's transaction and gives its chunks, which
// are to be collected.
func (s *Service) drop(ctx context.Context, tx *store.Tx, r Record, because string) ([]string, error) {
	m, err := s.cfg.Store.Manifest(ctx, tx, r.ID)
	if err != nil {
		return nil, err
	}
	if err := s.cfg.Store.DeleteCheckpoint(ctx, tx, r); err != nil {
		return nil, err
	}
	err = audit.Append(ctx, tx, audit.Entry{
		Project: string(r.Project), Action: string(ActionDelete), Object: "job " + r.Job, Reason: because,
		Detail: map[string]any{"checkpoint": r.ID, "name": r.Name, "digest": r.Digest},
	})
	if err != nil {
		return nil, err
	}
	digests := make([]string, len(m.Chunks))
	for i, c := range m.Chunks {
		digests[i] = c.Digest
	}
	slices.Sort(digests)
	return slices.Compact(digests), event.Publish(ctx, tx, string(r.Project), Dropped, r)
}

// Resolve finds what a job is to go on from: "job_…" for its newest good
// checkpoint, or where there is none the newest that may be half written, or "job_…/name". Needs checkpoint.read of that job; a read of what is
// classified is in the journal. Errors: fault.NotFound; fault.Conflict for a
// damaged one.
func (s *Service) Resolve(ctx context.Context, p project.Name, ref string) (Record, error) {
	job, name, named := strings.Cut(ref, "/")
	if named && name == "" {
		return Record{}, fault.New(fault.Invalid, "%.200q is not a checkpoint reference such as job_…/step-100", ref)
	}
	j, all, err := s.permitted(ctx, ActionRead, p, job)
	if err != nil {
		return Record{}, err
	}
	if left := first(good(all)); !named && len(left) > 0 {
		if len(left) > 1 {
			left[0].with = left[1].ID
		}
		return left[0], s.note(ctx, j, left[0], "resume from a checkpoint")
	}
	if i := len(all) - 1; !named && i >= 0 && all[i].Damaged == "" {
		return all[i], s.note(ctx, j, all[i], "resume from a checkpoint")
	}
	if !named {
		return Record{}, fault.New(fault.NotFound, "job %s has no checkpoint", job)
	}
	r, err := find(all, name)
	if err != nil {
		return Record{}, err
	}
	if r.Damaged != "" {
		return Record{}, fault.New(fault.Conflict, "checkpoint %s is damaged: %s", ref, r.Damaged).WithHint("Name another checkpoint of the job.")
	}
	return r, s.note(ctx, j, r, "resume from a checkpoint")
}

// Adopt gives a resolved checkpoint to a new job, in the transaction that makes
// it: its first attempt finds it in its directory. Error: fault.Conflict when
// the checkpoint went meanwhile.
func (s *Service) Adopt(ctx context.Context, tx *store.Tx, r Record, to Job) error {
	if r.with != "" {
		if err := s.adopt(ctx, tx, Record{ID: r.with, Job: r.Job}, to, 1); err != nil {
			return err
		}
		return s.adopt(ctx, tx, r, to, 2)
	}
	return s.adopt(ctx, tx, r, to, 1)
}

func (s *Service) adopt(ctx context.Context, tx *store.Tx, r Record, to Job, number int) error {
	now, err := s.cfg.Store.Checkpoint(ctx, tx, r.ID)
	if fault.Is(err, fault.NotFound) {
		return fault.New(fault.Conflict, "checkpoint %s of job %s has expired", r.Name, r.Job).WithHint("Name another checkpoint.")
	}
	if err != nil {
		return err
	}
	m, err := s.cfg.Store.Manifest(ctx, tx, r.ID)
	if err != nil {
		return err
	}
	// Writing the old record makes its deletion at the same time a conflict.
	if err := s.cfg.Store.UpdateCheckpoint(ctx, tx, now); err != nil {
		return err
	}
	mine := now
	mine.ID, mine.Job, mine.Attempt, mine.Number, mine.Stored = id.New("ckp"), to.ID, "", number, 0
	mine.From, mine.Residency, mine.Classification = fmt.Sprintf("%s/%s", now.Job, now.Name), to.Residency, to.Classification
	mine.TakenAt, mine.Revision = s.now().UTC(), 1
	if now.Incomplete != "" { // somebody wants it all the same
		mine.Note, mine.Incomplete = strings.TrimPrefix(now.Note+"; "+now.Incomplete, "; "), ""
	}
	if err := s.cfg.Store.InsertCheckpoint(ctx, tx, mine, m); err != nil {
		return err
	}
	err = audit.Append(ctx, tx, audit.Entry{
		Project: string(mine.Project), Action: "checkpoint.take", Object: "job " + mine.Job,
		Detail: map[string]any{"checkpoint": mine.ID, "name": mine.Name, "digest": mine.Digest, "from": mine.From},
	})
	if err != nil {
		return err
	}
	return event.Publish(ctx, tx, string(mine.Project), Taken, mine)
}

// buffers bound the memory of all chunks under way.
type buffers struct {
	free chan struct{}
	pool sync.Pool
}

func newBuffers() *buffers {
	b := &buffers{free: make(chan struct{}, buffered)}
	b.pool.New = func() any { buf := make([]byte, chunkSize); return &buf }
	return b
}

func (b *buffers) take(ctx context.Context) ([]byte, error) {
	select {
	case b.free <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	buf, _ := b.pool.Get().(*[]byte)
	return *buf, nil
}

func (b *buffers) give(buf []byte) {
	b.pool.Put(&buf)
	<-b.free
}

// KeptBy lists the checkpoints of a job that are kept. It asks no permission.
func (s *Service) KeptBy(ctx context.Context, tx *store.Tx, job string) ([]Record, error) {
	return s.cfg.Store.Checkpoints(ctx, tx, job)
}
