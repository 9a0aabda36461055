package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/cli/suite"
	"github.com/falaj-ml/falaj/internal/fault"
)

// inProjectPath is the path of a collection in the chosen project.
func (a *app) inProjectPath(parts ...string) (string, error) {
	p, err := a.inProject()
	path := []string{"/api/v1/projects", url.PathEscape(p)}
	for _, part := range parts {
		path = append(path, url.PathEscape(part))
	}
	return strings.Join(path, "/"), err
}

// call connects and does one request in the project.
func (a *app) call(cmd *cobra.Command, method string, body, out any, parts ...string) error {
	path, err := a.inProjectPath(parts...)
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	return c.Do(cmd.Context(), method, path, body, out)
}

var versionColumns = []column{
	{"DATASET", "name"}, {"VERSION", "version"}, {"STATE", "state"}, {"ROWS", "rows"}, {"DIGEST", "digest"}, {"RESIDENCY", "residency"}, {"CREATED", "created_at"},
}

func (a *app) dataset() *cobra.Command {
	cmd := &cobra.Command{Use: "dataset", Aliases: []string{"datasets"}, Short: "Import, inspect and query datasets"}
	cmd.AddCommand(a.datasetImport(), a.datasetDerive(), a.datasetSuite(), a.datasetQuery(), a.datasetVersions(), a.datasetPreview(), a.datasetProfile(), a.datasetQuarantine(), a.datasetLineage(), a.datasetDescendants(), a.datasetRelabel(),
		a.datasetIngest(), a.datasetSources(), a.datasetIngestions(), a.datasetCancel(),
		a.datasetDecide("approve", "Approve another person's request to widen residency or lower the classification"),
		a.datasetDecide("reject", "Reject a widening request, or withdraw your own"))
	return cmd
}

func (a *app) datasetImport() *cobra.Command {
	var change bool
	cmd := &cobra.Command{
		Use:   "import NAME FILE",
		Short: "Import a CSV, JSON, Parquet or Avro file as a new immutable version",
		Long: "Reads CSV, JSON lines and JSON arrays, each also as .gz or .zst, and Parquet and Avro. The server validates the version against\n" +
			"the dataset's schema and expectations. A version that fails validation is stored as rejected and cannot be used for\n" +
			"training; the exit code is 1. A file that lacks a column of the newest accepted version, or has it with another type,\n" +
			"is refused, unless the type is declared in spec.columns or --allow-schema-change is set.",
		Example: "  falaj dataset import weather weather.csv --project nyc",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			project, err := a.inProject()
			if err != nil {
				return err
			}
			f, err := os.Open(args[1])
			if err != nil {
				return usage("%v", err)
			}
			defer f.Close()
			info, err := f.Stat()
			if err != nil {
				return err
			}
			if !info.Mode().IsRegular() {
				return usage("%s is not a file", args[1])
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			var options []client.ImportOption
			if change {
				options = append(options, client.AllowSchemaChange)
			}
			body, done := a.progress(args[0], info.Size(), f)
			v, err := c.Import(cmd.Context(), project, args[0], filepath.Base(args[1]), body, options...)
			done()
			if err != nil {
				return err
			}
			if err := a.print([]client.Object{v}, versionColumns); err != nil {
				return err
			}
			if v.Text("unchanged") == "true" {
				a.note("unchanged: %s@%s exists%s", args[0], v.Text("version"), standing(v))
			}
			if n := v.Text("quarantined"); n != "" {
				a.note("%s rows in quarantine: falaj dataset quarantine %s@%s", n, args[0], v.Text("version"))
			}
			a.noteReturned(v, args[0]+"@"+v.Text("version"))
			if v.Text("state") == "rejected" {
				return fault.New(fault.Internal, "%s@%s is rejected: %s", args[0], v.Text("version"), whyRejected(v)).
					WithHint("Mend the file or the expectations and import again; see `falaj describe dataset %s`.", args[0])
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&change, "allow-schema-change", false, "accept a file that lacks columns of the newest accepted version, or has them with other types")
	return cmd
}

// noteReturned says that persons who were erased have rows in a version.
func (a *app) noteReturned(v client.Object, ref string) {
	all, _ := v["returned"].([]any)
	for _, one := range all {
		m, _ := one.(map[string]any)
		r := client.Object(m)
		first, _, _ := strings.Cut(r.Text("erasures"), ",")
		a.note("%s contains rows of previously erased persons of entity %s: %s. `falaj erase show %s` shows the request; `falaj erase %s KEY` erases them again",
			ref, r.Text("entity"), r.Text("persons"), first, r.Text("entity"))
	}
}

func (a *app) datasetDerive() *cobra.Command {
	return &cobra.Command{
		Use:   "derive NAME",
		Short: "Create a version by running the dataset's transformation",
		Long: "Runs the SQL of spec.transform over the latest versions of its tables: synchronously in DuckDB, or, with\n" +
			"engine: spark, in a job whose ID is printed.",
		Example: "  falaj dataset derive daily -p nyc",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var o client.Object
			if err := a.call(cmd, http.MethodPost, map[string]any{}, &o, "datasets", args[0], "derive"); err != nil {
				return err
			}
			if job := o.Text("job"); job != "" {
				return a.sayOr(o, "%s makes the version. Wait with `falaj job wait %s`", job, job)
			}
			made, _ := o["version"].(map[string]any)
			v := client.Object(made)
			if err := a.print([]client.Object{v}, versionColumns); err != nil {
				return err
			}
			if v.Text("unchanged") == "true" {
				a.note("unchanged: %s@%s exists%s", args[0], v.Text("version"), standing(v))
			}
			if v.Text("state") == "rejected" {
				return fault.New(fault.Internal, "%s@%s is rejected: %s", args[0], v.Text("version"), whyRejected(v)).
					WithHint("Mend the SQL or the expectations and derive again; see `falaj describe dataset %s`.", args[0])
			}
			return nil
		},
	}
}

func (a *app) datasetSuite() *cobra.Command {
	var skip bool
	cmd := &cobra.Command{
		Use:   "suite FILE",
		Short: "Convert a Great Expectations suite into expectations of a Dataset manifest",
		Long: "Reads the JSON of a suite (releases 0.x and 1.x) and prints the equivalent expectations, for spec of a Dataset\n" +
			"manifest. Unsupported expectations are listed with the reason, and nothing is printed (exit code 1).",
		Example: "  falaj dataset suite gx/expectations/orders.json\n  falaj dataset suite orders.json --skip-unsupported",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return usage("%v", err)
			}
			defer f.Close()
			data, err := io.ReadAll(io.LimitReader(f, suite.MaxBytes+1))
			if err != nil {
				return err
			}
			taken, left, err := suite.Decode(data)
			if err != nil {
				return fault.Wrap(err, "%s", args[0])
			}
			for _, l := range left {
				a.note("not taken: %q", l.String())
			}
			if len(left) > 0 && !skip {
				return fault.New(fault.Unsupported, "%d of %d expectations cannot be taken", len(left), len(left)+len(taken)).
					WithHint("Change them in the suite, or skip them with --skip-unsupported.")
			}
			return a.printOne(map[string]any{"expectations": append([]suite.Expectation{}, taken...)})
		},
	}
	cmd.Flags().BoolVar(&skip, "skip-unsupported", false, "print the supported expectations, and exit with code 0")
	return cmd
}

// whyRejected is the reason with the first value that failed each expectation, which the
// reason of sealed data leaves out.
func whyRejected(v client.Object) string {
	reason := v.Text("reason")
	var values, placed []string
	failed := 0
	for _, verdict := range objectsAt(v, "expectations") {
		if verdict.Text("passed") == "true" {
			continue
		}
		failed++
		examples := objectsAt(verdict, "examples")
		if len(examples) == 0 || examples[0]["value"] == nil {
			continue
		}
		if value := strconv.Quote(examples[0].Text("value")); !strings.Contains(reason, ": "+value) {
			values, placed = append(values, value), append(placed, "row "+examples[0].Text("row")+": "+value)
		}
	}
	switch {
	case len(values) == 0:
		return reason
	case failed == 1:
		return reason + ": " + values[0]
	}
	return reason + " (" + strings.Join(placed, ", ") + ")"
}

// note is for people, beside the answer: it goes to stderr.
func (a *app) note(format string, args ...any) { fmt.Fprintf(a.Stderr, format+"\n", args...) }

// standing says what a dataset's name means, where that is not the version.
func standing(v client.Object) string {
	name, current := v.Text("name"), v.Text("current")
	if own := name + "@" + v.Text("version"); current != "" && current != own {
		return fmt.Sprintf("; %s still means %s, write %s to use this one", name, current, own)
	}
	return ""
}

func (a *app) datasetQuery() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "query SQL",
		Short: "Query datasets with SQL",
		Long: "Runs DuckDB SQL in a sandbox. A table is a dataset's latest accepted version, or \"name@3\". The table output\n" +
			"shows the first 100 rows. -o csv, -o json and -o yaml print all rows up to 10000 and fail if there are more, unless\n" +
			"--limit truncates the result. Truncation is reported on standard error.",
		Example: "  falaj dataset query 'SELECT origin, count(*) FROM flights GROUP BY 1' --project nyc\n" +
			"  falaj dataset query 'SELECT * FROM \"flights@2\" LIMIT 500' -o csv > flights.csv",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cut := a.output == "table" || cmd.Flags().Changed("limit")
			if !cut {
				limit = maxQueryRows
			}
			var out rows
			if err := a.call(cmd, http.MethodPost, map[string]any{"sql": args[0], "limit": limit}, &out, "query"); err != nil {
				return err
			}
			if out.Truncated && !cut {
				return fault.New(fault.TooLarge, "the query returns more than %d rows", maxQueryRows).
					WithHint("Restrict the SQL, limit the rows with --limit, or write all rows to a dataset with a transformation.")
			}
			if out.Truncated {
				a.note("showing the first %d rows; use --limit for more, at most %d", len(out.Rows), maxQueryRows)
			}
			return a.printRows(out)
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "maximum number of rows, up to 10000; without it -o csv, -o json and -o yaml print all rows")
	return cmd
}

func (a *app) datasetVersions() *cobra.Command {
	return &cobra.Command{
		Use: "versions NAME", Short: "List a dataset's versions", Example: "  falaj dataset versions weather -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.list(cmd, versionColumns, "datasets", args[0], "versions")
		},
	}
}

// list prints a collection of the project.
func (a *app) list(cmd *cobra.Command, columns []column, parts ...string) error {
	return a.listOf(cmd, nil, columns, parts...)
}

// listOf prints those of a collection that the query asks for.
func (a *app) listOf(cmd *cobra.Command, query url.Values, columns []column, parts ...string) error {
	path, err := a.inProjectPath(parts...)
	if err != nil {
		return err
	}
	return a.printAll(cmd, path, query, columns)
}

// printAll prints the objects at a path, of all pages.
func (a *app) printAll(cmd *cobra.Command, path string, query url.Values, columns []column) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	objects := []client.Object{}
	if err := c.List(cmd.Context(), path, query, func(o client.Object) error {
		objects = append(objects, o)
		return nil
	}); err != nil {
		return err
	}
	return a.print(objects, columns)
}

func (a *app) datasetPreview() *cobra.Command {
	return &cobra.Command{
		Use: "preview NAME[@VERSION]", Short: "Show the first rows of a version", Example: "  falaj dataset preview weather@1 -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var out rows
			if err := a.call(cmd, http.MethodGet, nil, &out, "datasets", args[0], "preview"); err != nil {
				return err
			}
			return a.printRows(out)
		},
	}
}

func (a *app) datasetLineage() *cobra.Command {
	return &cobra.Command{
		Use: "lineage NAME[@VERSION]", Short: "Show the upstream lineage of a version", Example: "  falaj dataset lineage delays@1 -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var node map[string]any
			if err := a.call(cmd, http.MethodGet, nil, &node, "datasets", args[0], "lineage"); err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(node)
			}
			a.tree(node, "", "")
			return nil
		},
	}
}

func (a *app) datasetDescendants() *cobra.Command {
	return &cobra.Command{
		Use: "descendants NAME[@VERSION]", Short: "List the downstream versions of a version", Example: "  falaj dataset descendants weather@1 -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.list(cmd, versionColumns, "datasets", args[0], "descendants")
		},
	}
}

func (a *app) feature() *cobra.Command {
	cmd := &cobra.Command{Use: "feature", Aliases: []string{"features"}, Short: "Materialise, push, read and verify features; create training sets"}
	cmd.AddCommand(a.featureMaterialise(), a.featureRuns(), a.featureCancel(), a.featureFreshness(), a.featureClear(), a.featureOnline(),
		a.featureTrainingSet(), a.featureVerify(), a.featureVersions(), a.featureDiff(), a.featurePromote(), a.featurePush(), a.featureStream(), a.featureDeadLetters(), a.featureDead())
	return cmd
}

func (a *app) featureRuns() *cobra.Command {
	columns := []column{
		{"RUN", "id"}, {"VIEW", "view"}, {"VERSION", "version"}, {"STATE", "state"}, {"UNTIL", "until"}, {"ROWS", "rows"}, {"CREATED", "created_at"}, {"ERROR", "error"},
	}
	return &cobra.Command{
		Use: "runs VIEW", Short: "List a view's materialisations", Example: "  falaj feature runs weather -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.list(cmd, columns, "feature-views", args[0], "runs")
		},
	}
}

func (a *app) featureCancel() *cobra.Command {
	return &cobra.Command{
		Use: "cancel RUN", Short: "Cancel a materialisation", Example: "  falaj feature cancel fmr_01J… -p nyc", Args: cobra.ExactArgs(1),
		Long: "Rows already added to the online store stay; rows of an unfinished replacement are removed.",
		RunE: func(cmd *cobra.Command, args []string) error {
			var o client.Object
			if err := a.call(cmd, http.MethodPost, map[string]any{}, &o, "feature-runs", args[0], "cancel"); err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(o)
			}
			a.say("%s: %s", args[0], o.Text("state"))
			return nil
		},
	}
}

func (a *app) featureFreshness() *cobra.Command {
	columns := []column{{"VIEW", "view"}, {"VERSION", "version"}, {"UP TO", "watermark"}, {"NEWEST EVENT", "newest_event"}, {"RESIDENCY", "residency"}}
	return &cobra.Command{
		Use: "freshness [VIEW]", Short: "Show the freshness of views in the online store and the source of their rows",
		Example: "  falaj feature freshness -p nyc\n  falaj feature freshness weather -p nyc", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.list(cmd, columns, "features", "freshness")
			}
			var o client.Object
			if err := a.call(cmd, http.MethodGet, nil, &o, "feature-views", args[0], "freshness"); err != nil {
				return err
			}
			return a.printOne(o)
		},
	}
}

func (a *app) featureClear() *cobra.Command {
	return &cobra.Command{
		Use: "clear VIEW", Short: "Remove a view's rows from the online store", Example: "  falaj feature clear weather@1 -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.call(cmd, http.MethodDelete, nil, nil, "feature-views", args[0], "online"); err != nil {
				return err
			}
			a.say("%s is no longer online", args[0])
			return nil
		},
	}
}

// featureKind is the collection of a view, or of a service.
func featureKind(service bool) string {
	if service {
		return "feature-services"
	}
	return "feature-views"
}

func (a *app) featureVersions() *cobra.Command {
	var service bool
	cmd := &cobra.Command{
		Use: "versions NAME", Short: "List the versions of a view or a feature service", Example: "  falaj feature versions weather -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.list(cmd, []column{{"NAME", "name"}, {"VERSION", "version"}, {"CREATED", "created_at"}, {"BY", "created_by"}}, featureKind(service), args[0], "versions")
		},
	}
	cmd.Flags().BoolVar(&service, "service", false, "NAME is a feature service")
	return cmd
}

func (a *app) featurePromote() *cobra.Command {
	var service bool
	cmd := &cobra.Command{
		Use: "promote NAME@VERSION ALIAS", Short: "Set an alias, such as prod, to a version",
		Long:    "NAME@ALIAS then refers to this version wherever a view or a feature service is named.",
		Example: "  falaj feature promote weather@2 prod -p nyc", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var o client.Object
			if err := a.call(cmd, http.MethodPost, map[string]any{"alias": args[1]}, &o, featureKind(service), args[0], "promote"); err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(o)
			}
			a.say("%s@%s is %s@%s", o.Text("name"), args[1], o.Text("name"), o.Text("version"))
			return nil
		},
	}
	cmd.Flags().BoolVar(&service, "service", false, "NAME is a feature service")
	return cmd
}

func (a *app) featureMaterialise() *cobra.Command {
	var until string
	cmd := &cobra.Command{
		Use: "materialise VIEW", Aliases: []string{"materialize"}, Short: "Materialise a view into the online store",
		Example: "  falaj feature materialise weather --until 2013-05-01T00:00:00Z -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if until == "" {
				until = time.Now().UTC().Format(time.RFC3339)
			}
			for {
				// The same request again is about the same run: this waits for it.
				var o client.Object
				if err := a.call(cmd, http.MethodPost, map[string]any{"until": until, "wait": "30s"}, &o, "feature-views", args[0], "materialise"); err != nil {
					return err
				}
				switch o.Text("state") {
				case "succeeded":
					if a.output != "table" {
						return a.printOne(o)
					}
					a.say("%s@%s is online up to %s: %s rows", o.Text("view"), o.Text("version"), o.Text("until"), o.Text("rows"))
					return nil
				case "failed", "cancelled":
					return fault.New(fault.Internal, "%s: materialisation %s: %s", args[0], o.Text("state"), o.Text("error"))
				}
				if a.terminal() {
					fmt.Fprintf(a.screen, "\r%s: %s rows", plain(args[0]), plain(o.Text("rows")))
				}
			}
		},
	}
	cmd.Flags().StringVar(&until, "until", "", "event time up to which values are materialised (RFC 3339; default now)")
	return cmd
}

func (a *app) featureOnline() *cobra.Command {
	var entities, features []string
	var service, asOf, purpose string
	cmd := &cobra.Command{
		Use: "online", Short: "Read the current features of entities from the online store",
		Example: "  falaj feature online --entity origin=JFK --feature weather:temp -p nyc", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			row := map[string]any{}
			for _, e := range entities {
				k, v, ok := strings.Cut(e, "=")
				if !ok {
					return usage("--entity %s: write key=value", e)
				}
				row[k] = v
			}
			body := map[string]any{"entities": []any{row}}
			if service != "" {
				body["service"] = service
			}
			if len(features) > 0 {
				body["features"] = features
			}
			if asOf != "" {
				body["as_of"] = asOf
			}
			if purpose != "" {
				body["purpose"] = purpose
			}
			var o client.Object
			if err := a.call(cmd, http.MethodPost, body, &o, "features", "online"); err != nil {
				return err
			}
			return a.printOne(o)
		},
	}
	cmd.Flags().StringArrayVar(&entities, "entity", nil, "join key or request value, as key=value; repeatable")
	cmd.Flags().StringArrayVar(&features, "feature", nil, "view:feature; repeatable")
	cmd.Flags().StringVar(&service, "service", "", "feature service")
	cmd.Flags().StringVar(&asOf, "as-of", "", "read features as of this time, from history (RFC 3339; requires the permission feature.history)")
	cmd.Flags().StringVar(&purpose, "purpose", "", purposeUsage)
	return cmd
}

const purposeUsage = "purpose of the read; required if the views declare purposes"

func (a *app) featureTrainingSet() *cobra.Command {
	var spine, timeZone, timestamp, service, purpose string
	var features []string
	labels := []string{}
	var fullNames bool
	cmd := &cobra.Command{
		Use: "training-set NAME", Short: "Create a training set by a point-in-time join",
		Long: "Creates a dataset version from a spine (SQL that returns the entity keys, the event timestamp and the label\n" +
			"columns) and features, using only values known at each row's timestamp.",
		Example: "  falaj feature training-set delays --spine 'SELECT …' --timestamp departs --service delay_features -p nyc",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.HasPrefix(spine, "@") {
				b, err := a.read(spine[1:])
				if err != nil {
					return err
				}
				spine = string(b)
			}
			body := map[string]any{"name": args[0], "spine": spine, "timestamp": timestamp, "full_feature_names": fullNames, "labels": labels}
			if service != "" {
				body["service"] = service
			}
			if len(features) > 0 {
				body["features"] = features
			}
			if purpose != "" {
				body["purpose"] = purpose
			}
			if timeZone != "" {
				body["time_zone"] = timeZone
			}
			var v client.Object
			if err := a.call(cmd, http.MethodPost, body, &v, "training-sets"); err != nil {
				return err
			}
			if err := a.print([]client.Object{v}, versionColumns); err != nil {
				return err
			}
			if s := standing(v); s != "" {
				a.note("%s@%s exists%s", args[0], v.Text("version"), s)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&spine, "spine", "", "SQL of the spine, or @FILE")
	cmd.Flags().StringVar(&timestamp, "timestamp", "", "event timestamp column of the spine")
	cmd.Flags().StringVar(&timeZone, "time-zone", "", "time zone of spine timestamps without one, such as America/New_York")
	cmd.Flags().StringArrayVar(&labels, "label", labels, "label column of the spine; repeatable")
	cmd.Flags().BoolVar(&fullNames, "full-names", false, "name feature columns view__feature")
	cmd.Flags().StringVar(&service, "service", "", "feature service")
	cmd.Flags().StringArrayVar(&features, "feature", nil, "view:feature; repeatable")
	cmd.Flags().StringVar(&purpose, "purpose", "", purposeUsage)
	return cmd
}

func (a *app) featureVerify() *cobra.Command {
	var deployment string
	var sample int
	var seed uint64
	cmd := &cobra.Command{
		Use: "verify [TRAINING_SET]", Short: "Verify that training and serving used the same feature values",
		Long: "With a training set, compares its rows with the online store's values as of their timestamps. With\n" +
			"--deployment, recomputes the features of a sample of predictions and reports the cause of each difference.\n" +
			"Exit code 1 when values differ.",
		Example: "  falaj feature verify delays@1 -p nyc\n  falaj feature verify --deployment delay --sample 5000 -p nyc", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (deployment == "") == (len(args) == 0) {
				return usage("name a training set, or a deployment with --deployment")
			}
			if deployment != "" {
				return a.verifyAnswers(cmd, deployment, sample, seed)
			}
			var o client.Object
			if err := a.call(cmd, http.MethodPost, map[string]any{}, &o, "training-sets", args[0], "verify"); err != nil {
				return err
			}
			if err := a.printOne(o); err != nil {
				return err
			}
			if m := o.Text("mismatches"); m != "" && m != "0" {
				err := fault.New(fault.Internal, "%s values differ between training and serving", m)
				if inputs, ok := o["different_inputs"].([]any); ok && len(inputs) > 0 {
					err = err.WithHint("Their upstream data differ, see different_inputs: materialise the view again, or create the training set again.")
				}
				return err
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&deployment, "deployment", "", "verify predictions of this deployment")
	cmd.Flags().IntVar(&sample, "sample", 1000, "number of requests to compare, with --deployment")
	cmd.Flags().Uint64Var(&seed, "seed", 0, "seed of the sample; the same seed selects the same requests")
	return cmd
}

func (a *app) datasetRelabel() *cobra.Command {
	var zones []string
	var reason, class string
	cmd := &cobra.Command{
		Use:   "relabel NAME[@VERSION] --zones ZONES --classification CLASS --reason TEXT",
		Short: "Change the residency and classification of a dataset or version",
		Long: "Fewer zones and a stricter classification take effect at once. More zones, or a lower classification,\n" +
			"require approval: the command creates a request, which another admin of the project approves. Without a\n" +
			"version, the classification applies to future versions. Existing derived versions keep their labels.",
		Example: "  falaj dataset relabel weather@1 --zones home,DE --reason \"public data, contract 17\" -p nyc\n  falaj get widenings -p nyc\n  falaj dataset approve wid_01J… -p nyc",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var w client.Object
			body := map[string]any{"kind": "dataset", "name": args[0], "reason": reason}
			if len(zones) > 0 {
				body["label"] = zones
			}
			if class != "" {
				body["classification"] = class
			}
			if err := a.call(cmd, http.MethodPost, body, &w, "widenings"); err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(w)
			}
			if w.Text("state") != "requested" {
				if len(zones) > 0 {
					a.say("%s may be in %s", args[0], strings.Join(zones, ", "))
				}
				if class != "" {
					a.say("%s is %s", args[0], class)
				}
				return nil
			}
			a.say("%s waits for a second person: falaj dataset approve %s", w.Text("id"), w.Text("id"))
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&zones, "zones", nil, "zones in which the data may reside")
	cmd.Flags().StringVar(&class, "classification", "", "public, internal, confidential or restricted")
	cmd.Flags().StringVar(&reason, "reason", "", "reason, recorded in the audit log")
	return cmd
}

func (a *app) datasetDecide(verb, short string) *cobra.Command {
	return &cobra.Command{
		Use: verb + " WIDENING", Short: short, Example: "  falaj dataset " + verb + " wid_01J… -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var w client.Object
			if err := a.call(cmd, http.MethodPost, nil, &w, "widenings", args[0], verb); err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(w)
			}
			a.say("%s is %s", w.Text("name"), w.Text("state"))
			return nil
		},
	}
}
