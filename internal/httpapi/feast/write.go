package feast

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// writing is what both requests have. That definitions may be old, or that nothing
// is transformed, changes nothing here: the newest definition holds, and views have
// no code.
type writing struct {
	Rows      columns `json:"df"`
	Cache     bool    `json:"allow_registry_cache"`
	Transform bool    `json:"transform_on_write"`
}

type pushRequest struct {
	writing
	Source string `json:"push_source_name"`
	To     string `json:"to"`
}

type writeRequest struct {
	writing
	View string `json:"feature_view_name"`
}

// push writes rows by the name of a push source, which is that of its view.
func (a *API) push(r *http.Request, p project.Name) (answer, error) {
	var in pushRequest
	if err := decode(r, &in); err != nil {
		return answer{}, err
	}
	switch in.To {
	case "", "online":
	case "offline", "online_and_offline":
		return answer{}, fault.New(fault.Unsupported, "rows are pushed to the online store only, not to %q", in.To).
			WithHint("Import them as a version of the view's dataset, which is where training sets take them from.")
	default:
		return answer{}, fault.New(fault.Invalid, "to is online, not %.40q", in.To)
	}
	return a.store(r.Context(), p, in.Source, "PushSourceNotFoundException", in.Rows)
}

func (a *API) write(r *http.Request, p project.Name) (answer, error) {
	var in writeRequest
	if err := decode(r, &in); err != nil {
		return answer{}, err
	}
	return a.store(r.Context(), p, in.View, "FeatureViewNotFoundException", in.Rows)
}

func (a *API) store(ctx context.Context, p project.Name, view, missing string, rows columns) (answer, error) {
	v, err := a.Features.View(ctx, p, refOf(view))
	if err == nil {
		_, err = a.Features.Push(ctx, feature.PushRequest{Project: p, View: v.Ref(), Columns: ours(v, rows.values)})
	}
	if fault.Is(err, fault.NotFound) {
		err = classError{err, missing}
	}
	return answer{}, err
}

// The columns that Feast's SDK sends instead of those of the view.
const (
	sentEvent   = "event_timestamp"
	sentCreated = "created"
)

// ours are the columns by the view's names, with instants in Feast's forms read:
// text without a zone is UTC, a number is seconds since 1970.
func ours(v feature.View, sent map[string][]any) map[string][]any {
	instants := map[string]bool{v.Timestamp: true}
	named := map[string]bool{v.Timestamp: true}
	if v.CreatedTimestamp != "" {
		instants[v.CreatedTimestamp], named[v.CreatedTimestamp] = true, true
	}
	for _, k := range v.Keys {
		instants[k.Name], named[k.Name] = k.Type == value.Timestamp, true
	}
	for _, f := range v.Features {
		var t value.Type
		_ = t.UnmarshalText([]byte(f.Type)) // it was when the view was applied
		instants[f.Name], named[f.Name] = t.Elem() == value.Timestamp, true
	}
	out := make(map[string][]any, len(sent))
	for name, values := range sent {
		if _, given := sent[v.Timestamp]; name == sentEvent && !named[name] && !given {
			name = v.Timestamp
		}
		if _, given := sent[v.CreatedTimestamp]; name == sentCreated && !named[name] && !given {
			if name = v.CreatedTimestamp; name == "" {
				continue // the SDK sends it of every view
			}
		}
		if instants[name] {
			read := make([]any, len(values))
			for i, x := range values {
				read[i] = asInstant(x)
			}
			values = read
		}
		out[name] = values
	}
	return out
}

// The seconds since 1970 of the years 1 to 9999: a number beyond is milliseconds, or a
// mistake.
const (
	firstSecond = -62_135_596_800
	lastSecond  = 253_402_300_799
)

// asInstant reads an instant; what is none stays, to be refused with its place.
func asInstant(x any) any {
	switch x := x.(type) {
	case []any:
		list := make([]any, len(x))
		for i, e := range x {
			list[i] = asInstant(e)
		}
		return list
	case string:
		if t, ok := instant(x); ok {
			return t
		}
	case json.Number:
		if n, err := x.Int64(); err == nil && n >= firstSecond && n <= lastSecond {
			return time.Unix(n, 0).UTC()
		}
	}
	return x
}
