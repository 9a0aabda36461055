package feast

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

type materialiseRequest struct {
	Start    string   `json:"start_ts"`
	End      string   `json:"end_ts"`
	Views    []string `json:"feature_views"`
	Timeless bool     `json:"disable_event_timestamp"`
	Full     bool     `json:"full_feature_names"` // says nothing here: nothing is named in the answer
	Version  string   `json:"version"`
}

// Limits of one materialisation.
const (
	maxViews = 1000
	// maxWait is how long an answer waits for the end of what was asked.
	maxWait = 5 * time.Minute
)

// materialise brings the rows of a range of time.
func (a *API) materialise(r *http.Request, p project.Name) (answer, error) {
	var in materialiseRequest
	if err := decode(r, &in); err != nil {
		return answer{}, err
	}
	var from, until time.Time
	if !in.Timeless {
		var err error
		if from, err = given("start_ts", in.Start); err != nil {
			return answer{}, err
		}
		if until, err = given("end_ts", in.End); err != nil {
			return answer{}, err
		}
		if !from.Before(until) {
			return answer{}, fault.New(fault.Invalid, "start_ts %s is not before end_ts %s", in.Start, in.End)
		}
	}
	return a.bring(r, p, in, func(ctx context.Context, view string) (feature.Run, error) {
		return a.Features.Materialise(ctx, feature.MaterialiseRequest{Project: p, View: view, From: from, Until: until})
	})
}

// incremental brings what came after the last time.
func (a *API) incremental(r *http.Request, p project.Name) (answer, error) {
	var in materialiseRequest
	if err := decode(r, &in); err != nil {
		return answer{}, err
	}
	if in.Start != "" || in.Timeless {
		return answer{}, fault.New(fault.Invalid, "start_ts and disable_event_timestamp require /materialize: /materialize-incremental resumes at the watermark")
	}
	until, err := given("end_ts", in.End)
	if err != nil {
		return answer{}, err
	}
	return a.bring(r, p, in, func(ctx context.Context, view string) (feature.Run, error) {
		f, err := a.Features.Freshness(ctx, p, view)
		if err != nil {
			return feature.Run{}, err
		}
		ask := feature.MaterialiseRequest{Project: p, View: view, From: f.Watermark, Until: until}
		if !until.After(f.Watermark) {
			return feature.Run{State: feature.Succeeded}, nil // all of it is there
		}
		run, err := a.Features.Materialise(ctx, ask)
		if fault.Is(err, fault.Conflict) && !ask.From.IsZero() {
			ask.From = time.Time{} // the sources have changed: all rows are made anew
			run, err = a.Features.Materialise(ctx, ask)
		}
		return run, err
	})
}

func given(name, text string) (time.Time, error) {
	t, ok := instant(text)
	if !ok {
		return t, fault.New(fault.Invalid, "%s is not a timestamp: %.80q", name, text).WithHint("Write it as 2013-07-04T12:00:00; without a zone it is UTC.")
	}
	return t, nil
}

// bring starts a materialisation of each view and waits for their end, or with
// ?async=true says which were started.
func (a *API) bring(r *http.Request, p project.Name, in materialiseRequest, start func(ctx context.Context, view string) (feature.Run, error)) (answer, error) {
	async, err := flag(r, "async")
	if err != nil {
		return answer{}, err
	}
	force, err := flag(r, "force")
	if err != nil {
		return answer{}, err
	}
	ctx := r.Context()
	names, refs, err := a.named(ctx, p, in)
	if err != nil {
		return answer{}, err
	}
	var busy []string
	for i, ref := range refs {
		f, err := a.Features.Freshness(ctx, p, ref)
		switch {
		case err != nil:
			return answer{}, err
		case f.Last == nil || f.Last.State.Ended():
		case force:
			if _, err := a.Features.CancelRun(ctx, p, f.Last.ID); err != nil {
				return answer{}, err
			}
		default:
			busy = append(busy, names[i])
		}
	}
	if len(busy) > 0 {
		return answer{http.StatusConflict, map[string]any{
			"error": fmt.Sprintf("These feature views are being materialised: %s. Wait, or cancel that with ?force=true.", strings.Join(busy, ", ")), "feature_views": busy,
		}}, nil
	}
	runs := make([]feature.Run, len(refs))
	for i, ref := range refs {
		if runs[i], err = start(ctx, ref); err != nil {
			return answer{}, err
		}
	}
	if async {
		return answer{http.StatusAccepted, map[string]any{"status": "accepted", "feature_views": names}}, nil
	}
	waiting, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	for i, run := range runs {
		if run.State.Ended() {
			continue
		}
		run, err := a.Features.WaitRun(waiting, p, run.ID)
		switch {
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			return answer{}, fault.New(fault.Timeout, "materialisation %s of %s is still running", run.ID, names[i]).WithHint("Use ?async=true, and check it with `falaj feature runs %s`.", names[i])
		case err != nil:
			return answer{}, err
		case run.State != feature.Succeeded:
			return answer{}, fault.New(fault.Conflict, "materialisation %s of %s is %s: %s", run.ID, names[i], run.State, run.Error)
		}
	}
	return answer{}, nil
}

// named are the views asked for: all when none is. names are Feast's, refs ours.
func (a *API) named(ctx context.Context, p project.Name, in materialiseRequest) (names, refs []string, err error) {
	if in.Version != "" {
		if len(in.Views) != 1 {
			return nil, nil, fault.New(fault.Invalid, "version is of exactly one of feature_views, and there are %d", len(in.Views))
		}
		in.Views = []string{in.Views[0] + "@" + in.Version}
	}
	if len(in.Views) > maxViews {
		return nil, nil, fault.New(fault.TooLarge, "%d feature views are over the limit of %d", len(in.Views), maxViews)
	}
	for _, name := range in.Views {
		v, err := a.Features.View(ctx, p, refOf(name))
		if fault.Is(err, fault.NotFound) {
			err = classError{err, "FeatureViewNotFoundException"}
		}
		if err != nil {
			return nil, nil, err
		}
		names, refs = append(names, v.Name), append(refs, v.Ref())
	}
	if in.Views != nil {
		return names, refs, nil
	}
	all, err := a.Features.Views(ctx, p, "", maxViews)
	for _, v := range all {
		names, refs = append(names, v.Name), append(refs, v.Ref())
	}
	return names, refs, err
}

// flag is a query parameter that is true or false.
func flag(r *http.Request, name string) (bool, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		return false, fault.New(fault.Invalid, "the parameter %s is true or false, not %.40q", name, text)
	}
	return on, nil
}
