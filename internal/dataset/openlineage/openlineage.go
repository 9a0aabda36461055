// Package openlineage is lineage that crosses Falaj's border, in the words of
// OpenLineage 2-0-2: what Spark, Airflow, dbt and others tell of their runs is
// taken and joined with Falaj's datasets, and what Falaj runs is told to others.
//
// # Map
//
//   - openlineage.go: Event and its parts, what they must satisfy, and the names that
//     Falaj's own things have.
//   - service.go: Service, the only way in: Take keeps an event.
//   - graph.go: Around follows what is known about a dataset, ours and theirs.
//   - facets.go: the facets that are understood, and made.
//   - send.go: Sender, which posts events to a receiver.
//   - store.go says what it needs from a database; openlineagesql implements that.
//
// # Guarantees
//
// An event that was acknowledged is kept. Taking it again changes nothing: of a run,
// an event of a type and content counts once, and what events say adds up, as the
// specification wants. Facets that nobody here knows are kept as they are, within
// limits; one that is too large is left out, and named.
//
// What others tell is their word. It is shown beside Falaj's own lineage, and
// decides nothing: not where data may be, who may read it, or what is trained on.
//
// Of what Falaj tells, names, schemas, digests and counts are all: never a value of
// a row.
package openlineage

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/jsondoc"
)

// Limits of an event that is taken.
const (
	MaxEvent    = 4 << 20 // bytes
	maxDatasets = 1000    // inputs and outputs
	maxFacets   = 100     // of a run, a job or a dataset
	maxFacet    = 64 << 10
	maxKept     = 256 << 10 // of all facets of a run, a job or a dataset
	maxWide     = 256 << 10 // of the columns of a dataset, and of what they are made of
	maxKey      = 512       // bytes of a namespace or name of a job or dataset: four are the key of a link
	maxName     = 2048      // bytes of other names
	maxFields   = 2000      // columns of a dataset
	maxSources  = 200       // columns that one column is made of
)

// SchemaURL is the schema of the events that Falaj makes.
const SchemaURL = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"

// Producer is Falaj in events.
const Producer = "https://github.com/falaj-ml/falaj"

// Type is the transition of a run that an event tells of.
type Type string

// The types.
const (
	Start    Type = "START"
	Running  Type = "RUNNING"
	Complete Type = "COMPLETE"
	Abort    Type = "ABORT"
	Fail     Type = "FAIL"
	Other    Type = "OTHER"
)

// ended reports whether a run has ended with it.
func (t Type) ended() bool { return t == Complete || t == Abort || t == Fail }

// Event is a RunEvent; a JobEvent when there is no run, a DatasetEvent when there is
// a dataset. Fields that are not here may be there, and are not kept.
type Event struct {
	Type      Type      `json:"eventType,omitempty"`
	Time      time.Time `json:"eventTime"`
	Producer  string    `json:"producer"`
	SchemaURL string    `json:"schemaURL"`
	Run       *Run      `json:"run,omitempty"`
	Job       *Job      `json:"job,omitempty"`
	Dataset   *Dataset  `json:"dataset,omitempty"`
	Inputs    []Dataset `json:"inputs,omitempty"`
	Outputs   []Dataset `json:"outputs,omitempty"`
}

// Run is an execution of a job.
type Run struct {
	ID     string `json:"runId"`
	Facets Facets `json:"facets,omitempty"`
}

// Job is an OpenLineage job.
type Job struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Facets    Facets `json:"facets,omitempty"`
}

// Dataset is what a job reads or writes.
type Dataset struct {
	Namespace    string `json:"namespace"`
	Name         string `json:"name"`
	Facets       Facets `json:"facets,omitempty"`
	InputFacets  Facets `json:"inputFacets,omitempty"`
	OutputFacets Facets `json:"outputFacets,omitempty"`
}

// Facets are facts by name. The value of each is an object.
type Facets map[string]json.RawMessage

// Parse reads and validates an event. left names the facets that were too large to store. Error:
// fault.Invalid naming the field; fault.TooLarge.
func Parse(b []byte) (e Event, left []string, err error) {
	if len(b) > MaxEvent {
		return e, nil, fault.New(fault.TooLarge, "the event has %d bytes, over the limit of %d", len(b), MaxEvent)
	}
	var written struct {
		Event
		Time string `json:"eventTime"`
	}
	if err := jsondoc.Decode(b, &written); err != nil {
		return e, nil, fault.New(fault.Invalid, "the body is not one OpenLineage event in JSON: %v", err).WithHint("Post one event per request.")
	}
	e = written.Event
	if e.Time, err = time.Parse(time.RFC3339Nano, written.Time); err != nil {
		return e, nil, fault.New(fault.Invalid, "eventTime: %q is not a time with a zone, such as 2026-01-31T10:00:00Z", clip(written.Time))
	}
	e.Time = e.Time.UTC()
	if err := e.validate(); err != nil {
		return e, nil, err
	}
	return e, e.trim(), nil
}

var runID = regexp.MustCompile(`^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`)

func (e *Event) validate() error {
	if err := isURI("producer", e.Producer); err != nil {
		return err
	}
	if err := isURI("schemaURL", e.SchemaURL); err != nil {
		return err
	}
	switch e.Type {
	case "", Start, Running, Complete, Abort, Fail, Other:
	default:
		return fault.New(fault.Invalid, "eventType: there is no type %q", clip(string(e.Type))).WithHint("The types are START, RUNNING, COMPLETE, ABORT, FAIL and OTHER.")
	}
	switch {
	case e.Job != nil:
		e.Dataset = nil // of events of runs and jobs a further property, which the specification permits
	case e.Dataset != nil:
		e.Run = nil // likewise
		return e.Dataset.validate("dataset")
	default:
		return fault.New(fault.Invalid, "the event has no job and no dataset")
	}
	if e.Run != nil {
		if !runID.MatchString(e.Run.ID) {
			return fault.New(fault.Invalid, "run.runId: %q is not a UUID", clip(e.Run.ID))
		}
		e.Run.ID = strings.ToLower(e.Run.ID)
		if err := e.Run.Facets.validate("run.facets"); err != nil {
			return err
		}
	}
	if err := named("job", e.Job.Namespace, e.Job.Name); err != nil {
		return err
	}
	if err := e.Job.Facets.validate("job.facets"); err != nil {
		return err
	}
	if n := len(e.Inputs) + len(e.Outputs); n > maxDatasets {
		return fault.New(fault.TooLarge, "the event has %d inputs and outputs, over the limit of %d", n, maxDatasets)
	}
	for i := range e.Inputs {
		if err := e.Inputs[i].validate(fmt.Sprintf("inputs[%d]", i)); err != nil {
			return err
		}
	}
	for i := range e.Outputs {
		if err := e.Outputs[i].validate(fmt.Sprintf("outputs[%d]", i)); err != nil {
			return err
		}
	}
	return nil
}

func (d *Dataset) validate(where string) error {
	if err := named(where, d.Namespace, d.Name); err != nil {
		return err
	}
	for name, facets := range map[string]Facets{"facets": d.Facets, "inputFacets": d.InputFacets, "outputFacets": d.OutputFacets} {
		if err := facets.validate(where + "." + name); err != nil {
			return err
		}
	}
	return nil
}

// validate holds what the specification demands of every facet; its own fields are
// its producer's.
func (f Facets) validate(where string) error {
	if len(f) > maxFacets {
		return fault.New(fault.TooLarge, "%s: %d facets are over the limit of %d", where, len(f), maxFacets)
	}
	for name, text := range f {
		var base struct {
			Producer  string `json:"_producer"`
			SchemaURL string `json:"_schemaURL"`
		}
		if err := json.Unmarshal(text, &base); err != nil || len(name) > maxName {
			return fault.New(fault.Invalid, "%s: the facet %q is not an object", where, clip(name))
		}
		if err := isURI(where+"."+clip(name)+"._producer", base.Producer); err != nil {
			return err
		}
		if err := isURI(where+"."+clip(name)+"._schemaURL", base.SchemaURL); err != nil {
			return err
		}
	}
	return nil
}

func named(where, namespace, name string) error {
	for field, v := range map[string]string{"namespace": namespace, "name": name} {
		if v == "" || len(v) > maxKey || strings.ContainsRune(v, 0) {
			return fault.New(fault.Invalid, "%s.%s has %d bytes, and must have 1 to %d without NUL", where, field, len(v), maxKey)
		}
	}
	return nil
}

func isURI(where, text string) error {
	if u, err := url.Parse(text); err != nil || text == "" || u.Scheme == "" || len(text) > maxName {
		return fault.New(fault.Invalid, "%s: %q is not a URI", where, clip(text))
	}
	return nil
}

// trim leaves out the facets that are too large, and names them.
func (e *Event) trim() (left []string) {
	drop := func(where string, facets Facets) {
		for name, text := range facets {
			limit := maxFacet
			if name == columnFacet || name == schemaFacet { // which are kept as fields and columns
				limit = maxWide
			}
			if len(text) > limit {
				delete(facets, name)
				left = append(left, where+"."+name)
			}
		}
	}
	if e.Run != nil {
		drop("run", e.Run.Facets)
	}
	if e.Job != nil {
		drop("job", e.Job.Facets)
	}
	for _, ds := range [][]Dataset{e.Inputs, e.Outputs} {
		for _, d := range ds {
			drop(d.Name, d.Facets)
			drop(d.Name, d.InputFacets)
			drop(d.Name, d.OutputFacets)
		}
	}
	if e.Dataset != nil {
		drop(e.Dataset.Name, e.Dataset.Facets)
	}
	return left
}

// digest is of what the event says, whatever it looks like.
func (e *Event) digest() string {
	b, err := json.Marshal(e)
	if err != nil {
		panic("openlineage: a parsed event does not marshal: " + err.Error())
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

// Namespace is that of a project's things in events: "falaj://nyc". Datasets have
// their names in it, feature views and models are "feature_views/NAME" and
// "models/NAME".
func Namespace(p project.Name) string { return "falaj://" + string(p) }

// The names of things that are no datasets.
const (
	ViewPrefix  = "feature_views/"
	ModelPrefix = "models/"
)

// RunID makes a run's UUID of what identifies it in Falaj, always the same.
func RunID(of string) string {
	h := sha256.Sum256([]byte("falaj/run/" + of))
	h[6], h[8] = h[6]&0x0f|0x80, h[8]&0x3f|0x80 // RFC 9562, version 8
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

func clip(s string) string { return fault.Clip(s, 80) }
