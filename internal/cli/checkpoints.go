package cli

import (
	"path/filepath"

	"github.com/spf13/cobra"
)

var checkpointColumns = []column{
	{"NAME", "name"},
	{"STEP", "step"},
	{"METRIC", "metric"},
	{"BYTES", "bytes"},
	{"STORED", "stored"},
	{"TAKEN", "taken_at"},
	{"KEPT BECAUSE", "kept"},
	{"DAMAGED", "damaged"},
	{"ID", "id"},
}

// checkpoints are the commands about the kept checkpoints of jobs.
func (a *app) checkpoints() []*cobra.Command {
	list := &cobra.Command{
		Use: "checkpoints JOB", Short: "List a job's retained checkpoints and the reason each is retained", Example: "  falaj job checkpoints job_01J… -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.list(cmd, checkpointColumns, "jobs", args[0], "checkpoints")
		},
	}
	one := &cobra.Command{Use: "checkpoint", Short: "Download and delete retained checkpoints"}
	one.AddCommand(&cobra.Command{
		Use: "get JOB NAME DIR", Short: "Download a checkpoint into a new directory",
		Example: "  falaj job checkpoint get job_01J… step-100 ./step-100 -p nyc", Args: cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, project, err := a.in()
			if err != nil {
				return err
			}
			dir := filepath.Clean(args[2])
			if err := c.FetchCheckpoint(cmd.Context(), project, args[0], args[1], dir); err != nil {
				return err
			}
			a.say("checkpoint %s of %s is in %s", args[1], args[0], dir)
			return nil
		},
	})
	var yes bool
	remove := &cobra.Command{
		Use: "delete JOB NAME", Short: "Delete a retained checkpoint",
		Example: "  falaj job checkpoint delete job_01J… step-100 -p nyc", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, project, err := a.in()
			if err != nil {
				return err
			}
			if err := c.DeleteCheckpoint(cmd.Context(), project, args[0], args[1], yes); err != nil {
				return err
			}
			a.say("checkpoint %s of %s deleted", args[1], args[0])
			return nil
		},
	}
	remove.Flags().BoolVar(&yes, "yes", false, "delete the checkpoint even if another job resumes from it")
	one.AddCommand(remove)
	return []*cobra.Command{list, one}
}
