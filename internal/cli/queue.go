package cli

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

func (a *app) queue() *cobra.Command {
	cmd := &cobra.Command{Use: "queue", Aliases: []string{"queues"}, Short: "Show queues: quotas, shares and pending jobs"}
	cmd.AddCommand(a.queueStatus(), a.queueDelete())
	return cmd
}

// shownQueue is what status says of a queue; everything is in -o json.
type shownQueue struct {
	Name, Parent                  string
	Weight, Share                 float64
	Running, Waiting              int
	First                         string
	Used, Nominal, Left, Borrowed shownAmount
}

func (a *app) queueStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status [QUEUE]", Short: "Show quota, use, borrowing and pending jobs of queues", Args: cobra.MaximumNArgs(1),
		Long: "A queue is shown with its child queues. SHARE is the queue's dominant share: its use of the resource it uses most,\n" +
			"relative to all pools, divided by its weight; the fair policy serves the lowest share first. LEFT is the remaining\n" +
			"capacity of the limited resources, including what can be borrowed.",
		Example: "  falaj queue status\n  falaj queue status research -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			path := kinds["queues"].path
			if a.output != "table" {
				var o client.Object
				if len(args) == 1 {
					path += "/" + url.PathEscape(args[0])
				}
				if err := c.Do(cmd.Context(), http.MethodGet, path, nil, &o); err != nil {
					return err
				}
				return a.printOne(o)
			}
			var all struct{ Items []shownQueue }
			if err := c.Do(cmd.Context(), http.MethodGet, path, nil, &all); err != nil {
				return err
			}
			return a.sayQueues(all.Items, args)
		},
	}
}

// short names what there is of an amount.
func (s shownAmount) short() string {
	var parts []string
	if s.CPU != "" {
		parts = append(parts, s.CPU+" cpu")
	}
	if s.Memory != "" {
		parts = append(parts, s.Memory)
	}
	if s.MemoryBandwidth != "" {
		parts = append(parts, s.MemoryBandwidth)
	}
	for _, name := range keys(s.Accelerators) {
		if n := s.Accelerators[name]; n != 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, name))
		}
	}
	return first(strings.Join(parts, ", "), "-")
}

// sayQueues prints queues as trees; with a name only that one and those below.
func (a *app) sayQueues(queues []shownQueue, only []string) error {
	depth := map[string]int{}
	w := tabwriter.NewWriter(a.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "QUEUE\tQUOTA\tUSED\tBORROWED\tLEFT\tSHARE\tRUNNING\tWAITING\tFIRST")
	shown := 0
	for _, q := range queues {
		d, below := depth[q.Parent]
		if below && q.Parent != "" {
			d++
		}
		in := len(only) == 0 || q.Name == only[0] || below && q.Parent != ""
		if !in {
			continue
		}
		depth[q.Name] = d
		shown++
		fmt.Fprintf(w, "%s%s\t%s\t%s\t%s\t%s\t%.3f\t%d\t%d\t%s\n", strings.Repeat("  ", d), q.Name, q.Nominal.short(), q.Used.short(), q.Borrowed.short(), q.Left.short(), q.Share, q.Running, q.Waiting, first(q.First, "-"))
	}
	if shown == 0 && len(only) == 1 {
		return usage("queue %.64q not found; see `falaj queue status`", only[0])
	}
	return w.Flush()
}

func (a *app) queueDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete QUEUE", Short: "Delete an empty queue", Args: cobra.ExactArgs(1), Example: "  falaj queue delete research",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			if err := c.Do(cmd.Context(), http.MethodDelete, kinds["queues"].path+"/"+url.PathEscape(args[0]), nil, nil); err != nil {
				return err
			}
			a.say("queue %s is deleted", args[0])
			return nil
		},
	}
}
