package mlflow

import (
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/tracking"
)

type registeredAnswer struct {
	RegisteredModel registeredModel `json:"registered_model"`
}

type versionAnswer struct {
	ModelVersion modelVersion `json:"model_version"`
}

func versionNumber(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0, fault.New(fault.Invalid, "Parameter 'version' must be an integer, got '%s'.", clip(s))
	}
	return n, nil
}

func serveCreateRegistered(a *API, c *call, q *struct {
	Name        string `json:"name" mlflow:"required"`
	Description string `json:"description"`
	Tags        []pair `json:"tags"`
},
) (any, error) {
	m, err := exists(a.registry.Models.CreateModel(c.r.Context(), c.project, q.Name, q.Description, pairsIn(q.Tags)))
	return registeredAnswer{registeredOut(m)}, err
}

type registeredQuery struct {
	Name        string   `json:"name" mlflow:"required"`
	NewName     string   `json:"new_name"`
	Description string   `json:"description"`
	Key         string   `json:"key"`
	Value       string   `json:"value"`
	Alias       string   `json:"alias"`
	Stages      []string `json:"stages"`
}

func serveRegistered(a *API, c *call, q *registeredQuery) (any, error) {
	m, err := a.registry.Models.Model(c.r.Context(), c.project, q.Name)
	return registeredAnswer{registeredOut(m)}, err
}

func serveRenameRegistered(a *API, c *call, q *registeredQuery) (any, error) {
	if q.NewName == "" {
		return nil, missing("new_name")
	}
	m, err := exists(a.registry.Models.RenameModel(c.r.Context(), c.project, q.Name, q.NewName))
	return registeredAnswer{registeredOut(m)}, err
}

func serveUpdateRegistered(a *API, c *call, q *registeredQuery) (any, error) {
	m, err := a.registry.Models.DescribeModel(c.r.Context(), c.project, q.Name, q.Description)
	return registeredAnswer{registeredOut(m)}, err
}

func serveDeleteRegistered(a *API, c *call, q *registeredQuery) (any, error) {
	return empty{}, a.registry.Models.DeleteModel(c.r.Context(), c.project, q.Name)
}

func serveSetRegisteredTag(a *API, c *call, q *registeredQuery) (any, error) {
	return empty{}, a.registry.Models.SetModelTag(c.r.Context(), c.project, q.Name, tracking.Pair{Key: q.Key, Value: q.Value})
}

func serveDeleteRegisteredTag(a *API, c *call, q *registeredQuery) (any, error) {
	return empty{}, a.registry.Models.DeleteModelTag(c.r.Context(), c.project, q.Name, q.Key)
}

func serveLatestVersions(a *API, c *call, q *registeredQuery) (any, error) {
	found, err := a.registry.Versions.LatestVersions(c.r.Context(), c.project, q.Name, q.Stages)
	return map[string]any{"model_versions": versionsOut(found)}, err
}

func serveSetAlias(a *API, c *call, q *versionQuery) (any, error) {
	n, err := versionNumber(q.Version)
	if err != nil {
		return nil, err
	}
	return empty{}, a.registry.Models.SetAlias(c.r.Context(), c.project, q.Name, q.Alias, n)
}

func serveDeleteAlias(a *API, c *call, q *registeredQuery) (any, error) {
	return empty{}, a.registry.Models.DeleteAlias(c.r.Context(), c.project, q.Name, q.Alias)
}

func serveByAlias(a *API, c *call, q *registeredQuery) (any, error) {
	if q.Alias == "" {
		return nil, missing("alias")
	}
	v, err := a.registry.Versions.ByAlias(c.r.Context(), c.project, q.Name, q.Alias)
	if fault.Is(err, fault.NotFound) && strings.HasPrefix(err.Error(), "Registered model alias") {
		err = noAlias(q.Alias)
	}
	return versionAnswer{versionOut(v)}, err
}

// noAlias is no 404 in MLflow.
func noAlias(alias string) error {
	return fault.New(fault.Invalid, "Registered model alias %s not found.", clip(alias))
}

type searchQuery struct {
	Filter     string   `json:"filter"`
	MaxResults *int64   `json:"max_results"`
	OrderBy    []string `json:"order_by"`
	PageToken  string   `json:"page_token"`
}

func (q *searchQuery) search(otherwise int) registry.Search {
	return registry.Search{Filter: q.Filter, OrderBy: q.OrderBy, Max: limit(q.MaxResults, otherwise), Page: q.PageToken}
}

// tooMany refuses more results than a search gives.
func (q *searchQuery) tooMany(most int64) error {
	if q.MaxResults != nil && *q.MaxResults > most {
		return invalid("max_results", strconv.FormatInt(*q.MaxResults, 10)) // a text: it came in the query
	}
	return nil
}

func serveSearchRegistered(a *API, c *call, q *searchQuery) (any, error) {
	if err := q.tooMany(1000); err != nil {
		return nil, err
	}
	found, next, err := a.registry.Models.SearchModels(c.r.Context(), c.project, q.search(100))
	out := struct {
		RegisteredModels []registeredModel `json:"registered_models,omitempty"`
		NextPageToken    string            `json:"next_page_token,omitempty"`
	}{nil, next}
	for _, m := range found {
		out.RegisteredModels = append(out.RegisteredModels, registeredOut(m))
	}
	return out, err
}

func serveSearchVersions(a *API, c *call, q *searchQuery) (any, error) {
	if err := q.tooMany(registry.MaxSearchResults); err != nil {
		return nil, err
	}
	found, next, err := a.registry.Versions.SearchVersions(c.r.Context(), c.project, q.search(10_000))
	return struct {
		ModelVersions []modelVersion `json:"model_versions,omitempty"`
		NextPageToken string         `json:"next_page_token,omitempty"`
	}{versionsOut(found), next}, err
}

func serveCreateVersion(a *API, c *call, q *struct {
	Name        string `json:"name" mlflow:"required"`
	Source      string `json:"source" mlflow:"required"`
	RunID       string `json:"run_id"`
	Tags        []pair `json:"tags"`
	RunLink     string `json:"run_link"`
	Description string `json:"description"`
	ModelID     string `json:"model_id"`
},
) (any, error) {
	v, err := a.registry.Versions.CreateVersion(c.r.Context(), c.project, q.Name, registry.VersionSpec{
		Source: q.Source, Run: tracking.RunID(q.RunID), LoggedModel: tracking.LoggedModelID(q.ModelID),
		RunLink: q.RunLink, Description: q.Description, Tags: pairsIn(q.Tags),
	})
	if err == nil && q.ModelID != "" {
		// The version is there, whether or not its caller may also write to the logged model.
		err = a.tracking.LoggedModels.NoteVersion(c.r.Context(), c.project, tracking.LoggedModelID(q.ModelID), v.Model, v.Number)
		if fault.Is(err, fault.PermissionDenied) || fault.Is(err, fault.NotFound) {
			err = nil
		}
	}
	return versionAnswer{versionOut(v)}, err
}

type versionQuery struct {
	Name        string `json:"name" mlflow:"required"`
	Version     string `json:"version" mlflow:"required"`
	Description string `json:"description"`
	Stage       string `json:"stage"`
	Archive     bool   `json:"archive_existing_versions"`
	Key         string `json:"key"`
	Value       string `json:"value"`
	Alias       string `json:"alias"`
}

func serveGetVersion(a *API, c *call, q *versionQuery) (any, error) {
	n, err := versionNumber(q.Version)
	if err != nil {
		return nil, err
	}
	v, err := a.registry.Versions.Version(c.r.Context(), c.project, q.Name, strconv.Itoa(n))
	return versionAnswer{versionOut(v)}, err
}

func serveUpdateVersion(a *API, c *call, q *versionQuery) (any, error) {
	n, err := versionNumber(q.Version)
	if err != nil {
		return nil, err
	}
	v, err := a.registry.Versions.DescribeVersion(c.r.Context(), c.project, q.Name, n, q.Description)
	return versionAnswer{versionOut(v)}, err
}

func serveTransition(a *API, c *call, q *versionQuery) (any, error) {
	n, err := versionNumber(q.Version)
	if err != nil {
		return nil, err
	}
	stage, err := registry.ParseStage(q.Stage)
	if err != nil {
		return nil, err
	}
	v, err := a.registry.Versions.Transition(c.r.Context(), c.project, q.Name, n, stage, q.Archive)
	return versionAnswer{versionOut(v)}, err
}

func serveDeleteVersion(a *API, c *call, q *versionQuery) (any, error) {
	n, err := versionNumber(q.Version)
	if err != nil {
		return nil, err
	}
	return empty{}, a.registry.Versions.DeleteVersion(c.r.Context(), c.project, q.Name, n)
}

func serveSetVersionTag(a *API, c *call, q *versionQuery) (any, error) {
	n, err := versionNumber(q.Version)
	if err != nil {
		return nil, err
	}
	return empty{}, a.registry.Versions.SetVersionTag(c.r.Context(), c.project, q.Name, n, tracking.Pair{Key: q.Key, Value: q.Value})
}

func serveDeleteVersionTag(a *API, c *call, q *versionQuery) (any, error) {
	n, err := versionNumber(q.Version)
	if err != nil {
		return nil, err
	}
	return empty{}, a.registry.Versions.DeleteVersionTag(c.r.Context(), c.project, q.Name, n, q.Key)
}

// serveDownloadURI points at the version's own copy of its files, which is
// checked while it is read, and not at the run it came from.
func serveDownloadURI(a *API, c *call, q *versionQuery) (any, error) {
	n, err := versionNumber(q.Version)
	if err != nil {
		return nil, err
	}
	v, err := a.registry.Versions.Version(c.r.Context(), c.project, q.Name, strconv.Itoa(n))
	if err != nil {
		return nil, err
	}
	return map[string]string{"artifact_uri": v.Address()}, nil
}
