package cli

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

var sourceColumns = []column{
	{"NAME", "name"},
	{"DATASET", "spec.dataset"},
	{"FROM", "what"},
	{"MODE", "spec.mode"},
	{"SCHEDULE", "spec.schedule"},
	{"VERSION", "version"},
	{"LAST RUN", "last.state"},
	{"ENDED", "last.ended_at"},
	{"NEXT", "next_at"},
	{"ERROR", "last.error"},
}

var ingestionColumns = []column{
	{"RUN", "id"},
	{"SOURCE", "source"},
	{"STATE", "state"},
	{"ROWS", "rows"},
	{"DATASET", "dataset"},
	{"VERSION", "version"},
	{"UNCHANGED", "unchanged"},
	{"CREATED", "created_at"},
	{"ENDED", "ended_at"},
	{"ERROR", "error"},
}

func (a *app) datasetIngest() *cobra.Command {
	var anew, background bool
	cmd := &cobra.Command{
		Use: "ingest SOURCE", Short: "Ingest the current data of a source into its dataset",
		Long: "Starts an ingestion of the source (or of the source of the dataset of that name), or joins the running one, and waits\n" +
			"until it finishes. Stopping the command does not cancel the ingestion. Exit code 1 when it failed, or when the\n" +
			"version was rejected.",
		Example: "  falaj dataset ingest orders -p shop\n  falaj dataset ingest orders --anew -p shop",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var run client.Object
			if err := a.call(cmd, http.MethodPost, map[string]any{"anew": anew}, &run, "sources", args[0], "runs"); err != nil {
				return err
			}
			if background {
				return a.print([]client.Object{run}, ingestionColumns)
			}
			return a.waitIngestion(cmd, run)
		},
	}
	cmd.Flags().BoolVar(&anew, "anew", false, "read the source from the beginning, ignoring the stored position")
	cmd.Flags().BoolVar(&background, "background", false, "return without waiting")
	return cmd
}

// waitIngestion shows a run until it has ended.
func (a *app) waitIngestion(cmd *cobra.Command, run client.Object) error {
	path, err := a.inProjectPath("ingestions", run.Text("id"))
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	wait := "30s"
	if a.terminal() {
		wait = "1s"
	}
	began, shown := time.Now(), a.phases()
	for {
		switch state := run.Text("state"); state {
		case "succeeded", "failed", "cancelled":
			if a.terminal() {
				fmt.Fprint(a.screen, "\r\x1b[K")
			}
			if err := a.print([]client.Object{run}, ingestionColumns); err != nil || state == "succeeded" {
				return err
			}
			err := fault.New(fault.Internal, "run %s of source %s %s: %s", run.Text("id"), run.Text("source"), state, run.Text("error"))
			if hint := run.Text("hint"); hint != "" {
				err = err.WithHint("%s", hint)
			}
			return err
		default:
			if !a.terminal() {
				shown.show(strings.TrimSpace(run.Text("source") + ": " + state + " " + run.Text("error")))
			} else {
				fmt.Fprintf(a.screen, "\r\x1b[K%s", plain(fmt.Sprintf("%s: %s, %s rows, %s %s", run.Text("source"), state, run.Text("rows"), time.Since(began).Round(time.Second), run.Text("error"))))
			}
		}
		run = client.Object{}
		if err := c.Do(cmd.Context(), http.MethodGet, path+"?"+url.Values{"wait": {wait}}.Encode(), nil, &run); err != nil {
			return err
		}
	}
}

func (a *app) datasetSources() *cobra.Command {
	return &cobra.Command{
		Use: "sources", Short: "List the sources of datasets", Example: "  falaj dataset sources -p shop", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.list(cmd, sourceColumns, "sources") },
	}
}

func (a *app) datasetIngestions() *cobra.Command {
	return &cobra.Command{
		Use: "ingestions SOURCE", Short: "List the ingestions of a source, newest first", Example: "  falaj dataset ingestions orders -p shop", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.list(cmd, ingestionColumns, "sources", args[0], "runs")
		},
	}
}

func (a *app) datasetCancel() *cobra.Command {
	return &cobra.Command{
		Use: "cancel RUN", Short: "Cancel an ingestion; the dataset is unchanged", Example: "  falaj dataset cancel ing_01J… -p shop", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var o client.Object
			if err := a.call(cmd, http.MethodPost, map[string]any{}, &o, "ingestions", args[0], "cancel"); err != nil {
				return err
			}
			return a.print([]client.Object{o}, ingestionColumns)
		},
	}
}
