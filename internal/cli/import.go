package cli

import (
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/falaj-ml/falaj/internal/cli/mlflow"
	"github.com/falaj-ml/falaj/internal/fault"
)

func (a *app) importing() *cobra.Command {
	c := &cobra.Command{Use: "import", Short: "Import data from other systems"}
	c.AddCommand(a.importMLflow())
	return c
}

func (a *app) importMLflow() *cobra.Command {
	var (
		opts  mlflow.Options
		with  mlflow.Access
		since string
		skip  bool
	)
	c := &cobra.Command{
		Use:   "mlflow SOURCE",
		Short: "Import experiments, runs, artifacts and registered models from MLflow",
		Long: "SOURCE is the URL of an MLflow server or, much faster, its database: a SQLite file, sqlite:///FILE, or\n" +
			"postgresql://USER@HOST/DATABASE (the password from PGPASSWORD). Runs and logged models keep their\n" +
			"identifiers. The import can be interrupted, resumed and repeated: what changed in the source since the last\n" +
			"import is imported, also removed tags and aliases. What changed in Falaj is kept, and reported where both changed.\n" +
			"\n" +
			"Credentials for a server are read from FALAJ_IMPORT_TOKEN, or from FALAJ_IMPORT_USERNAME and\n" +
			"FALAJ_IMPORT_PASSWORD. With a server, artifacts are downloaded through it; with a database, they are\n" +
			"read from the directories given by --artifacts. The report lists the imported and skipped objects with\n" +
			"reasons; the exit code is 1 if anything was skipped.",
		Example: "  falaj import mlflow http://mlflow.example.org:5000 -p nyc --dry-run\n" +
			"  falaj import mlflow mlflow.db --artifacts ./mlartifacts -p nyc\n" +
			"  PGPASSWORD=… falaj import mlflow postgresql://mlflow@db/mlflow -p nyc --experiment 'delay-*' --since 2026-01-01 -o json",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if opts.Since, err = sinceTime(since, time.Now()); err != nil {
				return err
			}
			project, err := a.inProject()
			if err != nil {
				return err
			}
			to, err := a.connect()
			if err != nil {
				return err
			}
			with.Token, with.User, with.Password = a.env("FALAJ_IMPORT_TOKEN"), a.env("FALAJ_IMPORT_USERNAME"), a.env("FALAJ_IMPORT_PASSWORD")
			source, err := mlflow.Open(cmd.Context(), args[0], with)
			if err != nil {
				return err
			}
			defer source.Close()
			bars := a.bars()
			opts.Progress = bars.show
			report, err := mlflow.Import(cmd.Context(), source, mlflow.Target{Client: to, Project: project}, opts)
			bars.end()
			if err == nil || report.Experiments.All() > 0 {
				if unprinted := a.printReport(report, err); err == nil {
					err = unprinted
				}
			}
			if err == nil && report.SkippedCount > 0 && !skip {
				err = fault.New(fault.Unsupported, "the import is incomplete: the report lists %d skipped objects with reasons", report.SkippedCount).
					WithHint("Where that is right, pass --skip-unsupported: then the exit code is 0.")
			}
			return err
		},
	}
	f := c.Flags()
	f.StringArrayVar(&opts.Experiments, "experiment", nil, "only experiments that match this name, with wildcards * and ?; repeatable")
	f.StringVar(&since, "since", "", "only runs that started or ended since, or still run: a date, a time such as 2026-01-31T08:00:00Z, or an age such as 720h")
	f.BoolVar(&opts.DryRun, "dry-run", false, "report what would be imported without changing anything")
	f.StringArrayVar(&with.Artifacts, "artifacts", nil, "artifact directory, for a database: the --artifacts-destination of the MLflow server, or a directory that contains artifact locations; repeatable")
	f.BoolVar(&opts.NoArtifacts, "no-artifacts", false, "import no artifacts; model versions are imported only if their artifacts already exist here")
	f.BoolVar(&skip, "skip-unsupported", false, "exit with code 0 even if objects were skipped")
	f.StringVar(&with.Workspace, "workspace", "", "MLflow workspace (default the workspace named default)")
	_ = c.MarkFlagDirname("artifacts")
	c.MarkFlagsMutuallyExclusive("artifacts", "no-artifacts")
	for _, flag := range []string{"experiment", "since", "workspace"} {
		_ = c.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions)
	}
	return c
}

// sinceTime reads a time, a date or an age; empty is the zero time.
func sinceTime(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	if age, err := time.ParseDuration(s); err == nil && age >= 0 {
		return now.Add(-age), nil
	}
	return time.Time{}, usage("--since is %q; write a date such as 2026-01-31, a time, or an age such as 720h", s)
}

// printReport prints what an import did, also when it was cut off.
func (a *app) printReport(r mlflow.Report, failed error) error {
	if a.output != "table" {
		return a.printOne(r)
	}
	what := "imported from %s into %s"
	switch {
	case r.DryRun:
		what = "would be imported from %s into %s"
	case failed != nil:
		what = "imported from %s into %s until it failed"
	}
	a.say(what+":", r.Source, r.Project)
	for _, c := range []struct {
		name string
		*mlflow.Count
		more string
	}{
		{"experiments", &r.Experiments, ""},
		{"runs", &r.Runs, fmt.Sprintf(", %d points of metrics", r.Points)},
		{"logged models", &r.LoggedModels, ""},
		{"registered models", &r.Models, ""},
		{"model versions", &r.Versions, ""},
		{"artifacts", &r.Files, fmt.Sprintf(", %d bytes", r.Bytes)},
	} {
		if c.All() > 0 {
			a.say("  %-18s %d new, %d changed, %d unchanged, %d skipped%s", c.name, c.Created, c.Updated, c.Unchanged, c.Skipped, c.more)
		}
	}
	const most = 20
	for _, l := range []struct {
		what  string
		notes []mlflow.Note
		n     int
	}{{"skipped", r.Skipped, r.SkippedCount}, {"not as it was", r.Differences, r.DifferencesCount}} {
		if l.n == 0 {
			continue
		}
		a.say("%s (%d):", l.what, l.n)
		for _, n := range l.notes[:min(len(l.notes), most)] {
			a.say("  %s %s: %s", n.Kind, plain(n.ID), plain(n.What))
		}
		if l.n > most {
			all := "them all"
			if len(l.notes) < l.n {
				all = fmt.Sprintf("the first %d", len(l.notes))
			}
			a.say("  … %d more; -o json has %s", l.n-most, all)
		}
	}
	a.say("%.1f s", r.Seconds)
	if failed != nil {
		a.say("Run the same command again to resume.")
	}
	return nil
}

// bars draws progress on terminals: one bar for each step.
type bars struct {
	mu   sync.Mutex
	p    *mpb.Progress
	bar  *mpb.Bar
	what string
}

func (a *app) bars() *bars {
	if !a.terminal() {
		return &bars{}
	}
	return &bars{p: mpb.New(mpb.WithOutput(a.screen), mpb.WithWidth(40))}
}

func (b *bars) show(what string, done, total int64) {
	if b.p == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if what != b.what {
		if b.bar != nil {
			b.bar.Abort(false)
		}
		b.what = what
		b.bar = b.p.AddBar(total, mpb.PrependDecorators(decor.Name(plain(what)+" "), decor.CountersNoUnit("%d / %d")),
			mpb.AppendDecorators(decor.AverageETA(decor.ET_STYLE_GO)))
	}
	b.bar.SetTotal(max(total, done+1), false)
	b.bar.SetCurrent(done)
}

func (b *bars) end() {
	if b.p == nil {
		return
	}
	if b.bar != nil {
		b.bar.Abort(false)
	}
	b.p.Wait()
}
