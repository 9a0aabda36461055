package dataset

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/resource"
)

// QueryRequest asks for SQL over datasets.
type QueryRequest struct {
	Project project.Name
	SQL     string // one SELECT in DuckDB's dialect
	// Inputs map the tables of the query to versions. nil treats the tables' names as refs:
	// flights, "flights@3".
	Inputs map[string]Ref
	Rows   int64 // most rows of the result; 0, or more than the service's limit, is that limit
	// Where the rows go and why; see OpenRequest.
	Where   string
	Zone    residency.Zone
	Purpose string
	// TimeZone is that of times in the result that have none, UTC when it is empty; Early
	// takes the earlier of two instants at which its clocks show a time (table.Local).
	TimeZone string
	Early    bool

	empty bool // hand over the tables without rows
}

// notUTF8 is where a text stops being UTF-8; -1 where it is.
func notUTF8(text string) int {
	for i, r := range text {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(text[i:]); size == 1 {
				return i
			}
		}
	}
	return -1
}

// Query runs SQL in a process that is handed the needed columns of the needed
// tables and nothing else. Release the result: the process lives until then.
// Needs dataset.query on every table. Errors: fault.Invalid with DuckDB's
// message; fault.TooLarge and fault.Exhausted over the limits on rows and
// memory, fault.Timeout over time, all of them also from the result's Err;
// fault.PermissionDenied when the tables share no zone; otherwise as Open.
func (s *Reads) Query(ctx context.Context, r QueryRequest) (*Result, error) {
	if err := s.mayQuery(ctx, r); err != nil {
		return nil, err
	}
	if len(r.SQL) > s.limits.SQL {
		return nil, fault.New(fault.TooLarge, "the query has %d bytes, over the limit of %d", len(r.SQL), s.limits.SQL)
	}
	if at := notUTF8(r.SQL); at >= 0 { // on its way to the child it would become another text
		return nil, fault.New(fault.Invalid, "the query is not UTF-8: byte %d", at+1).WithHint("Save it as UTF-8.")
	}
	if strings.TrimSpace(r.SQL) == "" {
		return nil, fault.New(fault.Invalid, "the query is empty")
	}
	if r.Rows <= 0 || r.Rows > s.limits.QueryRows {
		r.Rows = s.limits.QueryRows
	}
	free, err := s.queries.Take(ctx, identity.Share(ctx, r.Project))
	if err != nil {
		return nil, err
	}
	qctx, cancel := context.WithTimeout(ctx, s.limits.QueryTime)
	end := func() { cancel(); free() }
	scratch, err := s.scratch()
	if err != nil {
		end()
		return nil, err
	}
	if scratch != "" {
		end = func() {
			cancel()
			if err := os.RemoveAll(scratch); err != nil {
				s.cfg.Log.ErrorContext(ctx, "the spill directory of a query was not removed; the next start removes it", slog.Any("error", err))
			}
			free()
		}
	}
	// DuckDB counts its own memory; the process needs some around it.
	session, err := child.Start(qctx, s.cfg.Launcher, child.SQLMode, child.LaunchOptions{
		Memory: s.limits.QueryMemory + s.limits.QueryMemory/2 + 256*resource.MiB, CPU: s.limits.QueryTime * 4, Scratch: scratch,
	})
	if err != nil {
		end()
		return nil, err
	}
	session.Out.Within(ctx)
	q := &Result{sql: r.SQL, session: session, ctx: qctx, end: end}
	q.refs.Store(1)
	if err := s.ask(qctx, q, r, scratch); err != nil {
		q.Release()
		return nil, err
	}
	return q, nil
}

// scratch makes a directory for one query; empty when queries have none.
func (s *Reads) scratch() (string, error) {
	if s.cfg.Scratch == "" {
		return "", nil
	}
	if err := os.MkdirAll(s.cfg.Scratch, 0o700); err != nil {
		return "", fault.Wrap(err, "creating the spill directory")
	}
	dir, err := os.MkdirTemp(s.cfg.Scratch, "query-")
	return dir, fault.Wrap(err, "creating the spill directory of a query")
}

// mayQuery asks before anything is started on the caller's behalf.
func (s *Reads) mayQuery(ctx context.Context, r QueryRequest) error {
	if len(r.Inputs) == 0 {
		return s.cfg.Authorizer.Allow(ctx, ActionQuery, policy.Object{Project: string(r.Project)})
	}
	for _, name := range slices.Sorted(maps.Keys(r.Inputs)) {
		if _, err := s.find(ctx, ActionQuery, r.Project, r.Inputs[name]); err != nil {
			return fault.Wrap(err, "table %s", name)
		}
	}
	return nil
}

// ask has the conversation up to the result's first rows.
func (s *Reads) ask(ctx context.Context, q *Result, r QueryRequest, scratch string) error {
	session := q.session
	explain := func(err error) error { return q.explain(err) }
	if err := session.In.Header(child.SQLRequest{
		SQL: r.SQL, Memory: int64(s.limits.QueryMemory), Rows: r.Rows, Threads: 2, TimeZone: r.TimeZone, Early: r.Early,
	}); err != nil {
		return explain(err)
	}
	var uses child.SQLAnalysis
	if err := session.Out.Header(&uses); err != nil {
		return explain(err)
	}
	inputs, err := s.inputs(ctx, r, uses)
	if err != nil {
		return err
	}
	for _, in := range inputs {
		if !slices.ContainsFunc(q.inputs, func(v Version) bool { return v.ID == in.version.ID }) {
			q.inputs = append(q.inputs, in.version)
		}
	}
	slices.SortFunc(q.inputs, func(a, b Version) int { return compareRefs(a.Ref(), b.Ref()) })
	if q.residency, q.classification, err = inherit(q.inputs); err != nil {
		return err
	}
	over := child.SQLHandOver{Tables: len(inputs)}
	sealed := func(in input) bool { return in.version.Protection != Open }
	if s.cfg.EncryptedDisk || !slices.ContainsFunc(inputs, sealed) {
		over.Scratch, over.Disk = scratch, int64(s.limits.QueryDisk)
	}
	q.tables = inputs
	q.handing.Go(func() {
		if err := s.handOver(ctx, session, over, inputs, r.empty); err != nil {
			q.fail(err)
		}
	})
	var made child.SQLColumns
	if err := session.Out.Header(&made); err != nil {
		return explain(err)
	}
	q.columns, q.local = columnsFrom(made, inputs), made.Local
	rows, err := session.Out.Records()
	if err != nil {
		return explain(err)
	}
	q.rows = rows
	// The worker sends the types of tables; what else comes is not its doing.
	if _, err := table.FromArrow(rows.Schema()); err != nil {
		return fault.Wrap(err, "the result")
	}
	return nil
}

// input is a table of a query with the columns to hand over.
type input struct {
	name    string
	version Version
	columns []string
}

// inputs passes the tables of a query through every door.
func (s *Reads) inputs(ctx context.Context, r QueryRequest, uses child.SQLAnalysis) ([]input, error) {
	named := make(map[string]Ref, len(r.Inputs))
	for name, ref := range r.Inputs {
		named[strings.ToLower(name)] = ref
	}
	wanted := make(map[string]bool, len(uses.Identifiers))
	for _, n := range uses.Identifiers {
		wanted[n] = true
	}
	rows := int64(0)
	out := make([]input, 0, len(uses.Tables))
	for _, t := range uses.Tables {
		ref, ok := named[t.Name]
		if r.Inputs != nil && !ok {
			return nil, fault.New(fault.Invalid, "there is no table %q", t.Name).WithHint("The tables are %q.", slices.Sorted(maps.Keys(r.Inputs)))
		}
		if !ok {
			var err error
			if ref, err = ParseRef(t.Name); err != nil {
				return nil, fault.New(fault.Invalid, "there is no table %q", t.Name).WithHint(`A table is a dataset: flights, or "flights@3" for a version.`)
			}
		}
		v, err := s.find(ctx, ActionQuery, r.Project, ref)
		if err != nil {
			return nil, fault.Wrap(err, "table %s", t.Name)
		}
		in := input{name: t.Name, version: v, columns: needed(v.Schema, t.All, wanted)}
		if _, err := s.admit(ctx, OpenRequest{
			Project: r.Project, Ref: v.Ref(), Columns: in.columns, Where: r.Where, Zone: r.Zone, Purpose: r.Purpose,
		}, false); err != nil {
			return nil, fault.Wrap(err, "table %s", t.Name)
		}
		if rows += v.Rows; rows > s.limits.QueryInput && !r.empty {
			return nil, fault.New(fault.TooLarge, "the query's tables have more than %d rows", s.limits.QueryInput).WithHint("Derive a smaller dataset and query that.")
		}
		out = append(out, in)
	}
	return out, nil
}

// needed is the columns to hand over, at least one so that rows can be counted.
func needed(s Schema, all bool, wanted map[string]bool) []string {
	if all {
		return s.Names()
	}
	var names []string
	for _, f := range s {
		if wanted[strings.ToLower(f.Name)] {
			names = append(names, f.Name)
		}
	}
	if len(names) == 0 {
		return []string{s[0].Name}
	}
	return names
}

// handOver sends the tables. An error is of the reading; when the worker stops
// listening, it tells why itself.
func (s *Reads) handOver(ctx context.Context, session *child.Session, over child.SQLHandOver, inputs []input, empty bool) error {
	if !sent(session.In.Header(over)) {
		return nil
	}
	for _, in := range inputs {
		if empty {
			if more, err := sendNone(session, in); err != nil || !more {
				return err
			}
			continue
		}
		rows, err := s.read(ctx, in.version, OpenRequest{Columns: in.columns})
		if err != nil {
			return err
		}
		more, err := send(session, in.name, rows)
		rows.Release()
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// send hands a table over; more is false when nobody listens any more.
func send(session *child.Session, name string, rows *Reader) (more bool, err error) {
	if !sent(session.In.Header(child.SQLTable{Name: name})) {
		return false, nil
	}
	out := session.In.Records(rows.Schema())
	for rows.Next() {
		if !sent(out.Write(rows.RecordBatch())) {
			return false, nil
		}
	}
	if err := rows.Err(); err != nil {
		return false, err
	}
	return sent(out.Close()), nil
}

// sendNone hands over a table's columns.
func sendNone(session *child.Session, in input) (more bool, err error) {
	schema, err := in.version.Schema.Select(in.columns)
	if err != nil {
		return false, err
	}
	if !sent(session.In.Header(child.SQLTable{Name: in.name})) {
		return false, nil
	}
	return sent(session.In.Records(schema.Arrow()).Close()), nil
}

// sent reports whether the worker still listened.
func sent(err error) bool { return err == nil }

// Result is the rows of a query, an array.RecordReader of the types of tables.
// Not safe for concurrent use; Release it.
type Result struct {
	sql            string
	session        *child.Session
	ctx            context.Context //nolint:containedctx // of one query
	end            func()
	rows           array.RecordReader
	inputs         []Version
	tables         []input // the same by the names that the SQL has
	columns        Columns
	local          []string
	residency      residency.Label
	classification Classification
	refs           atomic.Int64
	ended          bool
	err            error
	handing        sync.WaitGroup

	mu     sync.Mutex
	handed error // why the tables could not be handed over
}

var _ array.RecordReader = (*Result)(nil)

// fail ends the query because a table cannot be read.
func (q *Result) fail(err error) {
	q.mu.Lock()
	q.handed = err
	q.mu.Unlock()
	q.session.Stop()
}

// explain says what happened, the first cause first.
func (q *Result) explain(err error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.handed != nil {
		return q.handed
	}
	err = q.session.Explain(q.ctx, err)
	if len(q.inputs) > 0 && fault.Is(err, fault.Invalid) && fault.HintOf(err) == "" && strings.HasPrefix(err.Error(), "Binder Error") {
		tables := make([]string, len(q.inputs))
		for i, v := range q.inputs {
			names := v.Schema.Names()
			if len(names) > 40 {
				names = append(names[:40:40], "…")
			}
			tables[i] = v.Ref().String() + " has " + strings.Join(names, ", ")
		}
		return fault.New(fault.Invalid, "%s", err).WithHint("%s.", strings.Join(tables, "; "))
	}
	return err
}

// Local are the columns whose times had no zone, and are those of the request's.
func (q *Result) Local() []string { return q.local }

// Inputs are the versions that the query read, by name.
func (q *Result) Inputs() []Version { return q.inputs }

// Refs are the inputs' names, for CreateRequest.Parents.
func (q *Result) Refs() []Ref {
	refs := make([]Ref, len(q.inputs))
	for i, v := range q.inputs {
		refs[i] = v.Ref()
	}
	return refs
}

// Residency is where the rows may be: where all inputs may be. nil, which means
// home, without inputs.
func (q *Result) Residency() residency.Label { return q.residency }

// Classification is that of the most closed input; Public without inputs.
func (q *Result) Classification() Classification { return q.classification }

// Columns is the column lineage of the rows; nil if unknown.
func (q *Result) Columns() Columns { return q.columns }

// Producer names the query, for CreateRequest.
func (q *Result) Producer() Producer {
	return Producer{Kind: "query", Digest: digestOf([]byte(q.sql)), Text: q.sql}
}

// Schema implements array.RecordReader.
func (q *Result) Schema() *arrow.Schema { return q.rows.Schema() }

// Next goes to the next batch.
func (q *Result) Next() bool {
	if q.ended || q.err != nil {
		return false
	}
	if q.rows.Next() {
		return true
	}
	q.ended = true
	if err := q.rows.Err(); err != nil {
		q.err = q.explain(err)
		return false
	}
	var sum child.SQLSummary
	if err := q.session.Out.Header(&sum); err != nil {
		q.err = q.explain(err)
	}
	return false
}

// RecordBatch is the current batch, valid until Next.
func (q *Result) RecordBatch() arrow.RecordBatch { return q.rows.RecordBatch() }

// Record is RecordBatch.
//
// Deprecated: Use RecordBatch.
func (q *Result) Record() arrow.RecordBatch { return q.RecordBatch() }

// Err is what ended the result early.
func (q *Result) Err() error { return q.err }

// Retain asks for one Release more.
func (q *Result) Retain() { q.refs.Add(1) }

// Release ends the process with the last reference.
func (q *Result) Release() {
	if q.refs.Add(-1) != 0 {
		return
	}
	if q.rows != nil {
		q.rows.Release()
	}
	q.session.Close()
	q.handing.Wait()
	q.end()
}
