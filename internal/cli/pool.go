package cli

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

func (a *app) pool() *cobra.Command {
	cmd := &cobra.Command{Use: "pool", Aliases: []string{"pools"}, Short: "Show and check pools and their nodes"}
	cmd.AddCommand(a.poolList(), a.poolDescribe(), a.poolRelease(), a.poolDoctor())
	return cmd
}

func (a *app) poolList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List pools", Example: "  falaj pool list", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			var objects []client.Object
			if err := c.List(cmd.Context(), kinds["pools"].path, nil, func(o client.Object) error {
				objects = append(objects, o)
				return nil
			}); err != nil {
				return err
			}
			return a.print(objects, kinds["pools"].columns)
		},
	}
}

func (a *app) poolRelease() *cobra.Command {
	return &cobra.Command{
		Use: "release POOL NODE", Short: "Release a quarantined node", Args: cobra.ExactArgs(2),
		Long:    "A node on which attempts were lost or hung is quarantined for some time. Release it once it is repaired.",
		Example: "  falaj pool release hpc node-17",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			path := kinds["pools"].path + "/" + url.PathEscape(args[0]) + "/nodes/" + url.PathEscape(args[1]) + "/release"
			if err := c.Do(cmd.Context(), http.MethodPost, path, nil, nil); err != nil {
				return err
			}
			a.say("node %s of pool %s is schedulable again", args[1], args[0])
			return nil
		},
	}
}

type shownAmount struct {
	CPU             string
	Memory          string
	MemoryBandwidth string `json:"memory_bandwidth"`
	Accelerators    map[string]int64
}

func (s shownAmount) String() string {
	parts := []string{orNone(s.CPU) + " cpu", orNone(s.Memory) + " memory"}
	if s.MemoryBandwidth != "" {
		parts = append(parts, s.MemoryBandwidth+" memory bandwidth")
	}
	for _, name := range keys(s.Accelerators) {
		parts = append(parts, fmt.Sprintf("%d %s", s.Accelerators[name], name))
	}
	return strings.Join(parts, ", ")
}

func orNone(s string) string {
	if s == "" {
		return "0"
	}
	return s
}

// shownPool is what describe says of a pool; everything is in -o json.
type shownPool struct {
	Name, Zone, Engine, Kind, Mode, Isolation, Closed, Misplaced, Trouble, Support string

	MachineZone string `json:"machine_zone"`

	Price   float64 `json:"price_per_hour"`
	Cost    struct{ Rented, Owned any }
	Elastic *struct {
		Provisioner string
		Min, Max    int
	}
	Renting *struct {
		Wished, Ready, Coming, Leaving int
		Startup                        string
		Why                            []string
		Cost                           float64 `json:"cost_today"`
	}
	Remote         bool
	Options, Env   map[string]string
	Capacity, Used shownAmount
	Running        int
	Nodes          []struct {
		shownAmount
		Name, Down, Busy string
		Labels           map[string]string
		Quarantine       *struct {
			Reason string
			Until  time.Time
		}
	}
}

func (a *app) poolDescribe() *cobra.Command {
	return &cobra.Command{
		Use: "describe POOL", Aliases: []string{"status"}, Short: "Show a pool: its guarantees, its nodes and why nodes are unschedulable", Args: cobra.ExactArgs(1),
		Example: "  falaj pool describe home",
		RunE: func(cmd *cobra.Command, args []string) error {
			of, err := a.collection("pools", false)
			if err != nil {
				return err
			}
			if a.output != "table" {
				var o client.Object
				if err := of.client.Do(cmd.Context(), http.MethodGet, of.one(args[0]), nil, &o); err != nil {
					return err
				}
				return a.printOne(o)
			}
			var p shownPool
			if err := of.client.Do(cmd.Context(), http.MethodGet, of.one(args[0]), nil, &p); err != nil {
				return err
			}
			return a.sayPool(p)
		},
	}
}

// fence is what a pool's isolation keeps apart, and what not.
func (p shownPool) fence() string {
	switch {
	case p.Isolation == "none":
		return "jobs share one user, one network and all files; each can read and kill the others"
	case p.Isolation == "process":
		return "separation by the node's Unix users; network allow-lists of jobs are not enforced"
	case p.Kind == "kube":
		return "one pod a worker; network allow-lists of jobs are enforced if the cluster's network enforces NetworkPolicies"
	}
	return "separate processes, files and network; the network allow-list of the job is enforced"
}

func (a *app) sayPool(p shownPool) error {
	where := "in place, on the server's machine"
	if p.Remote {
		where = "on other machines"
	}
	picks := "Falaj picks the node"
	if p.Mode == "delegated" {
		picks = "the engine picks the node"
	}
	a.say("%s in zone %s: engine %s (%s), %s; %s", p.Name, p.Zone, p.Engine, p.Kind, where, picks)
	if p.MachineZone != "" && p.MachineZone != p.Zone && p.Misplaced == "" {
		a.say("simulated: its work runs on a machine in zone %s, so its data must be permitted in both", p.MachineZone)
	}
	a.say("isolates by %s: %s", p.Isolation, p.fence())
	switch {
	case p.Price == 0 && p.Cost.Rented != nil:
		a.say("price: rented, by the time; see the manifest")
	case p.Price == 0 && p.Cost.Owned != nil:
		a.say("price: owned, by purchase, energy and use; see the manifest")
	default:
		a.say("price: %g an hour", p.Price)
	}
	if e, r := p.Elastic, p.Renting; e != nil && r != nil {
		a.say("elastic, by %s: %d to %d nodes; desired %d, ready %d, starting %d, terminating %d; startup time %s; cost today %.2f", e.Provisioner, e.Min, e.Max, r.Wished, r.Ready, r.Coming, r.Leaving, r.Startup, r.Cost)
		for _, why := range r.Why {
			a.say("  %s", plain(why))
		}
	}
	a.say("has %s", p.Capacity)
	a.say("running: %d, on %s", p.Running, p.Used)
	for _, line := range [][2]string{{"hardware", p.Support}, {"closed", p.Closed}, {"unschedulable", p.Misplaced}, {"trouble", p.Trouble}} {
		if line[1] != "" {
			a.say("%s: %s", line[0], plain(line[1]))
		}
	}
	for _, m := range []struct {
		name string
		m    map[string]string
	}{{"options", p.Options}, {"env", p.Env}} {
		if len(m.m) > 0 {
			a.say("%s: %s", m.name, pairs(m.m))
		}
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "\nNODE\tHAS\tSTATE\tLABELS")
	for _, n := range p.Nodes {
		state := "open"
		switch {
		case n.Quarantine != nil:
			state = fmt.Sprintf("in quarantine until %s: %s", n.Quarantine.Until.Local().Format("2006-01-02 15:04:05"), n.Quarantine.Reason)
		case n.Down != "":
			state = "down: " + n.Down
		case n.Busy != "":
			state = "open; " + n.Busy
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", plain(n.Name), n.shownAmount, plain(state), pairs(n.Labels))
	}
	return w.Flush()
}

// pairs is "a=1 b=2", sorted.
func pairs(m map[string]string) string {
	out := make([]string, 0, len(m))
	for _, k := range keys(m) {
		out = append(out, plain(k+"="+m[k]))
	}
	return strings.Join(out, " ")
}
