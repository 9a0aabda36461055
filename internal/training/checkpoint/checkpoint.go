// Package checkpoint keeps the checkpoints of jobs: it takes each finished
// directory below a job's checkpoint directory into the encrypted blob store,
// cut into chunks that are stored once, and brings the newest back where it is
// missing.
//
// # Map
//
//   - checkpoint.go: Rules, Record, Manifest, and what the job must be known for.
//   - retain.go: which records are kept, and why: pure.
//   - tree.go: what lies in a directory. take.go: reading, hashing, sealing and
//     writing it at once. restore.go: the way back, and streams of one.
//   - collect.go: chunks that nothing refers to any more.
//   - loop.go: looking for what is complete; ends of jobs; sweeps. halt.go: what an ended
//     program left behind.
//   - service.go: List, One, Archive, Delete, Resolve, Adopt.
//   - store.go is what it needs of a database.
//
// # Life of a checkpoint
//
// A program writes a directory, or files, below its checkpoint directory. Each directory is
// a checkpoint; the files that lie beside them are one together, "files". The loop takes one
// that is complete: package settled says when. It notes paths, sizes and times, reads the
// files in order of their paths as one stream, cuts it into chunks of 4 MiB, stores those
// that the project does not have yet, looks again whether anything changed meanwhile, and
// commits the record with its manifest, audit entry and event in one transaction.
// Directories are scanned: file systems of clusters do not notify of changes.
//
// When a program has ended, what is complete is taken, and what may be half written is kept
// apart (Record.Incomplete) and set aside, so that the next attempt does not find it.
//
// # Guarantees
//
// A crash anywhere leaves the record or garbage that the sweep collects. The
// newest good checkpoint of a job that has not ended is never collected or
// deleted, neither for another that grows nor for one that may be half written, and what is
// restored is bit for bit what was taken: a chunk that is lost or damaged is found by its
// digest, its checkpoint is passed over with words for people, and the next take stores the
// chunk anew. A job's directory goes only after the job ended and all that is in it is kept.
//
// # What the program owes
//
// Nothing, where it pauses less than the settle time within a checkpoint. A rename to the
// final name, or a ready file, is certain at once.
package checkpoint

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/worker/settled"
)

// The actions that this package asks for.
const (
	ActionList   policy.Action = "job.read"
	ActionRead   policy.Action = "checkpoint.read"
	ActionDelete policy.Action = "checkpoint.delete"
)

// The events of this package; the body of each is Record.
const (
	Taken   = "checkpoint.taken"
	Dropped = "checkpoint.dropped" // by retention or by somebody
)

// Rules say which checkpoints of a job are kept, and which come back.
type Rules struct {
	KeepLast int    `json:"keep_last,omitempty" doc:"Number of newest checkpoints to keep; default 3"`
	KeepBest int    `json:"keep_best,omitempty" doc:"Number of best checkpoints to keep, by metric; default 1 with best"`
	Best     Best   `json:"best,omitzero" doc:"Metric and direction by which checkpoints are compared"`
	Interval string `json:"interval,omitempty" doc:"Also keeps one checkpoint per interval, such as 30m"`
	After    string `json:"after,omitempty" doc:"Time for which the newest and the best checkpoints are kept after the job has ended; default 30d"`
	Settle   string `json:"settle,omitempty" doc:"A checkpoint written in place is complete once it has not changed for this long while the program ran; default 5s. One that is renamed to its final name is complete at once"`
	Ready    string `json:"ready,omitempty" doc:"Pattern of the file that the program writes last into a checkpoint, such as trainer_state.json: the checkpoint is complete once this file exists"`
	Restore  int    `json:"restore,omitempty" doc:"Number of newest checkpoints to restore; default 1, and the best"`
}

// Best compares checkpoints by what their checkpoint.json says.
type Best struct {
	Metric string `json:"metric,omitempty" doc:"Name in the metrics of checkpoint.json; or its metric"`
	Mode   string `json:"mode,omitempty" enum:"min,max" doc:"min or max; default min"`
}

const maxKept = 1000

// Validate refuses impossible rules. Error: fault.Invalid.
func (r Rules) Validate() error {
	for what, n := range map[string]int{"keep_last": r.KeepLast, "keep_best": r.KeepBest, "restore": r.Restore} {
		if n < 0 || n > maxKept {
			return fault.New(fault.Invalid, "checkpoints.%s: %d is not between 0 and %d", what, n, maxKept)
		}
	}
	switch {
	case r.Best.Mode != "" && r.Best.Mode != "min" && r.Best.Mode != "max":
		return fault.New(fault.Invalid, "checkpoints.best.mode: unknown mode %.40q", r.Best.Mode).WithHint("Use min or max.")
	case len(r.Best.Metric) > 250:
		return fault.New(fault.Invalid, "checkpoints.best.metric: %d bytes exceed the limit of 250", len(r.Best.Metric))
	case r.KeepBest > 0 && r.Best == Best{}:
		return fault.New(fault.Invalid, "checkpoints.keep_best: set checkpoints.best as well").WithHint("Set best: {metric: val_loss, mode: min}.")
	}
	for what, text := range map[string]string{"interval": r.Interval, "after": r.After, "settle": r.Settle} {
		d, err := resource.ParseDuration(text)
		if err != nil {
			return fault.Wrap(err, "checkpoints: %s", what)
		}
		if what == "interval" && d > 0 && d < time.Minute {
			return fault.New(fault.Invalid, "checkpoints.interval: %s is less than a minute", d)
		}
		if what == "settle" && text != "" && (d < time.Second || d > time.Hour) {
			return fault.New(fault.Invalid, "checkpoints.settle: %s is not between 1s and 1h", d)
		}
	}
	if len(r.Ready) > maxPath {
		return fault.New(fault.Invalid, "checkpoints.ready: %d bytes exceed the limit of %d", len(r.Ready), maxPath)
	}
	if err := (settled.Rules{Ready: r.Ready}).Validate(); err != nil {
		return fault.New(fault.Invalid, "checkpoints.ready: %.100q: %w", r.Ready, err)
	}
	return nil
}

// Settled says when a checkpoint is complete; usual is the settle time where the job says none.
func (r Rules) Settled(usual time.Duration) settled.Rules {
	out := settled.Rules{Settle: usual, Ready: r.Ready}
	if d, _ := resource.ParseDuration(r.Settle); d > 0 { // validated
		out.Settle = d
	}
	return out
}

// defaultAfter is how long what an ended job left stays.
const defaultAfter = 30 * 24 * time.Hour

// complete fills in the defaults. It is not done at submission: that would
// change the digest of a job whose manifest says nothing of checkpoints.
func (r Rules) complete() (full Rules, interval, after time.Duration) {
	if r.KeepLast == 0 {
		r.KeepLast = 3
	}
	if r.KeepBest == 0 && r.Best != (Best{}) {
		r.KeepBest = 1
	}
	if r.Restore == 0 {
		r.Restore = 1
	}
	interval, _ = resource.ParseDuration(r.Interval) // validated
	after, _ = resource.ParseDuration(r.After)       // validated
	if r.After == "" {
		after = defaultAfter
	}
	return r, interval, after
}

// Job is what must be known of the job that checkpoints belong to.
type Job struct {
	ID             string
	Project        project.Name
	Owner          string // who submitted it
	Residency      residency.Label
	Classification project.Classification
	Rules          Rules
	Ended          time.Time // zero while it may run again
}

// Record is one kept checkpoint.
type Record struct {
	ID      string       `json:"id"` // "ckp_01J…"
	Project project.Name `json:"project"`
	Job     string       `json:"job"`
	Attempt string       `json:"attempt,omitempty"` // that left it, where known
	Name    string       `json:"name"`              // of the directory; one that was written again has several records
	Number  int          `json:"number"`            // from 1, in the order of taking
	Step    *int64       `json:"step,omitempty"`    // from checkpoint.json, or the number that the name ends in
	Metric  *float64     `json:"metric,omitempty"`
	Files   int          `json:"files"`
	Bytes   int64        `json:"bytes"`
	Stored  int64        `json:"stored"`         // of the bytes, those that no other checkpoint had
	Digest  string       `json:"digest"`         // of paths, sizes, modes and chunks
	From    string       `json:"from,omitempty"` // "job_…/name" that it was taken over from
	Note    string       `json:"note,omitempty"` // what is odd about it, in words
	// Incomplete says why it may be half written: it is kept, and nothing resumes from it
	// unless somebody names it.
	Incomplete string `json:"incomplete,omitempty"`
	// Damaged says why it cannot be restored; Chunk is the digest of the chunk.
	Damaged        string                 `json:"damaged,omitempty"`
	Chunk          string                 `json:"damaged_chunk,omitempty"`
	Residency      residency.Label        `json:"residency"`
	Classification project.Classification `json:"classification"`
	TakenAt        time.Time              `json:"taken_at"`
	Revision       int64                  `json:"-"`
	// Loose says that it is the files that lie directly in the job's directory. They stand
	// beside the directories, which may need them (DeepSpeed's latest): both have their
	// newest one, and a job resumes from both.
	Loose bool `json:"loose,omitempty"`
	// with is the newest one of the other sort, of one that was resolved without a name.
	with string
	// Kept says why it is kept; set in answers only.
	Kept string `json:"kept,omitempty"`
}

// File is one file of a checkpoint. Its place in the stream is the sum of the
// sizes before it.
type File struct {
	Path     string    `json:"path"` // slashes; ends with one for an empty directory
	Size     int64     `json:"size"`
	Exec     bool      `json:"exec,omitempty"`
	Modified time.Time `json:"modified"`
}

// Chunk is a piece of the stream. Its place is the sum of the sizes before it.
type Chunk struct {
	Digest string `json:"digest"` // hex of the SHA-256 of the plaintext
	Size   int64  `json:"size"`
}

// Manifest is what a checkpoint consists of.
type Manifest struct {
	Cut    int64   `json:"cut"`             // the size of chunks when it was taken
	Loose  bool    `json:"loose,omitempty"` // its files lie directly in the job's directory
	Files  []File  `json:"files"`
	Chunks []Chunk `json:"chunks"`
}

// labelFile is where a program says what a checkpoint is.
const (
	labelFile = "checkpoint.json"
	maxLabel  = 64 << 10
)

// label reads step and metric of a checkpoint.json: {"step": 100, "metric": 0.3}
// or {"step": 100, "metrics": {"val_loss": 0.3}}. Error: fault.Invalid.
func label(b []byte, metric string) (step *int64, value *float64, err error) {
	var l struct {
		Step    *float64            `json:"step"`
		Metric  *float64            `json:"metric"`
		Metrics map[string]*float64 `json:"metrics"`
	}
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&l); err != nil {
		return nil, nil, fault.New(fault.Invalid, "%s is not valid JSON: %v", labelFile, err)
	}
	if l.Step != nil {
		if *l.Step < 0 || *l.Step >= 1<<53 || *l.Step != float64(int64(*l.Step)) {
			return nil, nil, fault.New(fault.Invalid, "%s: step %v is not a whole number from 0", labelFile, *l.Step)
		}
		n := int64(*l.Step)
		step = &n
	}
	value = l.Metric
	if v := l.Metrics[metric]; v != nil {
		value = v
	}
	return step, value, nil
}
