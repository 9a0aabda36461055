// Package feature defines features once and gives them to training and to
// serving: joined as of each row's time, and read online by the same rule.
//
// # Map
//
//   - feature.go: Entity, View and ServiceDefinition (the manifest kind FeatureService),
//     their specs and what these must satisfy; naming/ has the names of versions and
//     features.
//   - Services (service.go) are the only ways in, one for each kind of caller; New makes
//     them over one core. Definitions (apply.go) keeps definitions,
//     selection.go resolves what a caller asks for, OfflineReads (training.go, historical.go) makes training
//     sets, Materialisation (materialise.go) and Streams (stream.go, push.go) fill the online store,
//     OnlineReads (read.go, lookup.go) answers from it,
//     Verification (verify.go, verifyonline.go, verifyanswers.go) proves that both agree, OnlineRows (compaction.go,
//     copies.go) moves rows to new subkeys and removes
//     expired ones, onlinestore.go begins in another online store,
//     Erasure finds and removes a person: identify.go finds the views, person.go erases
//     online rows, forget.go events; viewrows.go reads the rows of a view; lineage.go says what
//     came from what, lineage/ of which columns; digest/ names entities in the audit log.
//   - stream.go is the log of a dataset's events, streamapply.go brings them online, streamsnapshot.go
//     into the dataset, deadletter.go keeps what is no event, feed.go reads sources.
//   - computed.go has the features of a service that are computed when they are
//     asked for; expr/ has their expressions.
//   - govern.go checks what a read is for, and hides from readers what they may
//     not see in clear.
//   - data.go is what this needs from datasets, store.go from a database
//     (featuresql), events.go what others hear of.
//   - windows.go has the views whose features are aggregations over windows of
//     time: their spec, their records online, and rows that come one by one.
//   - value/ has the typed values; offline/ the as-of join; window/ the
//     aggregations; online/ the store of newest rows, with its driver
//     online/pebble.
//
// # Guarantees
//
// A version of a definition never changes; the same content is the same version,
// whoever applies it. A feature service names versions of views, not views. A
// value is used at time T only if it was known at T: event ≤ T, created ≤ T,
// T − event ≤ TTL, in a training set and online alike (the exact rule is in
// package offline, for windows in package window). Applying a definition runs no user's code in this process:
// SQL is tried in the sandboxed child with no rows, and an expression has no loops
// and a bounded cost. Materialising again, or
// after a crash, writes the same rows; reads go on meanwhile. Reads pass the
// permission, the purposes of their views, the residency door and, for confidential and restricted data, the
// synced journal before they are answered.
package feature

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // so that a zone is known wherever the server runs

	"github.com/agnivade/levenshtein"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Kind of definition.
type Kind string

// The kinds. ServiceKind is the manifest kind FeatureService.
const (
	EntityKind  Kind = "entity"
	ViewKind    Kind = "view"
	ServiceKind Kind = "service"
)

// hint says where to look for a definition that is not there.
func (k Kind) hint() string {
	listed, manifest := "entities", "Entity"
	switch k {
	case EntityKind:
	case ViewKind:
		listed, manifest = "feature-views", "FeatureView"
	case ServiceKind:
		listed, manifest = "feature-services", "FeatureService"
	}
	return "`falaj get " + listed + "` lists existing ones; to create one, apply a manifest of kind " + manifest + " to make one."
}

// objectKind is the kind of policy objects and of key scopes.
const objectKind = "feature"

// EntitySpec is the manifest of kind Entity: what features are about.
type EntitySpec struct {
	Description string            `json:"description,omitempty" doc:"Description of the entity"`
	JoinKeys    []string          `json:"join_keys,omitempty" doc:"Columns that identify it; default: its name"`
	Type        string            `json:"type,omitempty" doc:"Type of the join keys" enum:"string,int32,int64,bool,timestamp" default:"string"`
	Tags        map[string]string `json:"tags,omitempty" doc:"Labels for people and tools"`
}

// ViewSpec is the manifest of kind FeatureView: features of entities over time.
type ViewSpec struct {
	Description      string            `json:"description,omitempty" doc:"Description of the features"`
	Source           Source            `json:"source" doc:"Source of the rows: a dataset, or SQL over datasets"`
	Entities         []string          `json:"entities" doc:"Entities whose join keys identify a row"`
	Timestamp        string            `json:"timestamp" doc:"Column with the event time: a row's values are valid from this time"`
	CreatedTimestamp string            `json:"created_timestamp,omitempty" doc:"Column with the time at which a row became known, for rows that are corrected or late"`
	TTL              string            `json:"ttl,omitempty" doc:"Time to live of the values, such as 3h or 7d; 0 or empty: unlimited"`
	Features         []FieldSpec       `json:"features,omitempty" doc:"Features by column; their value is that of the newest row. Omit them with aggregations, which define them"`
	Aggregations     []AggregationSpec `json:"aggregations,omitempty" doc:"Instead of features: aggregations over a time window; each row is an event"`
	Purpose          []string          `json:"purpose,omitempty" doc:"Purposes for which the features may be read, such as care or research; each read must name one. Empty: any purpose"`
	Tags             map[string]string `json:"tags,omitempty" doc:"Labels for people and tools"`
}

// Source is where the rows of a view or of a spine come from: exactly one of
// Dataset and SQL.
type Source struct {
	Dataset string            `json:"dataset,omitempty" doc:"Dataset, such as weather or weather@3; without a version the newest accepted one"`
	SQL     string            `json:"sql,omitempty" doc:"DuckDB SQL query over datasets, run in a sandbox"`
	Inputs  map[string]string `json:"inputs,omitempty" doc:"Datasets by the table names used in sql; by default tables are datasets of the same name"`
	// TimeZone is omitted if every time has its own.
	TimeZone string      `json:"time_zone,omitempty" doc:"Time zone of times in sql without one (TIMESTAMP, not TIMESTAMPTZ), such as America/New_York or UTC; required if there are any"`
	Stream   *StreamSpec `json:"stream,omitempty" doc:"The dataset receives its rows as events, which are online at once; it must declare its columns"`
}

// FieldSpec is a feature of a view.
type FieldSpec struct {
	Name        string     `json:"name" doc:"Column of the source"`
	Type        string     `json:"type" doc:"Type of the values: int32, int64, float32, float64, string, bool, timestamp, list<int64>(100) for a list of at most 100 values of one of these, or vector(384) for a float32 embedding of 384 dimensions"`
	Description string     `json:"description,omitempty" doc:"Description of the feature"`
	Protect     Protection `json:"protect,omitempty" doc:"Value for readers without feature.clear: mask gives null, pseudonym replaces a string by an unguessable one" enum:"mask,pseudonym"`
}

// ServiceSpec is the manifest of kind FeatureService: the features of a model.
type ServiceSpec struct {
	Description string            `json:"description,omitempty" doc:"Description of the service"`
	Features    []string          `json:"features" doc:"Features such as weather:temp, weather@2:humid, or weather for all of a view; a view without a version means its newest when this is applied"`
	Inputs      []string          `json:"inputs,omitempty" doc:"More features, in the same notation, used only by the expressions of computed"`
	Request     []RequestSpec     `json:"request,omitempty" doc:"Values for the expressions of computed, which each request contains for an entity and each row of a training set's spine has"`
	Purpose     string            `json:"purpose,omitempty" doc:"Purpose of reads through the service, if its views name purposes"`
	Computed    []ComputedSpec    `json:"computed,omitempty" doc:"Features computed on demand, by the same code in training sets and online"`
	Tags        map[string]string `json:"tags,omitempty" doc:"Labels for people and tools"`
}

// RequestSpec is a value that comes with a request.
type RequestSpec struct {
	Name        string `json:"name" doc:"Name of the value in requests and expressions, and of the column of a spine"`
	Type        string `json:"type" doc:"Type of the value, as of a feature"`
	Description string `json:"description,omitempty" doc:"Description of the value"`
}

// ComputedSpec is a feature that is computed from others.
type ComputedSpec struct {
	Name        string `json:"name" doc:"Name of the feature"`
	Type        string `json:"type" doc:"Type of its values, as of a feature"`
	Expression  string `json:"expression" doc:"CEL over features (temp, or weather__temp), values of the request, and computed features before this one"`
	Description string `json:"description,omitempty" doc:"Description of the feature"`
}

// Header is what every version of a definition has.
type Header struct {
	Project   project.Name `json:"project"`
	Name      string       `json:"name"`
	Version   int          `json:"version"` // from 1
	Digest    string       `json:"digest"`  // "sha256:…" of the content
	CreatedAt time.Time    `json:"created_at"`
	CreatedBy string       `json:"created_by"` // principal id
}

// Ref is "weather@3".
func (h Header) Ref() string { return h.Name + "@" + strconv.Itoa(h.Version) }

// Entity is a version of an entity.
type Entity struct {
	Header
	EntitySpec
}

// View is a version of a feature view. Source.Inputs names every dataset that it
// reads, and Keys the join keys of its entities as they were when it was
// applied.
type View struct {
	Header
	ViewSpec
	Keys []Key `json:"keys"`
}

// Key is a join key of a view.
type Key struct {
	Entity string     `json:"entity"` // "origin@1"
	Name   string     `json:"name"`   // column
	Type   value.Type `json:"type"`
}

// ServiceDefinition is a version of a feature service. Selected and Used have its features
// and inputs with the versions of their views.
type ServiceDefinition struct {
	Header
	ServiceSpec
	Selected []string `json:"selected"` // "weather@2:temp"
	Used     []string `json:"used,omitempty"`
}

// Limits on definitions.
const (
	maxDescription = 4 << 10
	maxTags        = 64
	maxSQL         = 256 << 10
	maxKeys        = 16
	maxColumnName  = 255
	maxSelected    = value.MaxFeatures
	maxInputs      = 64
)

// complete fills in the defaults.
func (s EntitySpec) complete(name string) EntitySpec {
	if s.Type == "" {
		s.Type = value.String.String()
	}
	if len(s.JoinKeys) == 0 {
		s.JoinKeys = []string{name}
	}
	return s
}

// Validate refuses what no entity may be. Error: fault.Invalid.
func (s EntitySpec) Validate() error {
	if err := checkText(s.Description, s.Tags); err != nil {
		return err
	}
	if s.Type != "" {
		t, err := typeOf("type", s.Type)
		if err != nil {
			return err
		}
		if !t.Keys() {
			return bad("type", "the type %s cannot be a join key", t).WithHint("Join keys have the type string, int32, int64, bool or timestamp.")
		}
	}
	if len(s.JoinKeys) > maxKeys {
		return bad("join_keys", "%d are over the limit of %d", len(s.JoinKeys), maxKeys)
	}
	return distinct("join_keys", s.JoinKeys)
}

// Validate refuses what no view may be, as far as its own text tells. Error:
// fault.Invalid.
func (s ViewSpec) Validate() error {
	if err := checkText(s.Description, s.Tags); err != nil {
		return err
	}
	if err := s.Source.validate("source"); err != nil {
		return err
	}
	if len(s.Entities) == 0 {
		return bad("entities", "at least one entity is required").WithHint("Name the entity that the features describe.")
	}
	if err := distinct("entities", s.Entities); err != nil {
		return err
	}
	if _, err := resource.ParseDuration(s.TTL); err != nil {
		return bad("ttl", "%s", err).WithHint("Write a duration such as 90m, 3h or 7d; 0 means no limit.")
	}
	if err := checkPurposes("purpose", s.Purpose); err != nil {
		return err
	}
	if s.Timestamp == "" {
		return bad("timestamp", "it is required").
			WithHint("Name the event timestamp column. If the source has none, add a constant in SQL, such as TIMESTAMPTZ '2000-01-01 00:00:00+00' AS known_since.")
	}
	if len(s.Aggregations) > 0 {
		return s.validateWindows()
	}
	if len(s.Features) == 0 {
		return bad("features", "features or aggregations are required")
	}
	if len(s.Features) > value.MaxFeatures {
		return bad("features", "%d are over the limit of %d", len(s.Features), value.MaxFeatures)
	}
	columns := []string{s.Timestamp}
	if s.CreatedTimestamp != "" {
		columns = append(columns, s.CreatedTimestamp)
	}
	for i, f := range s.Features {
		if _, err := typeOf(fmt.Sprintf("features[%d].type", i), f.Type); err != nil {
			return err
		}
		if err := checkFeature(fmt.Sprintf("features[%d]", i), f.Name, f.Description); err != nil {
			return err
		}
		if err := checkProtection(fmt.Sprintf("features[%d]", i), f.Protect, f.Type); err != nil {
			return err
		}
		columns = append(columns, f.Name)
	}
	return distinct("features", columns)
}

func checkFeature(field, name, description string) error {
	if strings.ContainsAny(name, ":*@") {
		return bad(field+".name", "%q contains ':', '*' or '@'", clip(name)).WithHint("Rename the column in SQL.")
	}
	if len(description) > maxDescription {
		return bad(field+".description", "%d bytes are over the limit of %d", len(description), maxDescription)
	}
	return nil
}

// Validate refuses what no feature service may be. Error: fault.Invalid.
func (s ServiceSpec) Validate() error {
	if err := checkText(s.Description, s.Tags); err != nil {
		return err
	}
	if len(s.Features) == 0 {
		return bad("features", "at least one feature is required")
	}
	if n := len(s.Features) + len(s.Inputs); n > maxSelected {
		return bad("features", "%d are over the limit of %d", n, maxSelected)
	}
	for i, f := range s.Features {
		if _, err := naming.ParseFeature(f); err != nil {
			return fault.Wrap(err, "spec.features[%d]", i)
		}
	}
	for i, f := range s.Inputs {
		if _, err := naming.ParseFeature(f); err != nil {
			return fault.Wrap(err, "spec.inputs[%d]", i)
		}
	}
	if s.Purpose != "" {
		if err := checkPurposes("purpose", []string{s.Purpose}); err != nil {
			return err
		}
	}
	return s.validateComputed()
}

func (s Source) validate(field string) error {
	switch {
	case s.Dataset == "" && s.SQL == "":
		return bad(field, "dataset or sql is required").WithHint("Write `dataset: weather`, or `sql: SELECT …`.")
	case s.Dataset != "" && s.SQL != "":
		return bad(field, "set either dataset or sql, not both").WithHint("To use both, name the dataset in the sql, and omit `dataset`.")
	case s.Dataset != "" && len(s.Inputs) > 0:
		return bad(field+".inputs", "inputs require sql")
	case s.Dataset != "" && s.TimeZone != "":
		return bad(field+".time_zone", "time_zone requires sql").WithHint("Times of a dataset are instants already.")
	case len(s.SQL) > maxSQL:
		return bad(field+".sql", "%d bytes are over the limit of %d", len(s.SQL), maxSQL)
	case len(s.Inputs) > maxInputs:
		return bad(field+".inputs", "%d are over the limit of %d", len(s.Inputs), maxInputs)
	}
	if s.TimeZone != "" {
		if err := checkTimeZone(s.TimeZone); err != nil {
			return bad(field+".time_zone", "%s", err).WithHint("%s", fault.HintOf(err))
		}
	}
	return s.validateStream(field)
}

// checkTimeZone refuses what is no zone of IANA's database.
func checkTimeZone(name string) error {
	if _, err := time.LoadLocation(name); err != nil || name == "Local" {
		return fault.New(fault.Invalid, "there is no time zone %q", clip(name)).WithHint("Write a name of the IANA time zone database, such as America/New_York, Europe/Berlin or UTC.")
	}
	return nil
}

// sources lists the datasets of the source by table; the table of a Dataset is
// its name.
func (s Source) sources() map[string]string {
	if s.Dataset == "" {
		return s.Inputs
	}
	name, _, _ := strings.Cut(s.Dataset, "@")
	return map[string]string{name: s.Dataset}
}

// ttl is the time to live, which Validate has accepted.
func (s ViewSpec) ttl() time.Duration {
	d, _ := resource.ParseDuration(s.TTL) // validated
	return d
}

// featureTypes are the types of the features, in order.
func (v View) featureTypes() []value.Type {
	types := make([]value.Type, len(v.Features))
	for i, f := range v.Features {
		types[i], _ = typeOf("type", f.Type) // validated
	}
	return types
}

// feature finds a feature by name; −1 when there is none.
func (v View) feature(name string) int {
	return slices.IndexFunc(v.Features, func(f FieldSpec) bool { return f.Name == name })
}

// columns are all columns of the source that the view reads, each once.
func (v View) columns() []string {
	var columns []string
	for _, k := range v.Keys {
		columns = append(columns, k.Name)
	}
	columns = append(columns, v.Timestamp)
	if v.CreatedTimestamp != "" {
		columns = append(columns, v.CreatedTimestamp)
	}
	for _, c := range v.inputs() {
		if !slices.Contains(columns, c.Column) {
			columns = append(columns, c.Column)
		}
	}
	return columns
}

// bad is an error about a field of a spec.
func bad(field, format string, args ...any) *fault.Error {
	return fault.New(fault.Invalid, "spec.%s: %s", field, fmt.Sprintf(format, args...))
}

func typeOf(field, name string) (value.Type, error) {
	var t value.Type
	err := t.UnmarshalText([]byte(name))
	switch {
	case err == nil:
		return t, nil
	case strings.HasPrefix(name, "list<") || strings.HasPrefix(name, "vector"):
		return 0, bad(field, "%s", err).WithHint("%s", fault.HintOf(err))
	}
	return 0, bad(field, "there is no type %q%s", clip(name), nearest(name, value.Names())).WithHint("The types are %s.", value.Forms())
}

// distinct refuses empty, overlong and repeated names.
func distinct(field string, names []string) error {
	for i, n := range names {
		if n == "" || len(n) > maxColumnName {
			return bad(field, "%q is not a valid column name", clip(n))
		}
		if slices.Contains(names[:i], n) {
			return bad(field, "duplicate %q", clip(n))
		}
	}
	return nil
}

func checkText(description string, tags map[string]string) error {
	if len(description) > maxDescription {
		return bad("description", "%d bytes are over the limit of %d", len(description), maxDescription)
	}
	if len(tags) > maxTags {
		return bad("tags", "%d are over the limit of %d", len(tags), maxTags)
	}
	for k, v := range tags {
		if k == "" || len(k) > 250 || len(v) > 5000 {
			return bad("tags", "tag %q: keys have 1 to 250 bytes, values at most 5000", clip(k))
		}
	}
	return nil
}

// digestOf is the content digest of a definition.
func digestOf(content any) (string, error) {
	b, err := json.Marshal(content) // maps come sorted
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// nearest is `; did you mean "temp"?` when a name is close, else nothing.
func nearest(name string, names []string) string {
	best, distance := "", 1+len(name)/3
	for _, n := range names {
		if d := levenshtein.ComputeDistance(name, n); d <= distance {
			best, distance = n, d-1
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

func clip(s string) string { return fault.Clip(s, 80) }

func checkName(k Kind, name string) error {
	return id.CheckName(map[Kind]string{EntityKind: "entity name", ViewKind: "feature view name", ServiceKind: "feature service name"}[k], name)
}
