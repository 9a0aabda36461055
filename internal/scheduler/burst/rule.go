package burst

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

// option is one way for a workload to burst.
type option struct {
	pool  *pool
	nodes int   // to rent; 0 uses existing and coming nodes
	on    start // on existing and coming nodes
	at    time.Time
	gain  float64 // hours by which it ends earlier
	rent  float64 // its cost there; NaN if its duration is unknown
	own   float64 // its cost in the pool for which it would wait
	net   float64 // gain in money; set only if the option is accepted
}

// consider decides about a pending workload: steps 1 to 4.
func (d *decision) consider(w *Work) Verdict {
	v := Verdict{Work: w.ID}
	if w.Barred != "" {
		v.Why = "does not burst: " + w.Barred
		return v
	}

	// 1. When would it start in a permanent pool?
	var home *pool
	var here start
	for _, p := range d.pools {
		if p.Elastic != nil || !permitted(w, p) {
			continue
		}
		if s, ok := p.earliest(w, w.least(), len(p.rows), d.Now); ok && (home == nil || s.at.Before(here.at)) {
			home, here = p, s
		}
	}
	if home != nil && !here.at.After(d.Now) {
		home.take(w, here)
		v.Why = "does not burst: " + home.Name + " has capacity for it"
		return v
	}
	unknown := home == nil && d.elsewhere(w) // a permanent pool will fit it, at an unknown time

	// 2. Which pools may take it, and which option is worth most?
	var best *option
	var against []string
	for _, p := range d.pools {
		if p.Elastic == nil {
			continue
		}
		if !permitted(w, p) {
			continue
		}
		if rentedFor(p, w) { // this was decided when its nodes were rented
			if s, ok := p.earliest(w, w.least(), p.rows0, d.Now); ok {
				p.take(w, s)
				d.pay(w, p.price(w, w.least())*w.Duration.Hours())
				v.Pools, v.Ever = []string{p.Name}, true
				v.Why = fmt.Sprintf("nodes of %s were rented for it", p.Name)
				if s.at.After(d.Now) {
					v.Why = fmt.Sprintf("waits for %d node%s of %s that start%s up, about %s", len(s.rows), plural(len(s.rows)), p.Name, singular(len(s.rows)), words(s.at.Sub(d.Now)))
				}
				return v
			}
		}
		for _, o := range d.options(w, p) {
			v.Ever = v.Ever || o.nodes <= p.Elastic.Max
			why := d.evaluate(w, &o, home, here, unknown)
			if why != "" {
				against = append(against, why)
				continue
			}
			if best == nil || o.net > best.net {
				best = &o
			}
		}
		if why := p.tooSmall(w); p.Elastic.Max > 0 && why != "" {
			against = append(against, why)
		}
	}
	if best == nil {
		if home != nil {
			home.take(w, here)
		}
		against = slices.Compact(against)
		if len(against) == 0 {
			against = []string{"no elastic pool accepts it"}
		}
		v.Why = "does not burst: " + strings.Join(against, "; ")
		return v
	}

	// It bursts there, with all nodes that it needs.
	p := best.pool
	v.Pools = []string{p.Name}
	v.Why = d.inWords(w, *best, home, here)
	if best.nodes > 0 {
		ready := d.Now.Add(p.Elastic.Startup)
		for range best.nodes {
			p.come("+", ready)
		}
		best.on, _ = p.earliest(w, w.least(), len(p.rows), d.Now)
		p.wish.Rent = append(p.wish.Rent, Need{For: w.ID, Nodes: best.nodes, Why: w.label() + " " + v.Why})
		v.Rents = best.nodes
	}
	p.take(w, best.on)
	d.pay(w, best.rent)
	return v
}

// permitted is step 2: whether a pool may take a workload, by the rules of the scheduler. The
// scheduler checks again before it places the workload, and compute before it starts it.
func permitted(w *Work, p *pool) bool {
	together := w.Within != "" && max(w.MaxWorkers, w.least()) > 1
	if p.Delegated && (together || w.PerNode > 0) || together && p.Elastic != nil {
		return false // the topology of nodes to rent is not known
	}
	if p.Alike && len(w.Roles) > 0 {
		return false
	}
	return p.Forbids(w.Residency) == "" && p.Isolation.AtLeast(w.Isolation) && (!w.InPlace || !p.Remote) &&
		p.Closed == "" && (len(w.Pools) == 0 || slices.Contains(w.Pools, p.Name))
}

// elsewhere reports that a permanent pool is large enough for a workload.
func (d *decision) elsewhere(w *Work) bool {
	for _, p := range d.pools {
		if p.Elastic != nil || !permitted(w, p) || !p.whole(w, w.least(), 0) {
			continue
		}
		if len(w.Roles) > 0 {
			has := make([]resource.Amount, len(p.rows))
			for i, r := range p.rows {
				has[i] = r.has
			}
			if _, fits := w.pack(p, has); fits {
				return true
			}
			continue
		}
		n := 0
		for _, r := range p.rows {
			if n += min(w.Request.Count(r.has, w.least()), w.onNode(p)); n >= w.least() {
				return true
			}
		}
	}
	return false
}

func rentedFor(p *pool, w *Work) bool {
	return slices.ContainsFunc(p.Elastic.Rented, func(n Node) bool { return n.For == w.ID && !n.Leaving })
}

// options are the ways for a workload to use a pool: on existing and coming nodes, or also on
// nodes that are rented for it.
func (d *decision) options(w *Work, p *pool) []option {
	var out []option
	e := p.Elastic
	if s, ok := p.earliest(w, w.least(), len(p.rows), d.Now); ok {
		out = append(out, option{pool: p, on: s, at: s.at})
	}
	ready := d.Now.Add(e.Startup)
	if len(out) > 0 && !out[0].at.After(ready) {
		return out // rented nodes would not be ready earlier
	}
	if nodes := d.toRent(w, p, ready); nodes > 0 {
		out = append(out, option{pool: p, nodes: nodes, at: ready})
	}
	return out
}

// toRent is the number of nodes that a workload needs besides existing and coming ones; 0 if
// a worker does not fit a node.
func (d *decision) toRent(w *Work, p *pool, ready time.Time) int {
	if len(w.Roles) > 0 {
		return p.forRoles(w, ready)
	}
	each := min(w.Request.Count(p.Elastic.Node, w.least()), w.onNode(p))
	if each == 0 {
		return 0
	}
	// Workers that fit existing nodes by the time new ones are ready need no new node.
	there := 0
	for n := w.least() - 1; n > 0; n-- {
		if s, ok := p.earliest(w, n, len(p.rows), d.Now); ok && !s.at.After(ready) {
			there = n
			break
		}
	}
	return (w.least() - there + each - 1) / each
}

// evaluate is steps 3 and 4: it computes an option's gain and cost, checks the limits and the budget, and
// says why the option is rejected; empty if it is accepted.
func (d *decision) evaluate(w *Work, o *option, home *pool, here start, unknown bool) string {
	e, name := o.pool.Elastic, o.pool.Name
	if o.nodes > 0 {
		switch room := e.Max - o.pool.rented(); {
		case o.nodes > room:
			return fmt.Sprintf("%d node%s of %s would be needed, but only %d more may be rented", o.nodes, plural(o.nodes), name, max(room, 0))
		case e.NotBefore.After(d.Now):
			return fmt.Sprintf("%s rents no nodes before %s: %s", name, at(e.NotBefore), e.Because)
		}
	}
	if limit, lacks := d.lacks(w); limit != "" {
		return fmt.Sprintf("%s leaves too little: %s", limit, lacks)
	}
	// Hours and money. A rented node is paid whole, an existing one by the share used.
	transfer := 0.0
	if e.GiBPerHour > 0 {
		transfer = w.GiB / e.GiBPerHour
	}
	moved := w.GiB * e.Egress
	wait := o.at.Sub(d.Now).Hours()
	work := rework(w.Duration.Hours(), w.Saves.Hours(), e.Startup.Hours(), e.Interruptions*float64(max(o.nodes, len(o.on.rows), 1)))
	if o.nodes > 0 {
		o.rent = float64(o.nodes)*o.pool.PricePerHour*(wait+transfer+work) + moved
	} else {
		o.rent = o.pool.price(w, w.least())*(transfer+work) + moved
	}
	left, budget := d.money[w.Project]
	switch {
	case home == nil && !unknown:
		// No permanent pool can ever take it.
		if w.Duration == 0 {
			o.rent = float64(o.nodes)*o.pool.PricePerHour*(wait+transfer) + moved
		}
		o.gain, o.net = math.Inf(1), math.MaxFloat64-o.rent
		if budget && (o.rent > left || left <= 0) {
			return fmt.Sprintf("renting on %s costs %s, but the budget of %s has %s left", name, d.cash(o.rent), w.Project, d.cash(left))
		}
		return ""
	case w.Duration == 0:
		return "its expected duration is unknown: a timeout is only an upper bound"
	case unknown:
		return "the wait for other pools is unknown: a running workload has neither a time-out nor a start time"
	}
	o.own = home.price(w, w.least()) * w.Duration.Hours()
	o.gain = here.at.Sub(d.Now).Hours() + w.Duration.Hours() - (wait + transfer + work)
	o.net = w.DelayCost*o.gain - (o.rent - o.own)
	switch {
	case o.gain <= 0:
		return fmt.Sprintf("on %s it would not end earlier than on %s, which has capacity in %s", name, home.Name, words(here.at.Sub(d.Now)))
	case o.net <= 0 && w.DelayCost == 0:
		return fmt.Sprintf("%s costs %s and %s %s, but no delay_cost is set", name, d.cash(o.rent), home.Name, d.cash(o.own))
	case o.net <= 0:
		return fmt.Sprintf("%s costs %s more than %s and ends it %s earlier, which is worth %s", name, d.cash(o.rent-o.own), home.Name, hours(o.gain), d.cash(w.DelayCost*o.gain))
	case budget && o.rent > left:
		return fmt.Sprintf("renting on %s costs %s, but the budget of %s has %s left", name, d.cash(o.rent), w.Project, d.cash(left))
	}
	return ""
}

// inWords is the reason for which a workload bursts.
func (d *decision) inWords(w *Work, o option, home *pool, here start) string {
	what := "may use nodes of " + o.pool.Name
	if o.nodes > 0 {
		what = fmt.Sprintf("gets %d node%s of %s, ready in about %s", o.nodes, plural(o.nodes), o.pool.Name, words(o.pool.Elastic.Startup))
	}
	if home == nil {
		return fmt.Sprintf("%s: no other pool accepts it; it costs %s", what, d.cash(o.rent))
	}
	by := "by"
	if here.guess {
		by = "probably by"
	}
	return fmt.Sprintf("%s: %s has capacity %s %s, so it ends %s earlier, which is worth %s; it costs %s more",
		what, home.Name, by, at(here.at), hours(o.gain), d.cash(w.DelayCost*o.gain), d.cash(o.rent-o.own))
}

// lacks names a limit that leaves too little for a workload, after what was promised to earlier
// workloads of this round.
func (d *decision) lacks(w *Work) (limit, what string) {
	for _, name := range w.Limits {
		left, ok := d.Left[name]
		if !ok {
			continue
		}
		want := w.Amount(w.least()).Plus(d.promised[name])
		if left.CPU == 0 {
			want.CPU = 0 // no limit
		}
		if left.Memory == 0 {
			want.Memory = 0
		}
		if left.MemoryBandwidth == 0 {
			want.MemoryBandwidth = 0
		}
		maps.DeleteFunc(want.Accelerators, func(a string, _ int64) bool { _, ok := left.Accelerators[a]; return !ok })
		if lacks := want.Lacks(left); len(lacks) > 0 {
			return name, strings.Join(lacks, ", ")
		}
	}
	return "", ""
}

// pay deducts what a workload will use from its limits and its budget.
func (d *decision) pay(w *Work, cost float64) {
	for _, name := range w.Limits {
		d.promised[name] = d.promised[name].Plus(w.Amount(w.least()))
	}
	if left, ok := d.money[w.Project]; ok {
		d.money[w.Project] = left - cost
	}
}

func (d *decision) cash(v float64) string { return fmt.Sprintf("%.2f %s", v, d.Currency) }

func hours(h float64) string {
	if h > 24*365*100 {
		return "for ever"
	}
	return words(time.Duration(h * float64(time.Hour)))
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

func singular(n int) string {
	if n == 1 {
		return "s"
	}
	return ""
}
