package registry

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

// Verdict is what a person says of a version.
type Verdict string

// The verdicts.
const (
	Approved Verdict = "approved"
	Rejected Verdict = "rejected"
)

// Approval is a person's verdict on a version. It never changes; who thinks otherwise
// gives another one, and the last of each person counts.
type Approval struct {
	ID        string    `json:"id"`
	Principal string    `json:"principal"`
	Name      string    `json:"name,omitempty"`
	Verdict   Verdict   `json:"verdict" enum:"approved,rejected"`
	Digest    string    `json:"digest" doc:"Digest of the reviewed version"`
	Comment   string    `json:"comment,omitempty"`
	At        time.Time `json:"at"`
	// Measured is what the gates' metrics were; "" is a metric that there was none of.
	Measured map[string]string `json:"measured,omitempty" doc:"Values of the gates' metrics at the time of the review; empty: the metric had no value"`
	Counts   bool              `json:"counts" doc:"Whether the verdict counts now: it is this person's latest, for this digest; the person still has the permission to approve and is not an author; the gates' metrics have not changed"`
}

// Clearance is what stands between a version and its promotion.
type Clearance struct {
	Model     string     `json:"model"`
	Version   int        `json:"version"`
	Policy    string     `json:"policy,omitempty" doc:"Name of the policy that requires approval; empty: none does"`
	Required  int        `json:"required" doc:"Number of approvals required"`
	Given     int        `json:"given" doc:"Number of approvals that count"`
	Authors   []string   `json:"authors,omitempty" doc:"Authors: their approval does not count"`
	Approvals []Approval `json:"approvals" doc:"All verdicts, oldest first"`
	Missing   []string   `json:"missing,omitempty" doc:"What is missing"`
	Cleared   bool       `json:"cleared" doc:"Whether protected aliases, stages and deployments can use the version now"`
}

// Approvals keeps the policies of models, and says whether a version may be promoted. Its callers
// are the HTTP API and deployments; Models and Versions ask before an alias or a stage moves.
type Approvals struct{ *core }

// Review records the caller's verdict on a version. digest, if set, is the digest that
// the caller reviewed. Errors: fault.PermissionDenied for authors of the version and for
// principals that are not people; fault.Conflict for another digest, for a version that is
// not ready, and for a repeated verdict.
func (s *Approvals) Review(ctx context.Context, p project.Name, name, ref string, verdict Verdict, digest, comment string) (Clearance, error) {
	if err := s.allow(ctx, ActionApprove, p, name); err != nil {
		return Clearance{}, err
	}
	who := identity.From(ctx)
	if who.Kind != identity.User {
		return Clearance{}, fault.New(fault.PermissionDenied, "%s is not a user: only users approve versions", who).WithHint("Sign in as a user.")
	}
	if verdict != Approved && verdict != Rejected {
		return Clearance{}, fault.New(fault.Invalid, "the verdict must be %s or %s", Approved, Rejected)
	}
	if err := checkText("comment", comment, 2000); err != nil {
		return Clearance{}, err
	}
	known, err := s.readVersion(ctx, p, name, ref)
	if err != nil {
		return Clearance{}, err
	}
	if err := s.authz.Allow(ctx, ActionApprove, known.object()); err != nil {
		return Clearance{}, err
	}
	var out Clearance
	err = s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		v, err := s.liveVersion(ctx, tx, p, name, known.Number)
		if err != nil {
			return err
		}
		switch {
		case v.State != Ready:
			return fault.New(fault.Conflict, "version %s is %s, not ready", v, v.State)
		case digest != "" && digest != v.Digest:
			return fault.New(fault.Conflict, "version %s has the digest %s, which differs from the reviewed digest", v, v.Digest)
		}
		now, err := s.clearance(ctx, tx, v)
		if err != nil {
			return err
		}
		if slices.Contains(now.Authors, who.ID) && verdict == Approved {
			err := fault.New(fault.PermissionDenied, "you are an author of %s, and authors cannot approve their own versions", v).
				WithHint("Ask another user with the permission %s.", ActionApprove)
			return audit.Refuse(err, audit.Entry{Project: string(p), Action: string(ActionApprove), Object: "model " + v.String()})
		}
		if verdict == Approved && s.second != nil {
			asked := policy.Requested{By: now.Authors, At: s.now(), Actions: []policy.Action{ActionApprove}, Object: v.object()}
			if err := s.second(ctx, tx, asked); err != nil {
				return audit.Describe(fault.Wrap(err, "approving %s", v), audit.Entry{Project: string(p), Action: string(ActionApprove), Object: "model " + v.String()})
			}
		}
		for _, a := range slices.Backward(now.Approvals) {
			if a.Principal != who.ID {
				continue
			}
			if a.Verdict == verdict && a.Digest == v.Digest && a.Counts {
				return fault.New(fault.Conflict, "you have already %s version %s", verdict, v).WithHint("Ask another user to review the version.")
			}
			break
		}
		measured, err := s.measured(ctx, tx, v)
		if err != nil {
			return err
		}
		a := Approval{Measured: measured, ID: id.New("apv"), Principal: who.ID, Name: who.Name, Verdict: verdict, Digest: v.Digest, Comment: comment, At: s.now()}
		if err := s.store.InsertApproval(ctx, tx, v.ModelID, v.Number, a); err != nil {
			return err
		}
		if err := s.audit(ctx, tx, ActionApprove, p, "model "+v.String(), map[string]any{"act": string(verdict), "digest": v.Digest, "comment": comment, "id": a.ID, "measured": measured}); err != nil {
			return err
		}
		out, err = s.clearance(ctx, tx, v)
		return err
	})
	return out, err
}

// Clearance says what a version still needs before it may be promoted.
func (s *Approvals) Clearance(ctx context.Context, p project.Name, name, ref string) (out Clearance, err error) {
	v, err := s.readVersion(ctx, p, name, ref)
	if err != nil {
		return out, err
	}
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		out, err = s.clearance(ctx, tx, v)
		return err
	})
	return out, err
}

// Cleared refuses a version that may not yet be what an alias names, have a stage, or take
// traffic, in the transaction that would make it so; what is empty or false is not asked.
// Error: fault.Conflict that says what is missing.
func (s *Approvals) Cleared(ctx context.Context, tx *store.Tx, p project.Name, name string, number int, alias string, stage Stage, traffic bool) error {
	asked, err := s.policyOf(ctx, tx, p, name)
	if err != nil {
		return err
	}
	pr := asked.Spec.Promotion
	var what string
	switch {
	case !pr.asks():
		return nil
	case alias != "" && slices.ContainsFunc(pr.protected(), func(a string) bool { return strings.EqualFold(a, alias) }):
		what = "may not have the alias " + alias
	case stage != "" && slices.ContainsFunc(orDefault(pr.Stages, string(StageProduction)), func(a string) bool { return strings.EqualFold(a, string(stage)) }):
		what = "may not move to stage " + string(stage)
	case traffic && (pr.Traffic == nil || *pr.Traffic):
		what = "may not serve requests"
	default:
		return nil
	}
	v, err := s.liveVersion(ctx, tx, p, name, number)
	if err != nil {
		return err
	}
	c, err := s.clearance(ctx, tx, v)
	if err != nil || c.Cleared {
		return err
	}
	model := fault.ShellWord(v.Model)
	err = fault.New(fault.Conflict, "model %s %s yet: %s", v, what, strings.Join(c.Missing, "; ")).
		WithHint("Policy %s requires this. `falaj model approvals %s %d` lists the missing requirements. A user who is not an author can approve it with `falaj model approve %s %d`.", c.Policy, model, v.Number, model, v.Number)
	return audit.Refuse(err, audit.Entry{Project: string(p), Action: string(ActionPromote), Object: "model " + v.String()})
}

func orDefault(list []string, otherwise string) []string {
	if len(list) == 0 {
		return []string{otherwise}
	}
	return list
}

func (s *Approvals) clearance(ctx context.Context, tx *store.Tx, v Version) (Clearance, error) {
	asked, err := s.policyOf(ctx, tx, v.Project, v.Model)
	if err != nil {
		return Clearance{}, err
	}
	pr := asked.Spec.Promotion
	out := Clearance{Model: v.Model, Version: v.Number, Policy: asked.Name, Required: pr.Approvals}
	if out.Authors, err = s.authorsOf(ctx, tx, v); err != nil {
		return out, fault.Wrap(err, "finding the authors of %s", v)
	}
	if out.Approvals, err = s.store.Approvals(ctx, tx, v.ModelID, v.Number); err != nil {
		return out, err
	}
	if out.Approvals == nil {
		out.Approvals = []Approval{}
	}
	measured, err := s.measured(ctx, tx, v)
	if err != nil {
		return out, err
	}
	var yes, outdated []string
	last := map[string]bool{}
	for i := len(out.Approvals) - 1; i >= 0; i-- {
		a := &out.Approvals[i]
		if last[a.Principal] || a.Digest != v.Digest {
			continue
		}
		last[a.Principal] = true
		if a.Verdict == Approved && slices.Contains(out.Authors, a.Principal) {
			continue
		}
		may, err := s.still(ctx, a.Principal, v)
		if err != nil {
			return out, err
		}
		if !may {
			continue
		}
		if why := a.outdated(measured); why != "" && a.Verdict == Approved {
			outdated = append(outdated, why)
			continue
		}
		a.Counts = true
		switch a.Verdict {
		case Approved:
			out.Given++
			yes = append(yes, a.who())
		case Rejected:
			text := "it was rejected by " + a.who()
			if a.Comment != "" {
				text += " (" + clip(a.Comment) + ")"
			}
			if pr.asks() {
				out.Missing = append(out.Missing, text)
			}
		}
	}
	if out.Given < out.Required {
		text := fmt.Sprintf("it requires %d approvals and has %d", out.Required, out.Given)
		if len(yes) > 0 {
			slices.Sort(yes)
			text += " (by " + strings.Join(yes, ", ") + ")"
		}
		out.Missing = append(append(out.Missing, text), outdated...)
	}
	wrong, err := s.gates(ctx, tx, v, pr.Gates)
	if err != nil {
		return out, err
	}
	out.Missing = append(out.Missing, wrong...)
	out.Cleared = len(out.Missing) == 0
	return out, nil
}

// measured are the metrics that a version's gates ask for, as text. Who approves of a
// version saw these: whoever may write to the run could change them later.
func (s *core) measured(ctx context.Context, tx *store.Tx, v Version) (map[string]string, error) {
	asked, err := s.policyOf(ctx, tx, v.Project, v.Model)
	if err != nil || len(asked.Spec.Promotion.Gates) == 0 {
		return nil, err
	}
	all, err := s.metrics(identity.With(ctx, identity.Loop("model gates")), v)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, text := range asked.Spec.Promotion.Gates {
		g, err := parseGate(text)
		if err != nil {
			return nil, err
		}
		out[g.metric] = ""
		if value, ok := all[g.metric]; ok {
			out[g.metric] = strconv.FormatFloat(value, 'g', -1, 64)
		}
	}
	return out, nil
}

// outdated says which metric has another value than when it was approved of; empty: none,
// of those that were asked for then.
func (a Approval) outdated(now map[string]string) string {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if was, asked := a.Measured[name]; asked && was != now[name] {
			return fmt.Sprintf("%s was %s when %s approved, and is %s now", name, cmp.Or(was, "not measured"), a.who(), cmp.Or(now[name], "gone"))
		}
	}
	return ""
}

// authorsOf are those who made a version: who registered it, or another version of the
// same files, of which it may be a copy; who submitted the job; and whose run or logged
// model the files were logged to. A person is not another one by having a service
// register what they logged.
func (s *Approvals) authorsOf(ctx context.Context, tx *store.Tx, v Version) ([]string, error) {
	same := []Version{v}
	if v.Digest != "" {
		var err error
		if same, err = s.store.SameFiles(ctx, tx, v.Project, v.Digest); err != nil {
			return nil, err
		}
	}
	asLoop := identity.With(ctx, identity.Loop("model authors"))
	var out []string
	for _, o := range same {
		out = append(out, o.Owner)
		if s.authors != nil {
			more, err := s.authors(ctx, tx, o)
			if err != nil {
				return nil, err
			}
			out = append(out, more...)
		}
		if o.Run != "" {
			r, err := s.runs.Run(asLoop, o.Project, o.Run)
			if err != nil && !fault.Is(err, fault.NotFound) {
				return nil, err
			}
			out = append(out, r.Owner)
		}
		if o.LoggedModel != "" {
			m, err := s.loggedModels.LoggedModel(asLoop, o.Project, o.LoggedModel)
			if err != nil && !fault.Is(err, fault.NotFound) {
				return nil, err
			}
			out = append(out, m.Owner)
		}
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(a string) bool { return a == "" }), nil
}

func (a Approval) who() string {
	if a.Name != "" {
		return a.Name
	}
	return a.Principal
}

// still is whether a person may approve of a version now; who lost the right takes their
// verdicts along.
func (s *Approvals) still(ctx context.Context, principal string, v Version) (bool, error) {
	if s.may == nil {
		return true, nil
	}
	return s.may(identity.With(ctx, identity.Principal{Kind: identity.User, ID: principal}), ActionApprove, v.object())
}

// gates says which conditions a version does not meet. It reads the runs for itself: who
// promotes may be a loop, and hears what is missing, only.
func (s *Approvals) gates(ctx context.Context, tx *store.Tx, v Version, texts []string) (wrong []string, err error) {
	if len(texts) == 0 {
		return nil, nil
	}
	ctx = identity.With(ctx, identity.Loop("model gates"))
	own, err := s.metrics(ctx, v)
	if err != nil {
		return nil, err
	}
	m, err := s.store.Model(ctx, tx, v.Project, v.Model)
	if err != nil {
		return nil, err
	}
	var best map[string]float64
	championIs := ""
	if n := m.aliased(champion); n != 0 && n != v.Number {
		c, err := s.liveVersion(ctx, tx, v.Project, v.Model, n)
		if err != nil {
			return nil, err
		}
		if best, err = s.metrics(ctx, c); err != nil {
			return nil, err
		}
		championIs = c.String()
	}
	for _, text := range texts {
		g, err := parseGate(text)
		if err != nil {
			return nil, err
		}
		if why := g.check(own, best, championIs); why != "" {
			wrong = append(wrong, why)
		}
	}
	return wrong, nil
}

// maxPromoted is how many metrics the entry of a promotion has.
const maxPromoted = 100

// withMetrics puts into the entry of a promotion what the metrics of the version's run are
// at that time: whoever may write to the run can change them later. Of a confidential or
// restricted version these are the metrics that its gates ask for, and no others.
func (s *core) withMetrics(ctx context.Context, tx *store.Tx, p project.Name, name string, number int, detail map[string]any) error {
	v, err := s.liveVersion(ctx, tx, p, name, number)
	if err != nil {
		return err
	}
	told, err := s.measured(ctx, tx, v)
	if err != nil {
		return err
	}
	if open := v.Classification == "" || v.Classification == string(project.Public) || v.Classification == string(project.Internal); open {
		all, err := s.metrics(identity.With(ctx, identity.Loop("model gates")), v)
		if err != nil {
			return err
		}
		if told == nil {
			told = map[string]string{}
		}
		for _, k := range slices.Sorted(maps.Keys(all)) {
			if len(told) < maxPromoted {
				told[k] = strconv.FormatFloat(all[k], 'g', -1, 64)
			}
		}
	}
	if len(told) > 0 {
		detail["metrics"] = told
	}
	return nil
}

// metrics are those of a version's run; a version without a run, or whose run is gone,
// has none.
func (s *core) metrics(ctx context.Context, v Version) (map[string]float64, error) {
	if v.Run == "" {
		return nil, nil
	}
	r, err := s.runs.Run(ctx, v.Project, v.Run)
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	return metricsOf(r.Metrics), err
}
