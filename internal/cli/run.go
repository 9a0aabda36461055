package cli

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

var runColumns = []column{{"ID", "id"}, {"NAME", "name"}, {"STATUS", "status"}, {"STARTED", "started_at"}, {"OWNER", "owner"}, {"JOB", "job"}, {"METRICS", "metrics"}}

func (a *app) run() *cobra.Command {
	cmd := &cobra.Command{Use: "run", Aliases: []string{"runs"}, Short: "List, show, compare, download and prune runs"}
	cmd.AddCommand(a.runList(), a.runShow(), a.runFiles(), a.runDownload(), a.runCompare(), a.runPrune())
	return cmd
}

func (a *app) runList() *cobra.Command {
	var experiment, filter string
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List runs, newest first",
		Example: "  falaj run list --experiment delay -p nyc\n  falaj run list --filter \"metrics.loss < 0.1 and params.lr = '0.01'\" -p nyc", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > 1000 {
				return usage("--limit is %d; it must be 1 to 1000", limit)
			}
			path, err := a.inProjectPath("runs")
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			query := url.Values{"page_size": {strconv.Itoa(limit)}}
			for name, v := range map[string]string{"experiment": experiment, "filter": filter} {
				if v != "" {
					query.Set(name, v)
				}
			}
			var page struct {
				Items []client.Object `json:"items"`
				Next  string          `json:"next_page_token"`
			}
			if err := c.Do(cmd.Context(), http.MethodGet, path+"?"+query.Encode(), nil, &page); err != nil {
				return err
			}
			if page.Next != "" {
				a.note("showing the newest %d; use --limit for more, at most 1000, or --filter", len(page.Items))
			}
			return a.print(page.Items, runColumns)
		},
	}
	cmd.Flags().StringVar(&experiment, "experiment", "", "only runs of this experiment")
	cmd.Flags().StringVar(&filter, "filter", "", "only runs that match this expression, in MLflow's filter syntax")
	cmd.Flags().IntVar(&limit, "limit", 100, "maximum number of runs")
	return cmd
}

func (a *app) runShow() *cobra.Command {
	return &cobra.Command{
		Use: "show RUN", Short: "Show a run", Example: "  falaj run show run_01J… -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var o client.Object
			if err := a.call(cmd, http.MethodGet, nil, &o, "runs", args[0]); err != nil {
				return err
			}
			return a.printOne(o)
		},
	}
}

func (a *app) runCompare() *cobra.Command {
	var file, job string
	var all bool
	cmd := &cobra.Command{
		Use: "compare RUN RUN…", Short: "Compare the parameters and metrics of runs",
		Long: "--html also plots the metrics and parallel coordinates. All attempts of a job log into one run, which --job names.\n" +
			"If the job's run was deleted, or for jobs of earlier versions, each attempt has a separate run, and --job selects all of them.",
		Example: "  falaj run compare run_01J… run_01K… -p nyc\n  falaj run compare --job job_01J… --html curve.html -p nyc\n  falaj run compare $(falaj run list --experiment delay -o json -p nyc | jq -r '.[].id') --html runs.html -p nyc",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if job != "" {
				attempts, err := a.attemptRuns(cmd, job)
				if err != nil {
					return err
				}
				args = append(attempts, args...)
			} else if len(args) < 2 {
				return usage("name two or more runs, or a job with --job")
			}
			runs := make([]client.Object, len(args))
			for i, id := range args {
				if err := a.call(cmd, http.MethodGet, nil, &runs[i], "runs", id); err != nil {
					return err
				}
			}
			if file != "" {
				if err := a.download(cmd, file, url.Values{"run": args}, "runs", "report"); err != nil || file == "-" {
					return err
				}
				a.note("%s", file)
			}
			if a.output != "table" {
				return a.print(runs, nil)
			}
			return a.beside(runs, all)
		},
	}
	cmd.Flags().StringVar(&file, "html", "", "also write plots to this HTML file; - writes only the plots, to standard output")
	cmd.Flags().BoolVar(&all, "all", false, "include parameters with equal values")
	cmd.Flags().StringVar(&job, "job", "", "compare the run of this job, or the runs of its attempts, in order")
	return cmd
}

// attemptRuns are the runs of a job's attempts, in order; mostly one.
func (a *app) attemptRuns(cmd *cobra.Command, job string) ([]string, error) {
	path, err := a.inProjectPath("runs")
	if err != nil {
		return nil, err
	}
	c, err := a.connect()
	if err != nil {
		return nil, err
	}
	query := url.Values{"page_size": {"1000"}, "filter": {"tags.`falaj.job` = '" + strings.ReplaceAll(job, "'", "''") + "'"}}
	var page struct {
		Items []client.Object `json:"items"`
	}
	if err := c.Do(cmd.Context(), http.MethodGet, path+"?"+query.Encode(), nil, &page); err != nil {
		return nil, err
	}
	var ids []string
	for _, o := range slices.Backward(page.Items) { // the newest is the first of a list
		ids = append(ids, o.Text("id"))
	}
	if len(ids) == 0 {
		return nil, fault.New(fault.NotFound, "no run of job %s is there", job).WithHint("Use the job's ID, such as job_01J…: see falaj get jobs.")
	}
	return ids, nil
}

// beside prints runs as columns.
func (a *app) beside(runs []client.Object, all bool) error {
	w := tabwriter.NewWriter(a.Stdout, 0, 4, 2, ' ', 0)
	row := func(name string, of func(client.Object) string) {
		fmt.Fprint(w, plain(name))
		for _, r := range runs {
			fmt.Fprint(w, "\t", plain(first(of(r), "-")))
		}
		fmt.Fprintln(w)
	}
	row("RUN", func(r client.Object) string { return r.Text("name") })
	row("ID", func(r client.Object) string { return r.Text("id") })
	row("STATUS", func(r client.Object) string { return r.Text("status") })
	row("STARTED", func(r client.Object) string { return cell(r, "started_at") })
	for _, kind := range []string{"params", "metrics"} {
		names := map[string]map[string]bool{}
		of := func(r client.Object, name string) string {
			m, _ := r[kind].(map[string]any)
			if v, ok := m[name]; ok {
				return fmt.Sprint(v)
			}
			return ""
		}
		for _, r := range runs {
			m, _ := r[kind].(map[string]any)
			for name := range m {
				names[name] = map[string]bool{}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			for _, r := range runs {
				names[name][of(r, name)] = true
			}
			if kind == "metrics" || all || len(names[name]) > 1 {
				row(kind+"."+name, func(r client.Object) string { return of(r, name) })
			}
		}
	}
	return w.Flush()
}

// download writes a page that the server draws to a file, or to standard output for -.
func (a *app) download(cmd *cobra.Command, file string, query url.Values, parts ...string) error {
	path, err := a.inProjectPath(parts...)
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	resp, err := c.Send(cmd.Context(), http.MethodGet, path, nil, nil)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	page, err := io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
	if err != nil {
		return err
	}
	if len(page) > maxPage {
		return fault.New(fault.TooLarge, "the page has more than %d bytes", maxPage)
	}
	if file == "-" {
		_, err := a.raw().Write(page)
		return err
	}
	return os.WriteFile(file, page, 0o600)
}

func (a *app) runPrune() *cobra.Command {
	var older string
	var dry bool
	cmd := &cobra.Command{
		Use: "prune", Short: "Permanently remove deleted runs, logged models and experiments, with their artifacts", Args: cobra.NoArgs,
		Long: "Runs and experiments deleted by MLflow clients can be restored, and a deleted experiment keeps its name, until they\n" +
			"are pruned with everything they logged. Registered model versions have their own files and are kept. An interrupted\n" +
			"prune can be run again. Requires the role admin in the project.",
		Example: "  falaj run prune --dry-run -p nyc\n  falaj run prune --older 168h -p nyc",
		RunE: func(cmd *cobra.Command, _ []string) error {
			type pruned struct {
				Experiments  int   `json:"experiments"`
				Runs         int   `json:"runs"`
				LoggedModels int   `json:"logged_models"`
				Files        int   `json:"files"`
				Bytes        int64 `json:"bytes"`
				Kept         int   `json:"kept"`
				More         bool  `json:"more"`
			}
			prune := func(dry bool) (out pruned, err error) {
				err = a.call(cmd, http.MethodPost, map[string]any{"older": older, "dry": dry}, &out, "runs", "prune")
				return out, err
			}
			all, err := prune(true)
			if err != nil {
				return err
			}
			what := "would be removed"
			if !dry {
				what = "removed"
				bars := a.bars()
				var sum pruned
				for more := true; more && err == nil; {
					var some pruned
					some, err = prune(false)
					sum = pruned{sum.Experiments + some.Experiments, sum.Runs + some.Runs, sum.LoggedModels + some.LoggedModels, sum.Files + some.Files, sum.Bytes + some.Bytes, some.Kept, some.More}
					more = some.More
					bars.show("runs and logged models", int64(sum.Runs+sum.LoggedModels), int64(all.Runs+all.LoggedModels))
				}
				bars.end()
				all = sum
			}
			if a.output != "table" {
				return errors.Join(err, a.printOne(all))
			}
			a.say("%s: %d experiments, %d runs, %d logged models, %d files of %d bytes", what, all.Experiments, all.Runs, all.LoggedModels, all.Files, all.Bytes)
			if all.Kept > 0 {
				a.note("%d were kept, because their labels do not permit you to remove them", all.Kept)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&older, "older", "720h", "only objects deleted at least this long ago; 0s selects all")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only print what would be removed")
	return cmd
}
