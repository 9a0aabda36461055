package feast

import (
	"net/http"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

type readRequest struct {
	Entities columns  `json:"entities"`
	Service  string   `json:"feature_service"`
	Features []string `json:"features"`
	Full     bool     `json:"full_feature_names"`
	Versions bool     `json:"include_feature_view_version_metadata"`
}

type readAnswer struct {
	Metadata metadata
	Results  []vector
}

type metadata struct {
	Names []string      `json:"feature_names"`
	Views []viewVersion `json:"feature_view_metadata,omitempty"`
}

type viewVersion struct {
	Name    string `json:"name"`
	Version int    `json:"version"`
}

// vector is a join key or a feature of all entities.
type vector struct {
	keys   []any // of a join key, as they were asked for
	column feature.Column
}

// read answers with the join keys, in the order of the request, and then the
// features.
func (a *API) read(r *http.Request, p project.Name) (answer, error) {
	var in readRequest
	if err := decode(r, &in); err != nil {
		return answer{}, err
	}
	ask := feature.OnlineRequest{
		Project: p, Loose: true, Entities: make([]map[string]any, in.Entities.rows()),
		Selection: feature.Selection{Service: refOf(in.Service), Features: make([]string, len(in.Features)), FullNames: in.Full},
	}
	asked := map[string]bool{} // views whose version was named in Feast's way
	for i, f := range in.Features {
		ask.Features[i] = refOf(f)
		if ask.Features[i] != f {
			view, _, _ := strings.Cut(ask.Features[i], ":")
			asked[view] = true
		}
	}
	if in.Service != "" {
		ask.Features = nil // as Feast's server: the service decides
	}
	for i := range ask.Entities {
		ask.Entities[i] = make(map[string]any, len(in.Entities.names))
		for _, name := range in.Entities.names {
			ask.Entities[i][name] = in.Entities.values[name][i]
		}
	}
	got, err := a.Features.Online(r.Context(), ask)
	if err != nil {
		if fault.Is(err, fault.NotFound) {
			class := "FeatureViewNotFoundException"
			if in.Service != "" {
				class = "FeatureServiceNotFoundException"
			}
			err = classError{err, class}
		}
		return answer{}, err
	}
	var out readAnswer
	for _, name := range in.Entities.names {
		for _, key := range got.JoinKeys {
			if key == name {
				out.add(name, vector{keys: in.Entities.values[name]})
			}
		}
	}
	for _, c := range got.Columns {
		name := c.Name
		if view, short, _ := strings.Cut(c.Feature, ":"); in.Full && asked[view] {
			base, version, _ := strings.Cut(view, "@")
			name = base + "@v" + version + "__" + short
		}
		out.add(name, vector{column: c})
	}
	if in.Versions {
		for _, ref := range got.Views {
			name, version, err := feature.SplitRef(ref)
			if err != nil {
				return answer{}, err
			}
			out.Metadata.Views = append(out.Metadata.Views, viewVersion{name, version})
		}
	}
	text, err := out.appendJSON(make([]byte, 0, 512+len(out.Results)*(128+48*len(ask.Entities))))
	return answer{body: encoded(text)}, err
}

func (r *readAnswer) add(name string, v vector) {
	r.Metadata.Names, r.Results = append(r.Metadata.Names, name), append(r.Results, v)
}
