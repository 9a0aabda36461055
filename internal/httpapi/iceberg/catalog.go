package iceberg

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/jsondoc"
	"github.com/falaj-ml/falaj/internal/share"
)

func (a *API) config(*http.Request) (any, error) {
	return map[string]any{"defaults": map[string]string{}, "overrides": map[string]string{}, "endpoints": endpoints()}, nil
}

type namespaceList struct {
	Namespaces [][]project.Name `json:"namespaces"`
	Next       *string          `json:"next-page-token"`
}

// namespaces lists the projects of the token.
func (a *API) namespaces(r *http.Request) (any, error) {
	list := namespaceList{Namespaces: [][]project.Name{}}
	if r.URL.Query().Get("parent") != "" {
		return list, nil // nothing is nested
	}
	page, err := pageOf(r)
	if err != nil {
		return nil, err
	}
	if bound := identity.From(r.Context()).Project; bound != "" {
		list.Namespaces = append(list.Namespaces, []project.Name{bound})
		return list, nil
	}
	ps, next, err := a.Projects.List(r.Context(), page.Size, page.Token)
	for _, p := range ps {
		list.Namespaces = append(list.Namespaces, []project.Name{p.Name})
	}
	list.Next = token(next)
	return list, err
}

func (a *API) namespace(r *http.Request) (any, error) {
	p, err := a.Projects.One(r.Context(), project.Name(r.PathValue("project")))
	return map[string]any{"namespace": []project.Name{p.Name}, "properties": map[string]string{}}, err
}

type identifier struct {
	Namespace []project.Name `json:"namespace"`
	Name      string         `json:"name"`
}

type identifierList struct {
	Identifiers []identifier `json:"identifiers"`
	Next        *string      `json:"next-page-token"`
}

func (a *API) tables(r *http.Request) (any, error) {
	page, err := pageOf(r)
	if err != nil {
		return nil, err
	}
	p := project.Name(r.PathValue("project"))
	names, next, err := a.Datasets.ListTables(r.Context(), p, page)
	list := identifierList{Identifiers: []identifier{}, Next: token(next)}
	for _, n := range names {
		list.Identifiers = append(list.Identifiers, identifier{[]project.Name{p}, n})
	}
	return list, err
}

// loaded is a table as clients load it.
type loaded struct {
	Location string          `json:"metadata-location,omitempty"`
	Metadata json.RawMessage `json:"metadata"`
}

func (a *API) table(r *http.Request) (any, error) {
	t, err := a.Datasets.Table(r.Context(), project.Name(r.PathValue("project")), r.PathValue("table"))
	return loaded{t.Location, t.Metadata}, err
}

// decoded makes a handler of one that takes a JSON body. Fields that are not
// known are left alone: the protocol grows by them.
func decoded[Q any](f func(a *API, r *http.Request, q Q) (any, error)) func(*API, *http.Request) (any, error) {
	return func(a *API, r *http.Request) (any, error) {
		var q Q
		err := jsondoc.DecodeFrom(r.Body, &q)
		share.TurnOf(r.Context()).End()
		if err != nil {
			if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
				return nil, tooLarge
			}
			if kind := fault.KindOf(err); kind == fault.TooLarge || kind == fault.Exhausted {
				return nil, err
			}
			return nil, fault.New(fault.Invalid, "the body is not the JSON of this request: %v", err)
		}
		return f(a, r, q)
	}
}

// newTable is a request to create a table.
type newTable struct {
	Name       string            `json:"name"`
	Location   string            `json:"location"`
	Schema     table.Declared    `json:"schema"`
	Spec       *table.Layout     `json:"partition-spec"`
	Order      *table.Layout     `json:"write-order"`
	Stage      bool              `json:"stage-create"`
	Properties map[string]string `json:"properties"`
}

func (a *API) create(r *http.Request, q newTable) (any, error) {
	if q.Location != "" {
		return nil, fault.New(fault.Invalid, "the table is to be at %s", clip(q.Location)).WithHint("Leave the location out: Falaj says where files are.")
	}
	if err := table.Plain(q.Spec, q.Order); err != nil {
		return nil, err
	}
	t, err := a.Datasets.CreateTable(r.Context(), dataset.CreateTableRequest{
		Project: project.Name(r.PathValue("project")), Name: q.Name, Schema: q.Schema, Properties: q.Properties, Stage: q.Stage,
	})
	return loaded{t.Location, t.Metadata}, err
}

func (a *API) commit(r *http.Request, c dataset.TableCommit) (any, error) {
	t, err := a.Datasets.CommitTable(r.Context(), project.Name(r.PathValue("project")), r.PathValue("table"), c)
	return loaded{t.Location, t.Metadata}, err
}

// metrics takes a client's report of a scan, which nobody reads here.
func (a *API) metrics(r *http.Request) (any, error) {
	_, err := io.Copy(io.Discard, r.Body)
	return nil, err
}

func (a *API) views(*http.Request) (any, error) {
	return identifierList{Identifiers: []identifier{}}, nil
}

func (a *API) view(r *http.Request) (any, error) {
	return nil, fault.New(fault.NotFound, "there is no view %q: Falaj keeps none", clip(r.PathValue("view")))
}

// pageOf reads what a list asks for. A client that names no size gets pages, too.
func pageOf(r *http.Request) (dataset.Page, error) {
	q := r.URL.Query()
	page := dataset.Page{Token: q.Get("pageToken")}
	if size := q.Get("pageSize"); size != "" {
		n, err := strconv.Atoi(size)
		if err != nil || n < 1 {
			return page, fault.New(fault.Invalid, "pageSize is a number from 1 on, not %q", clip(size))
		}
		page.Size = n
	}
	return page, nil
}

func token(next string) *string {
	if next == "" {
		return nil
	}
	return &next
}
