package feast

import (
	"bytes"
	"net/http"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/naming"
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
	keys   []any           // of a join key, as they were asked for
	column *feature.Column // nil for a join key
}

// read answers with the join keys, in the order of the request, and then the
// features.
func (a *API) read(r *http.Request, p project.Name) (answer, error) {
	var in readRequest
	if err := in.receive(r); err != nil {
		return answer{}, err
	}
	ask := feature.OnlineRequest{
		Project: p, Loose: true, Columns: make([]feature.EntityColumn, len(in.Entities.names)),
		Selection: feature.Selection{Service: refOf(in.Service), Features: in.Features, FullNames: in.Full},
	}
	asked := map[string]bool{} // views whose version was named in Feast's way
	for i, f := range in.Features {
		if ref := refOf(f); ref != f {
			ask.Features[i] = ref
			view, _, _ := strings.Cut(ref, ":")
			asked[view] = true
		}
	}
	if in.Service != "" {
		ask.Features = nil // as Feast's server: the service decides
	}
	for i, name := range in.Entities.names {
		ask.Columns[i] = feature.EntityColumn{Name: name, Values: in.Entities.values[name]}
	}
	got, err := a.Features.Online(r.Context(), ask)
	if err != nil {
		if fault.Is(err, fault.NotFound) {
			if in.Service == "" {
				return answer{}, noView(err)
			}
			err = classError{err, "FeatureServiceNotFoundException"}
		}
		return answer{}, err
	}
	out := readAnswer{Metadata: metadata{Names: make([]string, 0, len(got.Columns)+len(got.JoinKeys))}, Results: make([]vector, 0, len(got.Columns)+len(got.JoinKeys))}
	for _, name := range in.Entities.names {
		if slices.Contains(got.JoinKeys, name) {
			out.add(name, vector{keys: in.Entities.values[name]})
		}
	}
	for i := range got.Columns {
		c := &got.Columns[i]
		name := c.Name
		if len(asked) > 0 && in.Full {
			if view, short, _ := strings.Cut(c.Feature, ":"); asked[view] {
				base, version, _ := strings.Cut(view, "@")
				name = base + "@v" + version + "__" + short
			}
		}
		out.add(name, vector{column: c})
	}
	if in.Versions {
		for _, ref := range got.Views {
			name, version, err := naming.SplitRef(ref)
			if err != nil {
				return answer{}, err
			}
			out.Metadata.Views = append(out.Metadata.Views, viewVersion{name, version})
		}
	}
	text := buffer()
	text.Grow(512 + len(out.Results)*(128+48*in.Entities.rows()))
	b, err := out.appendJSON(text.AvailableBuffer())
	return answer{body: bytes.NewBuffer(b)}, err
}

func (r *readAnswer) add(name string, v vector) {
	r.Metadata.Names, r.Results = append(r.Metadata.Names, name), append(r.Results, v)
}
