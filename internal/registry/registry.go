// Package registry keeps models that are meant to be used: versions whose files
// never change, signed, with aliases that say which one counts.
//
// # Map
//
//   - registry.go: the types and their rules.
//   - service.go: registered models, aliases, tags, stages, searches.
//   - version.go: registering a version: source → files → signature.
//   - import.go: versions of another MLflow server.
//   - source.go: which sources are accepted. Everything else is refused when it
//     is written, not when it is read.
//   - signature.go: OpenSSF model signing v1.0. key.go: the project's key.
//   - outside.go: signatures that other implementations of it made.
//   - content.go: what a version's files are, by scan/; what is refused.
//   - policy.go: what is asked of models. approval.go, gate.go: what stands between
//     a version and its promotion.
//   - verify.go: what deployment asks: is this still what was signed?
//   - erase.go: which versions were trained on rows of a person who is erased.
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
	"github.com/falaj-ml/falaj/internal/registry/scan"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// Limits.
const (
	MaxName          = 255
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

// File is one file of a version.
type File struct {
	Path   string // relative, "model.onnx"
	Size   int64
	Digest string // "sha256:<hex>"
}

// nameRE is the grammar of model names: what MLflow's users write, and nothing
// that means something in a path or a URI.
var nameRE = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9 ._+-]{0,253}[A-Za-z0-9_+-])?$`)

// CheckName refuses what a registered model may not be called.
func CheckName(name string) error {
	if name == "" {
		return fault.New(fault.Invalid, "Missing value for required parameter 'name'.")
	}
	if strings.ContainsAny(name, "/:") {
		return fault.New(fault.Invalid, "Invalid model name '%s'. Names cannot contain '/' or ':'.", clip(name))
	}
	if !nameRE.MatchString(name) || strings.Contains(name, "..") {
		return fault.New(fault.Invalid, "Invalid model name '%s'.", clip(name)).
			WithHint("Use 1 to 255 letters, digits, spaces and . _ + -, beginning with a letter or digit.")
	}
	return nil
}

var (
	aliasRE         = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	reservedAliasRE = regexp.MustCompile(`^[vV][0-9]+$`)
)

func checkAlias(alias string) error {
	switch {
	case alias == "":
		return fault.New(fault.Invalid, "Registered model alias name cannot be empty.")
	case !aliasRE.MatchString(alias):
		return fault.New(fault.Invalid, "Invalid alias name: '%s'. Names may only contain alphanumerics, underscores (_), and dashes (-).", clip(alias))
	case len(alias) > MaxAlias:
		return fault.New(fault.Invalid, "'Registered model alias name' exceeds the maximum length of %d characters", MaxAlias)
	case strings.EqualFold(alias, "latest"):
		return fault.New(fault.Invalid, "'latest' alias name (case insensitive) is reserved.")
	case reservedAliasRE.MatchString(alias):
		return fault.New(fault.Invalid, "Version alias name '%s' is reserved.", alias)
	}
	return nil
}

func checkText(what, value string, limit int) error {
	if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
		return fault.New(fault.Invalid, "'%s' is not valid UTF-8 text", what)
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
			return fault.New(fault.Unsupported, "prompts are not offered: the registry keeps models")
		}
	}
	return nil
}

func clip(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) > 120 {
		return strings.ToValidUTF8(s[:120], "") + "…"
	}
	return s
}
