package simulation

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/scheduler/replay"
)

// Live is what `falaj simulate --from-live` is asked to do.
type Live struct {
	Snapshot  []byte   // as the server told it
	Proposals [][]byte // jobs that are not submitted, likewise
	Add       map[string]int
	Remove    map[string]int
	Policy    string        // empty is that of the server
	Takes     time.Duration // what nothing is known of
	Over      bool          // Takes wins over time-outs
	Leave     time.Duration
	HTML      string // file to write; may be empty
}

// RunLive plays the world of a server as it is, and with what is changed.
func RunLive(ctx context.Context, l Live) (replay.Answer, error) {
	snapshot, start, err := replay.Read(l.Snapshot)
	if err != nil {
		return replay.Answer{}, err
	}
	if l.Takes <= 0 || l.Leave < 0 {
		return replay.Answer{}, fault.New(fault.Invalid, "works that take %s, and leave after %s, are none", l.Takes, l.Leave)
	}
	assume := replay.Assumptions{Takes: l.Takes, Over: l.Over, Leave: l.Leave}
	now, about := snapshot.World(start, assume)
	changed, changes, err := l.change(now)
	if err != nil {
		return replay.Answer{}, err
	}
	for _, b := range l.Proposals {
		x, work, err := replay.ReadProposal(b)
		if err != nil {
			return replay.Answer{}, err
		}
		x, changed = changed.Propose(x, work, assume)
		about = append(about, x)
		changes = append(changes, fmt.Sprintf("job %s submitted", x.Label))
	}
	played, err := replay.Play(ctx, now)
	if err != nil {
		return replay.Answer{}, err
	}
	var whatif *replay.Played
	if len(changes) > 0 {
		p, err := replay.Play(ctx, changed)
		if err != nil {
			return replay.Answer{}, err
		}
		whatif = &p
	}
	a := replay.Answers(now, played, changed, whatif, about)
	a.Policy, a.Changes, a.Assumed = string(start.Policy), changes, l.assumed(about)
	if l.HTML == "" {
		return a, nil
	}
	return a, writePage(l.HTML, func(out *os.File) error { return replay.WritePage(out, a) })
}

// change makes the other world, and says what is other.
func (l Live) change(w replay.World) (replay.World, []string, error) {
	var changes []string
	resize := func(nodes map[string]int, sign int, word string) error {
		for _, pool := range slices.Sorted(maps.Keys(nodes)) {
			n := nodes[pool]
			if n < 1 || n > 10_000 {
				return fault.New(fault.Invalid, "%d nodes %s in pool %s are not from 1 to 10000", n, word, pool)
			}
			var err error
			if w, err = w.Resize(pool, sign*n); err != nil {
				return err
			}
			changes = append(changes, fmt.Sprintf("%d nodes %s in pool %s", n, word, pool))
		}
		return nil
	}
	if err := resize(l.Add, 1, "more"); err != nil {
		return w, nil, err
	}
	if err := resize(l.Remove, -1, "fewer"); err != nil {
		return w, nil, err
	}
	if l.Policy != "" {
		p := scheduler.Policy(l.Policy)
		if !slices.Contains(scheduler.Policies, p) {
			return w, nil, fault.New(fault.Invalid, "%q is not a policy of the live scheduler", l.Policy).WithHint("The policies are %q.", scheduler.Policies)
		}
		w.Start.Policy = p
		changes = append(changes, "policy "+l.Policy)
	}
	return w, changes, nil
}

// assumed says in words what was taken for granted.
func (l Live) assumed(about []replay.About) []string {
	n := map[replay.Basis]int{}
	for _, x := range about {
		n[x.Basis]++
	}
	var by []string
	for _, b := range []struct {
		basis replay.Basis
		words string
	}{
		{replay.Pace, "by their pace"},
		{replay.History, "as the last of their name that succeeded"},
		{replay.Expected, "as long as their owners expect"},
		{replay.Timeout, "until their time-out"},
		{replay.Assumed, fmt.Sprintf("for %s, because nothing is known", l.Takes)},
	} {
		if n[b.basis] > 0 {
			by = append(by, fmt.Sprintf("%d %s", n[b.basis], b.words))
		}
	}
	out := []string{
		"no other jobs are submitted, and no job fails",
		"a work runs as long however many workers it gets",
		fmt.Sprintf("who must leave for another saves within %s, loses nothing and waits again", l.Leave),
		"nodes stay as they are but for maintenance: quarantine and rented nodes that come and go are not played",
	}
	if len(by) > 0 {
		out = append([]string{"how long works run: " + strings.Join(by, ", ")}, out...)
	}
	return out
}
