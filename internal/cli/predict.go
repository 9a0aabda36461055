package cli

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

func (a *app) predict() *cobra.Command {
	var deployment string
	var p client.Prediction
	var columns, shapes []string
	var wait bool
	cmd := &cobra.Command{
		Use:   "predict --deployment NAME --dataset NAME[@VERSION] --into NAME",
		Short: "Run batch predictions over a dataset with a deployed model",
		Long: "Submits a job that runs the deployment's stable version over a dataset version, both pinned now, and writes a\n" +
			"version of another dataset. Rows are read in batches. The output has the same rows in the same order: the kept\n" +
			"columns, and one column per output of the model, a list if a row has several numbers. The new version inherits\n" +
			"the zones, the classification and the lineage of the rows and the model. With --wait, the exit code is 1 unless\n" +
			"the version was created. For a single request, use `falaj deploy predict`.",
		Example: "  falaj predict --deployment delay --dataset flights --into flights-scored --wait -p nyc\n" +
			"  falaj predict --deployment delay --dataset flights@3 --into late --keep flight,day --prefix predicted_ -p nyc\n" +
			"  falaj predict --deployment delay --dataset flights --into late --columns minute_of_day,weekday,distance -o json -p nyc",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if p.Columns, err = named(columns); err != nil {
				return err
			}
			if p.Shapes, err = sizes(shapes); err != nil {
				return err
			}
			c, project, err := a.in()
			if err != nil {
				return err
			}
			job, err := c.Predict(cmd.Context(), project, deployment, p)
			if err != nil {
				return err
			}
			id := job.Text("id")
			if !wait {
				if a.output == "table" {
					a.note("%s predicts %s into %s", inputOf(job, "model "), inputOf(job, "dataset "), p.Into)
				}
				return a.sayOr(job, "%s", id)
			}
			a.note("job %s: %s predicts %s into %s", id, inputOf(job, "model "), inputOf(job, "dataset "), p.Into)
			return a.predicted(cmd, id)
		},
	}
	f := cmd.Flags()
	f.StringVar(&deployment, "deployment", "", "deployment whose stable version predicts")
	f.StringVar(&p.Dataset, "dataset", "", "input dataset or training set, with or without @version")
	f.StringVar(&p.Into, "into", "", "output dataset, created if missing")
	f.StringSliceVar(&p.Keep, "keep", nil, "input columns to keep in the output (default all)")
	f.StringVar(&p.Prefix, "prefix", "", "prefix of the output column names")
	f.StringArrayVar(&columns, "columns", nil, "columns of an input in the order of the model: a,b,c or INPUT=a,b,c")
	f.StringArrayVar(&shapes, "shape", nil, "shape of one row of an input: INPUT=3,224,224")
	f.StringVar(&p.Nulls, "nulls", "refuse", "handling of nulls in floating-point inputs: refuse fails the job, nan passes NaN as for a null in a request")
	f.IntVar(&p.BatchRows, "batch-rows", 4096, "rows per batch")
	f.IntVar(&p.Threads, "threads", 0, "threads per inference run (default as in the deployment)")
	f.StringVar(&p.Env, "env", "score", "environment of the job; score is created if missing")
	f.StringSliceVar(&p.Pools, "pool", nil, "pools the job may run in (default all eligible)")
	f.BoolVar(&wait, "wait", false, "wait until the job has finished")
	for _, name := range []string{"deployment", "dataset", "into"} {
		_ = cmd.MarkFlagRequired(name)
	}
	_ = cmd.RegisterFlagCompletionFunc("deployment", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return a.names(cmd, "deployments")
	})
	for _, flag := range []string{"dataset", "into"} {
		_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return a.names(cmd, "datasets")
		})
	}
	return cmd
}

// inputOf is the pinned input of a job that is of a kind: "model delay@3".
func inputOf(job client.Object, kind string) string {
	for _, in := range objectsAt(job, "inputs") {
		if ref := in.Text("ref"); strings.HasPrefix(ref, kind) {
			return ref
		}
	}
	return strings.TrimSpace(kind)
}

// predicted waits for the job and says what it made.
func (a *app) predicted(cmd *cobra.Command, job string) error {
	path, err := a.inProjectPath("jobs", job)
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	a.drawSteps(cmd, c, path)
	o, err := a.ended(cmd, c, path)
	if err != nil {
		return err
	}
	if a.output != "table" {
		err = a.printOne(o)
	} else if made := o.Text("dataset"); made != "" {
		var v client.Object
		if err = a.call(cmd, http.MethodGet, nil, &v, "datasets", made, "version"); err == nil {
			a.say("%s: %s rows of %s, predicted by %s", made, v.Text("rows"), inputOf(o, "dataset "), inputOf(o, "model "))
		}
	}
	if err == nil && o.Text("state") != "succeeded" {
		return fault.New(fault.Internal, "%s %s: %s", job, o.Text("state"), strings.Join(append([]string{o.Text("reason")}, a.decisive(cmd, c, path)...), ": ")).
			WithHint("See `falaj job describe %s`.", job)
	}
	return err
}

// decisive are the lines of the last attempt that say why a job failed, where somebody may
// read them.
func (a *app) decisive(cmd *cobra.Command, c *client.Client, path string) (lines []string) {
	var j shownJob
	if err := a.await(cmd.Context(), c, path+"?view=full", &j); err != nil || len(j.Tries) == 0 {
		return nil
	}
	for _, l := range j.Tries[len(j.Tries)-1].Lines {
		lines = append(lines, plain(l.Text))
	}
	return lines
}

// drawSteps draws how far a job is by the steps that it logs, where there is a terminal.
// Whoever may not read logs waits without a bar.
func (a *app) drawSteps(cmd *cobra.Command, c *client.Client, path string) {
	if !a.terminal() {
		return
	}
	steps, done := a.steps()
	_ = a.follow(cmd, c, steps, func(offset int64) string {
		return path + "/logs?" + url.Values{"follow": {"true"}, "attempt": {"1"}, "offset": {strconv.FormatInt(offset, 10)}}.Encode()
	})
	done()
}

// ended waits for the end of a job.
func (a *app) ended(cmd *cobra.Command, c *client.Client, path string) (o client.Object, err error) {
	o, err = a.awaitPhases(cmd.Context(), c, path, "succeeded", "failed", "cancelled")
	delete(o, "phase")
	return o, err
}
