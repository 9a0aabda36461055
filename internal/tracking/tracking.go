// Package tracking keeps what training runs say about themselves: experiments,
// runs with parameters, metrics, tags and inputs, logged models, and the
// artifacts of both.
//
// # Map
//
//   - tracking.go: the types and their rules. search/ reads the filter language.
//   - service.go: the services, which share one core, and the checks before every act.
//     contents.go: what a reader without the permission to read the data is shown.
//   - experiment.go: Experiments. run.go, history.go: Runs. batch.go: Logging.
//     loggedmodel.go: LoggedModels. find.go: what searches ask.
//   - artifact.go: Artifacts, files of runs and logged models, and the rules of their paths.
//     multipart.go: Uploads, files that come in parts.
//   - import.go: Imports, what comes from another MLflow server, in bulk.
//   - origin.go: Origins, what an attempt passes on to what it makes.
//   - prune.go, sweep.go: Maintenance, what was deleted goes for ever. ofjob.go: Retention.
//     erase.go: Erasure.
//   - store.go: what a database must offer; trackingsql/ is that database.
//
// # Guarantees
//
// A batch is logged whole or not at all. Parameters never change; logging the
// same value again is no error. Metrics only grow, until their run is deleted and
// pruned, and the same point logged twice is one point, so a client may retry. NaN and the infinities come back as
// they went in. An artifact is there, whole, when Artifacts.PutArtifact returns.
//
// A run carries the zones and the classification of everything its producer
// could read. Training sets them; what a job attempt makes by itself inherits
// them, and an attempt may neither write runs of another producer nor read what
// would narrow its own label.
//
// Every object belongs to one project, which each call names.
package tracking

import (
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
)

// Limits of what is logged. They are MLflow's own.
const (
	MaxBatchMetrics = 1000
	MaxBatchParams  = 100
	MaxBatchTags    = 100
	MaxBatchItems   = 1000
	MaxBatchInputs  = 1000

	MaxKey              = 250 // characters of a metric, param or tag key
	MaxParamValue       = 6000
	MaxTagValue         = 8000
	MaxExperimentName   = 500
	MaxExperimentTag    = 20_000
	MaxRunName          = 500
	MaxDatasetName      = 500
	MaxDatasetDigest    = 36
	MaxDatasetSource    = 65_535
	MaxDatasetSchema    = 1_048_575
	MaxDatasetProfile   = 16_777_215
	MaxInputTagKey      = 255
	MaxInputTagValue    = 500
	MaxLoggedModelName  = 500
	MaxLoggedModelParam = 6000
	MaxSearchResults    = 50_000
	MaxHistory          = 25_000

	MaxDatasetExperiments = 20 // whose data sets are searched at once
)

// RunID names a run: "run_01J…", or, of one that came from another MLflow server,
// 32 hexadecimal digits.
type RunID string

// LoggedModelID names a logged model: "m_01J…", or "m-" and 32 hexadecimal digits.
type LoggedModelID string

// ExperimentID counts within a project; 0 is its default experiment. MLflow
// clients expect numbers.
type ExperimentID int64

// Millis is an instant as clients give it: milliseconds since 1970. It is kept
// as given, since 0 is a time some clients really log.
type Millis int64

const maxMillis = 253_402_300_799_999 // the end of the year 9999

// Stage says whether an object is in use or deleted (and may be restored).
type Stage string

// The stages.
const (
	Active  Stage = "active"
	Deleted Stage = "deleted"
)

// View selects objects by stage.
type View string

// The views. The zero View is ViewActive.
const (
	ViewActive  View = "active_only"
	ViewDeleted View = "deleted_only"
	ViewAll     View = "all"
)

// RunStatus is what a run says of its progress.
type RunStatus string

// The run states.
const (
	Running   RunStatus = "RUNNING"
	Scheduled RunStatus = "SCHEDULED"
	Finished  RunStatus = "FINISHED"
	Failed    RunStatus = "FAILED"
	Killed    RunStatus = "KILLED"
)

// Valid reports whether s is one of the run states.
func (s RunStatus) Valid() bool {
	return s == Running || s == Scheduled || s.Terminal()
}

// Terminal reports whether a run in this state has ended.
func (s RunStatus) Terminal() bool { return s == Finished || s == Failed || s == Killed }

// ModelStatus is how far a logged model is.
type ModelStatus string

// The logged model states.
const (
	ModelPending ModelStatus = "LOGGED_MODEL_PENDING"
	ModelReady   ModelStatus = "LOGGED_MODEL_READY"
	ModelFailed  ModelStatus = "LOGGED_MODEL_UPLOAD_FAILED"
)

// Valid reports whether s is one of the logged model states.
func (s ModelStatus) Valid() bool {
	return s == ModelPending || s == ModelReady || s == ModelFailed
}

// Pair is a param or a tag.
type Pair struct {
	Key   string
	Value string
}

// Experiment groups runs.
type Experiment struct {
	Project project.Name
	ID      ExperimentID
	Name    string // unique in the project, deleted ones included
	Stage   Stage
	Created time.Time
	Updated time.Time
	Tags    []Pair // by key
}

// Origin is where a run's content comes from and therefore where it may go. It
// is set by training and inherited by what the attempt makes.
type Origin struct {
	Job            string          // "job_01J…"; empty for what a person logs
	Attempt        string          // "att_01J…"
	Datasets       []string        // dataset versions the producer could read, "weather@1"
	TrainedOn      string          // the one of Datasets that it trained on; empty is not known
	FeatureViews   []string        // feature view versions, "weather_by_origin@1"
	Environment    string          // digest of the run environment
	Residency      residency.Label // nil is {home}
	Classification string          // public internal confidential restricted; empty is internal
}

// Run is one execution that logs.
type Run struct {
	Project    project.Name
	ID         RunID
	Experiment ExperimentID
	Name       string
	User       string // as the client says; Owner is who it was
	Owner      string // principal id
	Status     RunStatus
	Start, End Millis // End is 0 while it runs
	Stage      Stage
	Created    time.Time
	Deleted    time.Time // zero while it is not
	Origin
	AttemptNumber int // of the attempt in Origin, from 1 on; 0 of a run that training did not make

	// Data is filled where a method says so.
	Params  []Pair   // by key
	Tags    []Pair   // by key
	Metrics []Metric // the latest of each key
	Inputs  []DatasetInput
	Models  []ModelLink
	// Withheld says that the reader may not read the contents: data is what is open.
	Withheld bool
}

// Metric is one measured value.
type Metric struct {
	Key           string
	Value         float64 // may be NaN or infinite
	At            Millis
	Step          int64
	Model         LoggedModelID // the logged model measured; may be empty
	DatasetName   string        // on which data; may be empty
	DatasetDigest string
	Run           RunID // filled when read
	Attempt       int   // number of the job's attempt that logged it; filled where the latest of a run are read
}

// LoggedParam is a param of a run, with the number of the job's attempt that logged it last.
type LoggedParam struct {
	Pair
	Attempt int
}

// DatasetInput is a data set that a client says a run used. It is a claim for
// people to read; Origin.Datasets is what Falaj handed out.
type DatasetInput struct {
	Name, Digest       string
	SourceType, Source string
	Schema, Profile    string
	Tags               []Pair
}

// ModelLink ties a run to a logged model it read (input) or made (output).
type ModelLink struct {
	Model  LoggedModelID
	Output bool
	Step   int64
}

// DatasetSummary is one data set seen in an experiment.
type DatasetSummary struct {
	Experiment            ExperimentID
	Name, Digest, Context string
}

// LoggedModel is a model with files, params and metrics that no registry entry
// is needed for.
type LoggedModel struct {
	Project    project.Name
	ID         LoggedModelID
	Experiment ExperimentID
	Name       string
	Type       string
	Run        RunID // that made it; may be empty
	Status     ModelStatus
	Stage      Stage
	Owner      string
	Created    time.Time
	Updated    time.Time
	Origin
	Params  []Pair
	Tags    []Pair
	Metrics []Metric
	// Withheld says that the reader may not read the contents.
	Withheld bool
}

// Place is what owns artifacts: a run or a logged model. Exactly one is set.
type Place struct {
	Run   RunID
	Model LoggedModelID
}

// ID is the owner's identifier.
func (p Place) ID() string {
	if p.Run != "" {
		return string(p.Run)
	}
	return string(p.Model)
}

func (p Place) String() string {
	if p.Run != "" {
		return "run " + string(p.Run)
	}
	return "logged model " + string(p.Model)
}

// File is a stored artifact.
type File struct {
	Path    string
	Size    int64
	Digest  string // "sha256:<hex>"
	Created time.Time
	OfJob   bool // a job's attempt wrote it, or left it where its output is taken from
}

// Entry is one row of a listing: a file, or a directory that holds some.
type Entry struct {
	Path string
	Dir  bool
	Size int64
}

// Identifiers as MLflow's own servers make them; only an import brings such.
var (
	foreignRunRE   = regexp.MustCompile(`^[0-9a-f]{32}$`)
	foreignModelRE = regexp.MustCompile(`^m-[0-9a-f]{32}$`)
)

// CheckRunID refuses what is not a run's identifier.
func CheckRunID(run RunID) error {
	if foreignRunRE.MatchString(string(run)) {
		return nil
	}
	if err := id.Check("run", string(run)); err != nil {
		return fault.New(fault.Invalid, "Invalid value %q for parameter 'run_id' supplied.", clip(string(run)))
	}
	return nil
}

// CheckModelID refuses what is not a logged model's identifier.
func CheckModelID(model LoggedModelID) error {
	if foreignModelRE.MatchString(string(model)) {
		return nil
	}
	if err := id.Check("m", string(model)); err != nil {
		return fault.New(fault.Invalid, "Invalid value %q for parameter 'model_id' supplied.", clip(string(model)))
	}
	return nil
}

// keyRE is MLflow's rule for keys of metrics, params and tags.
var keyRE = regexp.MustCompile(`^[/\p{L}\p{N}_.\- :]*$`)

// CheckKey refuses what MLflow takes for no key of a tag.
func CheckKey(key string) error { return checkKey("key", "key", key) }

// checkKey refuses a key. where is the parameter path in the message.
func checkKey(what, where, key string) error {
	switch {
	case key == "":
		return fault.New(fault.Invalid, "Missing value for required parameter '%s'.", where)
	case !utf8.ValidString(key) || !keyRE.MatchString(key):
		return fault.New(fault.Invalid, "Invalid value %s for parameter '%s' supplied: Names may only contain alphanumerics, underscores (_), dashes (-), periods (.), spaces ( ), colon(:) and slashes (/).", quoted(key), where)
	case path.Clean(key) != key || key == "." || strings.HasPrefix(key, "..") || strings.HasPrefix(key, "/"):
		return fault.New(fault.Invalid, "Invalid value %s for parameter '%s' supplied: Names may be treated as files in certain cases, and must not resolve to other names when treated as such. This name would resolve to '%s'", quoted(key), where, clip(path.Clean(key)))
	}
	return checkLength(what, key, MaxKey)
}

// quoted is a text as MLflow's messages have it: of ASCII only.
func quoted(s string) string {
	return strconv.QuoteToASCII(clip(s))
}

func checkLength(what, value string, limit int) error {
	if len(value) <= limit || utf8.RuneCountInString(value) <= limit {
		return nil
	}
	return fault.New(fault.Invalid, "'%s' exceeds the maximum length of %d characters", what, limit)
}

// checkText refuses what databases and terminals do not take.
func checkText(what, value string, limit int) error {
	switch {
	case !utf8.ValidString(value):
		return fault.New(fault.Invalid, "'%s' is not valid UTF-8 text", what)
	case strings.ContainsRune(value, 0):
		return fault.New(fault.Invalid, "'%s' contains a NUL character, which cannot be stored", what)
	}
	return checkLength(what, value, limit)
}

func checkMillis(what string, at Millis) error {
	if at < 0 || at > maxMillis {
		return fault.New(fault.Invalid, "Invalid value %d for parameter '%s' supplied: it must be a nonnegative number of milliseconds before the year 10000.", at, what)
	}
	return nil
}

// cutPairs cuts values that are longer than limit, as MLflow's server does: a program that logs
// its whole configuration goes on. The end of what was cut says so. Keys are those that were.
func cutPairs(pairs []Pair, limit int) (_ []Pair, keys []string) {
	for i, p := range pairs {
		if len(p.Value) <= limit || p.Key == tagModels || !utf8.ValidString(p.Value) { // a list would be no list any more; what is no text is refused
			continue
		}
		n := utf8.RuneCountInString(p.Value)
		if n <= limit {
			continue
		}
		if keys == nil {
			pairs = slices.Clone(pairs) // the caller's stay
		}
		end := "…[cut from " + itoa(n) + "]"
		runes := []rune(p.Value)[:limit-utf8.RuneCountInString(end)]
		pairs[i].Value = string(runes) + end
		keys = append(keys, p.Key)
	}
	return pairs, keys
}

// noteCut adds the keys of what was cut to the detail of an audit entry.
func noteCut(detail map[string]any, keys ...[]string) {
	if cut := slices.Concat(keys...); len(cut) > 0 {
		detail["cut"] = cut
	}
}

func checkPairs(what string, pairs []Pair, limit int) error {
	for i, p := range pairs {
		where := what + "[" + itoa(i) + "]."
		if err := p.validate(where, where, limit); err != nil {
			return err
		}
	}
	return nil
}

// validate refuses a pair that may not be logged. where is its place in the
// request, called what it has in messages about lengths.
func (p Pair) validate(where, called string, limit int) error {
	if err := checkKey(called+"key", where+"key", p.Key); err != nil {
		return err
	}
	return checkText(called+"value", p.Value, limit)
}

// Validate refuses a point that may not be logged. where is its place in the
// request, for the message.
func (m Metric) validate(where string) error {
	if err := checkKey("Metric name", where+"name", m.Key); err != nil {
		return err
	}
	if m.At < 0 {
		return fault.New(fault.Invalid, "Invalid value %d for parameter '%stimestamp' supplied: metric '%s' (value=%s). Timestamp must be a nonnegative long (64-bit integer) ", m.At, where, clip(m.Key), pythonFloat(m.Value))
	}
	if m.Model != "" {
		if err := CheckModelID(m.Model); err != nil {
			return err
		}
	}
	if err := checkText(where+"dataset_name", m.DatasetName, MaxDatasetName); err != nil {
		return err
	}
	return checkText(where+"dataset_digest", m.DatasetDigest, MaxDatasetDigest)
}

// pythonFloat is a number as Python writes it.
func pythonFloat(x float64) string {
	s := strconv.FormatFloat(x, 'g', -1, 64)
	switch {
	case math.IsInf(x, 0):
		return strings.ToLower(strings.TrimPrefix(s, "+"))
	case math.IsNaN(x):
		return "nan"
	case !strings.ContainsAny(s, ".e"):
		s += ".0"
	}
	return s
}

// validate refuses a data set that may not be logged.
func (d DatasetInput) validate(where string) error {
	if d.Name == "" {
		return fault.New(fault.Invalid, "Missing value for required parameter '%s.dataset.name'.", where)
	}
	if d.Digest == "" {
		return fault.New(fault.Invalid, "Missing value for required parameter '%s.dataset.digest'.", where)
	}
	for _, f := range []struct {
		what, value string
		limit       int
	}{
		{"name", d.Name, MaxDatasetName},
		{"digest", d.Digest, MaxDatasetDigest},
		{"source_type", d.SourceType, MaxDatasetName},
		{"source", d.Source, MaxDatasetSource},
		{"schema", d.Schema, MaxDatasetSchema},
		{"profile", d.Profile, MaxDatasetProfile},
	} {
		if err := checkText(f.what, f.value, f.limit); err != nil {
			return err
		}
	}
	for _, t := range d.Tags {
		if err := checkText("key", t.Key, MaxInputTagKey); err != nil {
			return err
		}
		if err := checkText("value", t.Value, MaxInputTagValue); err != nil {
			return err
		}
	}
	return nil
}

var classifications = map[string]int{"public": 0, "internal": 1, "": 1, "confidential": 2, "restricted": 3}

// Stricter is the classification of what is made of two.
func Stricter(a, b string) string {
	if classifications[b] > classifications[a] {
		return b
	}
	return a
}

// classified reports whether reads of it are journaled.
func classified(classification string) bool { return classifications[classification] >= 2 }

func (o Origin) validate() error {
	if _, ok := classifications[o.Classification]; !ok {
		return fault.New(fault.Invalid, "classification %q is not public, internal, confidential or restricted", clip(o.Classification))
	}
	return nil
}

func clip(s string) string { return fault.Clip(s, 120) }
