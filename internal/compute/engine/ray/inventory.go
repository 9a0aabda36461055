package ray

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/resource"
)

// node is one of Ray's as its state API shows it.
type node struct {
	ID      string             `json:"node_id"`
	IP      string             `json:"node_ip"`
	Name    string             `json:"node_name"`
	Head    bool               `json:"is_head_node"`
	State   string             `json:"state"`
	Message string             `json:"state_message"`
	Total   map[string]float64 `json:"resources_total"`
	Labels  map[string]string  `json:"labels"`
}

// Inventory gives the nodes that Ray has now, less what others than our jobs
// take of them. A node that left is not listed: Ray keeps a new ID for it.
func (l *Launcher) Inventory(ctx context.Context, in map[string]string) ([]engine.Node, error) {
	o, err := readOptions(in)
	if err != nil {
		return nil, err
	}
	nodes, err := state[node](ctx, l, "nodes", nil)
	if err != nil {
		return nil, err
	}
	others, err := l.others(ctx)
	if err != nil {
		return nil, err
	}
	names := map[string]int{}
	for _, n := range nodes {
		if n.State == "ALIVE" {
			names[n.Name]++
		}
	}
	var out []engine.Node
	for _, n := range nodes {
		if n.State != "ALIVE" || n.Total["CPU"] == 0 || !n.has(o.labels) {
			continue
		}
		e := engine.Node{Name: n.ID, Labels: map[string]string{"ray.io/node-id": n.ID, "ip": n.IP}}
		if n.Name != "" && names[n.Name] == 1 {
			e.Name = n.Name
		}
		maps.Copy(e.Labels, n.Labels)
		if slices.Contains(o.exclude, e.Name) {
			e.Down = "excluded by the pool's option exclude"
		}
		e.Amount, e.Busy = n.free(others[n.ID])
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b engine.Node) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func (n node) has(labels map[string]string) bool {
	for k, v := range labels {
		if n.Labels[k] != v {
			return false
		}
	}
	return true
}

// free is the node less what others take, and that in words.
func (n node) free(others map[string]float64) (resource.Amount, string) {
	a := resource.Amount{
		CPU: resource.CPU(math.Round((n.Total["CPU"] - others["CPU"]) * 1000)), Memory: resource.Bytes(n.Total["memory"] - others["memory"]),
		Accelerators: map[string]int64{},
	}
	for name, v := range n.Total {
		switch {
		case name == "CPU", name == "memory", name == "object_store_memory", strings.HasPrefix(name, "node:"), strings.HasPrefix(name, "accelerator_type:"):
		case name == "GPU":
			a.Accelerators["nvidia.com/gpu"] = int64(v - others["GPU"])
		case name == "TPU":
			a.Accelerators["google.com/tpu"] = int64(v - others["TPU"])
		default:
			a.Accelerators[name] = int64(v)
		}
	}
	var busy []string
	for _, name := range []string{"CPU", "GPU", "TPU"} {
		if v := others[name]; v > 0.0005 {
			busy = append(busy, fmt.Sprintf("%g of %g %s", v, n.Total[name], name))
		}
	}
	if len(busy) == 0 {
		return a, ""
	}
	return a, "other work on Ray holds " + strings.Join(busy, ", ")
}

// others is what each node gives to work that is not ours: what is in use less
// our own placement groups.
func (l *Launcher) others(ctx context.Context) (map[string]map[string]float64, error) {
	var status struct {
		Data struct {
			Cluster struct {
				Load struct {
					Usage map[string]map[string][2]float64 `json:"usageByNode"` // used, total
				} `json:"loadMetricsReport"`
			} `json:"clusterStatus"`
		} `json:"data"`
	}
	if err := l.call(ctx, http.MethodGet, "/api/cluster_status", nil, &status); err != nil {
		return nil, err
	}
	groups, err := state[group](ctx, l, "placement_groups", nil)
	if err != nil {
		return nil, err
	}
	ours, err := l.List(ctx)
	if err != nil {
		return nil, err
	}
	used := map[string]map[string]float64{}
	for node, all := range status.Data.Cluster.Load.Usage {
		used[node] = map[string]float64{}
		for _, name := range []string{"CPU", "GPU", "TPU", "memory"} {
			used[node][name] = all[name][0]
		}
	}
	for _, g := range groups {
		if g.State != "CREATED" || !slices.Contains(ours, g.Name) {
			continue
		}
		for _, b := range g.Bundles {
			for name, v := range b.Resources {
				if in := used[b.Node]; in != nil {
					in[name] = max(in[name]-v, 0)
				}
			}
		}
	}
	return used, nil
}
