package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tuning/picture"
	"github.com/falaj-ml/falaj/internal/tuning/sweep"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

func (s *Server) runRoutes(p string) {
	route(s, "GET", p+"/runs", tracking.ActionRead, "List runs with their parameters and latest metrics, newest first", s.trackedRuns)
	route(s, "GET", p+"/runs/{run}", tracking.ActionRead, "Get a run", s.trackedRun)
	route(s, "GET", p+"/runs/figures", tracking.ActionRead, "Get metric curves and parallel coordinates of runs as SVG", s.runsFigures)
	route(s, "POST", p+"/runs/prune", tracking.ActionPrune, "Permanently remove deleted runs, logged models and experiments, with their artifacts", s.pruneRuns).keepsNothing()
	s.raw("GET", p+"/runs/report", tracking.ActionRead, "Get a comparison of runs as a self-contained HTML page: table, curves, parallel coordinates",
		media{gives: "text/html"}, s.runsReport, query("run", "Run id; repeat it for up to 50 runs"))
}

// runView is a run as people see it.
type runView struct {
	ID         string                  `json:"id"`
	Name       string                  `json:"name"`
	Experiment int64                   `json:"experiment" doc:"Number of its experiment"`
	In         string                  `json:"experiment_name,omitempty" doc:"Name of its experiment"`
	About      string                  `json:"description,omitempty" doc:"Value of the tag mlflow.note.content"`
	Status     string                  `json:"status"`
	User       string                  `json:"user,omitempty" doc:"User, as reported by the client"`
	Owner      string                  `json:"owner,omitempty" doc:"Principal who created it, or submitted its job; a name if the caller may see it"`
	StartedAt  time.Time               `json:"started_at,omitzero"`
	EndedAt    time.Time               `json:"ended_at,omitzero"`
	Job        string                  `json:"job,omitempty"`
	Datasets   []string                `json:"datasets,omitempty" doc:"Input datasets"`
	Params     map[string]string       `json:"params"`
	Metrics    map[string]sweep.Number `json:"metrics" doc:"Latest value of each metric"`
	Tags       map[string]string       `json:"tags,omitempty"`
	Inputs     []runInput              `json:"inputs,omitempty" doc:"Datasets that the client reported as inputs"`
	Models     []runModel              `json:"models,omitempty" doc:"Logged models that the run used or created"`
	Residency  residency.Label         `json:"residency"`

	Classification string `json:"classification"`
}

// runInput is a dataset that a client reported as an input of a run.
type runInput struct {
	Name       string `json:"name"`
	Digest     string `json:"digest"`
	Context    string `json:"context,omitempty" doc:"Use of the dataset, such as training"`
	SourceType string `json:"source_type"`
	Source     string `json:"source"`
}

// runModel is a logged model of a run.
type runModel struct {
	ID     string `json:"id"`
	Name   string `json:"name,omitempty" doc:"Its files are at NAME/ among the artifacts of the run that created it"`
	Output bool   `json:"output" doc:"Created by the run, not used by it"`
	Step   int64  `json:"step,omitempty"`
}

// Tags of MLflow with a meaning of their own.
const (
	tagNote    = "mlflow.note.content"
	tagContext = "mlflow.data.context"
)

func viewRun(r tracking.Run) runView {
	at := func(m tracking.Millis) time.Time {
		if m == 0 {
			return time.Time{}
		}
		return time.UnixMilli(int64(m)).UTC()
	}
	v := runView{
		ID: string(r.ID), Name: r.Name, Experiment: int64(r.Experiment), Status: string(r.Status), User: r.User, StartedAt: at(r.Start), EndedAt: at(r.End),
		Job: r.Job, Datasets: r.Datasets, Params: map[string]string{}, Metrics: map[string]sweep.Number{}, Residency: r.Residency, Classification: r.Classification,
	}
	for _, p := range r.Params {
		v.Params[p.Key] = p.Value
	}
	for _, m := range r.Metrics {
		v.Metrics[m.Key] = sweep.Number(m.Value)
	}
	for _, t := range r.Tags {
		if t.Key == tagNote {
			v.About = t.Value
			continue
		}
		if v.Tags == nil {
			v.Tags = map[string]string{}
		}
		v.Tags[t.Key] = t.Value
	}
	for _, d := range r.Inputs {
		in := runInput{Name: d.Name, Digest: d.Digest, SourceType: d.SourceType, Source: d.Source}
		for _, t := range d.Tags {
			if t.Key == tagContext {
				in.Context = t.Value
			}
		}
		v.Inputs = append(v.Inputs, in)
	}
	for _, m := range r.Models {
		v.Models = append(v.Models, runModel{ID: string(m.Model), Output: m.Output, Step: m.Step})
	}
	return v
}

func (s *Server) trackedRuns(ctx context.Context, in *struct {
	InProject
	Page
	Experiment string `query:"experiment" maxLength:"500" doc:"Experiment name"`
	Filter     string `query:"filter" maxLength:"10000" doc:"Filter in MLflow's grammar, such as metrics.loss < 0.1 and params.lr = '0.01'"`
},
) (*body[items[runView]], error) {
	p := project.Name(in.Project)
	search := tracking.Search{Filter: in.Filter, Max: in.Size, Page: in.Token}
	if search.Max <= 0 {
		search.Max = 100
	}
	if in.Experiment != "" {
		e, err := s.Tracking.Experiments.ExperimentNamed(ctx, p, in.Experiment)
		if err != nil {
			return nil, err
		}
		search.Experiments = []tracking.ExperimentID{e.ID}
	} else {
		in := tracking.Search{Max: 1000}
		for more := true; more; more = in.Page != "" {
			all, next, err := s.Tracking.Experiments.SearchExperiments(ctx, p, in)
			if err != nil {
				return nil, err
			}
			for _, e := range all {
				search.Experiments = append(search.Experiments, e.ID)
			}
			in.Page = next
		}
	}
	found, next, err := s.Tracking.Runs.SearchRuns(ctx, p, search)
	if err != nil {
		return nil, err
	}
	views, err := s.viewRuns(ctx, p, found...)
	return listed(views, next, err)
}

func (s *Server) trackedRun(ctx context.Context, in *struct {
	InProject
	Run string `path:"run" maxLength:"64" doc:"Id of a run"`
},
) (*body[runView], error) {
	r, err := s.Tracking.Runs.Run(ctx, project.Name(in.Project), tracking.RunID(in.Run))
	if err != nil {
		return nil, err
	}
	views, err := s.viewRuns(ctx, project.Name(in.Project), r)
	if err != nil {
		return nil, err
	}
	for i := range views[0].Models {
		m := &views[0].Models[i]
		logged, err := s.Tracking.LoggedModels.LoggedModel(ctx, project.Name(in.Project), tracking.LoggedModelID(m.ID))
		if err != nil && !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.PermissionDenied) {
			return nil, err
		}
		m.Name = logged.Name
	}
	return one(views[0], nil)
}

// viewRuns are runs with the names of their owners.
func (s *Server) viewRuns(ctx context.Context, p project.Name, runs ...tracking.Run) ([]runView, error) {
	owners := make([]string, len(runs))
	for i, r := range runs {
		owners[i] = r.Owner
	}
	names, err := s.ownerNames(ctx, p, owners...)
	if err != nil {
		return nil, err
	}
	views := make([]runView, len(runs))
	experiments := map[tracking.ExperimentID]string{}
	for i, r := range runs {
		views[i] = viewRun(r)
		name, known := experiments[r.Experiment]
		if !known {
			e, err := s.Tracking.Experiments.Experiment(ctx, p, r.Experiment)
			if err != nil && !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.PermissionDenied) {
				return nil, err
			}
			name, experiments[r.Experiment] = e.Name, e.Name
		}
		views[i].In = name
		views[i].Owner = names[r.Owner]
		if r.Job != "" && views[i].Owner == "" { // an attempt's
			views[i].Owner = r.User
		}
	}
	return views, nil
}

// ownerNames are the names of accounts by id, where the caller may see who has a role in
// the project.
func (s *Server) ownerNames(ctx context.Context, p project.Name, ids ...string) (map[string]string, error) {
	may, err := s.authz.Permits(ctx, "member.read", policy.Object{Project: string(p), Kind: "grant"})
	if err != nil || !may {
		return nil, err
	}
	return s.Accounts.Names(ctx, ids...)
}

// prunedRuns is what is gone for ever, or would be.
type prunedRuns struct {
	Experiments  int   `json:"experiments"`
	Runs         int   `json:"runs"`
	LoggedModels int   `json:"logged_models"`
	Files        int   `json:"files"`
	Bytes        int64 `json:"bytes"`
	Kept         int   `json:"kept" doc:"Runs and logged models that the caller may not remove because of their labels"`
	More         bool  `json:"more" doc:"Whether more objects remain: repeat the request"`
}

func (s *Server) pruneRuns(ctx context.Context, in *struct {
	InProject
	Body struct {
		Older string `json:"older,omitempty" doc:"Only objects deleted at least this long ago: 720h, the default; 0s selects all"`
		Dry   bool   `json:"dry,omitempty" doc:"Only report what would be removed"`
	}
},
) (*body[prunedRuns], error) {
	age := 30 * 24 * time.Hour
	if in.Body.Older != "" {
		var err error
		if age, err = time.ParseDuration(in.Body.Older); err != nil {
			return nil, fault.New(fault.Invalid, "older: %.40q is not a duration such as 720h", in.Body.Older)
		}
	}
	gone, err := s.Tracking.Maintenance.Prune(ctx, project.Name(in.Project), age, in.Body.Dry)
	return one(prunedRuns{gone.Experiments, gone.Runs, gone.Models, gone.Files, gone.Bytes, gone.Kept, gone.More}, err)
}

func (s *Server) runsFigures(ctx context.Context, in *struct {
	InProject
	Runs []string `query:"run,explode" required:"true" minItems:"1" maxItems:"50" doc:"Run id; repeat it for up to 50 runs"`
},
) (*body[items[picture.Figure]], error) {
	runs, err := s.compared(ctx, project.Name(in.Project), in.Runs)
	if err != nil {
		return nil, err
	}
	figures, err := picture.Curves(runs)
	return listed(figures, "", err)
}

func (s *Server) runsReport(w http.ResponseWriter, r *http.Request) {
	runs, err := s.compared(r.Context(), project.Name(r.PathValue("project")), r.URL.Query()["run"])
	var page bytes.Buffer
	if err == nil {
		err = picture.Compare(&page, runs)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	drawing(w, page.Bytes())
}

// compared reads runs with the curves of their metrics.
func (s *Server) compared(ctx context.Context, p project.Name, ids []string) ([]picture.Run, error) {
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if len(ids) == 0 || len(ids) > picture.MaxRuns {
		return nil, fault.New(fault.Invalid, "%d runs are selected; select 1 to %d", len(ids), picture.MaxRuns)
	}
	runs := make([]picture.Run, len(ids))
	for i, id := range ids {
		r, err := s.Tracking.Runs.Run(ctx, p, tracking.RunID(id))
		if err != nil {
			return nil, err
		}
		runs[i] = picture.Run{ID: id, Name: r.Name, Status: string(r.Status), Params: viewRun(r).Params, Metrics: map[string][]trial.Report{}}
		for _, m := range r.Metrics[:min(len(r.Metrics), picture.MaxMetrics)] {
			points, _, err := s.Tracking.Runs.History(ctx, p, r.ID, m.Key, 0, "")
			if err != nil {
				return nil, err
			}
			at := map[int64]float64{}
			for _, point := range points { // by time: the last of a step stays
				at[point.Step] = point.Value
			}
			at[m.Step] = m.Value // of a longer history there is the beginning and the latest
			for step, v := range at {
				runs[i].Metrics[m.Key] = append(runs[i].Metrics[m.Key], trial.Report{Step: step, Value: v})
			}
			slices.SortFunc(runs[i].Metrics[m.Key], func(a, b trial.Report) int { return cmp.Compare(a.Step, b.Step) })
		}
	}
	return runs, nil
}

// drawing sends a page of pictures, which may load nothing and run nothing.
func drawing(w http.ResponseWriter, page []byte) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; img-src data:")
	_, _ = w.Write(page)
}
