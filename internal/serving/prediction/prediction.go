// Package prediction is what serving remembers of each answer: what was asked,
// what the model saw, what it said, and how long it took.
//
// # Map
//
//   - prediction.go: Record and Column.
//   - codec.go: a record as bytes.
//   - Log (log.go) keeps records: a directory of sealed segments for each
//     deployment (segment.go), written by writer.go, read by read.go from a
//     Cursor on, cut back by retention.go; erase.go takes a person's rows out.
//
// # Guarantees
//
// When Append returns nil, the record survives the end of this process, however
// it ends. It is on disk within a second: the loss of power may take the records
// of the last second, and nothing else; labels and decisions are in the database
// and are not lost. A file that a crash cut short is read up to its last whole
// frame: never an error, never a wrong record. What is on disk is sealed under a
// key of the project; without that key it is noise (fault.Gone).
//
// Records are in the zone where the server is, that of a gateway included; serving has
// checked that the deployment's label allows it.
package prediction

import (
	"hash/fnv"
	"time"
)

// Record is one request as a model version answered it. A request that is also
// shown to a shadow has a second record with the same ID.
type Record struct {
	// ID is the request's: the client's own, or one made here ("prd_01J…") and
	// answered. Labels join by it. Unique within a deployment, but for shadows.
	ID         string
	Project    string
	Deployment string // its name
	// Owner is OwnerOf the deployment's ID; 0 is not known. One that was deleted may
	// have left records to another one of its name.
	Owner   uint64
	Model   string
	Version int64
	Remote  string // the server that ran the model, and its zone; empty: this one, in the home zone
	Zone    string
	Rollout string // the rollout under way ("rol_01J…"); empty when there is none
	Shadow  bool   // the answer went nowhere
	// Bucket is 1 + that of the key by which the request was routed: requests with
	// the same one met the same version. 0 when chance decided for this one alone.
	Bucket uint32
	// At is the time the request was about: as_of of a replay, else Received.
	At       time.Time
	Received time.Time
	Replay   bool
	Erased   bool          // rows of a person were taken out of it: zero bytes and NaN
	Latency  time.Duration // from decoded request to answer, feature lookup included
	Failure  string        // kind of the fault, FailedInModel or GaveUp; empty when it was answered
	Rows     int
	Keys     []Column  // the entities that were looked up, as text
	Inputs   []Column  // what the model saw, by feature
	Scores   []float64 // the monitored output, one for each row; empty when it failed
	// Task is what the model answers: what the deployment declares, else what the
	// model's outputs are. Empty where neither says so.
	Task Task
	// Of an answer of several classes (Multiclass): the predicted class of each row, as
	// text, and the probabilities of the classes, row by row. Probabilities are empty
	// where the model gives none, or more than MaxProbabilities.
	Predicted     []string
	Probabilities []float64
}

// Task is what a model answers.
type Task string

// The tasks.
const (
	Regression Task = "regression" // a number
	Binary     Task = "binary"     // the probability of one of two classes
	Multiclass Task = "multiclass" // one of several classes
)

// MaxProbabilities bounds the probabilities of a record.
const MaxProbabilities = 1 << 18

// tasks are the tasks by their number in a record.
var tasks = []Task{"", Regression, Binary, Multiclass}

// GaveUp is the Failure of a request whose asker went away before there was an answer,
// or allowed less time than it would have taken.
const GaveUp = "gave_up"

// FailedInModel is the Failure of a model that refused inputs which are what it
// says that it takes.
const FailedInModel = "model"

// OwnerOf is the Owner of a deployment's records.
func OwnerOf(deploymentID string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(deploymentID))
	return max(h.Sum64(), 1)
}

// By reports whether the record is of the deployment with an Owner, as far as
// either is known.
func (r *Record) By(owner uint64) bool { return owner == 0 || r.Owner == 0 || r.Owner == owner }

// Column is a named column of a record. One of Numbers and Texts is Rows long,
// the other empty; a missing number is NaN.
type Column struct {
	Name    string
	Numbers []float64
	Texts   []string
}
