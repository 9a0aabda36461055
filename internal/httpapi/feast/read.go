package feast

import (
	"net/http"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/online"
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
	Metadata metadata `json:"metadata"`
	Results  []vector `json:"results"`
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
	Values   []any           `json:"values"`
	Statuses []online.Status `json:"statuses"`
	Events   []stamp         `json:"event_timestamps"`
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
	out := readAnswer{Results: []vector{}}
	for _, name := range in.Entities.names {
		for _, key := range got.JoinKeys {
			if key == name {
				out.add(name, keyVector(in.Entities.values[name]))
			}
		}
	}
	for _, c := range got.Columns {
		name := c.Name
		if view, short, _ := strings.Cut(c.Feature, ":"); in.Full && asked[view] {
			base, version, _ := strings.Cut(view, "@")
			name = base + "@v" + version + "__" + short
		}
		out.add(name, featureVector(c))
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
	return answer{body: out}, nil
}

func (r *readAnswer) add(name string, v vector) {
	r.Metadata.Names, r.Results = append(r.Metadata.Names, name), append(r.Results, v)
}

// keyVector says a join key back.
func keyVector(values []any) vector {
	v := vector{Values: values, Statuses: make([]online.Status, len(values)), Events: make([]stamp, len(values))}
	for i, x := range values {
		v.Statuses[i] = online.Present
		if x == nil {
			v.Statuses[i] = online.NullValue
		}
	}
	return v
}

func featureVector(c feature.Column) vector {
	v := vector{Values: make([]any, len(c.Values)), Statuses: c.Statuses, Events: make([]stamp, len(c.Values))}
	for i := range c.Values {
		v.Values[i], v.Events[i] = cell{c.Values[i]}, stamp{c.EventTimes[i]}
	}
	return v
}
