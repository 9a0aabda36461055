package cli

import (
	"fmt"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

// shownPlan is what plan says of a job; everything is in -o json.
type shownPlan struct {
	Runs, Possible bool
	Pool           string
	Workers        int
	Nodes          []string
	Reasons        []struct{ Text string }
	Rooms          []struct {
		Pool    string
		Workers int
		At      time.Time
		Price   float64 `json:"price_per_hour"`
	}
}

func (a *app) plan() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "plan -f FILE", Short: "Show where a job would run, or its wait reasons and expected start", Args: cobra.NoArgs,
		Long: "Plans the manifest of one Job without submitting it. For each eligible pool, FITS BY is the latest time at which\n" +
			"the job fits, based on the time-outs of the running jobs and assuming no other job is queued before it.",
		Example: "  falaj plan -f job.yaml -p nyc\n  falaj plan -f job.yaml -p nyc -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usage("-f FILE is required")
			}
			m, err := a.jobManifest(cmd, file)
			if err != nil {
				return err
			}
			if err := a.packSource(cmd, file, m, true); err != nil {
				return err
			}
			body := map[string]any{"name": m.Name, "spec": m.Spec}
			if a.output != "table" {
				var o client.Object
				if err := a.call(cmd, http.MethodPost, body, &o, "jobs", "plan"); err != nil {
					return err
				}
				return a.printOne(o)
			}
			var p shownPlan
			if err := a.call(cmd, http.MethodPost, body, &p, "jobs", "plan"); err != nil {
				return err
			}
			return a.sayPlan(p)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "manifest of the job, or - for standard input")
	return cmd
}

func (a *app) sayPlan(p shownPlan) error {
	w := a.Stdout
	switch {
	case p.Runs && len(p.Nodes) > 0:
		fmt.Fprintf(w, "would run at once: %d workers in pool %s on %s\n", p.Workers, p.Pool, strings.Join(p.Nodes, ", "))
	case p.Runs:
		fmt.Fprintf(w, "would run at once: %d workers in pool %s\n", p.Workers, p.Pool)
	case p.Possible:
		fmt.Fprintln(w, "would wait:")
	default:
		fmt.Fprintln(w, "cannot run as the pools are now:")
	}
	for _, r := range p.Reasons {
		fmt.Fprintln(w, "  "+r.Text)
	}
	if len(p.Rooms) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "POOL\tFITS NOW\tFITS BY\tPRICE/H")
	for _, r := range p.Rooms {
		by := "unknown"
		switch {
		case r.Workers > 0:
			by = "now"
		case !r.At.IsZero():
			by = r.At.Local().Format(time.DateTime)
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", r.Pool, r.Workers, by, significant(r.Price, 4))
	}
	return t.Flush()
}
