package feature

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// ApplyRequest says where a definition goes. DryRun tells what would happen and
// changes nothing.
type ApplyRequest struct {
	Project project.Name
	Name    string
	DryRun  bool
}

// Definitions applies, promotes, finds and lists entities, feature views and feature
// services.
type Definitions struct {
	*core
	rows *OnlineRows
}

// ApplyEntity keeps an entity. Content that exists gives that version, and the
// alias latest points to it. Needs feature.apply. Errors: fault.Invalid.
func (s *Definitions) ApplyEntity(ctx context.Context, r ApplyRequest, spec EntitySpec) (Entity, project.Change, error) {
	if err := s.mayApply(ctx, EntityKind, r); err != nil {
		return Entity{}, "", err
	}
	if err := spec.Validate(); err != nil {
		return Entity{}, "", err
	}
	spec = spec.complete(r.Name)
	d, change, err := s.apply(ctx, EntityKind, r, spec)
	return Entity{Header: d.Header, EntitySpec: spec}, change, err
}

// ApplyView keeps a feature view, after its source was looked at: the SQL is
// planned by the sandboxed child and returns no row. Needs feature.apply, and
// what reading the source needs. Errors: fault.Invalid for a wrong spec, a column
// that is missing or of another type, SQL that does not run, or an entity or
// dataset that is not there.
func (s *Definitions) ApplyView(ctx context.Context, r ApplyRequest, spec ViewSpec) (View, project.Change, error) {
	if err := s.mayApply(ctx, ViewKind, r); err != nil {
		return View{}, "", err
	}
	if err := spec.Validate(); err != nil {
		return View{}, "", err
	}
	v := View{Header: Header{Project: r.Project, Name: r.Name}, ViewSpec: spec.complete()}
	var err error
	if v.Keys, err = s.keysOf(ctx, r.Project, spec.Entities); err != nil {
		return View{}, "", err
	}
	schema, err := s.look(ctx, r.Project, &v.Source)
	if err != nil {
		return View{}, "", fault.Wrap(err, "inspecting the source of view %s", r.Name)
	}
	if err := v.check(schema); err != nil {
		return View{}, "", err
	}
	d, change, err := s.apply(ctx, ViewKind, r, v.body())
	v.Header = d.Header
	return v, change, err
}

// ApplyServiceDefinition keeps a feature service. Views without a version become the
// versions that are current now, so a service never changes under a model; apply
// it again to follow. Needs feature.apply. Errors: fault.Invalid for a view or
// feature that is not there.
func (s *Definitions) ApplyServiceDefinition(ctx context.Context, r ApplyRequest, spec ServiceSpec) (ServiceDefinition, project.Change, error) {
	if err := s.mayApply(ctx, ServiceKind, r); err != nil {
		return ServiceDefinition{}, "", err
	}
	if err := spec.Validate(); err != nil {
		return ServiceDefinition{}, "", err
	}
	b := ServiceDefinition{Header: Header{Name: r.Name}, ServiceSpec: spec}
	var made *computed
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		b.Selected, b.Used = nil, nil
		asked, err := s.pick(ctx, tx, r.Project, spec.Features)
		if err != nil {
			return err
		}
		all, err := s.pick(ctx, tx, r.Project, slices.Concat(spec.Features, spec.Inputs))
		if err != nil {
			return err
		}
		for _, v := range all {
			if allowed := v.view.Purpose; spec.Purpose != "" && len(allowed) > 0 && !slices.Contains(allowed, spec.Purpose) {
				return bad("purpose", "feature view %s allows only the purposes %s", v.view.Ref(), strings.Join(allowed, ", "))
			}
		}
		b.Selected = featuresOf(asked)
		for _, f := range featuresOf(all) {
			if !slices.Contains(b.Selected, f) {
				b.Used = append(b.Used, f)
			}
		}
		made, err = compile(b, all)
		return err
	})
	if err != nil {
		return ServiceDefinition{}, "", asInvalid(err)
	}
	if err := made.unit(); err != nil { // stored ones stay as they are
		planned := r
		planned.DryRun = true
		if _, change, planErr := s.apply(ctx, ServiceKind, planned, serviceBody{b.ServiceSpec, b.Selected, b.Used}); planErr != nil || change != project.Unchanged {
			return ServiceDefinition{}, "", err
		}
	}
	d, change, err := s.apply(ctx, ServiceKind, r, serviceBody{b.ServiceSpec, b.Selected, b.Used})
	b.Header = d.Header
	return b, change, err
}

// The stored forms.
type (
	viewBody struct {
		ViewSpec
		Keys []Key `json:"keys"`
	}
	serviceBody struct {
		ServiceSpec
		Selected []string `json:"selected"`
		Used     []string `json:"used,omitempty"`
	}
)

func (s *Definitions) mayApply(ctx context.Context, k Kind, r ApplyRequest) error {
	if err := s.allow(ctx, ActionApply, r.Project, r.Name); err != nil {
		return err
	}
	if err := noEmptyProject(r.Project); err != nil {
		return err
	}
	return checkName(k, r.Name)
}

// apply keeps a definition's content as a version.
func (s *Definitions) apply(ctx context.Context, k Kind, r ApplyRequest, content any) (Definition, project.Change, error) {
	body, err := json.Marshal(content)
	if err != nil {
		return Definition{}, "", err
	}
	digest, err := digestOf(content)
	if err != nil {
		return Definition{}, "", err
	}
	var d Definition
	var change project.Change
	work := func(ctx context.Context, tx *store.Tx) error {
		var err error
		d, change, err = s.settle(ctx, tx, k, r, body, digest)
		if err != nil || change == project.Unchanged || r.DryRun {
			return err
		}
		ref := string(k) + " " + d.Ref()
		if err := audit.Append(ctx, tx, audit.Entry{
			Project: string(r.Project), Action: string(ActionApply), Object: objectKind + " " + ref, Detail: map[string]any{"digest": d.Digest},
		}); err != nil {
			return err
		}
		tx.OnCommit(s.plans.forget)
		tx.OnCommit(s.rows.copying.Wake) // what the version before shows, this one may hide
		return event.Publish(ctx, tx, string(r.Project), EventApplied, Applied{Kind: k, Ref: d.Ref(), Digest: d.Digest})
	}
	if r.DryRun {
		err = s.cfg.DB.View(ctx, work)
	} else {
		err = s.cfg.DB.Update(ctx, string(r.Project), work)
	}
	if err != nil {
		return Definition{}, "", fault.Wrap(err, "applying %s %s", k, r.Name)
	}
	return d, change, nil
}

// settle finds or makes the version of a content, and points latest to it.
func (s *Definitions) settle(ctx context.Context, tx *store.Tx, k Kind, r ApplyRequest, body json.RawMessage, digest string) (Definition, project.Change, error) {
	last, err := s.definitionStore.LastVersion(ctx, tx, r.Project, k, r.Name)
	if err != nil {
		return Definition{}, "", err
	}
	d, err := s.definitionStore.DefinitionByDigest(ctx, tx, r.Project, k, r.Name, digest)
	switch {
	case err == nil:
		aliases, err := s.definitionStore.Aliases(ctx, tx, r.Project, k, r.Name)
		if err != nil {
			return Definition{}, "", err
		}
		if aliases[naming.Latest] == d.Version {
			return d, project.Unchanged, nil
		}
	case !fault.Is(err, fault.NotFound):
		return Definition{}, "", err
	default:
		d = Definition{Kind: k, Body: body, Header: Header{
			Project: r.Project, Name: r.Name, Version: last + 1, Digest: digest,
			CreatedAt: store.At(s.now()).Time(), CreatedBy: identity.From(ctx).ID,
		}}
		if !r.DryRun {
			if err := s.definitionStore.InsertDefinition(ctx, tx, d); err != nil {
				return Definition{}, "", err
			}
		}
	}
	change := project.Updated
	if last == 0 {
		change = project.Created
	}
	if r.DryRun {
		return d, change, nil
	}
	return d, change, s.definitionStore.PutAlias(ctx, tx, r.Project, k, r.Name, naming.Latest, d.Version)
}

// keysOf resolves entities to their join keys.
func (s *Definitions) keysOf(ctx context.Context, p project.Name, entities []string) ([]Key, error) {
	var keys []Key
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		keys = nil
		for i, name := range entities {
			d, err := s.find(ctx, tx, p, EntityKind, name)
			if err != nil {
				return fault.Wrap(asInvalid(err), "spec.entities[%d]", i)
			}
			var spec EntitySpec
			if err := json.Unmarshal(d.Body, &spec); err != nil {
				return err
			}
			t, err := typeOf("type", spec.Type)
			if err != nil {
				return err
			}
			for _, k := range spec.JoinKeys {
				keys = append(keys, Key{Entity: d.Ref(), Name: k, Type: t})
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(keys) > maxKeys {
		return nil, bad("entities", "together they have %d join keys, over the limit of %d", len(keys), maxKeys)
	}
	for i, k := range keys {
		if at := slices.IndexFunc(keys[:i], func(o Key) bool { return o.Name == k.Name }); at >= 0 {
			return nil, bad("entities", "%s and %s both have the join key %q", keys[at].Entity, k.Entity, k.Name)
		}
	}
	return keys, nil
}

// look finds out the columns of a source, and which datasets its SQL reads.
func (s *core) look(ctx context.Context, p project.Name, src *Source) (*arrow.Schema, error) {
	if src.Stream != nil {
		if name := src.Stream.Source; name != "" {
			if s.cfg.Sources == nil {
				return nil, fault.New(fault.Unsupported, "this server has no feature sources")
			}
			if _, err := s.cfg.Sources.Check(ctx, p, name, src.Dataset); err != nil {
				return nil, asInvalid(err)
			}
		}
		schema, err := s.cfg.Data.Columns(ctx, p, src.Dataset)
		return schema, asInvalid(err)
	}
	if src.Dataset != "" {
		v, err := s.cfg.Data.Resolve(ctx, p, src.Dataset)
		if err != nil {
			return nil, asInvalid(err)
		}
		return v.Schema, nil
	}
	rows, err := s.cfg.Data.Query(ctx, p, "SELECT * FROM ("+trimSQL(src.SQL)+"\n) AS source LIMIT 0", src.Inputs, Local{TimeZone: src.TimeZone})
	if err != nil {
		return nil, asInvalid(err)
	}
	defer rows.Release()
	for rows.Next() { // to its end, so that a late error is seen
	}
	if err := rows.Err(); err != nil {
		return nil, asInvalid(err)
	}
	// From now on the inputs are spelled out; a floating ref keeps floating.
	inputs := maps.Clone(src.Inputs)
	if inputs == nil {
		inputs = make(map[string]string, len(rows.Inputs))
		for _, in := range rows.Inputs {
			name, _, _ := strings.Cut(in.Ref, "@")
			if strings.Contains(src.SQL, `"`+name+"@") {
				return nil, fault.New(fault.Invalid, "the SQL names a version of dataset %s", name).
					WithHint("Write %s in the SQL, and set its version with `inputs: {%s: %s}`.", name, name, in.Ref)
			}
			inputs[in.Table] = name
		}
	}
	src.Inputs = inputs
	return zoneless(rows), nil
}

// zoneless is the schema of a query with the types of times that had no zone as they
// were. Rows that are read are of instants.
func zoneless(rows Rows) *arrow.Schema {
	fields := slices.Clone(rows.Schema().Fields())
	for i, f := range fields {
		if !slices.Contains(rows.Local, f.Name) {
			continue
		}
		fields[i].Type = &arrow.TimestampType{Unit: arrow.Microsecond}
		if f.Type.ID() == arrow.LIST {
			fields[i].Type = arrow.ListOf(fields[i].Type)
		}
	}
	return arrow.NewSchema(fields, nil)
}

// zoned refuses a column of times without a zone where the source names none.
func (src Source) zoned(t arrow.DataType) error {
	if l, ok := t.(*arrow.ListType); ok {
		t = l.Elem()
	}
	if t, ok := t.(*arrow.TimestampType); !ok || t.TimeZone != "" || src.TimeZone != "" || src.SQL == "" {
		return nil
	}
	return fault.New(fault.Invalid, "its times have no time zone").
		WithHint("Set a zone beside the SQL, such as time_zone: America/New_York or UTC in a manifest, or --time-zone America/New_York in a command, or convert the times in SQL: x::TIMESTAMPTZ treats them as UTC.")
}

// trimSQL takes off what may stand behind a statement but not inside brackets.
func trimSQL(sql string) string { return "\n" + strings.TrimRight(sql, " \t\r\n;") }

// quote makes a name an SQL identifier.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// check refuses a view whose columns are not those of its source.
func (v View) check(schema *arrow.Schema) error {
	names := make([]string, 0, schema.NumFields())
	for _, f := range schema.Fields() {
		names = append(names, f.Name)
	}
	need := func(field, name string, t value.Type) error {
		at := schema.FieldIndices(name)
		if len(at) != 1 {
			if len(at) > 1 {
				return bad(field, "the source has %d columns named %q", len(at), clip(name))
			}
			return bad(field, "the source has no column %q%s", clip(name), nearest(name, names)).
				WithHint("Its columns are %s.", clipList(names))
		}
		if from := schema.Field(at[0]).Type; !offline.Readable(from, t) {
			return bad(field, "column %q is %s, not %s", clip(name), from, t).WithHint("Correct the type, or CAST the column in SQL.")
		}
		if t.Elem() == value.Timestamp {
			if err := v.Source.zoned(schema.Field(at[0]).Type); err != nil {
				return bad(field, "column %q: %s", clip(name), err).WithHint("%s", fault.HintOf(err))
			}
		}
		return nil
	}
	for _, k := range v.Keys {
		if err := need("entities", k.Name, k.Type); err != nil {
			if at := schema.FieldIndices(k.Name); len(at) == 1 { // the type is the entity's, not written in the view
				err = bad("entities", "join key %q is %s in entity %s, and the source's column is %s", clip(k.Name), k.Type, k.Entity, schema.Field(at[0]).Type).
					WithHint("Set spec.type of the Entity (default string), or CAST the column in SQL.")
			}
			return err
		}
		if k.Name == v.Timestamp || v.feature(k.Name) >= 0 {
			return bad("features", "%q is a join key of entity %s", k.Name, k.Entity)
		}
	}
	if err := need("timestamp", v.Timestamp, value.Timestamp); err != nil {
		return err
	}
	if v.CreatedTimestamp != "" {
		if err := need("created_timestamp", v.CreatedTimestamp, value.Timestamp); err != nil {
			return err
		}
	}
	for _, in := range v.inputs() {
		if err := need(in.field, in.Column, in.Type); err != nil {
			return err
		}
	}
	return nil
}

func clipList(names []string) string {
	const most = 40
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// asInvalid makes a missing object that a request named an error of the request.
func asInvalid(err error) error {
	if !fault.Is(err, fault.NotFound) {
		return err
	}
	return fault.New(fault.Invalid, "%w", err).WithHint("%s", fault.HintOf(err))
}

// Promote sets an alias to a version, which may be named by another alias. Needs feature.apply.
// Errors: fault.Invalid for the alias latest, which follows what is applied.
func (s *Definitions) Promote(ctx context.Context, p project.Name, k Kind, version, alias string) (Header, error) {
	name, _, _ := strings.Cut(version, "@")
	if err := s.allow(ctx, ActionApply, p, name); err != nil {
		return Header{}, err
	}
	if err := naming.CheckAlias(alias); err != nil {
		return Header{}, err
	}
	if alias == naming.Latest {
		return Header{}, fault.New(fault.Invalid, "the alias latest always names the newest version").WithHint("To make a version the latest, apply its content again.")
	}
	var h Header
	err := s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		d, err := s.find(ctx, tx, p, k, version)
		if err != nil {
			return err
		}
		h = d.Header
		if err := s.definitionStore.PutAlias(ctx, tx, p, k, d.Name, alias, d.Version); err != nil {
			return err
		}
		if err := audit.Append(ctx, tx, audit.Entry{
			Project: string(p), Action: string(ActionApply), Object: objectKind + " " + string(k) + " " + d.Ref(), Detail: map[string]any{"alias": alias},
		}); err != nil {
			return err
		}
		tx.OnCommit(s.plans.forget)
		return event.Publish(ctx, tx, string(p), EventPromoted, Promoted{Kind: k, Ref: d.Ref(), Alias: alias})
	})
	return h, err
}

// find resolves a ref in a transaction.
func (s *core) find(ctx context.Context, tx *store.Tx, p project.Name, k Kind, name string) (Definition, error) {
	r, err := naming.ParseRef(name)
	if err != nil {
		return Definition{}, err
	}
	if r.Version == 0 {
		aliases, err := s.definitionStore.Aliases(ctx, tx, p, k, r.Name)
		if err != nil {
			return Definition{}, err
		}
		var ok bool
		if r.Version, ok = aliases[r.Alias]; !ok {
			if len(aliases) == 0 {
				return Definition{}, fault.New(fault.NotFound, "there is no feature %s %q in project %s", k, r.Name, p).WithHint("%s", k.hint())
			}
			return Definition{}, fault.New(fault.NotFound, "feature %s %q has no alias %q", k, r.Name, r.Alias).
				WithHint("Its aliases are %s.", strings.Join(slices.Sorted(maps.Keys(aliases)), ", "))
		}
	}
	d, err := s.definitionStore.Definition(ctx, tx, p, k, r.Name, r.Version)
	if fault.Is(err, fault.NotFound) {
		return Definition{}, fault.New(fault.NotFound, "there is no feature %s %s@%d in project %s", k, r.Name, r.Version, p).WithHint("%s", k.hint())
	}
	return d, err
}

func (d Definition) entity() (Entity, error) {
	e := Entity{Header: d.Header}
	return e, fault.Wrap(json.Unmarshal(d.Body, &e.EntitySpec), "reading entity %s", d.Ref())
}

func (d Definition) view() (View, error) {
	var b viewBody
	err := json.Unmarshal(d.Body, &b)
	return View{Header: d.Header, ViewSpec: b.complete(), Keys: b.Keys}, fault.Wrap(err, "reading feature view %s", d.Ref())
}

func (d Definition) service() (ServiceDefinition, error) {
	var b serviceBody
	err := json.Unmarshal(d.Body, &b)
	return ServiceDefinition{Header: d.Header, ServiceSpec: b.ServiceSpec, Selected: b.Selected, Used: b.Used}, fault.Wrap(err, "reading feature service %s", d.Ref())
}

// SearchFields are what a search finds a definition by, besides its name and owner.
func (d Definition) SearchFields() ([]store.Field, error) {
	switch d.Kind {
	case EntityKind:
		e, err := d.entity()
		return append(e.SearchFields(), store.Field{Name: "description", Value: e.Description}), err
	case ViewKind:
		v, err := d.view()
		return append(v.SearchFields(), store.Field{Name: "description", Value: v.Description}), err
	case ServiceKind:
		x, err := d.service()
		return append(x.SearchFields(), store.Field{Name: "description", Value: x.Description}), err
	}
	return nil, nil
}

func tagFields(tags map[string]string) (out []store.Field) {
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		out = append(out, store.Field{Name: "tag", Value: k + "=" + tags[k]})
	}
	return out
}

// SearchFields are what a search finds an entity by, besides its name, description and owner.
func (e Entity) SearchFields() []store.Field {
	return append(tagFields(e.Tags), store.FieldsOf("column", e.JoinKeys...)...)
}

// SearchFields are what a search finds a view by, besides its name, description and owner.
func (v View) SearchFields() []store.Field {
	out := tagFields(v.Tags)
	for _, f := range v.Features {
		out = append(out, store.Field{Name: "column", Value: f.Name})
	}
	for _, k := range v.Keys {
		out = append(out, store.Field{Name: "column", Value: k.Name})
	}
	return append(out, store.FieldsOf("from", append(slices.Sorted(maps.Values(v.Source.Inputs)), v.Source.Dataset)...)...)
}

// SearchFields are what a search finds a service by, besides its name, description and owner.
func (s ServiceDefinition) SearchFields() []store.Field {
	return append(tagFields(s.Tags), store.FieldsOf("from", s.Selected...)...)
}

// Entity finds an entity by ref. Needs feature.read.
func (s *Definitions) Entity(ctx context.Context, p project.Name, ref string) (Entity, error) {
	return get(ctx, s, p, EntityKind, ref, Definition.entity)
}

// View finds a feature view by ref. Needs feature.read.
func (s *Definitions) View(ctx context.Context, p project.Name, ref string) (View, error) {
	return get(ctx, s, p, ViewKind, ref, Definition.view)
}

// ServiceDefinition finds a feature service by ref. Needs feature.read.
func (s *Definitions) ServiceDefinition(ctx context.Context, p project.Name, ref string) (ServiceDefinition, error) {
	return get(ctx, s, p, ServiceKind, ref, Definition.service)
}

func get[T any](ctx context.Context, s *Definitions, p project.Name, k Kind, ref string, decode func(Definition) (T, error)) (T, error) {
	var out T
	name, _, _ := strings.Cut(ref, "@")
	if err := s.allow(ctx, ActionRead, p, name); err != nil {
		return out, err
	}
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err := s.find(ctx, tx, p, k, ref)
		if err != nil {
			return err
		}
		out, err = decode(d)
		return err
	})
	return out, err
}

// maxPage bounds a page of a list.
const maxPage = 1000

func pageSize(n int) int {
	if n <= 0 || n > maxPage {
		return maxPage
	}
	return n
}

// Entities lists the latest versions by name, after a name. Needs feature.read.
func (s *Definitions) Entities(ctx context.Context, p project.Name, after string, limit int) ([]Entity, error) {
	return list(ctx, s, p, EntityKind, after, limit, Definition.entity)
}

// Views lists the latest versions by name, after a name. Needs feature.read.
func (s *Definitions) Views(ctx context.Context, p project.Name, after string, limit int) ([]View, error) {
	return list(ctx, s, p, ViewKind, after, limit, Definition.view)
}

// ServiceDefinitions lists the latest versions by name, after a name. Needs feature.read.
func (s *Definitions) ServiceDefinitions(ctx context.Context, p project.Name, after string, limit int) ([]ServiceDefinition, error) {
	return list(ctx, s, p, ServiceKind, after, limit, Definition.service)
}

func list[T any](ctx context.Context, s *Definitions, p project.Name, k Kind, after string, limit int, decode func(Definition) (T, error)) ([]T, error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionRead, policy.Object{Project: string(p), Kind: objectKind}); err != nil {
		return nil, err
	}
	var out []T
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		out = nil
		ds, err := s.definitionStore.Latest(ctx, tx, p, k, after, pageSize(limit))
		if err != nil {
			return err
		}
		for _, d := range ds {
			x, err := decode(d)
			if err != nil {
				return err
			}
			out = append(out, x)
		}
		return nil
	})
	return out, err
}

// FindEntities reads the latest versions, by name after a name, of which may says that they
// may be what is looked for. Needs feature.read.
func (s *Definitions) FindEntities(ctx context.Context, p project.Name, after string, limit int, may func(store.Line) (bool, error)) (store.Found[Entity], error) {
	return find(ctx, s, p, EntityKind, after, limit, may, Definition.entity, func(e Entity) string { return e.Name })
}

// FindViews is FindEntities for feature views.
func (s *Definitions) FindViews(ctx context.Context, p project.Name, after string, limit int, may func(store.Line) (bool, error)) (store.Found[View], error) {
	return find(ctx, s, p, ViewKind, after, limit, may, Definition.view, func(v View) string { return v.Name })
}

// FindServiceDefinitions is FindEntities for feature services.
func (s *Definitions) FindServiceDefinitions(ctx context.Context, p project.Name, after string, limit int, may func(store.Line) (bool, error)) (store.Found[ServiceDefinition], error) {
	return find(ctx, s, p, ServiceKind, after, limit, may, Definition.service, func(d ServiceDefinition) string { return d.Name })
}

func find[T any](ctx context.Context, s *Definitions, p project.Name, k Kind, after string, limit int, may func(store.Line) (bool, error), decode func(Definition) (T, error), name func(T) string) (store.Found[T], error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionRead, policy.Object{Project: string(p), Kind: objectKind}); err != nil {
		return store.Found[T]{}, err
	}
	return store.Find(ctx, s.cfg.DB, store.Lookup[T]{
		Lines: func(ctx context.Context, tx *store.Tx, after string, limit int) ([]store.Line, error) {
			return s.definitionStore.Lines(ctx, tx, p, k, after, limit)
		},
		Read: func(ctx context.Context, tx *store.Tx, names []string) ([]T, error) {
			ds, err := s.definitionStore.LatestOf(ctx, tx, p, k, names)
			if err != nil {
				return nil, err
			}
			out := make([]T, len(ds))
			for i, d := range ds {
				if out[i], err = decode(d); err != nil {
					return nil, err
				}
			}
			return out, nil
		},
		Key: name,
	}, after, limit, may)
}

// Listed is a version among the others.
type Listed struct {
	Header
	Aliases []string `json:"aliases,omitempty"`
}

// Versions lists the versions of a name below one (0: all), newest first, with
// their aliases. Needs feature.read.
func (s *Definitions) Versions(ctx context.Context, p project.Name, k Kind, name string, below, limit int) ([]Listed, error) {
	if err := s.allow(ctx, ActionRead, p, name); err != nil {
		return nil, err
	}
	var out []Listed
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		out = nil
		ds, err := s.definitionStore.Definitions(ctx, tx, p, k, name, below, pageSize(limit))
		if err != nil {
			return err
		}
		if len(ds) == 0 && below == 0 { // what there is has a version
			return fault.New(fault.NotFound, "there is no feature %s %q in project %s", k, name, p).WithHint("%s", k.hint())
		}
		aliases, err := s.definitionStore.Aliases(ctx, tx, p, k, name)
		for _, d := range ds {
			l := Listed{Header: d.Header}
			for _, alias := range slices.Sorted(maps.Keys(aliases)) {
				if aliases[alias] == d.Version {
					l.Aliases = append(l.Aliases, alias)
				}
			}
			out = append(out, l)
		}
		return err
	})
	return out, err
}
