package replica

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/store"
)

// remoteReplica is a replica on a machine of another pool.
type remoteReplica struct {
	*reservation

	pool  string
	zone  residency.Zone
	cores int
	link  func(ctx context.Context, conn net.Conn, model []byte, o runtime.Options, cores int) (Session, error)
	end   func() // ends the workload

	conn    chan net.Conn // the replica's, once; sent to under mu
	mu      sync.Mutex
	claimed bool
	left    bool          // nobody waits for conn any more
	began   chan struct{} // closed when the engine was told to start it
	start   sync.Once
}

var _ serving.RemoteReplica = (*remoteReplica)(nil)

func newRemoteReplica() *remoteReplica {
	return &remoteReplica{conn: make(chan net.Conn, 1), began: make(chan struct{})}
}

// Bounds of a replica elsewhere.
const (
	joinTime  = 15 * time.Minute    // to be started by its engine, to fetch what it needs, and to call
	tokenLife = 30 * 24 * time.Hour // then it is replaced
)

// await waits until the replica has called.
func (p *Reservations) await(ctx context.Context, r serving.ReplicaRequest, wid compute.WorkloadID, pl *reservation, waits func(string)) (serving.Reservation, error) {
	t := pl.remote
	t.reservation, t.cores, t.link = pl, r.Threads, p.Link
	t.end = sync.OnceFunc(func() { p.withdraw(context.WithoutCancel(ctx), r.Project, wid) })
	look := time.NewTicker(whyEvery)
	defer look.Stop()
	var late <-chan time.Time
	began := t.began
	for {
		select {
		case conn := <-t.conn:
			if conn == nil {
				t.Release()
				return nil, fault.New(fault.Unavailable, "its connection broke before it had its model")
			}
			return &connectedReplica{remoteReplica: t, conn: conn}, nil
		case <-pl.over:
			t.hangUp()
			return nil, fault.New(fault.Conflict, "it was not placed on pools %s, or ended: %s", strings.Join(r.Pools, ", "), pl.outcome)
		case <-began:
			timer := time.NewTimer(joinTime)
			defer timer.Stop()
			late, began = timer.C, nil
			waits("another one is started on pool " + t.Pool())
		case <-late:
			t.Release()
			return nil, fault.New(fault.Timeout, "the replica on pool %s did not call in %s", t.Pool(), joinTime)
		case <-look.C:
			if began == nil {
				continue
			}
			if why, err := p.Compute.Why(ctx, wid); err == nil {
				waits("another one waits for a place on pools " + strings.Join(r.Pools, ", ") + ": " + strings.Join(why, "; "))
			}
		case <-ctx.Done():
			t.Release()
			return nil, ctx.Err()
		}
	}
}

// Pool implements serving.RemoteReplica.
func (t *remoteReplica) Pool() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pool
}

// Zone implements serving.RemoteReplica.
func (t *remoteReplica) Zone() residency.Zone {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.zone
}

// Load implements serving.RemoteReplica: it is not connected.
func (t *remoteReplica) Load(context.Context, []byte, runtime.Options) (runtime.Session, error) {
	return nil, fault.New(fault.Internal, "the replica has not called")
}

// Release implements serving.Reservation.
func (t *remoteReplica) Release() {
	t.reservation.Release()
	t.end()
	t.hangUp()
}

// take gives the connection to who waits for it; nil: there is none after all.
func (t *remoteReplica) take(conn net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.left {
		t.conn <- conn
		return
	}
	if conn != nil {
		_ = conn.Close()
	}
}

// hangUp closes the connection of one that calls, or called, too late.
func (t *remoteReplica) hangUp() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left = true
	select {
	case conn := <-t.conn:
		if conn != nil {
			_ = conn.Close()
		}
	default:
	}
}

// connectedReplica is a replica that waits for its model.
type connectedReplica struct {
	*remoteReplica
	conn net.Conn
}

// Load implements serving.RemoteReplica.
func (c *connectedReplica) Load(ctx context.Context, model []byte, o runtime.Options) (runtime.Session, error) {
	l, err := c.link(ctx, c.conn, model, o, c.cores)
	if err != nil {
		return nil, err
	}
	go func() {
		select {
		case <-l.Leaving():
		case <-l.Gone():
		}
		c.lose()
	}()
	return l, nil
}

// Release implements serving.Reservation.
func (c *connectedReplica) Release() {
	_ = c.conn.Close()
	c.remoteReplica.Release()
}

// Claim takes the only call that a replica has: the connection is to be given to take,
// nil if there is none after all. Errors: fault.Gone for a replica that nobody waits
// for, fault.Conflict for one that has called.
func (p *Reservations) Claim(workload string) (take func(net.Conn), err error) {
	pl := p.of(workload)
	if pl == nil || pl.remote == nil {
		return nil, fault.New(fault.Gone, "replica %.80q is no longer needed: its server stopped, or the deployment was scaled down", workload)
	}
	t := pl.remote
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.claimed {
		return nil, fault.New(fault.Conflict, "replica %s has called", workload)
	}
	t.claimed = true
	return t.take, nil
}

// prepareRemote says what a replica runs on a pool.
func (p *Reservations) prepareRemote(ctx context.Context, w compute.Workload, pool compute.Pool) (engine.Spec, error) {
	pl := p.of(string(w.ID))
	if pl == nil || pl.remote == nil {
		return engine.Spec{}, fault.New(fault.Gone, "the server that wanted the replica has ended")
	}
	program, err := p.mounts()
	if err != nil {
		return engine.Spec{}, err
	}
	var token string
	ctx = identity.With(ctx, identity.Loop("replicas"))
	if err := p.DB.Update(ctx, string(w.Project), func(ctx context.Context, tx *store.Tx) (err error) {
		_, token, err = p.Tokens.IssueAttemptIn(ctx, tx, account.AttemptSpec{
			Attempt: string(w.ID), Name: string(w.ID), Project: w.Project, Scopes: []string{"workload.work"}, TTL: tokenLife,
		})
		return err
	}); err != nil {
		return engine.Spec{}, fault.Wrap(err, "the replica's token")
	}
	dir := p.scratch(w.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return engine.Spec{}, err
	}
	t := pl.remote
	t.mu.Lock()
	t.pool, t.zone = string(pool.Name), pool.MachineZone
	t.mu.Unlock()
	t.start.Do(func() { close(t.began) })
	cores := max(1, int(w.Request.CPU/resource.Cores(1)))
	env := map[string]string{
		"PATH": "/usr/bin:/bin", "HOME": dir, "TMPDIR": dir, "TZ": "UTC", "GOMEMLIMIT": "off", "GOMAXPROCS": strconv.Itoa(cores), "MALLOC_ARENA_MAX": "2",
	}
	maps.Copy(env, pool.Env)
	env["FALAJ_TOKEN"], env["FALAJ_PROJECT"], env["FALAJ_WORKLOAD"] = token, string(w.Project), string(w.ID)
	return engine.Spec{
		Command: []string{program[0].Path, "child", Mode, program[1].Path}, Env: env, Dir: dir,
		Mounts:  append([]engine.Mount{{Path: dir, Writable: true, Role: engine.Scratch}}, program...),
		Network: engine.Network{API: true},
	}, nil
}

func (p *Reservations) scratch(wid compute.WorkloadID) string {
	return filepath.Join(p.Dir, string(wid))
}

// revoke ends the token of a replica elsewhere.
func (p *Reservations) revoke(ctx context.Context, tx *store.Tx, w compute.Workload) error {
	if w.InPlace || p.Tokens == nil {
		return nil
	}
	return p.Tokens.RevokeAttemptIn(identity.With(ctx, identity.Loop("replicas")), tx, string(w.ID))
}

// EndEarlier ends the replicas elsewhere of an earlier process, also those that still
// wait in line: their own end has come with their connection.
func (p *Reservations) EndEarlier(ctx context.Context) error {
	ctx = identity.With(ctx, identity.Loop("replicas"))
	return p.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		all, err := p.Unsettled(ctx, tx)
		if err != nil {
			return err
		}
		for _, w := range all {
			if w.Kind != compute.Replica || w.InPlace || p.of(string(w.ID)) != nil {
				continue
			}
			if err := p.Compute.Cancel(ctx, tx, w.ID, "the server that wanted the replica has ended"); err != nil {
				return err
			}
		}
		return nil
	})
}

// mounts are what the replica runs: this binary, and the library. Nodes keep them by
// their digests.
func (p *Reservations) mounts() ([]engine.Mount, error) {
	p.once.Do(func() {
		self, err := os.Executable()
		if err != nil {
			p.err = err
			return
		}
		for _, path := range []string{self, p.Library} {
			file, err := filepath.EvalSymlinks(path)
			if err == nil {
				file, err = filepath.Abs(file)
			}
			if err != nil {
				p.err = p.Missing(path)
				return
			}
			digest, err := digestOf(file)
			if err != nil {
				p.err = fault.Wrap(err, "list remote replicas")
				return
			}
			p.program = append(p.program, engine.Mount{Path: file, Digest: digest})
		}
	})
	return p.program, p.err
}

func digestOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}
