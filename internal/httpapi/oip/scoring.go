package oip

import (
	"bytes"
	"encoding/csv"
	"errors"
	"io"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/inference"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// The scoring protocols: that of MLflow's models (/invocations) and version 1 of KServe's
// and TensorFlow Serving's (:predict). They name no datatypes and no shapes, so that the
// model's inputs decide how a body is read. What they ask goes the way of all inferences.

// predictVerb ends the path of a request of version 1.
const predictVerb = ":predict"

// sklearn is the platform of scikit-learn's models, as the worker of Python models calls it.
const sklearn = "python_sklearn"

// The fields that a request may have one of, with its rows.
const (
	splitField     = "dataframe_split"
	recordsField   = "dataframe_records"
	instancesField = "instances"
	inputsField    = "inputs"
)

// wrapKey is the name in an object that is bytes in base64: {"b64": "…"}.
const wrapKey = "b64"

// maxColumns bounds the columns of a table that is one tensor.
const maxColumns = 1 << 16

func (a *API) registerScoring(handle func(method, path, action, summary string, h http.HandlerFunc)) {
	handle(http.MethodGet, "/v1/models", read, "List the deployments of the token's project (KServe V1 protocol)", a.models)
	handle(http.MethodGet, "/v1/models/{model}", read, "Check that a model is ready", a.modelReady)
	handle(http.MethodPost, "/v1/models/{call}", infer, "Request predictions from a model (KServe V1 and TensorFlow Serving protocol)", a.predict)
	handle(http.MethodPost, "/v1/models/{model}/versions/{call}", infer, "Request predictions from a version of a model (KServe V1 and TensorFlow Serving protocol)", a.predict)
	handle(http.MethodPost, "/endpoints/{model}/invocations", infer, "Request predictions from a deployment (MLflow scoring protocol)", a.predict)
	handle(http.MethodPost, "/invocations", infer, "Request predictions from the deployment named by the query (deployment=NAME), or the only one of the project (MLflow scoring protocol)", a.predict)
}

// Scores reports whether a path is one of the scoring protocols.
func Scores(path string) bool {
	return path == "/v1/models" || strings.HasPrefix(path, "/v1/models/") || path == "/invocations" || strings.HasPrefix(path, "/endpoints/")
}

// Documented is the path of a route as clients write it: http.ServeMux knows no wildcard
// with a text behind it.
func Documented(route string) string {
	switch before, ok := strings.CutSuffix(route, "/{call}"); {
	case !ok:
		return route
	case strings.HasSuffix(before, "/versions"):
		return before + "/{version}" + predictVerb
	default:
		return before + "/{model}" + predictVerb
	}
}

func (a *API) models(w http.ResponseWriter, r *http.Request) {
	project, err := a.enter(r, read)
	var rows []indexed
	if err == nil {
		rows, err = a.index(r.Context(), project, false)
	}
	names := []string{}
	for _, row := range rows {
		if !slices.Contains(names[max(0, len(names)-1):], row.Name) { // versions of one follow each other
			names = append(names, row.Name)
		}
	}
	a.reply(w, r, map[string]any{"models": names}, err)
}

func (a *API) predict(w http.ResponseWriter, r *http.Request) {
	if err := a.score(w, r); err != nil {
		a.Refuse(w, r, err)
	}
}

// score answers a request of the scoring protocols. Nothing was written when it returns an
// error.
func (a *API) score(w http.ResponseWriter, r *http.Request) error {
	project, err := a.enter(r, infer)
	if err != nil {
		return err
	}
	q := serving.Request{Project: project}
	if q.Name, q.Version, err = a.called(r, project); err != nil {
		return err
	}
	if q.RouteKey, err = single(r, routeKey); err != nil {
		return err
	}
	takes, err := a.Serving.Takes(r.Context(), project, q.Name, q.Version)
	if err != nil {
		return err
	}
	s := a.held.share(r.Context())
	s.in = project
	defer s.done()
	body, err := receive(r, -1, MaxBody, s)
	if err != nil {
		return err
	}
	f := frame{takes: takes, mlflow: !strings.HasPrefix(r.URL.Path, "/v1/"), hold: s.take}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "text/csv" {
		q.Inputs, err = f.csv(body)
	} else {
		q.Inputs, q.ID, err = f.json(body)
	}
	s.turn.End()
	if err != nil {
		return err
	}
	got, err := a.Serving.Infer(r.Context(), q)
	if err != nil {
		return err
	}
	outputs := got.Outputs
	if f.mlflow {
		outputs = scored(takes.Platform, outputs)
	}
	if err := s.encoding(outputs); err != nil {
		return err
	}
	buffer := heads.Get().(*[]byte)
	head, err := predictions((*buffer)[:0], outputs)
	if err != nil {
		return err
	}
	s.free() // the answer is made; who reads it slowly holds no more than that
	whole, err := send(w, r, s, head, nil)
	if whole && cap(head) <= trusted {
		*buffer = head
		heads.Put(buffer)
	}
	return err
}

// scored are the outputs that MLflow's server answers: of a classifier of scikit-learn what its
// predict gives, without the probabilities that Falaj answers beside it.
func scored(platform string, outputs []runtime.Tensor) []runtime.Tensor {
	others := func(t runtime.Tensor) bool { return t.Name != "probabilities" }
	if i := slices.IndexFunc(outputs, others); platform == sklearn && len(outputs) == 2 && i >= 0 && !others(outputs[1-i]) {
		return outputs[i : i+1]
	}
	return outputs
}

// called is the deployment that a request asks, and the version if it names one.
func (a *API) called(r *http.Request, project string) (name, version string, err error) {
	name = r.PathValue("model")
	if call := r.PathValue("call"); call != "" {
		what, ok := strings.CutSuffix(call, predictVerb)
		switch {
		case !ok || what == "":
			return "", "", fault.New(fault.NotFound, "%.100q is not a path of a model", call).WithHint("Use NAME%s.", predictVerb)
		case name == "":
			return what, "", nil
		}
		return name, what, nil
	}
	if name == "" {
		name = r.URL.Query().Get("deployment")
	}
	if name != "" {
		return name, "", nil
	}
	all, err := a.Serving.List(r.Context(), project, "", 2)
	const hint = "Use /endpoints/NAME/invocations, or /invocations?deployment=NAME."
	switch {
	case err != nil:
		return "", "", err
	case len(all) == 0:
		return "", "", fault.New(fault.NotFound, "project %s has no deployment that the caller may see", project).WithHint(hint)
	case len(all) > 1:
		return "", "", fault.New(fault.Invalid, "the request must name a deployment, because project %s has several", project).WithHint(hint)
	}
	return all[0].Name, "", nil
}

// frame makes tensors of the rows of a request.
type frame struct {
	takes  serving.Takes
	mlflow bool                  // the protocol is MLflow's, in which what is no text is base64, other columns are ignored and texts of numbers are numbers
	hold   func(bytes int) error // of memory, before it is taken

	names    []string // of the request
	at       map[string]int
	accepted map[string]bool // see accepts
	take     []int           // of them the columns that the model takes, in its order
	cells    [][]byte        // by column of take, an array of JSON without its end; of a matrix one, of rows
	named    bool            // the columns of the matrix have the names that the model knows
	matrix   bool            // the columns together are the model's only input
	rows     int
	size     int // of cells
	held     int
}

// json reads a body of JSON.
func (f *frame) json(body []byte) (inputs []runtime.Tensor, id string, err error) {
	if !utf8.Valid(body) {
		return nil, "", fault.New(fault.Invalid, "the request is not UTF-8")
	}
	s := &scanner{buf: body}
	var field string
	var data []byte
	var seen uint
	var others map[string]bool
	for ok := s.open('{', '}'); ok; ok = s.more('}') {
		switch key := s.key(); string(key) {
		case splitField, recordsField, instancesField, inputsField:
			if field != "" {
				s.fail("set either %s or %s, not both", field, key)
			}
			field, data = string(key), s.value()
		case "client_request_id":
			s.first(&seen, 0, "client_request_id")
			id = s.maybe()
		case "params":
			s.first(&seen, 1, "params")
			if v := s.value(); !s.empty(v) && s.err == nil {
				s.err = fault.New(fault.Unsupported, "params are not supported").WithHint("Remove params. Pass values that change between requests as inputs of the model.")
			}
		case "signature_name":
			s.first(&seen, 2, "signature_name")
			if v := s.maybe(); v != "" && v != "serving_default" && s.err == nil {
				s.err = fault.New(fault.Unsupported, "signature %.80q is not supported: a deployment has one signature", v).WithHint("Remove signature_name.")
			}
		default:
			s.other(&others, key)
		}
	}
	s.end()
	switch {
	case s.err != nil:
		return nil, "", s.err
	case field == "":
		return nil, "", fault.New(fault.Invalid, "the request has no rows").
			WithHint(`Send one of %s, %s, %s and %s, such as {"dataframe_split": {"columns": ["a", "b"], "data": [[1, 2]]}}.`, splitField, recordsField, instancesField, inputsField)
	}
	d := &scanner{buf: data}
	switch {
	case field == splitField:
		inputs, err = f.split(d)
	case field == inputsField && d.next() == '{' && !f.isWrapped(d):
		inputs, err = f.columns(d)
	case field != inputsField && d.next() != '[': // inputs may be one value
		err = fault.New(fault.Invalid, "%s is not a list", field)
	case field == recordsField || d.listsObjects() && !f.listsWrapped(d):
		inputs, err = f.records(d, field)
	default:
		inputs, err = f.whole(data, field)
	}
	return inputs, id, err
}

// value passes over a value and gives its text.
func (s *scanner) value() []byte {
	s.next()
	from := s.pos
	s.pass()
	return s.buf[from:s.pos]
}

// empty reports whether a value says nothing: null or an object without members.
func (s *scanner) empty(v []byte) bool {
	if string(v) == "null" {
		return true
	}
	d := scanner{buf: v}
	return !d.open('{', '}') && d.err == nil
}

// listsObjects reports whether an array begins whose first element is an object.
func (s *scanner) listsObjects() bool {
	at := s.pos
	defer func() { s.pos = at }()
	if s.next() != '[' {
		return false
	}
	s.pos++
	return s.next() == '{'
}

// isWrapped reports whether an object begins that is bytes, as {"b64": "…"}, and no row.
func (f *frame) isWrapped(s *scanner) bool {
	at := s.pos
	defer func() { s.pos = at }()
	d := scanner{buf: s.buf, pos: at}
	if !d.open('{', '}') || string(d.key()) != wrapKey || f.spec(wrapKey) != nil || slices.Contains(f.takes.Columns, wrapKey) {
		return false
	}
	return d.next() == '"'
}

// listsWrapped reports whether an array begins whose first element is bytes.
func (f *frame) listsWrapped(s *scanner) bool {
	d := &scanner{buf: s.buf, pos: s.pos}
	return d.open('[', ']') && f.isWrapped(d)
}

// begin takes the names of the columns.
func (f *frame) begin(names []string) error {
	f.matrix = f.takes.Columns == nil && len(f.takes.Inputs) == 1 && !slices.ContainsFunc(names, func(name string) bool { return f.spec(name) != nil })
	if f.matrix && f.takes.Platform == sklearn && len(f.takes.Inputs[0].Shape) == 1 { // the only column of a signature
		f.matrix = false
	}
	most := MaxTensors
	if f.matrix || f.mlflow {
		most = maxColumns
	}
	if len(names) > most {
		return fault.New(fault.TooLarge, "the rows have %d columns; the maximum is %d", len(names), most)
	}
	f.names, f.at = names, make(map[string]int, len(names))
	var unknown error
	for i, name := range names {
		if _, twice := f.at[name]; twice {
			return fault.New(fault.Invalid, "duplicate column %.80q", name)
		}
		f.at[name] = i
		if f.matrix {
			continue
		}
		switch {
		case f.accepts(name):
			f.take = append(f.take, i)
		case !f.mlflow:
			return f.known(name)
		case unknown == nil:
			unknown = f.known(name)
		}
	}
	switch {
	case f.matrix:
		if err := f.arrange(); err != nil {
			return err
		}
	case len(f.take) > MaxTensors:
		return fault.New(fault.TooLarge, "the rows have %d columns; the maximum is %d", len(f.take), MaxTensors)
	case len(f.take) == 0 && unknown != nil:
		return unknown
	}
	f.cells = make([][]byte, len(f.take))
	if f.matrix {
		f.cells = f.cells[:min(1, len(f.take))]
	}
	for i := range f.cells {
		f.cells[i] = []byte{'['}
	}
	return nil
}

// arrange brings the columns of a matrix into the order in which the model was trained, where it
// knows their names; else into that of the request, as columns that are only numbered.
func (f *frame) arrange() error {
	want := f.takes.Inputs[0].Columns
	numbered := true
	for i, name := range f.names {
		f.take = append(f.take, i)
		numbered = numbered && name == strconv.Itoa(i)
	}
	if len(want) == 0 || numbered && len(want) == len(f.names) {
		return nil
	}
	f.take = f.take[:0]
	for _, name := range want {
		i, there := f.at[name]
		if !there {
			return fault.New(fault.Invalid, "column %.80q is missing: the model was trained with it", name).WithHint("Columns of the model: %s.", shown(want))
		}
		f.take = append(f.take, i)
	}
	f.named = true
	for _, name := range f.names {
		if len(f.names) > len(want) && !slices.Contains(want, name) { // all of want are there
			return fault.New(fault.Invalid, "unknown column %.80q: the model was trained without it", name).WithHint("Columns of the model: %s.", shown(want))
		}
	}
	return nil
}

// shown lists the first of many names.
func shown(names []string) string {
	const most = 20
	list := strings.Join(names[:min(most, len(names))], ", ")
	if len(names) > most {
		list += ", …"
	}
	return list
}

// accepts reports whether the deployment takes something of a name. It is asked of each name of
// each row.
func (f *frame) accepts(name string) bool {
	if f.accepted == nil {
		f.accepted = map[string]bool{}
		for _, in := range slices.Concat(f.takes.Inputs, f.takes.Optional) {
			f.accepted[in.Name] = true
		}
		for _, column := range f.takes.Columns {
			f.accepted[column] = true
		}
	}
	return f.accepted[name]
}

// known refuses a name of which the deployment takes nothing.
func (f *frame) known(name string) error {
	if f.accepts(name) {
		return nil
	}
	names := slices.Clone(f.takes.Columns)
	for _, in := range slices.Concat(f.takes.Inputs, f.takes.Optional) {
		names = append(names, in.Name)
	}
	return fault.New(fault.Invalid, "unknown column %.80q", name).WithHint("Columns of the deployment: %s. Remove the others.", shown(names))
}

// spec is the input of the model with a name; nil when there is none.
func (f *frame) spec(name string) *runtime.Spec {
	m := runtime.Metadata{Inputs: f.takes.Inputs, Optional: f.takes.Optional}
	return m.Input(name)
}

// step is how much memory a frame holds at a time.
const step = 64 << 10

// add appends text to a column.
func (f *frame) add(column int, text []byte) error {
	if f.size += len(text); f.size > MaxBody { // what is missing in short rows is null in long ones
		return tooLarge(MaxBody)
	}
	if f.size > f.held {
		more := max(step, len(text))
		if err := f.hold(more); err != nil {
			return err
		}
		f.held += more
	}
	f.cells[column] = append(f.cells[column], text...)
	return nil
}

// Texts of cells.
var (
	comma, rowBegins, rowEnds = []byte(","), []byte("["), []byte("]")
	missing                   = []byte("null")
)

// row takes the values of a row in the order of the request's columns; nil is a missing one.
func (f *frame) row(values [][]byte) error {
	column := 0
	for i, from := range f.take {
		v := values[from]
		if v == nil {
			v = missing
		}
		if !f.matrix {
			column = i
		}
		if f.rows > 0 && (i == 0 || !f.matrix) || i > 0 && f.matrix {
			if err := f.add(column, comma); err != nil {
				return err
			}
		}
		if f.matrix && i == 0 {
			if err := f.add(column, rowBegins); err != nil {
				return err
			}
		}
		if err := f.add(column, v); err != nil {
			return err
		}
	}
	f.rows++
	if f.matrix && len(f.take) > 0 {
		return f.add(0, rowEnds)
	}
	return nil
}

// tensors are the columns, once all rows are there.
func (f *frame) tensors() ([]runtime.Tensor, error) {
	switch {
	case f.rows == 0:
		return nil, fault.New(fault.Invalid, "the request has no rows")
	case len(f.names) == 0:
		return nil, fault.New(fault.Invalid, "the rows of the request have no columns")
	}
	names := make([]string, len(f.take))
	for i, from := range f.take {
		names[i] = f.names[from]
	}
	if f.matrix {
		in := f.takes.Inputs[0]
		if n := len(in.Shape); n == 2 && in.Shape[1] >= 0 && in.Shape[1] != int64(len(f.names)) {
			return nil, fault.New(fault.Invalid, "the rows have %d columns, but input %q of the model has %d", len(f.names), in.Name, in.Shape[1])
		}
		names = []string{in.Name}
	}
	out := make([]runtime.Tensor, len(names))
	for i, name := range names {
		var err error
		if out[i], err = f.tensor(name, append(f.cells[i], ']')); err != nil {
			return nil, err
		}
		f.cells[i] = nil
	}
	if f.named {
		out[0].Columns = f.takes.Inputs[0].Columns
	}
	return out, nil
}

// split reads the columns and rows of a table, as pandas writes one with orient="split".
func (f *frame) split(s *scanner) ([]runtime.Tensor, error) {
	var columns, data []byte
	var seen uint
	var others map[string]bool
	for ok := s.open('{', '}'); ok; ok = s.more('}') {
		switch key := s.key(); string(key) {
		case "columns":
			s.first(&seen, 0, "columns")
			columns = s.value()
		case "data":
			s.first(&seen, 1, "data")
			data = s.value()
		default: // index, which no model sees
			s.other(&others, key)
		}
	}
	switch {
	case s.err != nil:
		return nil, s.err
	case seen&3 == 2 && f.mlflow && len(f.takes.Inputs) == 1: // a table without names
		return f.whole(data, splitField)
	case seen&3 != 3:
		return nil, fault.New(fault.Invalid, "%s has no columns, or no data", splitField).WithHint(`Send {"columns": ["a", "b"], "data": [[1, 2]]}.`)
	}
	c := &scanner{buf: columns}
	var names []string
	for ok := c.open('[', ']'); ok; ok = c.more(']') {
		if len(names) == maxColumns {
			return nil, fault.New(fault.TooLarge, "the rows have more than %d columns", maxColumns)
		}
		if c.next() == '"' {
			names = append(names, c.text())
		} else {
			names = append(names, string(c.number())) // pandas numbers columns that have no name
		}
	}
	if c.err != nil {
		return nil, fault.Wrap(c.err, "%s.columns", splitField)
	}
	if err := f.begin(names); err != nil {
		return nil, err
	}
	d := &scanner{buf: data}
	values := make([][]byte, 0, len(names))
	for ok := d.open('[', ']'); ok; ok = d.more(']') {
		values = values[:0]
		for ok := d.open('[', ']'); ok; ok = d.more(']') {
			if len(values) == len(names) {
				return nil, f.ragged(len(names) + 1)
			}
			values = append(values, d.value())
		}
		if d.err != nil {
			break
		}
		if len(values) != len(names) {
			return nil, f.ragged(len(values))
		}
		if err := f.row(values); err != nil {
			return nil, err
		}
	}
	if d.err != nil {
		return nil, fault.Wrap(d.err, "%s.data", splitField)
	}
	return f.tensors()
}

func (f *frame) ragged(n int) error {
	return fault.New(fault.Invalid, "row %d has %d values for %d columns", f.rows, n, len(f.names))
}

// records reads rows that name their columns. The first row says which there are; what a
// later one leaves out is null, as pandas has it.
func (f *frame) records(s *scanner, field string) ([]runtime.Tensor, error) {
	var values [][]byte
	for ok := s.open('[', ']'); ok; ok = s.more(']') {
		if f.at == nil {
			names, first, err := s.record()
			if err != nil {
				return nil, fault.Wrap(err, "%s", field)
			}
			if err := f.begin(names); err != nil {
				return nil, err
			}
			if err := f.row(first); err != nil {
				return nil, err
			}
			values = make([][]byte, len(names))
			continue
		}
		clear(values)
		for ok := s.open('{', '}'); ok; ok = s.more('}') {
			key := s.key()
			i, known := f.at[string(key)]
			switch {
			case s.err != nil:
			case !known && f.mlflow && !f.matrix && !f.accepts(string(key)):
				s.value()
			case !known:
				return nil, fault.New(fault.Invalid, "row %d has the column %.80q, which is missing in row 0", f.rows, key).WithHint("Send every column in every row; use null for missing values.")
			case values[i] != nil:
				return nil, fault.New(fault.Invalid, "row %d has the duplicate column %.80q", f.rows, key)
			default:
				values[i] = s.value()
			}
		}
		if s.err != nil {
			break
		}
		if err := f.row(values); err != nil {
			return nil, err
		}
	}
	if s.err != nil {
		return nil, fault.Wrap(s.err, "%s", field)
	}
	return f.tensors()
}

// record is one row that names its columns, in the order in which they stand.
func (s *scanner) record() (names []string, values [][]byte, err error) {
	for ok := s.open('{', '}'); ok; ok = s.more('}') {
		if len(names) == maxColumns {
			return nil, nil, fault.New(fault.TooLarge, "the rows have more than %d columns", maxColumns)
		}
		names = append(names, string(s.key()))
		values = append(values, s.value())
	}
	return names, values, s.err
}

// columns reads inputs by name.
func (f *frame) columns(s *scanner) ([]runtime.Tensor, error) {
	var out []runtime.Tensor
	var unknown error
	for ok := s.open('{', '}'); ok; ok = s.more('}') {
		name := string(s.key())
		v := s.value()
		switch {
		case s.err != nil:
			continue
		case slices.ContainsFunc(out, func(t runtime.Tensor) bool { return t.Name == name }):
			return nil, fault.New(fault.Invalid, "duplicate input %.80q", name)
		}
		if !f.accepts(name) {
			if unknown == nil {
				unknown = f.known(name)
			}
			if !f.mlflow {
				return nil, unknown
			}
			continue
		}
		t, err := f.tensor(name, v)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	if s.err == nil && len(out) == 0 {
		if unknown != nil {
			return nil, unknown
		}
		return nil, fault.New(fault.Invalid, "the request has no inputs")
	}
	return out, s.err
}

// whole reads the only input of a model, whose rows have no names.
func (f *frame) whole(data []byte, field string) ([]runtime.Tensor, error) {
	if len(f.takes.Inputs) != 1 {
		return nil, fault.New(fault.Invalid, "the model has %d inputs, but the rows of %s do not name them", len(f.takes.Inputs), field).
			WithHint(`Send each row as an object that names them, such as {"instances": [{"%s": …}]}.`, f.takes.Inputs[0].Name)
	}
	t, err := f.tensor(f.takes.Inputs[0].Name, data)
	if err == nil && len(t.Shape) > 0 && t.Shape[0] == 0 {
		err = fault.New(fault.Invalid, "the request has no rows")
	}
	return []runtime.Tensor{t}, err
}

// tensor reads the values of an input: nested as its shape, or one for each row of it.
func (f *frame) tensor(name string, data []byte) (t runtime.Tensor, err error) {
	s := scanner{buf: data}
	t = runtime.Tensor{Name: name, Shape: dimensions(data)}
	if s.next() != '[' {
		s.buf = slices.Concat([]byte{'['}, data, []byte{']'})
	}
	var want []int64
	if in := f.spec(name); in != nil {
		t.Datatype, want = in.Datatype, in.Shape
		s.wraps, s.encoded, s.lenient = true, f.mlflow && in.Binary, f.mlflow
	} else if t.Datatype, err = datatypeOf(s.buf); err != nil {
		return t, fault.Wrap(err, "column %q", name)
	}
	s.elements(&t)
	if s.err != nil {
		return t, s.err
	}
	t.Shape = fitted(t.Shape, want)
	return t, nil
}

// dimensions are those of nested arrays, as their first elements have them.
func dimensions(data []byte) []int64 {
	s := scanner{buf: data}
	shape := []int64{}
	for s.next() == '[' && len(shape) <= inference.MaxDims {
		first := s.pos + 1
		n := int64(0)
		for ok := s.open('[', ']'); ok; ok = s.more(']') {
			s.pass()
			n++
		}
		if shape = append(shape, n); n == 0 {
			break
		}
		s = scanner{buf: data, pos: first}
	}
	return shape
}

// fitted is a shape with as many dimensions as the model wants, where those that are added
// or left out have one element.
func fitted(shape, want []int64) []int64 {
	switch n := len(shape); {
	case n < len(want) && !slices.ContainsFunc(want[n:], func(d int64) bool { return d != 1 && d != -1 }):
		for range len(want) - n {
			shape = append(shape, 1)
		}
	case want != nil && n == len(want)+1 && n > 1 && shape[n-1] == 1:
		shape = shape[:n-1]
	}
	return shape
}

// datatypeOf is the datatype of values that are no input of the model: texts, truths, whole
// numbers or others.
func datatypeOf(data []byte) (runtime.Datatype, error) {
	s := scanner{buf: data}
	kind := runtime.Int64
	for ok := s.open('[', ']'); ok; ok = s.more(']') {
		switch s.next() {
		case '"':
			return runtime.Bytes, nil
		case 't', 'f':
			return runtime.Bool, nil
		case '[', '{':
			return "", fault.New(fault.Invalid, "a row has several values; keys and features have one value a row")
		}
		if bytes.ContainsAny(s.value(), ".eEnN") { // null and NaN are numbers, too
			kind = runtime.FP64
		}
	}
	return kind, s.err
}

// csv reads a body of CSV whose first line has the names of the columns.
func (f *frame) csv(body []byte) ([]runtime.Tensor, error) {
	if !utf8.Valid(body) {
		return nil, fault.New(fault.Invalid, "the request is not UTF-8")
	}
	if most := widest(body); most > maxColumns { // before each of them costs memory
		return nil, fault.New(fault.TooLarge, "the rows have more than %d columns", maxColumns)
	}
	r := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(body, []byte("\ufeff"))))
	r.ReuseRecord = true
	header, err := r.Read()
	if err != nil {
		return nil, notCSV(err)
	}
	names := slices.Clone(header)
	if err := f.begin(names); err != nil {
		return nil, err
	}
	texts := make([]bool, len(names))
	for _, i := range f.take {
		name := names[i]
		in := f.spec(name)
		if f.matrix {
			in = &f.takes.Inputs[0]
		}
		if in == nil {
			return nil, fault.New(fault.Invalid, "column %q: its type in CSV is ambiguous: text or number", name).WithHint("Send the rows as JSON, such as in %s.", splitField)
		}
		if texts[i] = in.Datatype == runtime.Bytes; in.Binary {
			return nil, fault.New(fault.Invalid, "column %q is binary, which CSV does not support", name).WithHint("Send the rows as JSON, such as in %s, with its values in base64.", splitField)
		}
	}
	values := make([][]byte, len(names))
	for {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			return f.tensors()
		}
		if err != nil {
			return nil, notCSV(err)
		}
		for i, text := range record {
			switch text = strings.TrimSpace(text); {
			case texts[i]:
				values[i] = quote(nil, record[i])
			case text == "":
				values[i] = nil
			default:
				values[i] = csvValue(text)
			}
		}
		if err := f.row(values); err != nil {
			return nil, err
		}
	}
}

// widest is how many fields the longest record of a CSV text has.
func widest(text []byte) (most int) {
	fields, quoted := 1, false
	for _, c := range text {
		switch {
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == ',':
			fields++
			most = max(most, fields)
		case c == '\n':
			fields = 1
		}
	}
	return max(most, fields)
}

// csvValue is a number or a truth of CSV as JSON; anything else is a text there, which the
// input refuses with its place.
func csvValue(text string) []byte {
	switch text {
	case "True", "TRUE":
		return []byte("true")
	case "False", "FALSE":
		return []byte("false")
	}
	s := scanner{buf: []byte(text)}
	s.pass()
	if c := text[0]; s.err != nil || s.pos != len(text) || c == '[' || c == '{' {
		return quote(nil, text)
	}
	return []byte(text)
}

func notCSV(err error) error {
	if wrong, ok := errors.AsType[*csv.ParseError](err); ok {
		return fault.New(fault.Invalid, "the request is not CSV: line %d: %s", wrong.Line, wrong.Err)
	}
	return fault.New(fault.Invalid, "the request is not CSV: the header is missing")
}

// predictions writes an answer of the scoring protocols: the rows of the only output, or of
// several an object for each row.
func predictions(dst []byte, outputs []runtime.Tensor) ([]byte, error) {
	dst = append(dst, `{"predictions":`...)
	var err error
	if len(outputs) == 1 {
		if dst, err = nest(dst, formOf(outputs[0])); err != nil {
			return nil, noForm(err)
		}
		return append(dst, '}'), nil
	}
	wides := make([]runtime.Tensor, len(outputs))
	for i, t := range outputs {
		if len(t.Shape) == 0 || t.Shape[0] != outputs[0].Shape[0] {
			return nil, noForm(fault.New(fault.Invalid, "outputs %q and %q have different numbers of rows", outputs[0].Name, t.Name))
		}
		wides[i] = formOf(t)
	}
	dst = append(dst, '[')
	if len(outputs) > 0 {
		for row := range outputs[0].Shape[0] {
			if row > 0 {
				dst = append(dst, ',')
			}
			for i, t := range wides {
				dst = append(dst, "{,"[min(i, 1)])
				dst = append(quote(dst, t.Name), ':')
				if dst, err = nest(dst, part(t, row)); err != nil {
					return nil, noForm(err)
				}
			}
			dst = append(dst, '}')
		}
	}
	return append(dst, "]}"...), nil
}

// noForm says what helps where predictions have no form in JSON.
func noForm(err error) error {
	text, _ := fault.Brief(err)
	return fault.New(fault.KindOf(err), "%s", text).WithHint("Use /v2/models/NAME/infer (Open Inference Protocol) for binary data.")
}

// nest writes a tensor as nested arrays.
func nest(dst []byte, t runtime.Tensor) ([]byte, error) {
	if len(t.Shape) == 0 {
		return values(dst, t)
	}
	dst = append(dst, '[')
	var err error
	if len(t.Shape) == 1 {
		if dst, err = values(dst, t); err != nil {
			return nil, err
		}
		return append(dst, ']'), nil
	}
	for i := range t.Shape[0] {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = nest(dst, part(t, i)); err != nil {
			return nil, err
		}
	}
	return append(dst, ']'), nil
}

// part is a tensor's element of the first dimension.
func part(t runtime.Tensor, i int64) runtime.Tensor {
	all := reflect.ValueOf(t.Data)
	n := all.Len() / int(t.Shape[0])
	at := int(i) * n
	return runtime.Tensor{Name: t.Name, Datatype: t.Datatype, Shape: t.Shape[1:], Data: all.Slice(at, at+n).Interface()}
}

// formOf is a tensor in the form that its elements have in JSON.
func formOf(t runtime.Tensor) runtime.Tensor {
	if t, ok := inBase64(t, false); ok {
		texts := t.Data.([]string)
		out := make([]wrapped, len(texts))
		for i, text := range texts {
			out[i] = wrapped(text)
		}
		t.Data = out
		return t
	}
	return wide(t)
}

// wide is a tensor of half precision in single precision, which has the same values.
func wide(t runtime.Tensor) runtime.Tensor {
	data, _ := t.Data.([]uint16)
	switch t.Datatype { //nolint:exhaustive // the others stay
	case runtime.FP16:
		t.Datatype, t.Data = runtime.FP32, widened(data, half)
	case runtime.BF16:
		t.Datatype, t.Data = runtime.FP32, widened(data, bfloat)
	}
	return t
}
