package slurm

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

var nodeRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$`)

// Inventory gives the nodes of the pool's partition, or all of them.
func (l *Launcher) Inventory(ctx context.Context, options map[string]string) ([]engine.Node, error) {
	if err := CheckOptions(options); err != nil {
		return nil, err
	}
	out, err := l.run(ctx, "", "", "scontrol", "--oneliner", "show", "nodes")
	if err != nil {
		return nil, fault.Wrap(err, "asking Slurm for its nodes")
	}
	names, err := parseGres(options["gres"])
	if err != nil {
		return nil, err
	}
	nodes := parseNodes(out, options["partition"], names)
	l.tellBusy(ctx, nodes)
	return nodes, nil
}

// parseNodes reads `scontrol -o show nodes`. A node of a partition that has
// several is in each.
func parseNodes(out, partitions string, names map[string]string) []engine.Node {
	var nodes []engine.Node
	for line := range strings.Lines(out) {
		f := fields(line)
		if f["NodeName"] == "" || !inPartition(f["Partitions"], partitions) {
			continue
		}
		n := engine.Node{Name: f["NodeName"], Labels: map[string]string{}}
		cpus, _ := strconv.ParseInt(f["CPUTot"], 10, 64)
		if effective, err := strconv.ParseInt(f["CPUEfctv"], 10, 64); err == nil {
			cpus = effective
		}
		mebibytes, _ := strconv.ParseInt(f["RealMemory"], 10, 64)
		n.Amount.CPU = resource.Cores(min(max(cpus, 0), 1<<30))
		n.Amount.Memory = resource.Bytes(min(max(mebibytes, 0), 1<<40)) * resource.MiB
		n.Amount.Accelerators = accelerators(f["Gres"], names, n.Labels)
		for label, key := range map[string]string{"arch": "Arch", "slurm.version": "Version", "sockets": "Sockets", "threads_per_core": "ThreadsPerCore"} {
			if v := f[key]; v != "" {
				n.Labels[label] = v
			}
		}
		for feature := range strings.SplitSeq(f["ActiveFeatures"], ",") {
			if feature != "" && feature != "(null)" {
				n.Labels["feature/"+feature] = "true"
			}
		}
		n.Down = down(f["State"], f["Reason"])
		nodes = append(nodes, n)
	}
	return nodes
}

// fields reads "A=b C=d e f G=h": a value goes on until the next name.
func fields(line string) map[string]string {
	all := map[string]string{}
	last := ""
	for word := range strings.FieldsSeq(line) {
		name, value, ok := strings.Cut(word, "=")
		if ok && nameRE.MatchString(name) {
			all[name], last = value, name
		} else if last != "" {
			all[last] += " " + word
		}
	}
	return all
}

var nameRE = regexp.MustCompile(`^[A-Z][A-Za-z]*$`)

func inPartition(of, wanted string) bool {
	if wanted == "" {
		return true
	}
	for p := range strings.SplitSeq(wanted, ",") {
		if slices.Contains(strings.Split(of, ","), p) {
			return true
		}
	}
	return false
}

// accelerators reads "gpu:h100:8(S:0-1),fpga:2"; types of GPU become a label.
func accelerators(gres string, names map[string]string, labels map[string]string) map[string]int64 {
	found := map[string]int64{}
	for item := range strings.SplitSeq(gres, ",") {
		item, _, _ = strings.Cut(item, "(")
		parts := strings.Split(strings.TrimSpace(item), ":")
		if len(parts) < 2 {
			continue
		}
		n, err := strconv.ParseInt(parts[len(parts)-1], 10, 32)
		if err != nil || n < 0 {
			continue
		}
		kind := strings.Join(parts[:len(parts)-1], ":")
		if parts[0] == "gpu" && len(parts) > 2 {
			labels["gpu"] = parts[1]
		}
		found[acceleratorOf(kind, names)] += n
	}
	if len(found) == 0 {
		return nil
	}
	return found
}

// acceleratorOf is the way back of gresOf: the pool's name for the very type, for
// the kind, else our usual one.
func acceleratorOf(kind string, names map[string]string) string {
	name, _, _ := strings.Cut(kind, ":")
	for _, wanted := range []string{kind, name} {
		for _, accelerator := range slices.Sorted(maps.Keys(names)) {
			if names[accelerator] == wanted {
				return accelerator
			}
		}
	}
	if name == "gpu" {
		return "nvidia.com/gpu"
	}
	return name
}

// down says why a node takes no work; empty takes it.
func down(state, reason string) string {
	parts := strings.FieldsFunc(strings.ToUpper(state), func(r rune) bool { return r == '+' || r == '*' || r == '~' || r == '#' || r == '$' || r == '@' })
	for _, p := range parts {
		switch p {
		case "DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "MAINT", "MAINTENANCE", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN",
			"REBOOT_ISSUED", "REBOOT_REQUESTED", "RESERVED", "UNKNOWN", "INVAL", "INVALID_REG", "FUTURE", "POWER_DRAIN", "ERROR":
			text := "Slurm reports " + strings.ToLower(state)
			if reason = strings.TrimSpace(reason); reason != "" && reason != "(null)" {
				text += ": " + reason
			}
			return text
		}
	}
	if strings.HasSuffix(state, "*") {
		return "Slurm reports " + strings.ToLower(state) + ": it does not respond"
	}
	return ""
}

// tellBusy says what others' jobs hold on each node.
func (l *Launcher) tellBusy(ctx context.Context, nodes []engine.Node) {
	jobs, err := l.queue(ctx, "--states=RUNNING,SUSPENDED,COMPLETING")
	if err != nil {
		l.c.Log.WarnContext(ctx, "jobs of other users on Slurm cannot be counted", slog.Any("err", err))
		return
	}
	on := map[string]map[string]int{} // jobs by user, by node
	for _, j := range jobs {
		if j.Installation == l.installation || j.observed(false).State != engine.Running {
			continue
		}
		for _, n := range expand(j.NodeList) {
			if on[n] == nil {
				on[n] = map[string]int{}
			}
			on[n][j.User]++
		}
	}
	for i := range nodes {
		var words []string
		for _, user := range slices.Sorted(maps.Keys(on[nodes[i].Name])) {
			words = append(words, fmt.Sprintf("%d of %s", on[nodes[i].Name][user], user))
		}
		if len(words) > 0 {
			nodes[i].Busy = "Slurm jobs of other users: " + strings.Join(words[:min(len(words), 5)], ", ")
		}
	}
}

// failed names those of a list of nodes that are down now.
func (l *Launcher) failed(ctx context.Context, list string) string {
	var bad []string
	out, err := l.run(ctx, "", "", "scontrol", "--oneliner", "show", "nodes")
	if err != nil {
		l.c.Log.WarnContext(ctx, "the failed node cannot be found", slog.Any("err", err))
		return ""
	}
	mine := expand(list)
	for _, n := range parseNodes(out, "", nil) {
		if n.Down != "" && slices.Contains(mine, n.Name) {
			bad = append(bad, n.Name+" ("+n.Down+")")
		}
	}
	if len(bad) == 0 {
		return ""
	}
	return ": " + strings.Join(bad, ", ")
}

// nodesMax bounds what a list of nodes may become.
const nodesMax = 20_000

// expand reads Slurm's lists of hosts, "n[1-3,07],login1"; nothing when it is
// not one.
func expand(list string) []string {
	var all []string
	for _, item := range splitList(list) {
		names := []string{""}
		for item != "" {
			head, rest, found := strings.Cut(item, "[")
			for i := range names {
				names[i] += head
			}
			if !found {
				break
			}
			inside, tail, closed := strings.Cut(rest, "]")
			numbers := ranges(inside)
			if !closed || len(numbers) == 0 || len(names)*len(numbers)+len(all) > nodesMax {
				return nil
			}
			var next []string
			for _, n := range names {
				for _, number := range numbers {
					next = append(next, n+number)
				}
			}
			names, item = next, tail
		}
		all = append(all, names...)
	}
	return all
}

// splitList splits at the commas outside brackets.
func splitList(list string) []string {
	var items []string
	depth, from := 0, 0
	for i, r := range list {
		switch {
		case r == '[':
			depth++
		case r == ']':
			depth--
		case r == ',' && depth == 0:
			items = append(items, list[from:i])
			from = i + 1
		}
	}
	if from < len(list) {
		items = append(items, list[from:])
	}
	return slices.DeleteFunc(items, func(s string) bool { return s == "" })
}

// ranges reads "1-3,07": zeros in front are kept.
func ranges(s string) []string {
	var out []string
	for part := range strings.SplitSeq(s, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		from, err1 := strconv.Atoi(low)
		to, err2 := strconv.Atoi(high)
		if err1 != nil || err2 != nil || from < 0 || to < from || to-from > nodesMax || len(low) > 20 {
			return nil
		}
		for n := from; n <= to; n++ {
			out = append(out, fmt.Sprintf("%0*d", len(low), n))
		}
		if len(out) > nodesMax {
			return nil
		}
	}
	return out
}
