package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/tuning"
)

func (s *Server) sweepRoutes(p string) {
	route(s, "GET", p+"/sweeps", tuning.ActionRead, "List sweeps, oldest first", s.listSweeps)
	route(s, "GET", p+"/sweeps/{sweep}", tuning.ActionRead, "A sweep, how many trials it has, and the best one", s.oneSweep)
	route(s, "GET", p+"/sweeps/{sweep}/trials", tuning.ActionRead, "List a sweep's trials, oldest first", s.listTrials)
	route(s, "DELETE", p+"/sweeps/{sweep}", tuning.ActionDelete, "Delete a sweep and its trials", s.deleteSweep)
}

// sweepView is a study as people see it.
type sweepView struct {
	Name           string          `json:"name"`
	ID             string          `json:"id" doc:"Its number, as Optuna's storage has it"`
	Directions     []string        `json:"directions" doc:"minimize or maximize, for each objective"`
	Owner          string          `json:"owner,omitempty" doc:"Who made it"`
	CreatedAt      time.Time       `json:"created_at"`
	Residency      residency.Label `json:"residency" doc:"Where it may be: where the jobs may be that wrote to it"`
	Classification string          `json:"classification"`
	Trials         trialCounts     `json:"trials"`
	Best           *trialView      `json:"best,omitempty" doc:"Of one objective; not in lists"`
	Attributes     map[string]any  `json:"attributes,omitempty" doc:"Those of users; what is no JSON, such as NaN, as text"`
}

type trialCounts struct {
	Total    int64 `json:"total"`
	Waiting  int64 `json:"waiting"`
	Running  int64 `json:"running"`
	Complete int64 `json:"complete"`
	Pruned   int64 `json:"pruned"`
	Failed   int64 `json:"failed"`
}

type trialView struct {
	Number       int64          `json:"number" doc:"In its sweep, from 0"`
	ID           string         `json:"id" doc:"Its number in the project, as Optuna's storage has it"`
	State        string         `json:"state" enum:"waiting,running,complete,pruned,fail"`
	Values       []measured     `json:"values,omitempty" doc:"One for each objective"`
	Params       map[string]any `json:"params" doc:"By name; a choice as it is, not its index"`
	Reported     int            `json:"reported" doc:"How many intermediate values it reported"`
	Last         *reportView    `json:"last_report,omitempty"`
	Attributes   map[string]any `json:"attributes,omitempty" doc:"Those of users; what is no JSON, such as NaN, as text"`
	StartedAt    *time.Time     `json:"started_at,omitempty"`
	CompletedAt  *time.Time     `json:"completed_at,omitempty"`
	Intermediate []reportView   `json:"intermediate,omitempty" doc:"All that it reported, by step; with view=full"`
}

type reportView struct {
	Step  int64    `json:"step"`
	Value measured `json:"value"`
}

// measured is a float64 of which JSON has no form for all: what is not finite is text.
type measured float64

// Schema implements huma.SchemaProvider.
func (measured) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{{Type: huma.TypeNumber}, {Type: huma.TypeString, Enum: []any{"nan", "inf", "-inf"}}}}
}

// MarshalJSON writes a number, "nan", "inf" or "-inf".
func (n measured) MarshalJSON() ([]byte, error) {
	switch f := float64(n); {
	case math.IsNaN(f):
		return []byte(`"nan"`), nil
	case math.IsInf(f, 1):
		return []byte(`"inf"`), nil
	case math.IsInf(f, -1):
		return []byte(`"-inf"`), nil
	default:
		return json.Marshal(f)
	}
}

// SweepPath is the path of a sweep.
type SweepPath struct {
	InProject
	Sweep string `path:"sweep" maxLength:"512" doc:"Name of the sweep, or its number"`
}

// sweep finds a sweep by its name, else by its number.
func (s *Server) sweep(ctx context.Context, in SweepPath) (tuning.Study, error) {
	p := project.Name(in.Project)
	study, err := s.Tuning.StudyNamed(ctx, p, in.Sweep)
	if id, malformed := strconv.ParseInt(in.Sweep, 10, 64); malformed == nil && fault.Is(err, fault.NotFound) {
		return s.Tuning.Study(ctx, p, tuning.StudyID(id))
	}
	if fault.Is(err, fault.NotFound) {
		err = fault.New(fault.NotFound, "no sweep %.100q exists", in.Sweep).WithHint("See `falaj sweep list`.")
	}
	return study, err
}

func (s *Server) sweepOf(ctx context.Context, study tuning.Study, best bool) (sweepView, error) {
	v := sweepView{
		Name: study.Name, ID: strconv.FormatInt(int64(study.ID), 10), Owner: study.Owner, CreatedAt: study.Created,
		Residency: study.Residency, Classification: cmp.Or(study.Classification, "internal"), Attributes: said(study.User),
	}
	for _, d := range study.Directions {
		v.Directions = append(v.Directions, string(d))
	}
	progress, err := s.Tuning.Progress(ctx, study, best)
	if err != nil {
		return v, err
	}
	n := progress.Trials
	v.Trials = trialCounts{Waiting: n[tuning.Waiting], Running: n[tuning.Running], Complete: n[tuning.Complete], Pruned: n[tuning.Pruned], Failed: n[tuning.Failed]}
	for _, count := range n {
		v.Trials.Total += count
	}
	if progress.Best != nil {
		t := trialOf(*progress.Best, false)
		v.Best = &t
	}
	return v, nil
}

func trialOf(t tuning.Trial, full bool) trialView {
	v := trialView{
		Number: t.Number, ID: strconv.FormatInt(int64(t.ID), 10), State: string(t.State), Params: make(map[string]any, len(t.Params)),
		Reported: len(t.Intermediate), Attributes: said(t.User), StartedAt: when(t.Started), CompletedAt: when(t.Completed),
	}
	for _, f := range t.Values {
		v.Values = append(v.Values, measured(f))
	}
	for name, p := range t.Params {
		v.Params[name] = p.External()
	}
	steps := slices.Sorted(maps.Keys(t.Intermediate))
	if len(steps) > 0 {
		last := steps[len(steps)-1]
		v.Last = &reportView{Step: last, Value: measured(t.Intermediate[last])}
	}
	if full {
		for _, step := range steps {
			v.Intermediate = append(v.Intermediate, reportView{Step: step, Value: measured(t.Intermediate[step])})
		}
	}
	return v
}

// said is what attributes say, and as text what is Python's JSON only.
func said(attributes tuning.Attributes) map[string]any {
	out := make(map[string]any, len(attributes))
	for key, value := range attributes {
		if json.Valid([]byte(value)) {
			out[key] = json.RawMessage(value)
		} else {
			out[key] = value
		}
	}
	return out
}

func when(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (s *Server) listSweeps(ctx context.Context, in *struct {
	InProject
	Page
},
) (*body[items[sweepView]], error) {
	after, err := numbered(in.Token)
	if err != nil {
		return nil, err
	}
	studies, next, err := s.Tuning.List(ctx, project.Name(in.Project), tuning.StudyID(after), pageSize(in.Page))
	if err != nil {
		return nil, err
	}
	views := make([]sweepView, len(studies))
	for i, study := range studies {
		if views[i], err = s.sweepOf(ctx, study, false); err != nil {
			return nil, err
		}
	}
	return listed(views, place(int64(next)), nil)
}

func (s *Server) oneSweep(ctx context.Context, in *SweepPath) (*body[sweepView], error) {
	study, err := s.sweep(ctx, *in)
	if err != nil {
		return nil, err
	}
	return one(s.sweepOf(ctx, study, true))
}

// trialsPage is how many bytes of attributes make a page of trials full.
const trialsPage = 4 << 20

func (s *Server) listTrials(ctx context.Context, in *struct {
	SweepPath
	Page
	View string `query:"view" enum:"basic,full" default:"basic" doc:"full adds all that trials reported"`
},
) (*body[items[trialView]], error) {
	after, err := numbered(in.Token)
	if err != nil {
		return nil, err
	}
	study, err := s.sweep(ctx, in.SweepPath)
	if err != nil {
		return nil, err
	}
	size := pageSize(in.Page)
	found, err := s.Tuning.Trials(ctx, study.Project, study.ID, tuning.TrialID(after), nil, size)
	if err != nil {
		return nil, err
	}
	views, next, bytes := make([]trialView, 0, len(found)), int64(0), 0
	for i, t := range found {
		views = append(views, trialOf(t, in.View == "full"))
		for _, value := range t.User {
			bytes += len(value)
		}
		if bytes += 40 * len(t.Intermediate); bytes > trialsPage || i == size-1 {
			next = int64(t.ID)
			break
		}
	}
	return listed(views, place(next), nil)
}

func (s *Server) deleteSweep(ctx context.Context, in *SweepPath) (*none, error) {
	study, err := s.sweep(ctx, *in)
	if err != nil {
		return nil, err
	}
	return &none{}, s.Tuning.Delete(ctx, study.Project, study.ID)
}

func pageSize(p Page) int {
	if p.Size == 0 {
		return 100
	}
	return p.Size
}

// numbered reads a page token that is the number of the last object given.
func numbered(token string) (int64, error) {
	if token == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(token, 10, 64)
	if err != nil || n < 0 {
		return 0, fault.New(fault.Invalid, "the page token is not one that was given out")
	}
	return n, nil
}

func place(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}
