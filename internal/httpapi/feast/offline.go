package feast

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/flight"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/jsondoc"
)

// Offline is Feast's offline server: commands that come by Arrow Flight. The
// project is the token's, whatever Feast calls its own.
type Offline struct {
	Features OfflineFeatures
	Datasets OfflineDatasets
}

// OfflineFeatures is what the commands ask of features.
type OfflineFeatures interface {
	History(ctx context.Context, r feature.HistoryRequest) (*feature.History, error)
	CheckHistory(ctx context.Context, r feature.HistoryRequest, schema *arrow.Schema) error
	MakeTrainingSet(ctx context.Context, r feature.TrainingSetRequest) (feature.TrainingSet, error)
}

// OfflineDatasets is what the commands ask of datasets.
type OfflineDatasets interface {
	Sent(ctx context.Context, body io.Reader) (array.RecordReader, error)
	Version(ctx context.Context, p project.Name, ref dataset.Ref) (dataset.Version, error)
	One(ctx context.Context, p project.Name, name string) (dataset.Dataset, error)
	Query(ctx context.Context, r dataset.QueryRequest) (*dataset.Result, error)
	Reauthorize(ctx context.Context, r dataset.OpenRequest) error
	Create(ctx context.Context, r dataset.CreateRequest) (dataset.Version, error)
}

var _ flight.Commands = (*Offline)(nil)

// What a command asks for.
const (
	history     = "get_historical_features"
	pullAll     = "pull_all_from_table_or_query"
	pullLatest  = "pull_latest_from_table_or_query"
	columnTypes = "get_table_column_names_and_types_from_data_source"
	validate    = "validate_data_source"
	persist     = "persist"
	writeBatch  = "offline_write_batch"
	writeLogs   = "write_logged_features"
)

// command is what Feast's client writes as JSON: the fields of all commands.
type command struct {
	ID  string `json:"command_id"`
	API string `json:"api"`

	// get_historical_features
	Views    []string  `json:"feature_view_names"`
	Aliases  []*string `json:"name_aliases"`
	Features []string  `json:"feature_refs"`
	Project  string    `json:"project"`
	Full     bool      `json:"full_feature_names"`
	SQL      string    `json:"entity_df_sql"`

	// pull_…, and which of them persist is about
	Source    string          `json:"data_source_name"`
	Keys      []string        `json:"join_key_columns"`
	Columns   []string        `json:"feature_name_columns"`
	Timestamp string          `json:"timestamp_field"`
	Created   string          `json:"created_timestamp_column"`
	Start     string          `json:"start_date"`
	End       string          `json:"end_date"`
	Retrieve  string          `json:"retrieve_func"`
	Overwrite bool            `json:"allow_overwrite"`
	Timeout   json.RawMessage `json:"timeout"`

	// the others
	Proto    string          `json:"data_source_proto"`
	Service  string          `json:"feature_service_name"`
	Progress json.RawMessage `json:"progress"`
}

func read(b []byte) (command, error) {
	var c command
	if err := jsondoc.Decode(b, &c, jsondoc.Known); err != nil {
		return c, fault.New(fault.Invalid, "the command is not understood: %v", err)
	}
	return c, nil
}

// Exchange implements flight.Commands.
func (o *Offline) Exchange(ctx context.Context, text []byte, rows io.Reader) (flight.Rows, error) {
	c, err := read(text)
	if err != nil {
		return nil, err
	}
	p := identity.From(ctx).Project
	switch c.API {
	case history:
		return o.history(ctx, p, c, rows)
	case pullAll, pullLatest:
		return o.pull(ctx, p, c)
	case columnTypes:
		return o.columns(ctx, p, c)
	}
	return nil, unknown(c.API)
}

// Put implements flight.Commands.
func (o *Offline) Put(ctx context.Context, text []byte, rows io.Reader) error {
	c, err := read(text)
	if err != nil {
		return err
	}
	p := identity.From(ctx).Project
	switch c.API {
	case validate:
		_, err := o.source(ctx, p, c)
		return err
	case persist:
		return o.persist(ctx, p, c, rows)
	case writeBatch:
		return fault.New(fault.Unsupported, "rows are not added to a dataset by Feast").
			WithHint("Import them as a version of the view's dataset, or let an Ingestion fetch them; push writes online.")
	case writeLogs:
		return fault.New(fault.Unsupported, "logged features are not written by Feast").
			WithHint("Falaj logs what its deployments served: see monitoring.")
	}
	return unknown(c.API)
}

func unknown(api string) error {
	return fault.New(fault.Unsupported, "there is no command %.80q", api).
		WithHint("There are %s.", strings.Join([]string{history, pullAll, pullLatest, columnTypes, validate, persist}, ", "))
}

// Words implements flight.Commands: the form in which Feast's client finds an
// exception of its own to raise.
func (o *Offline) Words(err error, words string) string {
	detail, _ := json.Marshal(map[string]string{"module": "feast.errors", "class": classOf(err), "message": words}) // strings only
	return "Flight error: " + string(detail)
}

// history joins features to the rows that were sent.
func (o *Offline) history(ctx context.Context, p project.Name, c command, sent io.Reader) (flight.Rows, error) {
	r := feature.HistoryRequest{Project: p, SQL: c.SQL}
	var err error
	if r.Selection, err = c.selection(); err != nil {
		return nil, err
	}
	if c.SQL == "" {
		if r.Rows, err = o.entities(ctx, c, sent); err != nil {
			return nil, err
		}
	}
	h, err := o.Features.History(ctx, r)
	if err != nil {
		return nil, missingView(err)
	}
	return h, nil
}

func (c *command) selection() (feature.Selection, error) {
	for i, a := range c.Aliases {
		if a != nil && *a != "" && (i >= len(c.Views) || *a != c.Views[i]) {
			return feature.Selection{}, fault.New(fault.Unsupported, "a view under another name (%.80q) is not joined", *a).
				WithHint("Ask for the view by its own name, and rename the columns of the result.")
		}
	}
	s := feature.Selection{FullNames: c.Full, Features: make([]string, len(c.Features))}
	for i, f := range c.Features {
		s.Features[i] = refOf(f)
	}
	return s, nil
}

// entities are the rows that were sent, without what pandas adds. Feast's client
// sends a table with the column "key" alone when it has none.
func (o *Offline) entities(ctx context.Context, c command, sent io.Reader) (array.RecordReader, error) {
	rows, err := o.Datasets.Sent(ctx, sent)
	if err != nil {
		return nil, err
	}
	kept := keepColumns(rows)
	if f := kept.Schema().Fields(); len(f) == 1 && f[0].Name == "key" {
		kept.Release()
		hint := "Give entity_df, a data frame or SQL over datasets."
		if c.Start != "" || c.End != "" {
			hint += " Features of a range of time without entities are not supported."
		}
		return nil, fault.New(fault.Unsupported, "there are no entity rows").WithHint("%s", hint)
	}
	return kept, nil
}

func missingView(err error) error {
	if fault.Is(err, fault.NotFound) {
		return noView(err)
	}
	return err
}

// pull reads columns of a dataset between two times: all rows, or the newest of
// each key.
func (o *Offline) pull(ctx context.Context, p project.Name, c command) (flight.Rows, error) {
	ref, v, err := o.dataset(ctx, p, c.Source)
	if err != nil {
		return nil, err
	}
	sql, err := c.sql(v)
	if err != nil {
		return nil, err
	}
	rows, err := o.Datasets.Query(ctx, dataset.QueryRequest{Project: p, SQL: sql, Inputs: map[string]dataset.Ref{"source": ref}, Purpose: "feast"})
	if err != nil {
		return nil, err
	}
	return pulled{rows, func(ctx context.Context) error {
		return o.Datasets.Reauthorize(ctx, dataset.OpenRequest{Project: p, Ref: ref, Columns: nil, Purpose: "feast"})
	}}, nil
}

type pulled struct {
	array.RecordReader
	reauthorize func(context.Context) error
}

func (p pulled) Reauthorize(ctx context.Context) error { return p.reauthorize(ctx) }

// dataset is the version that a data source of Feast's is: the newest of the
// dataset of that name.
func (o *Offline) dataset(ctx context.Context, p project.Name, source string) (dataset.Ref, dataset.Version, error) {
	ref, err := dataset.ParseRef(source)
	if err != nil {
		return ref, dataset.Version{}, fault.New(fault.Invalid, "data source %.80q is no dataset", source).
			WithHint("Name the data source as the dataset in Falaj.")
	}
	v, err := o.Datasets.Version(ctx, p, ref)
	if fault.Is(err, fault.NotFound) {
		err = classError{err, "DataSourceObjectNotFoundException"}
	}
	if err == nil {
		ref = v.Ref() // what is read does not change under the reader
	}
	return ref, v, err
}

// sql selects what a pull asks for. Columns are looked up before they are quoted,
// and times are numbers.
func (c *command) sql(v dataset.Version) (string, error) {
	wanted := slices.Concat(c.Keys, c.Columns, []string{c.Timestamp})
	if c.Created != "" {
		wanted = append(wanted, c.Created)
	}
	if len(c.Columns) == 0 { // as Feast's own stores: all
		wanted = append(wanted, v.Schema.Names()...)
	}
	var columns []string
	for _, name := range wanted {
		if _, ok := v.Schema.Column(name); !ok {
			return "", fault.New(fault.Invalid, "dataset %s has no column %.80q", v.Ref(), name).WithHint("Its columns are %q.", v.Schema.Names())
		}
		if q := quote(name); !slices.Contains(columns, q) {
			columns = append(columns, q)
		}
	}
	where := []string{}
	at := "epoch_us(" + quote(c.Timestamp) + ")"
	for _, b := range []struct{ field, text, op string }{{"start_date", c.Start, " >= "}, {"end_date", c.End, " <= "}} {
		if b.text == "" {
			continue
		}
		t, ok := instant(b.text)
		if !ok {
			return "", fault.New(fault.Invalid, "%s %.80q is no time", b.field, b.text)
		}
		where = append(where, at+b.op+itoa(t))
	}
	sql := "SELECT " + strings.Join(columns, ", ") + " FROM source"
	if c.API != pullLatest && c.Retrieve != pullLatest {
		return sql + clause(" WHERE ", where), nil
	}
	if len(c.Keys) == 0 {
		return "", fault.New(fault.Unsupported, "the newest rows of a view without entities are not pulled")
	}
	keys := make([]string, len(c.Keys))
	for i, k := range c.Keys {
		keys[i] = quote(k)
		where = append(where, keys[i]+" IS NOT NULL")
	}
	order := []string{quote(c.Timestamp) + " DESC"}
	if c.Created != "" {
		order = append(order, quote(c.Created)+" DESC NULLS LAST")
	}
	for _, name := range columns { // so that equal times give the same row each time
		order = append(order, name+" DESC NULLS LAST")
	}
	return sql + clause(" WHERE ", append(where, quote(c.Timestamp)+" IS NOT NULL")) + " QUALIFY row_number() OVER (PARTITION BY " +
		strings.Join(keys, ", ") + " ORDER BY " + strings.Join(order, ", ") + ") = 1", nil
}

func clause(word string, terms []string) string {
	if len(terms) == 0 {
		return ""
	}
	return word + strings.Join(terms, " AND ")
}

// source reads which dataset a data source is, from what Feast's client prints of it.
func (o *Offline) source(ctx context.Context, p project.Name, c command) (dataset.Version, error) {
	var s struct {
		Name string `json:"name"` // beside much that is about other stores
	}
	if err := jsondoc.Decode([]byte(c.Proto), &s); err != nil {
		return dataset.Version{}, fault.New(fault.Invalid, "the data source is not understood: %v", err)
	}
	_, v, err := o.dataset(ctx, p, s.Name)
	return v, err
}

// columns lists the columns of a data source with Arrow's names of their types.
func (o *Offline) columns(ctx context.Context, p project.Name, c command) (flight.Rows, error) {
	v, err := o.source(ctx, p, c)
	if err != nil {
		return nil, err
	}
	schema := arrow.NewSchema([]arrow.Field{{Name: "name", Type: arrow.BinaryTypes.String}, {Name: "type", Type: arrow.BinaryTypes.String}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for _, f := range v.Schema {
		b.Field(0).(*array.StringBuilder).Append(f.Name)
		b.Field(1).(*array.StringBuilder).Append(arrowName(f.Type.Arrow()))
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	rows, err := array.NewRecordReader(schema, []arrow.RecordBatch{rec})
	if err != nil {
		return nil, err
	}
	return pulled{rows, func(context.Context) error { return nil }}, nil
}

// arrowName is a type as pyarrow prints it.
func arrowName(t arrow.DataType) string {
	switch t.ID() {
	case arrow.STRING:
		return "string"
	case arrow.FLOAT32:
		return "float"
	case arrow.FLOAT64:
		return "double"
	case arrow.LIST:
		return "list<item: " + arrowName(t.(*arrow.ListType).Elem()) + ">"
	case arrow.TIMESTAMP:
		return "timestamp[us, tz=UTC]"
	case arrow.DATE32:
		return "date32[day]"
	default:
		return t.String()
	}
}

// persist keeps a training set as a version of a dataset. The rows that were sent
// are kept as another, so that its lineage says what it was made of.
func (o *Offline) persist(ctx context.Context, p project.Name, c command, sent io.Reader) error {
	if c.Retrieve != history {
		return fault.New(fault.Unsupported, "rows of a dataset are not kept again: they are in %.80q already", c.Source)
	}
	selection, err := c.selection()
	if err != nil {
		return err
	}
	if err := o.free(ctx, p, c); err != nil {
		return err
	}
	r := feature.TrainingSetRequest{Project: p, Name: c.Source, Description: "Kept by Feast", Selection: selection}
	if c.SQL != "" {
		return fault.New(fault.Unsupported, "a training set of SQL is not kept by Feast").
			WithHint("Make it by `falaj feature training-set`, which takes the same SQL.")
	}
	rows, err := o.entities(ctx, c, sent)
	if err != nil {
		return err
	}
	defer rows.Release()
	if r.Timestamp, err = feature.TimeOf(rows.Schema()); err != nil {
		return err
	}
	// What the training set will be refused for is found out before the rows are kept.
	if err := o.Features.CheckHistory(ctx, feature.HistoryRequest{Project: p, Selection: selection, Timestamp: r.Timestamp}, rows.Schema()); err != nil {
		return missingView(err)
	}
	spine, err := o.Datasets.Create(ctx, dataset.CreateRequest{
		Project: p, Name: c.Source + entities, Rows: rows, Description: "Entity rows of " + c.Source,
		Producer: dataset.Producer{Kind: producer, ID: identity.From(ctx).ID},
	})
	if err != nil {
		return err
	}
	r.Spine = feature.Source{Dataset: spine.Ref().String()}
	_, err = o.Features.MakeTrainingSet(ctx, r)
	return missingView(err)
}

const (
	entities = "-entities" // ends the name of the dataset of the rows that were sent
	producer = "feast"     // of its versions
)

// free refuses names that are taken: without allow_overwrite both, with it the second
// by a dataset that is of something else.
func (o *Offline) free(ctx context.Context, p project.Name, c command) error {
	for _, name := range []string{c.Source, c.Source + entities} {
		_, err := o.Datasets.One(ctx, p, name)
		if fault.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if !c.Overwrite {
			return classError{fault.New(fault.Conflict, "dataset %s exists", name).
				WithHint("Use another name, or allow_overwrite: the training set becomes a new version, and those before it stay."), "SavedDatasetLocationAlreadyExists"}
		}
		if name == c.Source {
			continue
		}
		v, err := o.Datasets.Version(ctx, p, dataset.Ref{Name: name})
		if err != nil {
			return err
		}
		if v.Lineage.Producer == nil || v.Lineage.Producer.Kind != producer {
			return fault.New(fault.Conflict, "dataset %s, which the entity rows would go to, is not of this", name).WithHint("Use another name for the training set.")
		}
	}
	return nil
}

// indexColumn begins the name of a column that pandas adds for the index.
const indexColumn = "__index_level_"

// keepColumns leaves out what pandas adds.
func keepColumns(rows array.RecordReader) array.RecordReader {
	k := &kept{RecordReader: rows}
	var fields []arrow.Field
	for i, f := range rows.Schema().Fields() {
		if !strings.HasPrefix(f.Name, indexColumn) {
			fields = append(fields, f)
			k.at = append(k.at, i)
		}
	}
	if len(fields) == rows.Schema().NumFields() {
		return rows
	}
	k.schema = arrow.NewSchema(fields, nil)
	return k
}

type kept struct {
	array.RecordReader
	schema *arrow.Schema
	at     []int
	cur    arrow.RecordBatch
}

func (k *kept) Schema() *arrow.Schema { return k.schema }

func (k *kept) Next() bool {
	k.drop()
	if !k.RecordReader.Next() {
		return false
	}
	rec := k.RecordReader.RecordBatch()
	columns := make([]arrow.Array, len(k.at))
	for i, at := range k.at {
		columns[i] = rec.Column(at)
	}
	k.cur = array.NewRecordBatch(k.schema, columns, rec.NumRows())
	return true
}

func (k *kept) drop() {
	if k.cur != nil {
		k.cur.Release()
		k.cur = nil
	}
}

func (k *kept) RecordBatch() arrow.RecordBatch { return k.cur }
func (k *kept) Record() arrow.RecordBatch      { return k.cur }

func (k *kept) Release() {
	k.drop()
	k.RecordReader.Release()
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func itoa(t time.Time) string { return strconv.FormatInt(t.UnixMicro(), 10) }
