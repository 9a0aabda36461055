package httpapi

import (
	"cmp"
	"math"
	"net/http"
	"time"

	"github.com/falaj-ml/falaj/internal/flight"
	"github.com/falaj-ml/falaj/internal/httpapi/feast"
	"github.com/falaj-ml/falaj/internal/httpapi/oip"
	"github.com/falaj-ml/falaj/internal/httpapi/optuna"
	"github.com/falaj-ml/falaj/internal/httpapi/rpc"
	"github.com/falaj-ml/falaj/internal/membudget"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
)

// Body is what the requests of a route carry, and how the server bounds it.
type Body struct {
	name  string             // for people
	limit int64              // bytes, unless limits.body of the configuration is larger; 0: limits.body
	most  func(Config) int64 // replaces limit

	grace     time.Duration // how long it may be behind the least rate; 0: slowGrace
	anyRate   bool          // as slow as its sender likes
	time      time.Duration // time-out for reading it; 0: the server's
	unhurried bool          // no time-out if there is a least rate: its reader is a person

	upload    bool // a file or rows: takes a slot, and the disk is checked while it is read
	file      bool // a file, which no idempotency key may repeat
	packed    bool // its handler reads the Content-Encoding; others refuse one
	unweighed bool // written to a file, read by another process, or weighed by its protocol
	form      membudget.Form
	// packedForm is how a body with a Content-Encoding is weighed; what it unpacks to is
	// weighed by who unpacks it.
	packedForm *membudget.Form
	hot        bool // a small one takes no turn at a processor
}

// Memory that bodies take, in bytes for a byte.
const (
	perProtobuf = 16 // messages of numbers and short texts
	perRecord   = 4  // kept and copied, not decoded
)

// Limits of bodies, in bytes.
const (
	maxMLflow   = 20 << 20 // the profiles of data sets
	maxManifest = 32 << 20 // what agents are about to send
)

const (
	// fileTime and rowsTime are how long files and rows may take: longer than the server's
	// time-out for reading.
	fileTime = time.Hour
	rowsTime = 10 * time.Minute
)

var copied = membudget.Copied(perRecord)

// The bodies.
var (
	jsonBody      = &Body{name: "JSON", form: membudget.JSON}
	yamlBody      = &Body{name: "YAML", form: membudget.YAML}
	onlineBody    = &Body{name: "keys", form: membudget.JSON, hot: true}
	lineageBody   = &Body{name: "event", form: membudget.JSON, packed: true, packedForm: &copied}
	logBody       = &Body{name: "log", form: copied}
	manifestBody  = &Body{name: "manifest", form: membudget.JSON, limit: maxManifest}
	handOverBody  = &Body{name: "records", form: copied, limit: gateway.MaxBatch}
	fileBody      = &Body{name: "file", most: uploadLimit, time: fileTime, upload: true, file: true, unweighed: true}
	treeBody      = &Body{name: "tree", most: treeLimit, time: fileTime, grace: agentGrace, upload: true, file: true, unweighed: true, packed: true}
	outputBody    = &Body{name: "output", most: treeLimit, time: fileTime, grace: agentGrace, upload: true, file: true, unweighed: true, packed: true, unhurried: true}
	inferenceBody = &Body{name: "tensors", limit: oip.MaxBody, unweighed: true, packed: true, hot: true}
	callBody      = &Body{name: "call", limit: oip.MaxBody, unweighed: true}
	streamBody    = &Body{name: "stream", most: unlimited, unweighed: true, anyRate: true} // each message is bounded, and how many streams
	feastBody     = &Body{name: "Feast", form: membudget.JSON, limit: feast.MaxBody, hot: true}
	readBody      = &Body{name: "read", form: membudget.Binary(perProtobuf), limit: rpc.MaxBody}
	optunaBody    = &Body{name: "Optuna", form: membudget.Binary(perProtobuf), limit: optuna.MaxBody}
	mlflowBody    = &Body{name: "MLflow", form: membudget.JSON, limit: maxMLflow}
	flightBody    = &Body{name: "ticket", unweighed: true, anyRate: true} // asks of a few bytes; the stream stays open for the answer
	rowsBody      = &Body{name: "rows", most: rowsLimit, time: rowsTime, grace: rowsGrace, upload: true, unweighed: true}
)

func uploadLimit(c Config) int64 { return c.Upload }
func treeLimit(c Config) int64   { return max(c.Upload, c.Tree) }
func rowsLimit(Config) int64     { return flight.MaxUpload }
func unlimited(Config) int64     { return math.MaxInt64 }

// bytes is the largest body.
func (b *Body) bytes(c Config) int64 {
	if b.most != nil {
		return b.most(c)
	}
	return max(c.MaxBody, b.limit)
}

// formOf is how a request's body is weighed; nil where it is not.
func (b *Body) formOf(r *http.Request) *membudget.Form {
	switch {
	case b.unweighed:
		return nil
	case b.packedForm != nil && r.Header.Get("Content-Encoding") != "":
		return b.packedForm
	}
	return &b.form
}

// patience is how long a body may be behind the least rate.
func (b *Body) patience() time.Duration { return cmp.Or(b.grace, slowGrace) }
