package slurm

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute/provisioner"
	"github.com/falaj-ml/falaj/internal/fault"
)

// The nodes of a partition that Slurm's power saving switches off and on: each is a
// place. A node of ours has our comment, from before it is switched on until it is
// off; others' are left alone. Slurm's own SuspendTime is to be long, for it
// is Falaj that switches off.
//
// https://slurm.schedmd.com/power_save.html says what the states mean.

var _ provisioner.Provisioner = (*Launcher)(nil)

// Nodes gives the nodes of the pool's partition that are off, or ours.
func (l *Launcher) Nodes(ctx context.Context, p provisioner.Pool) ([]provisioner.Node, error) {
	all, err := l.powered(ctx, p)
	if err != nil {
		return nil, err
	}
	out := make([]provisioner.Node, 0, len(all))
	for _, n := range all {
		if !n.ours && n.State != provisioner.Off && n.State != provisioner.Leaving {
			continue
		}
		if out = append(out, n.Node); n.ours && n.State == provisioner.Off {
			if err := l.update(ctx, n.Name, "comment="); err != nil { // who switches it on next may be somebody else
				return nil, err
			}
		}
	}
	return out, nil
}

// Rent switches a node on.
func (l *Launcher) Rent(ctx context.Context, p provisioner.Pool, name string) error {
	n, err := l.place(ctx, p, name)
	if err != nil {
		return err
	}
	switch {
	case n.ours && n.State != provisioner.Off && n.State != provisioner.Leaving:
		return nil
	case n.State == provisioner.Leaving:
		return fault.New(fault.Unavailable, "node %s is still being switched off", name)
	case n.State != provisioner.Off:
		return fault.New(fault.Exhausted, "node %s is used by others", name)
	}
	if err := l.update(ctx, name, "comment="+l.mark(p)); err != nil {
		return err
	}
	return l.update(ctx, name, "state=power_up")
}

// Release switches a node of ours off.
func (l *Launcher) Release(ctx context.Context, p provisioner.Pool, name string) error {
	n, err := l.place(ctx, p, name)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil || !n.ours {
		return err
	}
	switch n.State {
	case provisioner.Ready:
		return l.update(ctx, name, "state=power_down")
	case provisioner.Failed:
		return l.update(ctx, name, "state=power_down_force") // nothing runs there
	case provisioner.Coming: // Slurm 22.05 loses an order to a node that boots: it goes once it is up
	case provisioner.Off, provisioner.Leaving:
	}
	return nil
}

// update changes a node; only Slurm's administrators and operators may.
func (l *Launcher) update(ctx context.Context, name, change string) error {
	_, err := l.run(ctx, "", "", "scontrol", "update", "nodename="+name, change)
	if err != nil && strings.Contains(err.Error(), "Invalid user id") {
		return fault.New(fault.PermissionDenied, "Slurm lets only its administrators switch nodes on and off").
			WithHint("Run Falaj as SlurmUser or root, or give its user AdminLevel=Operator.")
	}
	return fault.Wrap(err, "changing node %s", name)
}

// mark is the comment of a node that is ours.
func (l *Launcher) mark(p provisioner.Pool) string { return "falaj/" + l.installation + "/" + p.Name }

// powerNode is a node of the partition, ours or not.
type powerNode struct {
	provisioner.Node
	ours bool
}

func (l *Launcher) place(ctx context.Context, p provisioner.Pool, name string) (powerNode, error) {
	all, err := l.powered(ctx, p)
	if err != nil {
		return powerNode{}, err
	}
	if i := slices.IndexFunc(all, func(n powerNode) bool { return n.Name == name }); i >= 0 {
		return all[i], nil
	}
	return powerNode{}, fault.New(fault.NotFound, "the partition of pool %s has no node %.80q", p.Name, name)
}

func (l *Launcher) powered(ctx context.Context, p provisioner.Pool) ([]powerNode, error) {
	out, err := l.run(ctx, "", "", "scontrol", "--oneliner", "show", "nodes")
	if err != nil {
		return nil, fault.Wrap(err, "asking Slurm for its nodes")
	}
	return parsePower(out, p.Options["partition"], l.mark(p)), nil
}

// parsePower reads `scontrol -o show nodes`.
func parsePower(out, partitions, comment string) []powerNode {
	var nodes []powerNode
	for line := range strings.Lines(out) {
		f := fields(line)
		if !nodeRE.MatchString(f["NodeName"]) || !inPartition(f["Partitions"], partitions) {
			continue
		}
		n := powerNode{Node: provisioner.Node{Name: f["NodeName"], State: power(f["State"])}, ours: f["Comment"] == comment}
		if n.State == provisioner.Failed {
			n.Why = cmp.Or(down(f["State"], f["Reason"]), "Slurm reports "+strings.ToLower(f["State"]))
		}
		for _, flag := range []string{"ALLOCATED", "MIXED", "COMPLETING"} {
			n.Busy = n.Busy || strings.Contains(f["State"], flag)
		}
		if n.State == provisioner.Off || n.State == provisioner.Leaving {
			n.Busy = false
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// power is what a node's state means for its power: flags that begin or end a change
// come first.
func power(state string) provisioner.State {
	flags := strings.FieldsFunc(strings.ToUpper(state), func(r rune) bool { return r == '+' })
	has := func(names ...string) bool {
		return slices.ContainsFunc(flags, func(f string) bool { return slices.Contains(names, strings.TrimRight(f, "*~#%!$@^-")) })
	}
	switch {
	case has("POWERING_DOWN", "POWER_DOWN"):
		return provisioner.Leaving
	case has("POWERING_UP", "POWER_UP"):
		return provisioner.Coming
	case has("POWERED_DOWN"):
		return provisioner.Off
	case has("DOWN", "DRAIN", "DRAINED", "FAIL", "ERROR"):
		return provisioner.Failed
	}
	return provisioner.Ready
}
