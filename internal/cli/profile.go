package cli

import (
	"fmt"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

// shownProfile is what is said of a look at a worker.
type shownProfile struct {
	ID, Tool      string
	Number        int
	Worker        int
	Processes     int
	Seconds       int
	Compute       float64
	Memory        float64
	Communication float64
	Idle          float64
	At            time.Time
	Run           string `json:"run_id"`
	Artifacts     []string
	Top           []struct {
		Name, Where, Kind string
		Share, Waiting    float64
	}
}

func (a *app) jobProfile() *cobra.Command {
	var worker, seconds int
	var tool string
	cmd := &cobra.Command{
		Use: "profile JOB", Short: "Profile a running job", Args: cobra.ExactArgs(1),
		Long: "Reports how a worker spends its time (computing, moving data, communicating with other workers, waiting) and in\n" +
			"which functions. The job is not interrupted. The tool's output is stored as an artifact of the run; the summary\n" +
			"stays with the job. py-spy comes from the job's environment or its node. torch uses torch.profiler in the program,\n" +
			"which must call falaj.step() after each step. nsys is NVIDIA Nsight Systems; the program must have been started\n" +
			"under nsys launch.",
		Example: "  falaj job profile job_01J… -p nyc\n  falaj job profile job_01J… --worker 1 --seconds 10 --tool torch -p nyc",
		RunE: func(cmd *cobra.Command, args []string) error {
			look := map[string]any{"worker": worker, "seconds": seconds, "tool": tool}
			if a.output != "table" {
				var o client.Object
				if err := a.call(cmd, http.MethodPost, look, &o, "jobs", args[0], "profiles"); err != nil {
					return err
				}
				return a.printOne(o)
			}
			var p shownProfile
			if err := a.call(cmd, http.MethodPost, look, &p, "jobs", args[0], "profiles"); err != nil {
				return err
			}
			a.say("%s  attempt %d, worker %d, %d s by %s", p.ID, p.Number, p.Worker, p.Seconds, p.Tool)
			a.say("%s\n", p.shares())
			w := tabwriter.NewWriter(a.Stdout, 0, 4, 2, ' ', 0)
			fmt.Fprintln(w, "SHARE\tWAITING\tKIND\tFUNCTION\tWHERE")
			for _, f := range p.Top {
				fmt.Fprintf(w, "%.1f%%\t%.1f%%\t%s\t%s\t%s\n", 100*f.Share, 100*f.Waiting, f.Kind, fault.Clip(plain(f.Name), 80), first(plain(f.Where), "-"))
			}
			_ = w.Flush()
			for i, name := range p.Artifacts {
				if i == 0 {
					a.say("\nArtifacts of run %s", p.Run)
				}
				a.say("  %s", plain(name))
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&worker, "worker", 0, "worker to profile, counted from 0")
	cmd.Flags().IntVar(&seconds, "seconds", 30, "duration in seconds, at most 300")
	cmd.Flags().StringVar(&tool, "tool", "py-spy", "py-spy, torch or nsys")
	return cmd
}

func (p shownProfile) shares() string {
	return fmt.Sprintf("compute %.0f%%  memory %.0f%%  communication %.0f%%  idle %.0f%%", 100*p.Compute, 100*p.Memory, 100*p.Communication, 100*p.Idle)
}

// sayProfiles is the part of describe.
func (a *app) sayProfiles(all []shownProfile) {
	if len(all) == 0 {
		return
	}
	a.say("\nProfiles")
	for _, p := range all[max(0, len(all)-10):] {
		a.say("  attempt %d, worker %d, %d s by %s: %s", p.Number, p.Worker, p.Seconds, p.Tool, p.shares())
	}
}
