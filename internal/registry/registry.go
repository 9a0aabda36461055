// Package registry keeps models that are meant to be used: versions whose files
// never change, signed, with aliases that say which one counts.
//
// # Map
//
//   - registry.go: the types and their rules.
//   - service.go: Services, the only way in, over one shared core; Models: registered models,
//     aliases, tags, searches.
//   - version.go: Versions: registering a version: source → files → signature; stages.
//   - import.go: Imports: models and versions of another MLflow server.
//   - source.go: which sources are accepted. Everything else is refused when it
//     is written, not when it is read.
//   - signature.go: OpenSSF model signing v1.0. key.go: the project's key.
//   - externalsignature.go: signatures that other implementations of it made.
//   - content.go: what a version's files are, by scan/; what is refused.
//   - policy.go: what is asked of models. approval.go, gate.go: Approvals: what stands between
//     a version and its promotion.
//   - files.go: Files: what deployment asks: is this still what was signed?
//   - maintenance.go: Maintenance: what a crash left.
//   - erase.go: Erasure: which versions were trained on rows of a person who is erased.
//   - change.go: what others are told of, in the transaction of the change.
//   - store.go: what a database must offer; registrysql/ is that database.
//
// # Guarantees
//
// A version's files are a copy, made and digested when it is registered; what
// happens to the run later does not reach it. Its signature covers every path
// and digest and names project, model, version, lineage and label. OpenVerified
// gives files only after all of them were found to be what was signed, and
// checks each again while it is read.
//
// A version that its model's policy asks approvals or metrics for is named by no
// protected alias or stage, and takes no traffic, before it has them; a rollback
// goes back to what had them.
//
// A version carries the zones and classification of the run that made it.
//
// # Life of a version
//
//	pending → ready → deleted
//	        ↘ failed ↗
package registry

import (
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/registry/scan"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// Limits.
const (
	MaxName          = id.MaxModelName // characters
	MaxTagValue      = 100_000
	MaxDescription   = 100_000
	MaxAlias         = 255
	MaxSource        = 2_000
	MaxFiles         = 10_000
	MaxSearchResults = 200_000
)

// ModelID names a registered model for good: "mdl_01J…"; its Name may change.
type ModelID string

// State of a version.
type State string

// The states.
const (
	Pending State = "pending" // files are being copied and signed
	Ready   State = "ready"
	Failed  State = "failed" // see Message
	Deleted State = "deleted"
)

// Stage is MLflow's older way to say which version counts; aliases replace it.
type Stage string

// The stages.
const (
	StageNone       Stage = "None"
	StageStaging    Stage = "Staging"
	StageProduction Stage = "Production"
	StageArchived   Stage = "Archived"
)

// ParseStage reads a stage in any case.
func ParseStage(s string) (Stage, error) {
	for _, stage := range []Stage{StageNone, StageStaging, StageProduction, StageArchived} {
		if strings.EqualFold(s, string(stage)) {
			return stage, nil
		}
	}
	return "", fault.New(fault.Invalid, "Invalid Model Version stage: %s. Value must be one of None, Staging, Production, Archived.", clip(s))
}

// Model is a registered model.
type Model struct {
	Project     project.Name
	ID          ModelID
	Name        string // unique among the project's models
	Description string
	Owner       string // principal id
	Created     time.Time
	Updated     time.Time
	Tags        []tracking.Pair
	Aliases     []Alias
	Latest      []Version // the highest version of each stage that has any
}

// Alias names a version, e.g. "champion".
type Alias struct {
	Name    string
	Version int
}

// Version is one immutable version of a model.
type Version struct {
	Project     project.Name
	ModelID     ModelID
	Model       string // the model's name now
	Number      int    // from 1
	State       State
	Message     string // why it failed
	Stage       Stage
	Description string
	Source      string                 // as registered
	Run         tracking.RunID         // that made it
	LoggedModel tracking.LoggedModelID // it was registered from; may be empty
	RunLink     string
	Owner       string
	Created     time.Time
	Updated     time.Time
	tracking.Origin
	Parents []string // model versions that it was made from, "delay@2"
	// Withheld says that the reader may not read its contents: description, tags and message are left out.
	Withheld bool
	OfJob    bool         // jobs wrote all of its files; Origin says only whose run they were in
	Digest   string       // "sha256:<hex>" over the files' digests, as signed
	KeyID    string       // of the key that signed
	Content  *scan.Report // what its files are; nil: nobody looked
	Tags     []tracking.Pair
	Aliases  []string
}

// String is "delay@3".
func (v Version) String() string { return v.Model + "@" + itoa(v.Number) }

// SplitRef takes "delay@3" or "delay@champion" apart; given is false where no version is
// named. A model's name may have an @ of its own, so the last one counts.
func SplitRef(ref string) (name, version string, given bool) {
	i := strings.LastIndexByte(ref, '@')
	if i < 0 {
		return ref, "", false
	}
	return ref[:i], ref[i+1:], true
}

// File is one file of a version.
type File struct {
	Path   string // relative, "model.onnx"
	Size   int64
	Digest string // "sha256:<hex>"
}

// CheckName refuses what a registered model may not be called: see id.CheckModelName.
func CheckName(name string) error { return id.CheckModelName(name) }

// Named is the filter of a search for what has exactly this name.
func Named(name string) string { return "name = '" + strings.ReplaceAll(name, "'", "''") + "'" }

// idPrefix begins a model's identifier where an address has that instead of the name. No name
// has a colon.
const idPrefix = "id:"

// Address is where MLflow's clients read the version's files. A name that a URL would read as
// something else is not in it, but the model's identifier.
func (v Version) Address() string {
	model := v.Model
	if strings.ContainsAny(model, `%?#;\`) {
		model = idPrefix + string(v.ModelID)
	}
	return "mlflow-artifacts:/registry/" + model + "/" + itoa(v.Number)
}

// CheckAddress refuses what names no model in an address of files.
func CheckAddress(model string) error {
	if given, ok := strings.CutPrefix(model, idPrefix); ok {
		return id.Check("mdl", given)
	}
	return CheckName(model)
}

var (
	aliasRE         = regexp.MustCompile(`^[\p{L}\p{N}_-]+$`)
	reservedAliasRE = regexp.MustCompile(`^[vV]\p{Nd}+$`)
)

func checkAlias(alias string) error {
	switch {
	case alias == "":
		return fault.New(fault.Invalid, "Registered model alias name cannot be empty.")
	case !aliasRE.MatchString(alias):
		return fault.New(fault.Invalid, "Invalid alias name: '%s'. Names may only contain alphanumerics, underscores (_), and dashes (-).", clip(alias))
	case utf8.RuneCountInString(alias) > MaxAlias:
		return fault.New(fault.Invalid, "'Registered model alias name' exceeds the maximum length of %d characters", MaxAlias)
	case strings.EqualFold(alias, "latest"):
		return fault.New(fault.Invalid, "'latest' alias name (case insensitive) is reserved.")
	case reservedAliasRE.MatchString(alias):
		return fault.New(fault.Invalid, "Version alias name '%s' is reserved.", alias)
	}
	return nil
}

func checkText(what, value string, limit int) error {
	switch {
	case !utf8.ValidString(value):
		return fault.New(fault.Invalid, "'%s' is not valid UTF-8 text", what)
	case strings.ContainsRune(value, 0):
		return fault.New(fault.Invalid, "'%s' contains a NUL character, which cannot be stored", what)
	}
	if utf8.RuneCountInString(value) > limit {
		return fault.New(fault.Invalid, "'%s' exceeds the maximum length of %d characters", what, limit)
	}
	return nil
}

// promptTag marks what MLflow keeps as prompts, which is not a model.
const promptTag = "mlflow.prompt.is_prompt"

func checkTags(tags []tracking.Pair) error {
	if len(tags) > 1000 {
		return fault.New(fault.Invalid, "a request can carry at most 1000 tags")
	}
	for _, t := range tags {
		if err := tracking.CheckKey(t.Key); err != nil {
			return err
		}
		if err := checkText("value", t.Value, MaxTagValue); err != nil {
			return err
		}
		if t.Key == promptTag && strings.EqualFold(t.Value, "true") {
			return fault.New(fault.Unsupported, "prompts are not supported: the registry stores only models")
		}
	}
	return nil
}

func clip(s string) string { return fault.Clip(s, 120) }
