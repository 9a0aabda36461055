package cli

import (
	"fmt"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

func (a *app) jobAdvise() *cobra.Command {
	return &cobra.Command{
		Use: "advise JOB", Short: "Show a job's resource use and right-sizing recommendations", Args: cobra.ExactArgs(1),
		Long: "The recommendations are based on measurements of the job's last attempt, its family and similar jobs. Time\n" +
			"and price are relative to where the job ran; ranges are 95 % confidence intervals. The command starts no job.",
		Example: "  falaj job advise job_01J… -p nyc\n  falaj job advise job_01J… -p nyc -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, project, err := a.in()
			if err != nil {
				return err
			}
			if a.output != "table" {
				var o client.Object
				if err := a.call(cmd, http.MethodGet, nil, &o, "jobs", args[0], "advice"); err != nil {
					return err
				}
				return a.printOne(o)
			}
			advice, err := c.JobAdvice(cmd.Context(), project, args[0])
			if err != nil {
				return err
			}
			a.sayOptions(advice)
			return nil
		},
	}
}

func (a *app) sayOptions(d client.Advice) {
	if d.Sentence == "" {
		a.say("no measurements yet: no attempt of %s was measured", d.Job)
		return
	}
	a.say("%s", plain(d.Sentence))
	if len(d.Options) > 0 {
		a.say("")
		w := tabwriter.NewWriter(a.Stdout, 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "POOL\tDEVICE\tWORKERS\tTIME\tPRICE\tKNOWN")
		if d.Now != nil {
			fmt.Fprintf(w, "%s\t%s\t%d\t1x\t1x\tnow, %s\n", plain(d.Now.Pool), plain(d.Now.Device), d.Now.Workers, counted(d.Attempts, "attempt"))
		}
		for _, o := range d.Options {
			price := "-"
			if o.Price != nil {
				price = relative(*o.Price, o.Known)
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", plain(o.Pool), plain(o.Device), o.Workers, relative(o.Time, o.Known), price, known(o))
		}
		_ = w.Flush()
	}
	for _, t := range d.Explore {
		a.say("\nWorth trying: %s in %s on %s for %.2f %s; the expected savings in the next 30 days are %.2f.",
			time.Duration(t.Minutes*float64(time.Minute)).Round(time.Second), plain(t.Pool), plain(t.Device), t.Cost, d.Currency, t.Saving)
	}
}

// sayAdvice adds the sentence to a description; where nothing is known, or may be,
// it is silent.
func (a *app) sayAdvice(cmd *cobra.Command, job string) {
	c, project, err := a.in()
	if err != nil {
		return
	}
	if d, err := c.JobAdvice(cmd.Context(), project, job); err == nil && d.Sentence != "" {
		a.say("\nSize\n  %s", plain(d.Sentence))
	}
}

func relative(r client.Ratio, known string) string {
	switch {
	case known == "bound":
		return fmt.Sprintf("at most %.2gx", r.Is)
	case r.High > 0:
		return fmt.Sprintf("%.2gx (%.2g to %.2g)", r.Is, r.Low, r.High)
	}
	return fmt.Sprintf("%.2gx", r.Is)
}

func known(o client.Alternative) string {
	switch {
	case o.Attempts > 0:
		return o.Known + ", " + counted(o.Attempts, "attempt")
	case o.Families > 0:
		return counted(o.Families, "like job")
	}
	return o.Known
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
