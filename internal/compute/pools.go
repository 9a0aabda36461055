package compute

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// Pools keeps pools and the state of their nodes. The API calls it, and jobs check the pools
// that they name.
type Pools struct{ *core }

// ApplyPool makes a pool or changes it, and says which. Only what changed is
// written; applying the same again is no change. Needs pool.apply. Errors:
// fault.Invalid; fault.Conflict when zone or engine change under running work.
func (s *Pools) ApplyPool(ctx context.Context, name PoolName, spec PoolSpec) (Pool, project.Change, error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionPoolApply, policy.Object{Kind: "pool", Name: string(name)}); err != nil {
		return Pool{}, "", err
	}
	return s.applyPool(ctx, name, spec, false)
}

// PlanPool is ApplyPool that changes nothing: the pool is as it would be.
func (s *Pools) PlanPool(ctx context.Context, name PoolName, spec PoolSpec) (Pool, project.Change, error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionPoolApply, policy.Object{Kind: "pool", Name: string(name)}); err != nil {
		return Pool{}, "", err
	}
	return s.applyPool(ctx, name, spec, true)
}

// EnsureHome makes the pool of this machine if there is none, and otherwise
// brings its zone, nodes and isolation up to those of the machine now.
// It is for the start of Falaj, before any principal.
func (s *Pools) EnsureHome(ctx context.Context, engineName string) (Pool, error) {
	if identity.From(ctx).Kind == "" {
		ctx = identity.With(ctx, identity.Loop("compute"))
	}
	spec := PoolSpec{Zone: s.cfg.Zone, Engine: engineName}
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		p, err := s.poolStore.Pool(ctx, tx, Home)
		if fault.Is(err, fault.NotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		spec = p.Spec()
		if len(spec.Nodes) == 1 && spec.Nodes[0].Name == machineNode {
			spec.Nodes = nil // as detected before, and so again
		}
		spec.Isolation = ""
		if s.misplaced(spec.Zone, spec.Engine, spec.Elastic) != "" {
			s.log.WarnContext(ctx, "the zone of the local pool is set to the server's", slog.String("pool", string(Home)), slog.String("was", string(spec.Zone)), slog.String("zone", string(s.cfg.Zone)))
			spec.Zone = s.cfg.Zone
		}
		return nil
	})
	if err != nil {
		return Pool{}, err
	}
	p, _, err := s.applyPool(ctx, Home, spec, false)
	return p, err
}

// machineNode names the only node of a pool that lists none.
const machineNode = "local"

// complete fills in the defaults of a pool's manifest.
func (s *Pools) complete(spec PoolSpec) (PoolSpec, error) {
	if err := spec.Validate(); err != nil {
		return spec, err
	}
	if spec.Cost != nil {
		if err := spec.Cost.Validate(s.cfg.Currency); err != nil {
			return spec, fault.Wrap(err, "cost")
		}
	}
	if spec.Engine == "" {
		spec.Engine = "local"
	}
	if spec.Zone == "" {
		spec.Zone = s.cfg.Zone
	}
	if spec.Mode == "" {
		spec.Mode = Exclusive
	}
	e, ok := s.cfg.Engines[spec.Engine]
	if !ok {
		return spec, fault.New(fault.Invalid, "engine: %.64q is not configured", spec.Engine).
			WithHint("Configured engines: %s.", strings.Join(slices.Sorted(maps.Keys(s.cfg.Engines)), ", "))
	}
	if err := s.checkZone(spec); err != nil {
		return spec, err
	}
	if e.Check != nil {
		if err := e.Check(spec.Options); err != nil {
			return spec, err
		}
	}
	if spec.Ahead > 0 && !e.Remote {
		return spec, fault.New(fault.Invalid, "ahead: engine %s has no queue of its own, so ahead must be 0", spec.Engine)
	}
	if spec.Isolation == "" {
		spec.Isolation = e.Isolation
	}
	if !e.Isolation.AtLeast(spec.Isolation) {
		return spec, fault.New(fault.Invalid, "isolation: engine %s isolates by %s here, less than the pool's %s", spec.Engine, e.Isolation, spec.Isolation).
			WithHint("Set isolation to %s or weaker.", e.Isolation)
	}
	if spec.Elastic != nil {
		return spec, spec.Elastic.provided(spec.Engine, e)
	}
	if _, tells := e.Driver.(engine.Inventory); len(spec.Nodes) == 0 && !tells {
		if e.Machine.CPU == 0 {
			return spec, fault.New(fault.Invalid, "nodes: a pool of engine %s must list its nodes", spec.Engine)
		}
		spec.Nodes = []Node{{Name: machineNode, CPU: e.Machine.CPU, Memory: e.Machine.Memory, Accelerators: e.Machine.Accelerators, Labels: e.Labels}}
	}
	return spec, nil
}

func (s *Pools) applyPool(ctx context.Context, name PoolName, spec PoolSpec, dryRun bool) (Pool, project.Change, error) {
	if err := id.CheckName("pool name", string(name)); err != nil {
		return Pool{}, "", err
	}
	spec, err := s.complete(spec)
	if err != nil {
		return Pool{}, "", err
	}
	// What the engine cannot say now it is asked again later.
	seen, trouble := s.inventory(ctx, spec.Engine, spec.Options)
	if fault.Is(trouble, fault.Invalid) {
		return Pool{}, "", fault.Wrap(trouble, "applying pool %s", name)
	}
	var p Pool
	var change project.Change
	apply := func(ctx context.Context, tx *store.Tx) error {
		old, err := s.poolStore.Pool(ctx, tx, name)
		switch {
		case fault.Is(err, fault.NotFound):
			change = project.Created
			old = Pool{Name: name, CreatedAt: s.now().UTC()}
			all, err := s.poolStore.Pools(ctx, tx)
			if err != nil {
				return err
			}
			if len(all) >= maxPools {
				return fault.New(fault.Exhausted, "the limit of %d pools is reached", len(all))
			}
		case err != nil:
			return err
		case sameSpec(old.Spec(), spec):
			p, change = old, project.Unchanged
			return nil
		default:
			change = project.Updated
			if err := s.mayMove(ctx, tx, old, spec); err != nil {
				return err
			}
			if err := s.mayStay(ctx, tx, old, spec); err != nil {
				return err
			}
		}
		if trouble != nil && old.Engine == spec.Engine {
			seen = old.Seen
		}
		p = Pool{
			Name: name, Zone: spec.Zone, Engine: spec.Engine, Mode: spec.Mode, Listed: spec.Nodes, Seen: seen, Isolation: spec.Isolation,
			PricePerHour: spec.PricePerHour, PowerWatts: spec.PowerWatts, Cost: spec.Cost, Closed: spec.Closed, Options: spec.Options, Env: spec.Env, Elastic: spec.Elastic,
			Ahead: spec.Ahead, Topology: spec.Topology, Maintenance: spec.Maintenance, Hardware: spec.Hardware, Warned: old.Warned,
			CreatedAt: old.CreatedAt, UpdatedAt: s.now().UTC(), Revision: old.Revision + 1,
		}
		if dryRun {
			return nil
		}
		if err := s.poolStore.SavePool(ctx, tx, p); err != nil {
			return err
		}
		if err := s.reprice(ctx, tx, old, p); err != nil {
			return err
		}
		err = audit.Append(ctx, tx, audit.Entry{
			Action: string(ActionPoolApply), Object: "pool " + string(name),
			Detail: map[string]any{"change": change, "zone": p.Zone, "engine": p.Engine, "isolation": p.Isolation, "nodes": len(p.Listed)},
		})
		if err != nil {
			return err
		}
		tx.OnCommit(s.signal)
		return event.Publish(ctx, tx, "", EventPoolApplied, PoolEvent{Pool: name})
	}
	if dryRun {
		err = s.cfg.DB.View(ctx, apply)
	} else {
		err = s.cfg.DB.Update(ctx, "", apply)
	}
	if err != nil {
		return Pool{}, "", fault.Wrap(err, "applying pool %s", name)
	}
	if !dryRun {
		s.troubled(name, trouble)
	}
	return s.current(p, nil, nil), change, nil
}

// mayMove refuses to move a pool under work that runs on it.
func (s *Pools) mayMove(ctx context.Context, tx *store.Tx, old Pool, spec PoolSpec) error {
	if old.Zone == spec.Zone && old.Engine == spec.Engine && old.Mode == spec.Mode {
		return nil
	}
	if s.misplaced(old.Zone, old.Engine, old.Elastic) != "" && old.Engine == spec.Engine && old.Mode == spec.Mode {
		return nil // its machine does not move: the zone was wrong, and is corrected
	}
	ws, err := s.workloadStore.Active(ctx, tx)
	if err != nil {
		return err
	}
	for _, w := range ws {
		if w.Pool == old.Name {
			return fault.New(fault.Conflict, "zone, engine and mode of pool %s cannot change while %s runs on it", old.Name, w.Label).
				WithHint("Close the pool, wait until it is empty, then change it.")
		}
	}
	return nil
}

func sameSpec(a, b PoolSpec) bool {
	same := slices.EqualFunc(a.Nodes, b.Nodes, Node.equal) && maps.Equal(a.Options, b.Options) && maps.Equal(a.Env, b.Env) && reflect.DeepEqual(a.Cost, b.Cost) &&
		reflect.DeepEqual(a.Elastic, b.Elastic)
	a.Nodes, b.Nodes, a.Options, b.Options, a.Env, b.Env, a.Cost, b.Cost, a.Elastic, b.Elastic = nil, nil, nil, nil, nil, nil, nil, nil, nil, nil
	return same && fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b)
}

// ListPools lists all pools by name, with what they have, use and run. Needs
// pool.read.
func (s *Pools) ListPools(ctx context.Context) ([]Pool, error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionPoolRead, policy.Object{Kind: "pool"}); err != nil {
		return nil, err
	}
	var pools []Pool
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if pools, _, err = s.all(ctx, tx); err != nil {
			return err
		}
		if err := s.renting(ctx, tx, pools); err != nil {
			return err
		}
		index := make(map[PoolName]*Pool, len(pools))
		for i := range pools {
			index[pools[i].Name] = &pools[i]
		}
		active, err := s.workloadStore.Active(ctx, tx)
		if err != nil {
			return err
		}
		for _, w := range active {
			if p := index[w.Pool]; p != nil {
				p.Used = p.Used.Plus(w.Amount())
				p.Running++
			}
		}
		return nil
	})
	return pools, err
}

// Pool is one of Pools. Needs pool.read. Error: fault.NotFound.
func (s *Pools) Pool(ctx context.Context, name PoolName) (Pool, error) {
	pools, err := s.ListPools(ctx)
	if err != nil {
		return Pool{}, err
	}
	i := slices.IndexFunc(pools, func(p Pool) bool { return p.Name == name })
	if i < 0 {
		return Pool{}, fault.New(fault.NotFound, "pool %.64q not found", string(name)).WithHint("List pools with `falaj pool list`.")
	}
	return pools[i], nil
}

// CheckPools refuses names of pools that do not exist, and lists of pools without one that has
// enough isolation and is in a zone that the data's label allows.
func (s *Pools) CheckPools(ctx context.Context, names []string, least scheduler.Isolation, label residency.Label) error {
	if len(names) == 0 {
		return nil
	}
	var why []string
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		why = nil
		for _, name := range names {
			p, err := s.poolStore.Pool(ctx, tx, PoolName(name))
			s.locate(&p)
			switch {
			case fault.Is(err, fault.NotFound):
				return s.noPool(ctx, tx, name)
			case err != nil:
				return err
			case p.Misplaced != "":
				why = append(why, fmt.Sprintf("pool %s accepts no workloads: %s", name, p.Misplaced))
			case !label.Allows(p.Zone):
				why = append(why, fmt.Sprintf("pool %s is in %s, outside the data's residency %s", name, p.Zone, label))
			case !p.Allows(label):
				why = append(why, fmt.Sprintf("pool %s runs its workloads on a machine in %s, outside the data's residency %s", name, p.MachineZone, label))
			case !p.Isolation.AtLeast(least):
				why = append(why, fmt.Sprintf("pool %s provides isolation %s, weaker than the required %s", name, p.Isolation, least))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(why) == len(names) {
		err := fault.New(fault.Invalid, "%s", strings.Join(why, "; ")).
			WithHint("Name another pool. Jobs submitted without isolation accept the isolation of the pools they name.")
		return audit.Refuse(err, audit.Entry{})
	}
	return nil
}

// noPool is the error of a name that no pool has.
func (s *Pools) noPool(ctx context.Context, tx *store.Tx, name string) error {
	pools, err := s.poolStore.Pools(ctx, tx)
	if err != nil {
		return err
	}
	have := make([]string, len(pools))
	for i, p := range pools {
		have[i] = string(p.Name)
	}
	return fault.New(fault.Invalid, "pool %.64q not found", name).WithHint("Pools: %s.", strings.Join(have, ", "))
}
