package httpapi

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/registry/scan"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/optimize"
)

func (s *Server) registryRoutes(p string) {
	route(s, "GET", p+"/models", "model.read", "List registered models", s.listModels)
	route(s, "GET", p+"/models/{name}", "model.read", "Get a registered model", s.oneModel)
	route(s, "GET", p+"/models/{name}/versions", "model.read", "List a model's versions, newest first", s.listModelVersions)
	s.modelRoutes(p)
	route(s, "POST", p+"/models/{name}/versions/{version}/optimize", "job.submit", "Submit a job that optimises a version: creates faster variants, measures them and registers the best", s.optimizeModel)
	route(s, "PUT", p+"/models/{name}/aliases/{alias}", "model.promote", "Set an alias to a version", s.setAlias)
}

type modelView struct {
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Latest      int               `json:"latest_version"`
	Aliases     []string          `json:"aliases" doc:"alias=version"`
	CreatedAt   time.Time         `json:"created_at"`
	Champion    *modelVersionView `json:"champion,omitempty" doc:"Version with the alias champion; with view=full"`
	Newest      *modelVersionView `json:"newest,omitempty" doc:"Newest version, if there is no alias champion; with view=full"`
	Lineage     *tree             `json:"lineage,omitempty" doc:"Lineage of the champion, else of the newest version; with view=full"`
}

type modelVersionView struct {
	Name           string          `json:"name"`
	Version        int             `json:"version"`
	State          string          `json:"state"`
	Message        string          `json:"message,omitempty"`
	Aliases        []string        `json:"aliases"`
	Signed         bool            `json:"signed"`
	KeyID          string          `json:"key_id,omitempty"`
	Digest         string          `json:"digest"`
	RunID          string          `json:"run_id,omitempty"`
	Job            string          `json:"job,omitempty"`
	Datasets       []string        `json:"datasets,omitempty"`
	FeatureViews   []string        `json:"feature_views,omitempty"`
	Parents        []string        `json:"parents,omitempty" doc:"Upstream model versions"`
	Environment    string          `json:"environment,omitempty"`
	Residency      residency.Label `json:"residency"`
	Classification string          `json:"classification"`
	Content        scan.Level      `json:"content,omitempty" enum:"data,known,unknown,code,danger" doc:"Risk level of loading its files; empty if they were not scanned yet"`
	CreatedAt      time.Time       `json:"created_at"`
}

func modelOf(m registry.Model) modelView {
	v := modelView{Name: m.Name, Description: m.Description, CreatedAt: m.Created, Aliases: []string{}}
	for _, a := range m.Aliases {
		v.Aliases = append(v.Aliases, a.Name+"="+strconv.Itoa(a.Version))
	}
	for _, latest := range m.Latest {
		v.Latest = max(v.Latest, latest.Number)
	}
	return v
}

func modelVersionOf(v registry.Version) modelVersionView {
	aliases := v.Aliases
	if aliases == nil {
		aliases = []string{}
	}
	content := scan.Level("")
	if v.Content != nil {
		content = v.Content.Level
	}
	return modelVersionView{
		Content: content,
		Name:    v.Model, Version: v.Number, State: string(v.State), Message: v.Message, Aliases: aliases, Signed: v.KeyID != "",
		KeyID: v.KeyID, Digest: v.Digest, RunID: string(v.Run), Job: v.Job, Datasets: v.Datasets, FeatureViews: v.FeatureViews, Parents: v.Parents,
		Environment: v.Environment, Residency: v.Residency, Classification: v.Classification, CreatedAt: v.Created,
	}
}

func pageOf(p Page) registry.Search {
	size := p.Size
	if size == 0 {
		size = 100
	}
	return registry.Search{Max: size, Page: p.Token}
}

func (s *Server) listModels(ctx context.Context, in *struct {
	InProject
	Page
},
) (*body[items[modelView]], error) {
	models, next, err := s.Registry.Models.SearchModels(ctx, project.Name(in.Project), pageOf(in.Page))
	views := make([]modelView, len(models))
	for i, m := range models {
		views[i] = modelOf(m)
	}
	return listed(views, next, err)
}

func (s *Server) oneModel(ctx context.Context, in *struct {
	InProject
	Name string `path:"name" maxLength:"256" doc:"Model"`
	View string `query:"view" enum:"basic,full" default:"basic" doc:"full adds the champion and its lineage"`
},
) (*body[modelView], error) {
	p := project.Name(in.Project)
	m, err := s.Registry.Models.Model(ctx, p, in.Name)
	view := modelOf(m)
	if err != nil || in.View != "full" || view.Latest == 0 {
		return one(view, err)
	}
	v, err := s.Registry.Versions.Version(ctx, p, in.Name, "champion")
	shown := &view.Champion
	if fault.Is(err, fault.NotFound) {
		shown = &view.Newest
		v, err = s.Registry.Versions.Version(ctx, p, in.Name, strconv.Itoa(view.Latest))
	}
	if err != nil {
		return nil, err
	}
	version := modelVersionOf(v)
	lineage, err := s.modelLineage(ctx, p, v)
	*shown, view.Lineage = &version, &lineage
	return one(view, err)
}

// modelLineage goes from a model version to the digests of the imported files.
func (s *Server) modelLineage(ctx context.Context, p project.Name, v registry.Version) (tree, error) {
	root := tree{Name: "model " + v.Model + " version " + strconv.Itoa(v.Number), Detail: v.Digest}
	made := tree{Name: "run " + string(v.Run)}
	if v.Job != "" {
		made.Name, made.Detail = "job "+v.Job, "run "+string(v.Run)
	}
	if v.Environment != "" {
		made.Parents = append(made.Parents, tree{Name: "environment", Detail: v.Environment})
	}
	if len(v.FeatureViews) > 0 {
		made.Parents = append(made.Parents, tree{Name: "feature views", Detail: strings.Join(v.FeatureViews, ", ")})
	}
	if len(v.Parents) > 0 {
		made.Parents = append(made.Parents, tree{Name: "models", Detail: strings.Join(v.Parents, ", ")})
	}
	for _, text := range v.Datasets {
		ref, err := dataset.ParseRef(text)
		if err != nil {
			return root, err
		}
		node, err := s.Datasets.Lineage.Graph(ctx, p, ref)
		switch {
		case err == nil:
			made.Parents = append(made.Parents, treeOf(node))
		case unseen(err) == nil: // the version is shown all the same
			made.Parents = append(made.Parents, tree{Name: "dataset " + text, Detail: "not found, or not readable"})
		default:
			return root, fault.Wrap(err, "lineage of dataset %s", text)
		}
	}
	root.Parents = []tree{made}
	return root, nil
}

func (s *Server) optimizeModel(ctx context.Context, in *struct {
	InProject
	Name    string `path:"name" maxLength:"256" doc:"Model"`
	Version string `path:"version" maxLength:"256" doc:"Version number or alias"`
	Body    optimize.Request
},
) (*body[training.Job], error) {
	return one(s.Optimize.Begin(ctx, project.Name(in.Project), in.Name, in.Version, in.Body))
}

func (s *Server) listModelVersions(ctx context.Context, in *struct {
	InProject
	Page
	Name string `path:"name" maxLength:"256" doc:"Model"`
},
) (*body[items[modelVersionView]], error) {
	if err := registry.CheckName(in.Name); err != nil {
		return nil, err
	}
	if _, err := s.Registry.Models.Model(ctx, project.Name(in.Project), in.Name); err != nil {
		return nil, err
	}
	q := pageOf(in.Page)
	q.Filter = registry.Named(in.Name)
	q.OrderBy = []string{"version_number DESC"}
	versions, next, err := s.Registry.Versions.SearchVersions(ctx, project.Name(in.Project), q)
	views := make([]modelVersionView, len(versions))
	for i, v := range versions {
		views[i] = modelVersionOf(v)
	}
	return listed(views, next, err)
}

func (s *Server) setAlias(ctx context.Context, in *struct {
	InProject
	Name  string `path:"name" maxLength:"256" doc:"Model"`
	Alias string `path:"alias" maxLength:"256" doc:"Alias, such as champion"`
	Body  struct {
		Version string `json:"version" doc:"Version number"`
	}
},
) (*none, error) {
	number, err := strconv.Atoi(in.Body.Version)
	if err != nil {
		return nil, fault.New(fault.Invalid, "version %.40q is not a number", in.Body.Version)
	}
	return &none{}, s.Registry.Models.SetAlias(ctx, project.Name(in.Project), in.Name, in.Alias, number)
}
