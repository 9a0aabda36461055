// Package ray starts agents on a Ray cluster: a remote.Launcher over Ray's Jobs
// API.
//
// Parts: ray.go (Config, Launcher), options.go (what a pool may say), api.go (the
// HTTP calls), observe.go (what Ray says of a job), inventory.go (its nodes),
// gang.py (the driver that runs in the cluster).
//
// A launch is a job whose entrypoint, gang.py, makes a placement group with a
// bundle for each worker, so that all start or none, and runs the agent in a
// task in each. Ray neither retries jobs nor, here, tasks: nothing runs twice.
// Submitting an ID twice is refused by Ray, which makes Start idempotent.
//
// What Ray does not give: it isolates no workloads (same user, same network, same
// files, isolation none), has no secrets (the agent's token travels in the job's
// package, which all who may submit jobs can read) and no time between SIGTERM
// and SIGKILL (the agent takes its own, while Ray counts its node as free).
package ray

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

//go:embed gang.py
var gangScript []byte

// Config of a Launcher.
type Config struct {
	Address string // of the Jobs API: "http://head:8265"
	// TokenFile holds the token of a cluster with RAY_AUTH_MODE=token; read for
	// each call, so that it may change. Empty is none.
	TokenFile string
	// Worker is falaj-worker's path on the nodes. Empty sends the one at Ship,
	// a path here, with each job.
	Worker, Ship string
	// Installation marks our jobs among those of others.
	Installation string
	Client       *http.Client // nil is one with a time-out
	Log          *slog.Logger
}

// Launcher submits jobs. Safe for concurrent use.
type Launcher struct {
	c    Config
	base *url.URL

	mu      sync.Mutex
	shipped []byte // falaj-worker as an entry of a package
	mtime   time.Time
	removed map[string]time.Time // jobs that Ray may write down once more
}

// New checks the configuration; whether Ray answers shows later.
func New(c Config) (*Launcher, error) {
	u, err := url.Parse(strings.TrimSuffix(c.Address, "/"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return nil, fault.New(fault.Invalid, "the address of Ray's Jobs API %.100q is not http://host:port", c.Address)
	}
	switch {
	case c.Worker == "" && c.Ship == "":
		return nil, fault.New(fault.Invalid, "Ray's nodes need falaj-worker: a path there, or one here to send")
	case c.Worker != "" && !filepath.IsAbs(c.Worker):
		return nil, fault.New(fault.Invalid, "the path of falaj-worker on the nodes %.100q is not absolute", c.Worker)
	}
	if c.Client == nil {
		c.Client = &http.Client{Timeout: 20 * time.Second}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Launcher{c: c, base: u, removed: map[string]time.Time{}}, nil
}

// Check refuses options that Ray does not have; fault.Invalid.
func (l *Launcher) Check(in map[string]string) error {
	_, err := readOptions(in)
	return err
}

// gang is launch.json, what gang.py reads.
type gang struct {
	ID        string               `json:"id"`
	Worker    string               `json:"worker"`  // empty is the one in the package
	Bundles   []map[string]float64 `json:"bundles"` // one for each worker
	Strategy  string               `json:"strategy"`
	Selectors []map[string]string  `json:"selectors"` // of labels, one for each worker
	Nodes     []string             `json:"nodes"`     // by worker; empty lets Ray choose
	Exclude   []string             `json:"exclude"`
	Agent     map[string]string    `json:"agent"`
}

// Start submits the job. It does nothing when Ray has one of that ID.
func (l *Launcher) Start(ctx context.Context, launch remote.Launch) error {
	o, err := readOptions(launch.Spec.Options)
	if err != nil {
		return err
	}
	if launch.Spec.Image != "" {
		return fault.New(fault.Unsupported, "jobs on Ray do not run in images").
			WithHint("Start the cluster's nodes in the image, or use a pool on the local engine or Kubernetes.")
	}
	if len(launch.Spec.Nodes) > 0 && len(launch.Spec.Nodes) != launch.Workers {
		return fault.New(fault.Invalid, "%d nodes for %d workers", len(launch.Spec.Nodes), launch.Workers)
	}
	if _, err := l.job(ctx, launch.ID); !fault.Is(err, fault.NotFound) {
		return err // it exists, or that is not known
	}
	g := gang{
		ID: launch.ID, Worker: l.c.Worker, Strategy: o.strategy, Nodes: launch.Spec.Nodes, Exclude: o.exclude, Agent: launch.Agent,
	}
	for i := range launch.Workers {
		g.Bundles = append(g.Bundles, bundle(launch.Spec.Of(i)))
		g.Selectors = append(g.Selectors, o.labels)
	}
	pack, err := l.pack(g)
	if err != nil {
		return err
	}
	// Named by its content, which has a token in it: the name cannot be guessed.
	sum := sha256.Sum256(pack)
	name := "_ray_pkg_" + hex.EncodeToString(sum[:]) + ".zip"
	if err := l.call(ctx, http.MethodPut, "/api/packages/gcs/"+name, pack, nil); err != nil {
		return fault.Wrap(err, "sending the agent's package to Ray")
	}
	err = l.call(ctx, http.MethodPost, "/api/jobs/", submission{
		Entrypoint: o.python + " gang.py", ID: launch.ID, Metadata: map[string]string{metaKey: l.mark(), "project": launch.Spec.Project, "job": launch.Spec.Name, "user": launch.Spec.User},
		Environment: environment{WorkingDir: "gcs://" + name},
	}, nil)
	if err == nil {
		return nil
	}
	if _, known := l.job(ctx, launch.ID); known == nil { // it exists: this server submitted it before a crash
		return nil
	}
	return fault.Wrap(err, "submitting a job to Ray")
}

const metaKey = "falaj"

// mark tells our jobs from those of others.
func (l *Launcher) mark() string {
	if l.c.Installation == "" {
		return "default"
	}
	return l.c.Installation
}

// pack makes the job's package: the same for the same launch.
func (l *Launcher) pack(g gang) ([]byte, error) {
	describe, err := json.Marshal(g)
	if err != nil {
		return nil, fault.Wrap(err, "describing a job for Ray")
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	add := func(name string, content []byte) error {
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate})
		if err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	}
	err = errors.Join(add("gang.py", gangScript), add("launch.json", describe))
	if l.c.Worker == "" {
		err = errors.Join(err, l.ship(z))
	}
	if err = errors.Join(err, z.Close()); err != nil {
		return nil, fault.Wrap(err, "packing a job for Ray")
	}
	return b.Bytes(), nil
}

const workerName = "falaj-worker"

// ship adds our falaj-worker, which is compressed once and copied after that.
func (l *Launcher) ship(to *zip.Writer) error {
	const most = 256 << 20
	l.mu.Lock()
	defer l.mu.Unlock()
	fi, err := os.Stat(l.c.Ship)
	if err != nil {
		return err
	}
	if l.shipped == nil || !fi.ModTime().Equal(l.mtime) {
		f, err := os.Open(l.c.Ship)
		if err != nil {
			return err
		}
		defer f.Close()
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		w, err := z.CreateHeader(&zip.FileHeader{Name: workerName, Method: zip.Deflate})
		if err != nil {
			return err
		}
		if _, err := io.Copy(w, io.LimitReader(f, most)); err != nil {
			return err
		}
		if err := z.Close(); err != nil {
			return err
		}
		l.shipped, l.mtime = b.Bytes(), fi.ModTime()
	}
	r, err := zip.NewReader(bytes.NewReader(l.shipped), int64(len(l.shipped)))
	if err != nil {
		return err
	}
	return to.Copy(r.File[0])
}

// Stop has Ray end the job. The agents get SIGTERM when their task's process
// goes, and end by their own order's grace: Ray gives none.
func (l *Launcher) Stop(ctx context.Context, id string, _ time.Duration) error {
	err := l.call(ctx, http.MethodPost, "/api/jobs/"+url.PathEscape(id)+"/stop", struct{}{}, nil)
	return fault.Wrap(err, "stopping a job on Ray")
}

// List gives our jobs, the ended ones too.
func (l *Launcher) List(ctx context.Context) ([]string, error) {
	jobs, err := l.jobs(ctx)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, j := range jobs {
		if j.ours(l.mark()) {
			ids = append(ids, j.ID)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// Forget removes an ended job. Ray may take a moment to notice the end that the
// agents have reported already.
func (l *Launcher) Forget(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, forgetTime)
	defer cancel()
	tick := time.NewTicker(forgetTime / 100)
	defer tick.Stop()
	for asked := false; ; asked = true {
		j, err := l.job(ctx, id)
		switch {
		case fault.Is(err, fault.NotFound):
			return nil
		case err != nil:
			return fault.Wrap(err, "removing a job from Ray")
		case j.over():
			if err := l.remove(ctx, id); !fault.Is(err, fault.NotFound) {
				return fault.Wrap(err, "removing a job from Ray")
			}
			return nil
		case !asked:
			if err := l.Stop(ctx, id, 0); err != nil && !fault.Is(err, fault.NotFound) {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "Ray still ends job %s", id)
		}
	}
}

const forgetTime = 30 * time.Second

func (l *Launcher) remove(ctx context.Context, id string) error {
	l.mu.Lock()
	l.removed[id] = time.Now()
	l.mu.Unlock()
	return l.call(ctx, http.MethodDelete, "/api/jobs/"+url.PathEscape(id), nil, nil)
}

// ghosts removes jobs again that Ray recorded after their removal: Ray's monitor of a job,
// which runs every second, records a job without a status as failed.
func (l *Launcher) ghosts(ctx context.Context, all []job) {
	const late = time.Minute
	l.mu.Lock()
	reappeared := []string(nil)
	for _, j := range all {
		if _, ok := l.removed[j.ID]; ok && j.over() {
			reappeared = append(reappeared, j.ID)
		}
	}
	maps.DeleteFunc(l.removed, func(_ string, at time.Time) bool { return time.Since(at) > late })
	l.mu.Unlock()
	for _, id := range reappeared {
		if err := l.remove(ctx, id); err != nil && !fault.Is(err, fault.NotFound) {
			l.c.Log.WarnContext(ctx, "a job that was removed from Ray exists again", slog.String("job", id), slog.Any("error", err))
		}
	}
}

// bundle is what one worker takes, in Ray's names. A bundle of nothing is
// refused by Ray, so there is always a little CPU in it.
func bundle(a resource.Amount) map[string]float64 {
	b := map[string]float64{"CPU": max(float64(a.CPU)/1000, 0.001)}
	if a.Memory > 0 {
		b["memory"] = float64(a.Memory)
	}
	for name, n := range a.Accelerators {
		if n <= 0 {
			continue
		}
		b[rayName(name)] += float64(n)
		if model, ok := gpuModel(name); ok {
			b["accelerator_type:"+model] = 0.001
		}
	}
	return b
}

// rayName is what Ray calls an accelerator: all GPUs are "GPU", TPUs "TPU", the
// rest as the cluster named it with --resources.
func rayName(name string) string {
	vendor, what, ok := strings.Cut(name, "/")
	switch {
	case ok && (vendor == "nvidia.com" || vendor == "amd.com") && !strings.HasPrefix(what, "mig-"):
		return "GPU"
	case name == "google.com/tpu":
		return "TPU"
	}
	return name
}

// gpuModel is the type of a GPU that was asked for by its model:
// "nvidia.com/h100" is one of Ray's type H100.
func gpuModel(name string) (string, bool) {
	vendor, what, _ := strings.Cut(name, "/")
	if (vendor != "nvidia.com" && vendor != "amd.com") || what == "gpu" || strings.HasPrefix(what, "mig-") {
		return "", false
	}
	return strings.ToUpper(what), true
}

var (
	_ remote.Launcher  = (*Launcher)(nil)
	_ engine.Inventory = (*Launcher)(nil)
)
