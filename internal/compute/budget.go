package compute

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/cost"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// The actions on budgets; a caller who may read a project's cost sees its budget.
const (
	ActionBudgetApply  policy.Action = "budget.apply"
	ActionBudgetDelete policy.Action = "budget.delete"
)

// BudgetSpec is the manifest of kind Budget, whose name is a project's.
type BudgetSpec struct {
	Amount   float64    `json:"per_month" doc:"Budget of the project per calendar month (UTC)"`
	Currency string     `json:"currency,omitempty" doc:"Currency of the amount; must be the installation's"`
	Warn     []float64  `json:"warn_at,omitempty" doc:"Thresholds as shares of the amount; each sends one event a month; default 0.5, 0.8 and 1"`
	Stop     BudgetStop `json:"stop,omitempty" doc:"Action when the budget is used up: none, new (no new workloads start) or running (running workloads are preempted as well); default new"`
	// DelayCost is for those of its works that say nothing, nor their queue.
	DelayCost float64 `json:"delay_cost,omitempty" doc:"Cost of one hour of waiting, which justifies renting nodes for elastic pools; default none"`
}

// BudgetStop is what ends when a budget is used up.
type BudgetStop string

// What may end.
const (
	StopNone    BudgetStop = "none"
	StopNew     BudgetStop = "new"
	StopRunning BudgetStop = "running"
)

const maxWarnings = 20

// complete checks a manifest and fills in its defaults.
func (b BudgetSpec) complete(currency string) (BudgetSpec, error) {
	if b.Currency != "" && b.Currency != currency {
		if err := cost.Currency(b.Currency); err != nil {
			return b, err
		}
		return b, fault.New(fault.Invalid, "currency: the budget is in %s, but this installation uses %s", b.Currency, currency).
			WithHint("Give the amount in %s: currencies are not converted.", currency)
	}
	if err := cost.Sound("per_month", b.Amount); err != nil {
		return b, err
	}
	if err := cost.Sound("delay_cost", b.DelayCost); err != nil {
		return b, err
	}
	if b.Amount == 0 {
		return b, fault.New(fault.Invalid, "per_month: must be greater than 0").WithHint("Set an amount. A project without workloads needs no budget.")
	}
	if len(b.Warn) > maxWarnings {
		return b, fault.New(fault.Invalid, "warn_at: %d thresholds exceed the limit of %d", len(b.Warn), maxWarnings)
	}
	for _, w := range b.Warn {
		if !(w > 0 && w <= 10) {
			return b, fault.New(fault.Invalid, "warn_at: %g is out of range: set a value greater than 0 and at most 10", w).WithHint("Use 0.8 for 80 %%.")
		}
	}
	if len(b.Warn) == 0 {
		b.Warn = []float64{0.5, 0.8, 1}
	}
	b.Warn = slices.Compact(slices.Sorted(slices.Values(b.Warn)))
	switch b.Stop {
	case "":
		b.Stop = StopNew
	case StopNone, StopNew, StopRunning:
	default:
		return b, fault.New(fault.Invalid, "stop: unknown value %.40q", string(b.Stop)).WithHint("Use none, new or running.")
	}
	b.Currency = currency
	return b, nil
}

// Budget is what a project may spend, and what it has spent.
type Budget struct {
	Project project.Name `json:"project"`
	BudgetSpec
	Spent     float64   `json:"spent" doc:"Spent this month so far"`
	UsedUp    string    `json:"used_up,omitempty" doc:"Why no new workload of the project starts; absent while the budget is not used up"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	Revision  int64     `json:"revision"` // grows with each change; the ETag

	// Month is whose warnings were given, and Warned the largest share among them.
	Month  time.Time `json:"-"`
	Warned float64   `json:"-"`
}

// ApplyBudget makes a project's budget or changes it, and says which. Needs
// budget.apply. Errors: fault.Invalid; fault.NotFound when there is no such project.
func (s *Costs) ApplyBudget(ctx context.Context, p project.Name, spec BudgetSpec) (Budget, project.Change, error) {
	return s.applyBudget(ctx, p, spec, false)
}

// PlanBudget is ApplyBudget that changes nothing.
func (s *Costs) PlanBudget(ctx context.Context, p project.Name, spec BudgetSpec) (Budget, project.Change, error) {
	return s.applyBudget(ctx, p, spec, true)
}

func (s *Costs) applyBudget(ctx context.Context, p project.Name, spec BudgetSpec, dryRun bool) (b Budget, change project.Change, err error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionBudgetApply, policy.Object{Kind: "budget", Name: string(p)}); err != nil {
		return b, "", err
	}
	if err := p.Validate(); err != nil {
		return b, "", err
	}
	if spec, err = spec.complete(s.cfg.Currency); err != nil {
		return b, "", fault.Wrap(err, "budget %s", p)
	}
	apply := func(ctx context.Context, tx *store.Tx) error {
		all, err := s.budgetStore.Budgets(ctx, tx)
		if err != nil {
			return err
		}
		b = Budget{Project: p, BudgetSpec: spec, CreatedAt: s.now().UTC(), UpdatedAt: s.now().UTC(), Revision: 1}
		change = project.Created
		if i := slices.IndexFunc(all, func(o Budget) bool { return o.Project == p }); i >= 0 {
			old := all[i]
			if reflect.DeepEqual(old.BudgetSpec, spec) {
				b, change = old, project.Unchanged
				return nil
			}
			b.CreatedAt, b.Revision, change = old.CreatedAt, old.Revision+1, project.Updated
		}
		if s.cfg.Project != nil {
			if err := s.cfg.Project(ctx, tx, p); fault.Is(err, fault.NotFound) {
				return fault.New(fault.NotFound, "project %s not found", p).WithHint("A budget has the name of its project; apply the project first.")
			} else if err != nil {
				return err
			}
		}
		if dryRun {
			return nil
		}
		if err := s.budgetStore.SaveBudget(ctx, tx, b); err != nil {
			return err
		}
		err = audit.Append(ctx, tx, audit.Entry{
			Project: string(p), Action: string(ActionBudgetApply), Object: "budget " + string(p),
			Detail: map[string]any{"change": change, "per_month": spec.Amount, "currency": spec.Currency, "stop": spec.Stop},
		})
		if err != nil {
			return err
		}
		return event.Publish(ctx, tx, string(p), EventBudgetApplied, BudgetEvent{Project: p, Amount: spec.Amount, Currency: spec.Currency})
	}
	if dryRun {
		err = s.cfg.DB.View(ctx, apply)
	} else {
		err = s.cfg.DB.Update(ctx, "", apply)
	}
	if err == nil && !dryRun && change != project.Unchanged {
		s.anew() // what waited for the old one may start, or the other way round
	}
	return b, change, fault.Wrap(err, "applying the budget of %s", p)
}

// DeleteBudget removes a project's budget. Needs budget.delete. Error:
// fault.NotFound.
func (s *Costs) DeleteBudget(ctx context.Context, p project.Name) error {
	if err := s.cfg.Authorizer.Allow(ctx, ActionBudgetDelete, policy.Object{Kind: "budget", Name: string(p)}); err != nil {
		return err
	}
	err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		all, err := s.budgetStore.Budgets(ctx, tx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(all, func(b Budget) bool { return b.Project == p }) {
			return noBudget(p)
		}
		if err := s.budgetStore.DeleteBudget(ctx, tx, p); err != nil {
			return err
		}
		if err := audit.Append(ctx, tx, audit.Entry{Project: string(p), Action: string(ActionBudgetDelete), Object: "budget " + string(p)}); err != nil {
			return err
		}
		return event.Publish(ctx, tx, string(p), EventBudgetDeleted, BudgetEvent{Project: p})
	})
	if err == nil {
		s.anew()
	}
	return fault.Wrap(err, "deleting the budget of %s", p)
}

func noBudget(p project.Name) error {
	return fault.New(fault.NotFound, "project %.64q has no budget", string(p)).WithHint("Ask an administrator to apply a manifest of kind Budget with the project's name.")
}

// Budgets lists all budgets with what was spent, or that of a project if one is named.
// Needs cost.read there, or of the installation.
func (s *Costs) Budgets(ctx context.Context, in project.Name) ([]Budget, error) {
	if err := s.mayReadCost(ctx, in); err != nil {
		return nil, err
	}
	all, err := s.spending(ctx)
	if in == "" || err != nil {
		return all, err
	}
	return slices.DeleteFunc(all, func(b Budget) bool { return b.Project != in }), nil
}

// Budget is that of a project. Needs cost.read. Error: fault.NotFound.
func (s *Costs) Budget(ctx context.Context, p project.Name) (Budget, error) {
	if err := s.mayReadCost(ctx, p); err != nil {
		return Budget{}, err
	}
	all, err := s.spending(ctx)
	if err != nil {
		return Budget{}, err
	}
	if i := slices.IndexFunc(all, func(b Budget) bool { return b.Project == p }); i >= 0 {
		return all[i], nil
	}
	return Budget{}, noBudget(p)
}

func (s *core) spending(ctx context.Context) (all []Budget, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		all, err = s.spendingIn(ctx, tx)
		return err
	})
	return all, err
}

// spendingIn reads the budgets with what was spent of each this month: by what has
// ended, and by what runs until now.
func (s *core) spendingIn(ctx context.Context, tx *store.Tx) ([]Budget, error) {
	all, err := s.budgetStore.Budgets(ctx, tx)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	began, ends := cost.Month(s.now())
	index := map[project.Name]*Budget{}
	for i := range all {
		b := &all[i]
		index[b.Project] = b
		if b.Spent, err = s.usageStore.Spent(ctx, tx, b.Project, s.cfg.Currency, began); err != nil {
			return nil, err
		}
		// What began in a month before.
		if err := s.usageStore.EachUsage(ctx, tx, b.Project, began, began, func(u Usage) {
			if u.Currency == "" || u.Currency == s.cfg.Currency {
				b.Spent += u.within(began, ends).Cost
			}
		}); err != nil {
			return nil, err
		}
	}
	l, err := s.ledger(ctx, tx, "")
	if err != nil {
		return nil, err
	}
	active, err := s.workloadStore.Active(ctx, tx)
	if err != nil {
		return nil, err
	}
	for _, w := range active {
		if b := index[w.Project]; b != nil && w.State == Running {
			b.Spent += l.meter(w, s.now()).within(began, ends).Cost
		}
	}
	for i := range all {
		if b := &all[i]; b.Spent >= b.Amount && b.Stop != StopNone {
			b.UsedUp = fmt.Sprintf("the budget of project %s for %s is used up: %s %s of %s", b.Project, began.Month(), cost.Format(b.Spent), b.Currency, cost.Format(b.Amount))
		}
	}
	return all, nil
}

// barred is why and until when nothing new of a project starts.
type barred struct {
	why   string
	until time.Time
}

// usedUp is for each project whose budget is used up that nothing new starts.
func usedUp(all []Budget, now time.Time) map[project.Name]barred {
	out := map[project.Name]barred{}
	for _, b := range all {
		if b.UsedUp != "" {
			_, next := cost.Month(now)
			out[b.Project] = barred{b.UsedUp, next}
		}
	}
	return out
}

// hold keeps a job that has not started until the next month when the budget of
// its project is used up.
func (n *news) hold(w *scheduler.Workload, kind Kind) {
	if b := n.usedUp[project.Name(w.Project)]; kind == JobAttempt && b.until.After(n.delta.Now) && b.until.After(w.NotBefore) {
		w.NotBefore, w.Because = b.until, b.why
	}
}

// CheckBudgets warns of what was spent since the last time, and stops what a used
// up budget stops.
func (s *Scheduling) CheckBudgets(ctx context.Context) error {
	all, err := s.spending(ctx)
	if err != nil {
		return fault.Wrap(err, "reading budgets")
	}
	now := usedUp(all, s.now())
	s.mu.Lock()
	changed := len(now) != len(s.usedUp)
	for p := range now {
		changed = changed || s.usedUp[p].why == ""
	}
	s.mu.Unlock()
	for _, b := range all {
		if err := s.warn(ctx, b); err != nil {
			return fault.Wrap(err, "publishing the budget alert of %s", b.Project)
		}
		if b.Stop == StopRunning && b.UsedUp != "" {
			if err := s.stopProject(ctx, b); err != nil {
				return err
			}
		}
	}
	if changed {
		s.anew()
	}
	return nil
}

// warn sends an event when another share is reached, once a month each.
func (s *Scheduling) warn(ctx context.Context, b Budget) error {
	month, _ := cost.Month(s.now())
	warned := b.Warned
	if !b.Month.Equal(month) {
		warned = 0
	}
	reached := warned
	for _, w := range b.Warn {
		if b.Spent >= w*b.Amount {
			reached = max(reached, w)
		}
	}
	if reached <= warned {
		return nil
	}
	return s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		all, err := s.budgetStore.Budgets(ctx, tx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(o Budget) bool { return o.Project == b.Project })
		if i < 0 || all[i].Revision != b.Revision || all[i].Month.Equal(month) && all[i].Warned >= reached {
			return nil // changed concurrently
		}
		all[i].Month, all[i].Warned = month, reached
		if err := s.budgetStore.SaveBudget(ctx, tx, all[i]); err != nil {
			return err
		}
		err = audit.Append(ctx, tx, audit.Entry{
			Actor: identity.Loop("compute"), Project: string(b.Project), Action: "budget.warn", Object: "budget " + string(b.Project),
			Detail: map[string]any{"share": reached, "spent": b.Spent, "per_month": b.Amount, "currency": b.Currency, "month": month.Format("2006-01")},
		})
		if err != nil {
			return err
		}
		return event.Publish(ctx, tx, string(b.Project), EventBudgetWarned, BudgetEvent{
			Project: b.Project, Month: month.Format("2006-01"), Reached: reached, Spent: b.Spent, Amount: b.Amount, Currency: b.Currency,
		})
	})
}

// stopProject asks what runs of a project to save and to wait.
func (s *Scheduling) stopProject(ctx context.Context, b Budget) error {
	var all []scheduler.Preemption
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		active, err := s.workloadStore.Active(ctx, tx)
		all = nil
		for _, w := range active {
			if w.Project == b.Project && w.Kind == JobAttempt && w.Stop == "" {
				all = append(all, scheduler.Preemption{Workload: scheduler.ID(w.ID), Why: b.UsedUp})
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.preempt(ctx, all)
}
