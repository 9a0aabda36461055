package feature

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/expr"
	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// Limits on what a service computes.
const (
	maxRequest  = 64
	maxComputed = 256
	// maxSteps bounds what one read online may cost, in units of CEL's model, and
	// maxMade what it computes: texts are of up to expr.MaxText bytes each.
	maxSteps = 1_000_000_000
	maxMade  = 64 << 20
	// maxBatchMade is about how many bytes are computed at a time for rows that are joined.
	maxBatchMade = 16 << 20
	// lookSteps is how much is computed between two looks at whether anybody still waits.
	lookSteps = 5_000_000
)

// computed is what a feature service computes when it is asked. A row has the
// features that are read, in the order of the plan, the values of the request and
// then the computed features, each of which may use what is before it.
type computed struct {
	service string // "delay"
	ref     string // "delay@2"
	read    int    // features at the beginning of a row
	request []requestField
	fields  []computedField
	cost    int // of a row, at most
}

type requestField struct {
	name string
	typ  value.Type
}

type computedField struct {
	name       string
	typ        value.Type
	expression string
	program    *expr.Program
}

func (s ServiceSpec) validateComputed() error {
	if len(s.Computed) == 0 {
		switch {
		case len(s.Inputs) > 0:
			return bad("inputs", "no feature is computed from them").WithHint("List them under features, or use them in computed.")
		case len(s.Request) > 0:
			return bad("request", "no feature is computed from it")
		}
		return nil
	}
	if len(s.Request) > maxRequest {
		return bad("request", "%d are over the limit of %d", len(s.Request), maxRequest)
	}
	if len(s.Computed) > maxComputed {
		return bad("computed", "%d are over the limit of %d", len(s.Computed), maxComputed)
	}
	for i, r := range s.Request {
		field := fmt.Sprintf("request[%d]", i)
		if !expr.Nameable(r.Name) {
			return bad(field+".name", "%q is not a valid name in an expression", clip(r.Name)).WithHint("Use letters, digits and _, and no reserved word of CEL.")
		}
		if err := checkTyped(field, r.Name, r.Type, r.Description); err != nil {
			return err
		}
	}
	names := make([]string, 0, len(s.Request)+len(s.Computed))
	for _, r := range s.Request {
		names = append(names, r.Name)
	}
	if err := distinct("request", names); err != nil {
		return err
	}
	for i, c := range s.Computed {
		if err := checkTyped(fmt.Sprintf("computed[%d]", i), c.Name, c.Type, c.Description); err != nil {
			return err
		}
		names = append(names, c.Name)
	}
	return distinct("computed", names)
}

func checkTyped(field, name, typ, description string) error {
	if _, err := typeOf(field+".type", typ); err != nil {
		return err
	}
	return checkFeature(field, name, description)
}

// featuresOf names the features that were picked, view by view.
func featuresOf(views []picked) []string {
	var refs []string
	for _, v := range views {
		for _, f := range v.features {
			refs = append(refs, v.view.Ref()+":"+v.view.Features[f].Name)
		}
	}
	return refs
}

// compile makes the expressions of a service ready, over its features and inputs.
// It is nil when there are none. Error: fault.Invalid.
func compile(b ServiceDefinition, views []picked) (*computed, error) {
	if len(b.Computed) == 0 {
		return nil, nil //nolint:nilnil // nothing is computed
	}
	c := &computed{service: b.Name, ref: b.Ref()}
	variables, short, full := variablesOf(views)
	c.read = len(short)
	features := slices.Concat(short, full)
	for i, r := range b.Request {
		t, err := typeOf("request.type", r.Type)
		if err != nil {
			return nil, err
		}
		field := fmt.Sprintf("request[%d].name", i)
		if slices.Contains(features, r.Name) {
			return nil, bad(field, "%q is already a feature of this service", r.Name)
		}
		for _, v := range views {
			for _, k := range v.view.Keys {
				if k.Name == r.Name && k.Type != t {
					return nil, bad(field, "%q is a join key of %s with the type %s", r.Name, v.view.Ref(), k.Type).WithHint("Use another name, or that type.")
				}
			}
		}
		variables = append(variables, expr.Variable{Name: r.Name, Type: t, Place: c.read + i})
		c.request = append(c.request, requestField{r.Name, t})
	}
	for i, f := range b.Computed {
		t, err := typeOf("computed.type", f.Type)
		if err != nil {
			return nil, err
		}
		field := fmt.Sprintf("computed[%d]", i)
		taken := slices.Contains(features, f.Name) || slices.Contains(features, naming.FullColumn(b.Name+":"+f.Name))
		for _, v := range views {
			taken = taken || slices.ContainsFunc(v.view.Keys, func(k Key) bool { return k.Name == f.Name })
		}
		if taken {
			return nil, bad(field+".name", "%q is already a feature or a join key of this service", f.Name)
		}
		program, err := expr.Compile(f.Expression, t, variables)
		if err != nil {
			said := bad(field+".expression", "%s", err)
			if hint := fault.HintOf(err); hint != "" {
				said = said.WithHint("%s", hint)
			}
			return nil, said
		}
		c.fields = append(c.fields, computedField{f.Name, t, f.Expression, program})
		c.cost += program.Cost()
		variables = append(variables, expr.Variable{Name: f.Name, Type: t, Place: c.read + len(b.Request) + i})
	}
	return c, nil
}

// unit refuses an expression that makes a number of a duration without a unit. Error:
// fault.Invalid.
func (c *computed) unit() error {
	if c == nil {
		return nil
	}
	for i, f := range c.fields {
		if f.program.CountsNanoseconds() {
			return bad(fmt.Sprintf("computed[%d].expression", i), "int() of a duration has no unit: it counts nanoseconds").
				WithHint("Use d.getSeconds(), d.getMinutes(), d.getHours() or d.getMilliseconds(); each converts the whole duration.")
		}
	}
	return nil
}

// variablesOf are the features as expressions name them: weather__temp, and temp
// where only one view has it. short and full have their names in the order of the
// plan.
func variablesOf(views []picked) (variables []expr.Variable, short, full []string) {
	n := len(featuresOf(views))
	short, full = make([]string, n), make([]string, n)
	types := make([]value.Type, n)
	for _, v := range views {
		all := v.view.featureTypes()
		for i, f := range v.features {
			at := v.order[i]
			short[at] = v.view.Features[f].Name
			full[at], types[at] = naming.FullColumn(v.view.Name+":"+short[at]), all[f]
		}
	}
	once := func(names []string, name string) bool {
		first := slices.Index(names, name)
		return !slices.Contains(names[first+1:], name)
	}
	for at, name := range short {
		if once(short, name) {
			variables = append(variables, expr.Variable{Name: name, Type: types[at], Place: at})
		}
		if once(full, full[at]) && !slices.Contains(short, full[at]) {
			variables = append(variables, expr.Variable{Name: full[at], Type: types[at], Place: at})
		}
	}
	return variables, short, full
}

// compiledCache keeps the expressions of services, which plans come and go
// without. A version of a service never changes.
type compiledCache struct {
	mu  sync.Mutex
	all map[string]*computed // by project, service and digest
}

const maxCompiled = 1000

func (c *compiledCache) get(b ServiceDefinition, views []picked) (*computed, error) {
	if len(b.Computed) == 0 {
		return nil, nil //nolint:nilnil // nothing is computed
	}
	key := string(b.Project) + " " + b.Ref() + " " + b.Digest
	c.mu.Lock()
	defer c.mu.Unlock()
	if hit := c.all[key]; hit != nil {
		return hit, nil
	}
	made, err := compile(b, views)
	if err != nil {
		return nil, err
	}
	if c.all == nil || len(c.all) >= maxCompiled {
		c.all = map[string]*computed{}
	}
	c.all[key] = made
	return made, nil
}

// width is the length of a row.
func (c *computed) width() int { return c.read + len(c.request) + len(c.fields) }

// fill computes the features of a row, the beginning of which is there. It is the
// one way in which features are computed.
func (c *computed) fill(row []value.Value, outcomes []expr.Outcome) {
	for i := range c.fields {
		row[c.read+len(c.request)+i], outcomes[i] = c.fields[i].program.Eval(row)
	}
}

// look is after how many rows to look whether anybody still waits for them.
func (c *computed) look() int { return max(1, lookSteps/max(1, c.cost)) }

// made is about how many bytes a row's computed features have.
func (c *computed) made(row []value.Value) int {
	n := 0
	for _, v := range row[c.read+len(c.request):] {
		n += 8 + len(v.Str())
	}
	return n
}

// columns computes the features of entities that were read online. requested has
// the values of the request by entity. Error: fault.TooLarge.
func (c *computed) columns(ctx context.Context, read []Column, requested [][]value.Value, entities int) ([]Column, error) {
	first := c.read + len(c.request)
	all := make([]Column, c.width())
	copy(all, read)
	for i, f := range c.fields {
		all[first+i] = Column{
			Feature: c.ref + ":" + f.name,
			Values:  make([]value.Value, entities), Statuses: make([]online.Status, entities), EventTimes: make([]*time.Time, entities),
		}
	}
	row, outcomes := make([]value.Value, c.width()), make([]expr.Outcome, len(c.fields))
	size, look := 0, c.look()
	for n := range entities {
		if n%look == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for i := range read {
			row[i] = read[i].Values[n]
		}
		if len(c.request) > 0 {
			copy(row[c.read:], requested[n])
		}
		c.fill(row, outcomes)
		if size += c.made(row); size > maxMade {
			return nil, fault.New(fault.TooLarge, "the computed features of feature service %s for %d entities exceed the limit of %d bytes", c.ref, entities, maxMade).
				WithHint("Split the request.")
		}
		for i, f := range c.fields {
			out := &all[first+i]
			out.Values[n] = row[first+i]
			out.Statuses[n] = online.Present
			switch outcomes[i] {
			case expr.Failed:
				out.Statuses[n] = online.Invalid
			case expr.Null:
				out.Statuses[n] = online.NullValue
			case expr.Computed:
			}
			for _, at := range f.program.Uses() {
				if at >= c.read && at < first {
					continue // of the request
				}
				// It is as old as the oldest of what it is made of, and where it is null, that
				// one of them is missing tells more.
				if e := all[at].EventTimes[n]; e != nil && (out.EventTimes[n] == nil || e.Before(*out.EventTimes[n])) {
					out.EventTimes[n] = e
				}
				if s := all[at].Statuses[n]; outcomes[i] == expr.Null && severity(s) > severity(out.Statuses[n]) {
					out.Statuses[n] = s
				}
			}
		}
	}
	return all[first:], nil
}

// severity orders the statuses of what a feature that is null was made of.
func severity(s online.Status) int {
	return slices.Index([]online.Status{online.Present, online.NullValue, online.Invalid, online.OutsideMaxAge, online.NotFound}, s)
}

// requested reads the values of the request, by entity.
func (c *computed) requested(given map[string][]any, entities int) ([][]value.Value, error) {
	out := make([][]value.Value, entities)
	for _, f := range c.request {
		column := given[f.name]
		if column == nil && entities > 0 {
			return nil, fault.New(fault.Invalid, "the request lacks the value %q, an input of computed features of feature service %s", f.name, c.ref).
				WithHint("Send it beside the join keys, as %s, or null if unknown.", f.typ)
		}
		for n, x := range column {
			v, err := parseText(f.typ, x)
			if err != nil {
				return nil, fault.Wrap(err, "entity %d: value %s of the request", n+1, f.name)
			}
			out[n] = append(out[n], v)
		}
	}
	return out, nil
}

// ComputedFeature is a feature that was computed for a training set.
type ComputedFeature struct {
	Feature    string `json:"feature"` // "delay@2:felt"
	Column     string `json:"column"`
	Expression string `json:"expression"`
	// Failed is how often it could not be computed, and is NULL: a division by zero,
	// an overflow.
	Failed int64 `json:"failed,omitempty"`
}

// computes lists the computed features of a plan.
func (pl *plan) computes() []ComputedFeature {
	if pl.computed == nil {
		return nil
	}
	var out []ComputedFeature
	for i, f := range pl.computed.fields {
		out = append(out, ComputedFeature{Feature: pl.computed.ref + ":" + f.name, Column: pl.names[pl.visible+i], Expression: f.expression})
	}
	return out
}

// computing adds what is computed to joined rows, and takes off what it was only
// computed from.
type computing struct {
	ctx    context.Context //nolint:containedctx // of one reading
	c      *computed
	schema *arrow.Schema
	kept   []int                             // columns of the join's
	names  []string                          // columns at the beginning of a row
	types  []value.Type                      // beside names
	failed []int64                           // by computed feature
	cells  func(row, column int) value.Value // of the batch that is read
}

// finish adds what is computed to the rows of the join, which it takes over. failed
// says, when they were read, how often each could not be computed.
func (pl *plan) finish(ctx context.Context, joined array.RecordReader) (rows array.RecordReader, failed func() []int64) {
	c := pl.computed
	if c == nil {
		return joined, func() []int64 { return nil }
	}
	r := &computing{ctx: ctx, c: c, failed: make([]int64, len(c.fields))}
	r.names, r.types = make([]string, c.read, c.read+len(c.request)), make([]value.Type, c.read, c.read+len(c.request))
	for _, v := range pl.views {
		types := v.view.featureTypes()
		for i, f := range v.features {
			r.names[v.order[i]], r.types[v.order[i]] = pl.column(v.order[i]), types[f]
		}
	}
	hidden := r.names[pl.visible:c.read]
	for _, q := range c.request {
		r.names, r.types = append(r.names, q.name), append(r.types, q.typ)
	}
	var fields []arrow.Field
	for i, f := range joined.Schema().Fields() {
		if !slices.Contains(hidden, f.Name) {
			fields, r.kept = append(fields, f), append(r.kept, i)
		}
	}
	for i, f := range c.fields {
		fields = append(fields, arrow.Field{Name: pl.names[pl.visible+i], Type: offline.ArrowType(f.typ), Nullable: true})
	}
	meta := joined.Schema().Metadata()
	r.schema = arrow.NewSchema(fields, &meta)
	return &changed{RecordReader: joined, schema: r.schema, change: r.compute}, func() []int64 { return r.failed }
}

// compute takes as many rows of a batch as make about maxBatchMade bytes: texts may be
// a thousand times what they were made of.
func (r *computing) compute(batch arrow.RecordBatch, from int64) (made arrow.RecordBatch, to int64, err error) {
	if from == 0 {
		if r.cells, err = offline.Cells(batch, r.names, r.types); err != nil {
			return nil, 0, err
		}
	}
	c := r.c
	builders := make([]array.Builder, len(c.fields))
	for i, f := range c.fields {
		builders[i] = array.NewBuilder(memory.DefaultAllocator, offline.ArrowType(f.typ))
		builders[i].Reserve(min(int(batch.NumRows()-from), maxBatchMade/8/len(c.fields)))
		defer builders[i].Release()
	}
	first := c.read + len(c.request)
	row, outcomes := make([]value.Value, c.width()), make([]expr.Outcome, len(c.fields))
	size, look := 0, int64(c.look())
	for to = from; to < batch.NumRows() && size < maxBatchMade; to++ {
		if to%look == 0 && r.ctx.Err() != nil {
			return nil, 0, r.ctx.Err()
		}
		for i := range first {
			row[i] = r.cells(int(to), i)
		}
		c.fill(row, outcomes)
		size += c.made(row)
		for i, b := range builders {
			if err := offline.Append(b, row[first+i]); err != nil {
				return nil, 0, err
			}
			if outcomes[i] == expr.Failed {
				r.failed[i]++
			}
		}
	}
	columns := make([]arrow.Array, 0, len(r.kept)+len(builders))
	for _, at := range r.kept {
		a := array.NewSlice(batch.Column(at), from, to)
		defer a.Release()
		columns = append(columns, a)
	}
	for _, b := range builders {
		a := b.NewArray()
		defer a.Release()
		columns = append(columns, a)
	}
	return array.NewRecordBatch(r.schema, columns, to-from), to, nil
}
