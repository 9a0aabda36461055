package httpapi

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/governance/deletion"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/resource"
)

func (s *Server) listDatasets(ctx context.Context, in *struct {
	InProject
	Page
},
) (*body[items[dataset.Dataset]], error) {
	return listed(s.Datasets.Definitions.List(ctx, project.Name(in.Project), dataset.Page{Size: in.Size, Token: in.Token}))
}

// datasetView is a dataset with, on request, its newest version and lineage.
type datasetView struct {
	dataset.Dataset
	Newest  *dataset.Version `json:"newest,omitempty"`
	Lineage *tree            `json:"lineage,omitempty"`
}

func (s *Server) oneDataset(ctx context.Context, in *struct {
	InProject
	Name string `path:"name" maxLength:"63" doc:"Dataset"`
	View string `query:"view" enum:"basic,full" default:"basic" doc:"full adds the newest version and its lineage"`
},
) (*tagged[datasetView], error) {
	d, err := s.Datasets.Definitions.One(ctx, project.Name(in.Project), in.Name)
	view := datasetView{Dataset: d}
	if err != nil || in.View != "full" || d.Latest == 0 {
		return revised(view, d.Revision, err)
	}
	ref := dataset.Ref{Name: d.Name, Number: d.Latest}
	v, err := s.Datasets.Definitions.Version(ctx, project.Name(in.Project), ref)
	if err != nil {
		return nil, err
	}
	node, err := s.Datasets.Lineage.Graph(ctx, project.Name(in.Project), ref)
	lineage := treeOf(node)
	view.Newest, view.Lineage = &v, &lineage
	return revised(view, d.Revision, err)
}

func (s *Server) deleteDataset(ctx context.Context, in *struct {
	InProject
	Deleting
	Force  bool   `query:"force" doc:"Delete it even if a deployment depends on it; needs a reason"`
	Reason string `query:"reason" maxLength:"2000" doc:"Reason of the deletion; stored in the audit log"`
	Name   string `path:"name" maxLength:"90" doc:"Dataset, or name@version for one version"`
},
) (*none, error) {
	ref, err := dataset.ParseRef(in.Name)
	if err != nil {
		return nil, err
	}
	return &none{}, s.Datasets.Definitions.Delete(ctx, project.Name(in.Project), ref, deletion.Request{Yes: in.Yes, Force: in.Force, Reason: in.Reason})
}

// Deleting is how somebody deletes what others may name; exported because huma reads
// embedded fields only of exported types.
type Deleting struct {
	Yes bool `query:"yes" doc:"Delete it even if other objects refer to it; the error lists them"`
}

func (s *Server) listVersions(ctx context.Context, in *struct {
	InProject
	Page
	Name string `path:"name" maxLength:"63" doc:"Dataset"`
},
) (*body[items[dataset.Version]], error) {
	return listed(s.Datasets.Definitions.Versions(ctx, project.Name(in.Project), in.Name, dataset.Page{Size: in.Size, Token: in.Token}))
}

// importVersion streams the body into a new version and answers when it is
// accepted or rejected: 201, or 200 when there was such a version before.
func (s *Server) importVersion(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	v, err := s.Datasets.Writes.Import(r.Context(), dataset.ImportRequest{
		Project: project.Name(r.PathValue("project")), Name: r.PathValue("name"),
		Filename: query.Get("filename"), Body: r.Body, SchemaChange: query.Get("allow_schema_change") == "true",
	})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	status := http.StatusCreated
	if v.Unchanged {
		status = http.StatusOK
	}
	answer(w, status, v)
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client went away: nobody to tell
}

// InRef is the path of a dataset version; exported because huma reads embedded
// fields only of exported types.
type InRef struct {
	InProject
	Ref string `path:"ref" maxLength:"90" doc:"name@version, or name for the newest accepted version"`
}

func (s *Server) preview(ctx context.Context, in *struct {
	InRef
	Rows int `query:"rows" minimum:"0" maximum:"1000" doc:"Number of rows; 0 means 20"`
},
) (*body[dataset.Table], error) {
	ref, err := dataset.ParseRef(in.Ref)
	if err != nil {
		return nil, err
	}
	t, _, err := s.Datasets.Reads.Preview(ctx, dataset.OpenRequest{Project: project.Name(in.Project), Ref: ref, Purpose: "preview"}, in.Rows)
	return one(t, err)
}

func (s *Server) profile(ctx context.Context, in *InRef) (*body[dataset.Profile], error) {
	ref, err := dataset.ParseRef(in.Ref)
	if err != nil {
		return nil, err
	}
	return one(s.Datasets.Reads.Profile(ctx, dataset.OpenRequest{Project: project.Name(in.Project), Ref: ref, Purpose: "profile"}))
}

func (s *Server) quarantined(ctx context.Context, in *struct {
	InRef
	From int64 `query:"from" minimum:"0" doc:"Number of rows to skip"`
	Rows int   `query:"rows" minimum:"0" maximum:"1000" doc:"Number of rows; 0 means 20"`
},
) (*body[dataset.AsideTable], error) {
	ref, err := dataset.ParseRef(in.Ref)
	if err != nil {
		return nil, err
	}
	return one(s.Datasets.Reads.Quarantined(ctx, dataset.OpenRequest{Project: project.Name(in.Project), Ref: ref, Purpose: "quarantine"}, in.From, in.Rows))
}

func (s *Server) datasetVersion(ctx context.Context, in *InRef) (*body[dataset.Version], error) {
	ref, err := dataset.ParseRef(in.Ref)
	if err != nil {
		return nil, err
	}
	return one(s.Datasets.Definitions.Version(ctx, project.Name(in.Project), ref))
}

func (s *Server) datasetLineage(ctx context.Context, in *InRef) (*body[tree], error) {
	ref, err := dataset.ParseRef(in.Ref)
	if err != nil {
		return nil, err
	}
	node, err := s.Datasets.Lineage.Graph(ctx, project.Name(in.Project), ref)
	return one(treeOf(node), err)
}

func (s *Server) datasetDescendants(ctx context.Context, in *InRef) (*body[items[dataset.Version]], error) {
	ref, err := dataset.ParseRef(in.Ref)
	if err != nil {
		return nil, err
	}
	made, err := s.Datasets.Lineage.Descendants(ctx, project.Name(in.Project), ref)
	return listed(made, "", err)
}

// tree is lineage for people and pictures: a thing and what it was made from.
type tree struct {
	Name    string `json:"name"`
	Detail  string `json:"detail,omitempty"`
	Parents []tree `json:"parents,omitempty"`
}

func treeOf(n dataset.Node) tree {
	t := tree{Name: "dataset " + n.Ref, Detail: n.Digest}
	if n.Deleted != "" {
		t.Detail += " deleted " + n.Deleted
	}
	if n.Repeated {
		t.Detail += " (see above)"
	}
	if n.Source != nil {
		t.Parents = append(t.Parents, tree{Name: "file " + n.Source.Filename, Detail: n.Source.Digest})
	}
	if n.Producer != nil && n.Producer.ID != "" {
		t.Detail += " by " + n.Producer.String()
	}
	for _, p := range n.Parents {
		t.Parents = append(t.Parents, treeOf(p))
	}
	return t
}

func (s *Server) derive(ctx context.Context, in *struct {
	InProject
	Name string `path:"name" maxLength:"63" doc:"Dataset"`
},
) (*body[dataset.Derived], error) {
	return one(s.Datasets.Transforms.Derive(ctx, project.Name(in.Project), in.Name))
}

// maxQueryRows bounds the rows of a query that is answered in JSON, Config.Answer its bytes.
const maxQueryRows = 10_000

func (s *Server) query(ctx context.Context, in *struct {
	InProject
	Body struct {
		SQL    string            `json:"sql" doc:"One SELECT in DuckDB's dialect; a table is a dataset of that name, or \"name@3\""`
		Inputs map[string]string `json:"inputs,omitempty" doc:"Datasets by table name, if the names differ"`
		Limit  int               `json:"limit,omitempty" minimum:"0" maximum:"10000" doc:"Maximum number of rows; 0 means 100. truncated reports that there are more"`
	}
},
) (*body[dataset.Table], error) {
	q := dataset.QueryRequest{Project: project.Name(in.Project), SQL: in.Body.SQL, Purpose: "query"}
	if in.Body.Inputs != nil {
		q.Inputs = map[string]dataset.Ref{}
		for table, text := range in.Body.Inputs {
			ref, err := dataset.ParseRef(text)
			if err != nil {
				return nil, err
			}
			q.Inputs[table] = ref
		}
	}
	limit := in.Body.Limit
	if limit == 0 {
		limit = 100
	}
	rows, err := s.Datasets.Reads.Query(ctx, q)
	if err != nil {
		return nil, err
	}
	defer rows.Release()
	return one(dataset.Collect(ctx, rows, min(limit, maxQueryRows), resource.Bytes(s.cfg.Answer)))
}
