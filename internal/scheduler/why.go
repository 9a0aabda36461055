package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Why says why a work waited in the last step; false when it does not wait.
// Nothing is placed behind a work that waits for a pool or a quota, so what the
// step saw there is what there is now.
func (s *State) Why(id ID) (Wait, bool) {
	w := s.waiting[id]
	if w == nil {
		return Wait{}, false
	}
	shape := s.shapeOf(w)
	switch {
	case len(shape.pools) == 0:
		return Wait{Reasons: s.impossible(w.Work, shape)}, true
	case s.overQuota(w.Work):
		want, q, _ := s.limits(w.Work)
		return Wait{Reasons: []Reason{{Step: "admit", Text: fmt.Sprintf("the quota of project %s is smaller than the request: %s",
			w.Project, words(want.Times(w.least()).Lacks(q), "allowed"))}}}, true
	case w.NotBefore.After(s.now):
		return Wait{Possible: true, Reasons: []Reason{{Step: "admit", Text: "starts again after " + w.NotBefore.UTC().Format(time.RFC3339)}}}, true
	}
	if head := s.quotaHead[w.Project]; head != nil && rank(head, w) <= 0 {
		text := fmt.Sprintf("behind %s, which waits for the quota of project %s", head.label(), w.Project)
		if head == w {
			want, q, _ := s.limits(w.Work)
			text = fmt.Sprintf("the quota of project %s is used up: %s", w.Project,
				words(want.Times(w.least()).Lacks(q.Minus(s.project[w.Project])), "left"))
		}
		return Wait{Possible: true, Reasons: []Reason{{Step: "fit", Text: text}}}, true
	}
	wait := Wait{Possible: true}
	for _, p := range shape.pools {
		text := s.full(w.Work, p)
		if head := s.head[p.Name]; head != w {
			text = fmt.Sprintf("behind %s, which waits for pool %s", head.label(), p.Name)
		}
		wait.Reasons = append(wait.Reasons, Reason{Step: "fit", Pool: p.Name, Text: text})
	}
	wait.Reasons = append(wait.Reasons, shape.refused...)
	return wait, true
}

// refusal says why a pool that a work asks for may not take it however empty it
// is; empty when it may.
func refusal(w Work, p *pool) string {
	switch {
	case !slices.Contains(w.Residency, p.Zone):
		return fmt.Sprintf("pool %s is in %s and the data may be in %s only", p.Name, p.Zone, strings.Join(w.Residency, ", "))
	case !p.Isolation.AtLeast(w.Isolation):
		return fmt.Sprintf("pool %s isolates by %s and %s is wanted", p.Name, p.Isolation, w.Isolation)
	case w.InPlace && p.Remote:
		return fmt.Sprintf("pool %s is elsewhere and this needs the files of the server", p.Name)
	case p.Closed != "":
		return fmt.Sprintf("pool %s is closed: %s", p.Name, p.Closed)
	case len(p.Nodes) == 0:
		return fmt.Sprintf("pool %s has no nodes", p.Name)
	case !p.anyOpen():
		return fmt.Sprintf("pool %s has no open node", p.Name) + p.closedNodes()
	}
	if p.Delegated {
		n := w.Request.Count(p.total, w.least())
		switch {
		case n >= w.least():
			return ""
		case w.least() > 1:
			return fmt.Sprintf("pool %s is too small: %s, room for %d in all", p.Name, gang(w), n) + p.closedNodes()
		}
		return fmt.Sprintf("pool %s is too small: %s", p.Name, words(w.Request.Lacks(p.total), "in all")) + p.closedNodes()
	}
	n := 0
	var best []string // what the node that lacks least lacks: the one to name
	for _, node := range p.Nodes {
		if node.Closed != "" {
			continue
		}
		if n += w.Request.Count(node.Amount, w.least()); n >= w.least() {
			return ""
		}
		if lacks := w.Request.Lacks(node.Amount); best == nil || len(lacks) < len(best) {
			best = lacks
		}
	}
	if n == 0 {
		return fmt.Sprintf("pool %s has no node large enough: %s", p.Name, words(best, "on its largest")) + p.closedNodes()
	}
	return fmt.Sprintf("pool %s is too small: %s, room for %d in all", p.Name, gang(w), n) + p.closedNodes()
}

// closedNodes names the nodes that take no work, with a leading semicolon.
func (p *pool) closedNodes() string {
	var out strings.Builder
	left := 0
	for _, n := range p.Nodes {
		switch {
		case n.Closed == "":
		case out.Len() < 200:
			fmt.Fprintf(&out, "; node %s takes nothing: %s", n.Name, n.Closed)
		default:
			left++
		}
	}
	if left > 0 {
		fmt.Fprintf(&out, "; and %d more", left)
	}
	return out.String()
}

// gang is "4 workers of 2 cpu wanted".
func gang(w Work) string { return fmt.Sprintf("%d workers of %s wanted", w.least(), w.Request) }

// words turns "2 cpu wanted, 1 free" into "2 cpu wanted, 1 WHERE".
func words(lacks []string, where string) string {
	out := make([]string, len(lacks))
	for i, l := range lacks {
		out[i] = strings.TrimSuffix(l, " free") + " " + where
	}
	return strings.Join(out, ", ")
}

// impossible explains a work that no pool may take; an accelerator that nobody
// has is said once rather than per pool.
func (s *State) impossible(w Work, shape *shape) []Reason {
	if len(s.pools) == 0 {
		return []Reason{{Step: "admit", Text: "there are no pools"}}
	}
	for _, name := range slices.Sorted(maps.Keys(w.Request.Accelerators)) {
		if w.Request.Accelerators[name] > 0 && !s.anyHas(name) {
			return []Reason{{Step: "admit", Text: "no pool has " + name}}
		}
	}
	var reasons []Reason
	for _, name := range w.Pools {
		if s.pools[name] == nil {
			reasons = append(reasons, Reason{Step: "admit", Pool: name, Text: "there is no pool " + name})
		}
	}
	return append(reasons, shape.refused...)
}

func (s *State) anyHas(accelerator string) bool {
	for _, p := range s.pools {
		for _, n := range p.Nodes {
			if n.Amount.Accelerators[accelerator] > 0 {
				return true
			}
		}
	}
	return false
}

// full says what a pool lacks now, and who is next to give it back.
func (s *State) full(w Work, p *pool) string {
	if n, _ := p.room(w, w.least()); w.least() > 1 {
		return fmt.Sprintf("%s, room for %d on pool %s", gang(w), n, p.Name) + s.nextToFinish(p)
	}
	lacks := w.Request.Lacks(p.free(0))
	if !p.Delegated {
		lacks = nil
		for i, n := range p.Nodes {
			if n.Closed != "" {
				continue
			}
			if l := w.Request.Lacks(p.free(i)); lacks == nil || len(l) < len(lacks) {
				lacks = l
			}
		}
	}
	return words(lacks, "free on "+p.Name) + s.nextToFinish(p)
}

// nextToFinish names the running work of a pool with the earliest deadline;
// without deadlines it names the first started, and does not promise.
func (s *State) nextToFinish(p *pool) string {
	var first Running
	found := false
	for _, r := range s.running {
		if r.Pool != p.Name || found && !sooner(r, first) {
			continue
		}
		first, found = r, true
	}
	switch {
	case !found:
		return ""
	case first.Deadline.IsZero():
		return "; held by " + first.label()
	}
	return fmt.Sprintf("; next to finish: %s, by %s", first.label(), first.Deadline.UTC().Format(time.RFC3339))
}

func sooner(a, b Running) bool {
	if a.Deadline.IsZero() != b.Deadline.IsZero() {
		return b.Deadline.IsZero()
	}
	return cmp.Or(a.Deadline.Compare(b.Deadline), a.Submitted.Compare(b.Submitted), cmp.Compare(a.ID, b.ID)) < 0
}
