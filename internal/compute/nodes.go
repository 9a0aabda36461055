package compute

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// The waits for an engine's list of nodes.
const (
	inventoryEvery   = 30 * time.Second
	inventoryTimeout = 10 * time.Second
)

// PoolNode is a node of a pool as it is now.
type PoolNode struct {
	Node
	Down       string      `json:"down,omitempty"` // why its engine gives it no work
	Busy       string      `json:"busy,omitempty"` // what work from elsewhere holds there
	Quarantine *Quarantine `json:"quarantine,omitempty"`
	// Maintenance says that it is looked after now, Closes when that begins next.
	Maintenance string    `json:"maintenance,omitempty"`
	Closes      time.Time `json:"closes_at,omitzero"`
}

// Condition is a word for whether the node takes work: ready, down, quarantined or
// maintenance.
func (n PoolNode) Condition() string {
	switch {
	case n.Quarantine != nil:
		return "quarantined"
	case n.Down != "":
		return "down"
	case n.Maintenance != "":
		return "maintenance"
	}
	return "ready"
}

// closed says in words why the node takes no work; empty when it does.
func (n PoolNode) closed() string {
	switch {
	case n.Quarantine != nil:
		return n.Quarantine.String()
	case n.Down != "":
		return "down: " + n.Down
	}
	return n.Maintenance
}

func (n PoolNode) equal(o PoolNode) bool {
	return n.Node.equal(o.Node) && n.Down == o.Down && n.Busy == o.Busy
}

// Quarantine keeps work from a node that failed it.
type Quarantine struct {
	Pool   PoolName  `json:"-"`
	Node   string    `json:"-"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
}

// String says it in words.
func (q Quarantine) String() string {
	return fmt.Sprintf("quarantined until %s: %s", q.Until.UTC().Format(time.RFC3339), q.Reason)
}

// maxReason bounds words that others gave, in bytes.
const maxReason = 500

// Blame puts a node in quarantine until a time, in the caller's transaction:
// nothing is placed there before. The machine of the server is never put there,
// nor more than half of a pool's nodes: what fails everywhere is no node's
// fault. The caller has found that the node, and not the work, was the cause.
func (s *Pools) Blame(ctx context.Context, tx *store.Tx, pool PoolName, node, reason string, until time.Time) error {
	p, err := s.pool(ctx, tx, pool)
	if err != nil {
		return err
	}
	held := 0
	for _, n := range p.Nodes {
		if n.Quarantine != nil && n.Name != node {
			held++
		}
	}
	if !p.Remote || 2*(held+1) > len(p.Nodes) || !slices.ContainsFunc(p.Nodes, func(n PoolNode) bool { return n.Name == node }) {
		s.log.WarnContext(ctx, "quarantining a node that failed workloads failed", slog.String("pool", string(pool)), slog.String("node", node), slog.String("reason", reason))
		return nil
	}
	q := Quarantine{Pool: pool, Node: node, Reason: clip(reason), Since: s.now().UTC(), Until: until.UTC()}
	if err := s.poolStore.SaveQuarantine(ctx, tx, q); err != nil {
		return err
	}
	err = audit.Append(ctx, tx, audit.Entry{
		Actor: identity.Loop("compute"), Action: "pool.quarantine", Object: "pool " + string(pool),
		Detail: map[string]any{"node": node, "reason": q.Reason, "until": q.Until.Format(time.RFC3339)},
	})
	if err != nil {
		return err
	}
	tx.OnCommit(s.signal)
	return event.Publish(ctx, tx, "", EventNodeQuarantined, PoolEvent{Pool: pool, Node: node, Reason: q.Reason})
}

// Release lifts the quarantine of a node. Needs pool.apply. Error:
// fault.NotFound when it is in none.
func (s *Pools) Release(ctx context.Context, pool PoolName, node string) error {
	if err := s.cfg.Authorizer.Allow(ctx, ActionPoolApply, policy.Object{Kind: "pool", Name: string(pool)}); err != nil {
		return err
	}
	err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		p, err := s.pool(ctx, tx, pool)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(p.Nodes, func(n PoolNode) bool { return n.Name == node && n.Quarantine != nil })
		if i < 0 {
			return fault.New(fault.NotFound, "node %.80q of pool %s is not quarantined", node, pool).
				WithHint("See `falaj pool describe %s`.", pool)
		}
		if err := s.poolStore.DeleteQuarantine(ctx, tx, pool, node); err != nil {
			return err
		}
		err = audit.Append(ctx, tx, audit.Entry{
			Action: string(ActionPoolApply), Object: "pool " + string(pool),
			Detail: map[string]any{"released": node, "was": p.Nodes[i].Quarantine.String()},
		})
		if err != nil {
			return err
		}
		tx.OnCommit(s.signal)
		return event.Publish(ctx, tx, "", EventNodeReleased, PoolEvent{Pool: pool, Node: node})
	})
	return fault.Wrap(err, "releasing node %s of pool %s", node, pool)
}

func clip(s string) string { return fault.Clip(s, maxReason) }

// pool finds a pool as it is now.
func (s *core) pool(ctx context.Context, tx *store.Tx, name PoolName) (Pool, error) {
	p, err := s.poolStore.Pool(ctx, tx, name)
	if err != nil {
		return p, err
	}
	qs, err := s.poolStore.Quarantines(ctx, tx, s.now())
	if err != nil {
		return p, err
	}
	rentals, err := s.elasticStore.Rentals(ctx, tx, s.now())
	return s.current(p, qs, rentals), err
}

// all lists the pools as they are now, by name, and when the next quarantine
// ends.
func (s *core) all(ctx context.Context, tx *store.Tx) (pools []Pool, next time.Time, err error) {
	if pools, err = s.poolStore.Pools(ctx, tx); err != nil {
		return nil, next, err
	}
	qs, err := s.poolStore.Quarantines(ctx, tx, s.now())
	if err != nil {
		return nil, next, err
	}
	rentals, err := s.elasticStore.Rentals(ctx, tx, s.now())
	if err != nil {
		return nil, next, err
	}
	for i := range pools {
		pools[i] = s.current(pools[i], qs, rentals)
		for _, news := range []time.Time{scheduler.Windows(pools[i].Maintenance).Next(s.now()), pools[i].Hardware.news(s.now())} {
			if !news.IsZero() && (next.IsZero() || news.Before(next)) {
				next = news
			}
		}
	}
	for _, q := range qs {
		if next.IsZero() || q.Until.Before(next) {
			next = q.Until
		}
	}
	return pools, next, nil
}

// current adds what is not kept with a pool.
func (s *core) current(p Pool, qs []Quarantine, rentals []Rental) Pool {
	e := s.cfg.Engines[p.Engine]
	s.locate(&p)
	p.Kind, p.Remote, p.Nodes = e.Kind, e.Remote, merged(p.Listed, p.Seen)
	if p.Elastic != nil {
		p.Nodes = p.rented(rentals)
	}
	for _, q := range qs {
		if q.Pool != p.Name {
			continue
		}
		if i := slices.IndexFunc(p.Nodes, func(n PoolNode) bool { return n.Name == q.Node }); i >= 0 {
			p.Nodes[i].Quarantine = &q
		}
	}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		n.Maintenance, n.Closes = scheduler.Windows(p.Maintenance).At(n.Name, s.now())
		if n.MemoryBandwidth == 0 && n.Name == machineNode && !p.Remote { // what was measured here
			n.MemoryBandwidth = e.Machine.MemoryBandwidth
		}
	}
	p.Capacity, p.Support = p.capacity(), p.Hardware.words(s.now())
	s.mu.Lock()
	defer s.mu.Unlock()
	p.Trouble = s.trouble[p.Name]
	switch why := s.closedBecause(p); {
	case why != "":
		p.State = "closed: " + why
	case p.Trouble != "":
		p.State = "open; " + p.Trouble
	default:
		p.State = "open"
	}
	return p
}

// closedBecause says why nothing is placed in a pool; empty when it is open.
func (s *core) closedBecause(p Pool) string {
	why := cmp.Or(p.NotOpen(), p.Hardware.unsupported(s.now()))
	switch _, configured := s.cfg.Engines[p.Engine]; {
	case why != "":
		return why
	case !configured:
		return "its engine " + p.Engine + " is not configured"
	case len(p.Nodes) == 0:
		return p.Trouble
	}
	return ""
}

// scheduled is a pool as the scheduler sees it.
func (s *core) scheduled(p Pool) scheduler.Pool {
	out := scheduler.Pool{
		Name: string(p.Name), Zone: string(p.Zone), Isolation: p.Isolation, Delegated: p.Mode == Delegated,
		PricePerHour: p.Price().Rate().At(s.now()), Closed: s.closedBecause(p), Remote: p.Remote, Levels: p.Topology, Ahead: p.Ahead,
	}
	if p.MachineZone != p.Zone {
		out.MachineZone = string(p.MachineZone)
	}
	e := s.cfg.Engines[p.Engine]
	out.Alike = e.Alike != nil && e.Alike(p.Options)
	for _, n := range p.Nodes {
		out.Nodes = append(out.Nodes, scheduler.Node{
			Name: n.Name, Amount: n.Room(), Closed: n.closed(), Where: p.where(n.Node), Closes: n.Closes, Leave: n.Maintenance != "",
		})
	}
	return out
}

// recorded are the pools as they are kept.
func (s *Scheduling) recorded(ctx context.Context) (pools []Pool, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		pools, err = s.poolStore.Pools(ctx, tx)
		return err
	})
	return pools, err
}

// refresh brings the nodes that engines told of up to what they tell now.
func (s *Scheduling) refresh(ctx context.Context) error {
	pools, err := s.recorded(ctx)
	if err != nil {
		return err
	}
	for _, p := range pools {
		if _, ok := s.cfg.Engines[p.Engine].Driver.(engine.Inventory); !ok {
			continue
		}
		seen, err := s.inventory(ctx, p.Engine, p.Options)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if s.troubled(p.Name, err); err != nil || slices.EqualFunc(seen, p.Seen, PoolNode.equal) {
			continue
		}
		err = s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
			now, err := s.poolStore.Pool(ctx, tx, p.Name)
			if err != nil || now.Revision != p.Revision {
				return err
			}
			tx.OnCommit(s.signal)
			now.Seen = seen
			return s.poolStore.SavePool(ctx, tx, now)
		})
		if err != nil {
			return fault.Wrap(err, "recording the nodes of pool %s", p.Name)
		}
	}
	return nil
}

// troubled keeps why an engine could not tell a pool's nodes.
func (s *core) troubled(name PoolName, err error) {
	words := ""
	if err != nil {
		words = clip(err.Error())
	}
	s.mu.Lock()
	was := s.trouble[name]
	s.trouble[name] = words
	s.mu.Unlock()
	if was == words {
		return
	}
	s.signal()
	if words == "" {
		s.log.Info("the engine of a pool lists its nodes again", slog.String("pool", string(name)))
		return
	}
	s.log.Warn("listing the nodes of a pool failed", slog.String("pool", string(name)), slog.Any("error", err))
}

// inventory asks an engine for the nodes of a pool; nil without that power.
func (s *core) inventory(ctx context.Context, engineName string, options map[string]string) ([]PoolNode, error) {
	power, ok := s.cfg.Engines[engineName].Driver.(engine.Inventory)
	if !ok {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, inventoryTimeout)
	defer cancel()
	found, err := power.Inventory(ctx, options)
	if fault.Is(err, fault.Unsupported) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, "listing the nodes of engine %s", engineName)
	}
	if len(found) > maxNodes {
		return nil, fault.New(fault.Exhausted, "engine %s has %d nodes; a pool has at most %d", engineName, len(found), maxNodes).
			WithHint("Select fewer nodes with the pool's options.")
	}
	nodes := make([]PoolNode, 0, len(found))
	for _, f := range found {
		n := PoolNode{
			Node: Node{Name: f.Name, CPU: f.Amount.CPU, Memory: f.Amount.Memory, Accelerators: f.Amount.Accelerators, Labels: f.Labels},
			Down: clip(f.Down), Busy: clip(f.Busy),
		}
		if err := n.validate(); err != nil {
			s.log.WarnContext(ctx, "an invalid node is skipped", slog.String("engine", engineName), slog.Any("error", err))
			continue
		}
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b PoolNode) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(nodes, func(a, b PoolNode) bool { return a.Name == b.Name }), nil
}

// merged is what a pool's manifest says of its nodes and what its engine found;
// the manifest wins, and without nodes in it all that were found are its nodes.
func merged(listed []Node, found []PoolNode) []PoolNode {
	if len(listed) == 0 {
		return slices.Clone(found)
	}
	known := make(map[string]PoolNode, len(found))
	for _, n := range found {
		known[n.Name] = n
	}
	nodes := make([]PoolNode, len(listed))
	for i, n := range listed {
		nodes[i] = PoolNode{Node: n}
		f, ok := known[n.Name]
		if len(found) > 0 && !ok {
			f.Down = "unknown to its engine"
		}
		nodes[i].Down, nodes[i].Busy = f.Down, f.Busy
		if len(f.Labels) > 0 {
			labels := maps.Clone(f.Labels)
			maps.Copy(labels, n.Labels)
			nodes[i].Labels = labels
		}
	}
	return nodes
}
