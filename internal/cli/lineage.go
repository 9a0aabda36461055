package cli

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

// graph is lineage around something, as the server tells it.
type graph struct {
	Root  string      `json:"root"`
	Nodes []graphNode `json:"nodes"`
	Edges []struct {
		From string `json:"from"`
		To   string `json:"to"`
	} `json:"edges"`
	More bool `json:"more"`
}

type graphNode struct {
	ID        string                    `json:"id"`
	Kind      string                    `json:"kind"`
	Namespace string                    `json:"namespace"`
	Name      string                    `json:"name"`
	Foreign   bool                      `json:"foreign"`
	State     string                    `json:"state"`
	Digest    string                    `json:"digest"`
	By        string                    `json:"by"`
	File      string                    `json:"file"`
	Columns   map[string][]columnSource `json:"columns"`
}

// columnSource is a column that another is made of.
type columnSource struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Field     string `json:"field"`
	Kind      string `json:"type"`
	Subtype   string `json:"subtype"`
}

func (a *app) lineage() *cobra.Command {
	var namespace, kind string
	var up, down, columns bool
	var depth int
	cmd := &cobra.Command{
		Use: "lineage NAME[@VERSION]", Short: "Show upstream and downstream lineage of an object, including external OpenLineage datasets", Args: cobra.ExactArgs(1),
		Long: "Follows a dataset upstream and downstream across Falaj's versions, features, jobs, models and deployments, and\n" +
			"across jobs and datasets reported through OpenLineage. --kind starts from an object of another kind,\n" +
			"--namespace from an object reported through OpenLineage.",
		Example: "  falaj lineage delay@3 --kind model -p nyc\n  falaj lineage delays@1 -p nyc\n  falaj lineage delays --columns --up -p nyc\n  falaj lineage db.public.orders --namespace postgres://host:5432 -p nyc",
		RunE: func(cmd *cobra.Command, args []string) error {
			q := url.Values{"direction": {"both"}}
			if up != down {
				q.Set("direction", map[bool]string{true: "up", false: "down"}[up])
			}
			if namespace == "" && kind == "dataset" {
				q.Set("dataset", args[0])
			} else {
				q.Set("namespace", namespace)
				q.Set("name", args[0])
				q.Set("kind", kind)
			}
			if depth > 0 {
				q.Set("depth", strconv.Itoa(depth))
			}
			path, err := a.inProjectPath("lineage")
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			var g graph
			var whole client.Object
			into := any(&g)
			if a.output != "table" {
				into = &whole
			}
			if err := c.Do(cmd.Context(), http.MethodGet, path+"?"+q.Encode(), nil, into); err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(whole)
			}
			a.drawGraph(g, up || !down, down || !up)
			if columns {
				a.drawColumns(g)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&namespace, "namespace", "", "OpenLineage namespace of an externally reported object")
	f.StringVar(&kind, "kind", "dataset", "kind of NAME: dataset, feature_view, feature_service, job, model or deployment; with --namespace, dataset or job")
	f.BoolVar(&up, "up", false, "only upstream lineage")
	f.BoolVar(&down, "down", false, "only downstream lineage")
	f.BoolVar(&columns, "columns", false, "include column-level lineage where it is known")
	f.IntVar(&depth, "depth", 0, "maximum number of steps (default 20)")
	return cmd
}

// drawGraph draws a graph as a tree for each way; what is there already is not
// spelled out again.
func (a *app) drawGraph(g graph, up, down bool) {
	nodes := map[string]graphNode{}
	for _, n := range g.Nodes {
		nodes[n.ID] = n
	}
	way := func(title string, from, to func(i int) string) {
		next := map[string][]string{}
		for i := range g.Edges {
			if t := to(i); !slices.Contains(next[from(i)], t) {
				next[from(i)] = append(next[from(i)], t)
			}
		}
		seen := map[string]bool{}
		var grow func(id string) map[string]any
		grow = func(id string) map[string]any {
			o := map[string]any{"name": nodes[id].label(), "detail": nodes[id].detail()}
			if seen[id] {
				o["detail"] = "(see above)"
				return o
			}
			seen[id] = true
			var below []any
			for _, t := range next[id] {
				below = append(below, grow(t))
			}
			o["parents"] = below
			return o
		}
		a.say("%s", title)
		a.tree(grow(g.Root), "  ", "")
	}
	if up {
		way("made of:", func(i int) string { return g.Edges[i].To }, func(i int) string { return g.Edges[i].From })
	}
	if down {
		way("used by:", func(i int) string { return g.Edges[i].From }, func(i int) string { return g.Edges[i].To })
	}
	if g.More {
		a.say("The graph is truncated; show the lineage of one of these objects, or use --depth.")
	}
}

func (n graphNode) label() string {
	if n.Foreign {
		return n.Kind + " " + n.Name + " in " + n.Namespace
	}
	return strings.ReplaceAll(n.Kind, "_", " ") + " " + n.Name
}

func (n graphNode) detail() string {
	parts := []string{n.Digest}
	if n.State != "" && n.State != "accepted" {
		parts = append(parts, n.State)
	}
	switch {
	case n.File != "":
		parts = append(parts, "imported from "+n.File)
	case n.By != "":
		parts = append(parts, "by "+n.By)
	}
	return strings.TrimSpace(strings.Join(parts, " "))
}

// drawColumns lists what columns are made of.
func (a *app) drawColumns(g graph) {
	for _, n := range g.Nodes {
		names := make([]string, 0, len(n.Columns))
		for c := range n.Columns {
			names = append(names, c)
		}
		slices.Sort(names)
		if len(names) > 0 {
			a.say("columns of %s:", n.label())
		}
		for _, c := range names {
			var from []string
			for _, s := range n.Columns[c] {
				text := s.Name + "." + s.Field // what is no dataset is named with its kind
				if how := strings.ToLower(s.Subtype); how != "" && how != "identity" {
					text += " (" + how + ")"
				}
				from = append(from, text)
			}
			a.say("  %s ← %s", c, strings.Join(from, ", "))
		}
	}
}
