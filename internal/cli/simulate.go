package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/falaj-ml/falaj/client"
)

// SimulateArgs are the flags of `falaj simulate`.
type SimulateArgs struct {
	Workloads []string
	Profiles  string
	Cluster   string
	Policy    string
	Compare   string
	Nodes     int
	GPUs      int
	Interval  time.Duration
	Seed      uint64
	Rigid     float64
	Load      float64
	Deadline  time.Duration
	HTML      string

	Smallest  bool
	Group     string
	Meet      float64
	MostNodes int
	Every     bool
}

// LiveArgs are those of `falaj simulate --from-live`.
type LiveArgs struct {
	Snapshot  []byte
	Proposals [][]byte
	Add       map[string]int
	Remove    map[string]int
	Policy    string
	Takes     time.Duration
	Over      bool
	Leave     time.Duration
	HTML      string
}

func (a *app) simulate() *cobra.Command {
	var args SimulateArgs
	var live bool
	var submit []string
	var l LiveArgs
	cmd := &cobra.Command{
		Use: "simulate", Short: "Simulate training workloads on a cluster under a scheduling policy, in virtual time", Args: cobra.NoArgs,
		Long: "Without --from-live, no server is needed. A workload is a CSV file of jobs (name, time, application, num_replicas,\n" +
			"batch_size and optionally deadline); the profiles are a directory per application with its measurements. A policy\n" +
			"uses only information available to a scheduler. Policies: fifo, tiresias (two queues by attained service), goodput\n" +
			"(learns how jobs scale on each type of GPU, and resizes them). Results are deterministic for a seed. Job completion\n" +
			"times (JCT) are in seconds.\n" +
			"\n" +
			"--cluster takes a YAML file with several types of GPU, their prices and outages of nodes.\n" +
			"--smallest finds the smallest number of nodes with which enough jobs meet their deadline.\n" +
			"\n" +
			"--from-live loads the running and pending jobs of the server and simulates them in its scheduler: their start and\n" +
			"end times with the current setup, and with more or fewer nodes, another policy (fifo, fair, tiresias or goodput) or\n" +
			"additional jobs. Remaining run times are estimated from the progress of a job, from the last job of the same name,\n" +
			"or from its time-out; the source of each estimate is reported. Names of projects you cannot read are hidden.",
		Example: "  falaj simulate --workload jobs.csv --profiles traces --policy goodput\n" +
			"  falaj simulate --workload a.csv --workload b.csv --profiles traces --policy goodput --compare tiresias -o json\n" +
			"  falaj simulate --workload jobs.csv --profiles traces --nodes 8 --rigid 0.5 --load 1.5 --html out.html\n" +
			"  falaj simulate --workload jobs.csv --cluster cluster.yaml --compare tiresias\n" +
			"  falaj simulate --workload jobs.csv --profiles traces --smallest --deadline 12h --meet 0.95\n" +
			"  falaj simulate --workload jobs.csv --cluster cluster.yaml --smallest --group a100 --deadline 6h\n" +
			"  falaj simulate --from-live\n" +
			"  falaj simulate --from-live --add-nodes gpu-de=4 --remove-nodes old=2 --html what-if.html\n" +
			"  falaj simulate --from-live --submit job.yaml --policy fair --assume 2h",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if live {
				l.Policy, l.HTML = "", args.HTML
				if cmd.Flags().Changed("policy") {
					l.Policy = args.Policy
				}
				l.Over = cmd.Flags().Changed("assume")
				return a.simulateLive(cmd, l, submit)
			}
			if err := args.check(cmd); err != nil {
				return err
			}
			show, done := a.share("simulating")
			result, err := a.Simulate(cmd.Context(), args, show)
			done()
			if err != nil {
				return err
			}
			if a.output == "table" {
				return a.simulated(result)
			}
			return a.printOne(json.RawMessage(result))
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&args.Workloads, "workload", nil, "CSV file of jobs; repeatable")
	f.StringVar(&args.Profiles, "profiles", "", "directory with one subdirectory of measurements per application")
	f.StringVar(&args.Cluster, "cluster", "", "YAML file of a cluster with several types of GPU")
	f.StringVar(&args.Policy, "policy", "goodput", "fifo, tiresias or goodput; with --from-live also fair")
	f.StringVar(&args.Compare, "compare", "", "also run this policy, and report ratios with 95 % confidence intervals")
	f.IntVar(&args.Nodes, "nodes", 16, "number of nodes")
	f.IntVar(&args.GPUs, "gpus-per-node", 4, "GPUs per node")
	f.DurationVar(&args.Interval, "interval", time.Minute, "scheduling interval")
	f.Uint64Var(&args.Seed, "seed", 1, "random seed")
	f.Float64Var(&args.Rigid, "rigid", 0, "fraction of the jobs that keep their requested replicas and batch size")
	f.Float64Var(&args.Load, "load", 1, "factor on the submission rate")
	f.DurationVar(&args.Deadline, "deadline", 0, "deadline after submission, for jobs without a deadline in the workload")
	f.StringVar(&args.HTML, "html", "", "write utilisation, queue and placements to this file, as a self-contained HTML page")
	f.BoolVar(&args.Smallest, "smallest", false, "find the smallest number of nodes with which enough jobs meet their deadline")
	f.StringVar(&args.Group, "group", "", "with --smallest and --cluster: node type to minimise")
	f.Float64Var(&args.Meet, "meet", 1, "with --smallest: fraction of the jobs with a deadline that must meet it")
	f.IntVar(&args.MostNodes, "max-nodes", 64, "with --smallest: maximum number of nodes")
	f.BoolVar(&args.Every, "every", false, "with --smallest: try every number of nodes, without assuming that more nodes are better")
	f.BoolVar(&live, "from-live", false, "simulate the running and pending jobs of the server")
	f.StringToIntVar(&l.Add, "add-nodes", nil, "with --from-live: POOL=N adds N nodes like the pool's first; repeatable")
	f.StringToIntVar(&l.Remove, "remove-nodes", nil, "with --from-live: POOL=N removes N nodes; repeatable")
	f.StringArrayVar(&submit, "submit", nil, "with --from-live: manifest of an additional job, which is not submitted; repeatable")
	f.DurationVar(&l.Takes, "assume", time.Hour, "with --from-live: run time of jobs without an estimate; if set, it also replaces time-outs")
	f.DurationVar(&l.Leave, "leave", 30*time.Second, "with --from-live: time a preempted job takes to save and stop, at most its grace period")
	_ = cmd.RegisterFlagCompletionFunc("policy", cobra.FixedCompletions([]string{"fifo", "tiresias", "goodput", "fair"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// onlyLive are the flags that go with --from-live, notLive those that do not; --policy
// and --html go with both.
var (
	onlyLive = []string{"add-nodes", "remove-nodes", "submit", "assume", "leave"}
	notLive  = []string{
		"workload", "profiles", "cluster", "compare", "nodes", "gpus-per-node", "interval", "seed", "rigid", "load", "deadline",
		"smallest", "group", "meet", "max-nodes", "every",
	}
)

// simulateLive asks the server for its world, and plays it.
func (a *app) simulateLive(cmd *cobra.Command, l LiveArgs, submit []string) error {
	if i := slices.IndexFunc(notLive, cmd.Flags().Changed); i >= 0 {
		return usage("--%s does not go with --from-live", notLive[i])
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	var world json.RawMessage
	if err := c.Do(cmd.Context(), http.MethodGet, "/api/v1/scheduler", nil, &world); err != nil {
		return err
	}
	l.Snapshot = world
	for _, file := range submit {
		jobs, err := a.jobManifests(cmd, file)
		if err != nil {
			return err
		}
		named := a.project
		for _, j := range jobs {
			a.project = first(named, j.Project)
			if err := a.packSource(cmd, file, j, true); err != nil {
				return err
			}
			var proposal json.RawMessage
			if err := a.call(cmd, http.MethodPost, map[string]any{"name": j.Name, "spec": j.Spec}, &proposal, "jobs", "simulate"); err != nil {
				return err
			}
			l.Proposals = append(l.Proposals, proposal)
		}
		a.project = named
	}
	result, err := a.SimulateLive(cmd.Context(), l)
	if err != nil {
		return err
	}
	if a.output != "table" {
		return a.printOne(json.RawMessage(result))
	}
	return a.lived(result)
}

// shownForecast and the like are what simulate --from-live shows to people;
// everything is in -o json.
type shownForecast struct {
	Pool  string    `json:"pool"`
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
	Never []string  `json:"never"`
}

type shownSums struct {
	MeanWait float64   `json:"mean_wait_s"`
	LastEnd  time.Time `json:"last_end"`
	Ended    int       `json:"ended"`
	Never    int       `json:"never"`
	Preempts int       `json:"preemptions"`
	Pools    []struct {
		Pool        string  `json:"pool"`
		Nodes       int     `json:"nodes"`
		Utilisation float64 `json:"utilisation"`
	} `json:"pools"`
}

// lived shows an answer to people.
func (a *app) lived(result []byte) error {
	var r struct {
		At      time.Time `json:"at"`
		Assumed []string  `json:"assumed"`
		Changes []string  `json:"changes"`
		Jobs    []struct {
			Label   string         `json:"label"`
			Project string         `json:"project"`
			State   string         `json:"state"`
			Basis   string         `json:"basis"`
			Left    float64        `json:"left_s"`
			Now     *shownForecast `json:"now"`
			WhatIf  *shownForecast `json:"what_if"`
			Later   *float64       `json:"later_s"`
		} `json:"jobs"`
		Now    shownSums  `json:"now"`
		WhatIf *shownSums `json:"what_if"`
	}
	if err := json.Unmarshal(result, &r); err != nil {
		return err
	}
	in := func(t time.Time) string {
		if t.IsZero() {
			return "never"
		}
		return span(t.Sub(r.At).Seconds())
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 8, 2, ' ', 0)
	head := "WORK\tPROJECT\tSTATE\tRUNS\tBY\tPOOL\tSTARTS\tENDS"
	if r.WhatIf != nil {
		head += "\tWHAT-IF POOL\tSTARTS\tENDS\tLATER"
	}
	fmt.Fprintln(w, head)
	cells := func(f *shownForecast) string {
		if f == nil {
			return "\t-\t-\t-"
		}
		return fmt.Sprintf("\t%s\t%s\t%s", first(f.Pool, "-"), in(f.Start), in(f.End))
	}
	for _, j := range r.Jobs {
		line := fmt.Sprintf("%s\t%s\t%s\t%s\t%s", j.Label, j.Project, j.State, span(j.Left), j.Basis) + cells(j.Now)
		if r.WhatIf != nil {
			line += cells(j.WhatIf)
			if line += "\t-"; j.Later != nil {
				line = strings.TrimSuffix(line, "-") + span(*j.Later)
			}
		}
		fmt.Fprintln(w, line)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, j := range r.Jobs {
		for _, f := range []*shownForecast{j.Now, j.WhatIf} {
			if f != nil && len(f.Never) > 0 {
				a.say("%s never runs: %s", j.Label, strings.Join(f.Never, "; "))
				break
			}
		}
	}
	a.say("")
	fmt.Fprintln(w, "\tMEAN WAIT\tLAST END\tENDED\tNEVER\tPREEMPTED")
	sums := func(name string, s shownSums) {
		last := "-"
		if s.Ended > 0 {
			last = in(s.LastEnd)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\n", name, span(s.MeanWait), last, s.Ended, s.Never, s.Preempts)
	}
	sums("as it is", r.Now)
	if r.WhatIf != nil {
		sums("what if", *r.WhatIf)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	a.say("")
	fmt.Fprintln(w, "POOL\tNODES\tUSED %\tWHAT-IF NODES\tUSED %")
	for i, p := range r.Now.Pools {
		line := fmt.Sprintf("%s\t%d\t%.1f", p.Pool, p.Nodes, 100*p.Utilisation)
		if r.WhatIf != nil {
			line += fmt.Sprintf("\t%d\t%.1f", r.WhatIf.Pools[i].Nodes, 100*r.WhatIf.Pools[i].Utilisation)
		}
		fmt.Fprintln(w, line)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(r.Changes) > 0 {
		a.say("\nWhat if: %s.", strings.Join(r.Changes, ", "))
	}
	a.say("\nTimes are from %s on. Taken for granted:", r.At.Local().Format(time.DateTime))
	for _, s := range r.Assumed {
		a.say("- %s", s)
	}
	return nil
}

// span is a time in whole seconds, or minutes where it is long.
func span(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second)).Round(time.Second)
	if d.Abs() >= 10*time.Hour {
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return d.String()
}

// check refuses flags that do not go together.
func (args *SimulateArgs) check(cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	if i := slices.IndexFunc(onlyLive, given); i >= 0 {
		return usage("--%s requires --from-live", onlyLive[i])
	}
	switch {
	case len(args.Workloads) == 0:
		return usage("--workload is required")
	case args.Profiles == "" && args.Cluster == "":
		return usage("--profiles is required")
	case args.Cluster != "" && (given("nodes") || given("gpus-per-node")):
		return usage("--nodes and --gpus-per-node cannot be used with --cluster, which defines the nodes")
	case given("deadline") && args.Deadline <= 0:
		return usage("--deadline %s is not more than 0", args.Deadline)
	case !args.Smallest && (given("group") || given("meet") || given("max-nodes") || given("every")):
		return usage("--group, --meet, --max-nodes and --every go with --smallest")
	case args.Smallest && args.Cluster != "" && args.Group == "":
		return usage("--group is required: the type whose nodes are varied")
	case args.Cluster == "" && args.Group != "":
		return usage("--group requires --cluster")
	}
	return nil
}

// summary is what simulate shows to people.
type summary struct {
	Policy    string          `json:"policy"`
	Workloads []client.Object `json:"workloads"`
	Pooled    client.Object   `json:"pooled"`
	Compared  *struct {
		Policy   string `json:"policy"`
		Avg      ratio  `json:"avg_jct_ratio"`
		P99      ratio  `json:"p99_jct_ratio"`
		Makespan ratio  `json:"makespan_ratio"`
	} `json:"compared"`
	Smallest *struct {
		Group     string          `json:"group"`
		Nodes     int             `json:"nodes"`
		Most      int             `json:"most"`
		Meet      float64         `json:"meet"`
		Due       int             `json:"due"`
		Every     bool            `json:"every"`
		Anomalies []int           `json:"anomalies"`
		Tried     []client.Object `json:"tried"`
	} `json:"smallest"`
}

// simulated shows a summary to people.
func (a *app) simulated(result []byte) error {
	var s summary
	if err := json.Unmarshal(result, &s); err != nil {
		return err
	}
	if s.Smallest != nil {
		if err := a.sized(s); err != nil || s.Smallest.Nodes == 0 {
			return err
		}
		a.say("")
	}
	rows := s.Workloads
	if len(rows) > 1 {
		rows = append(rows, s.Pooled)
	}
	columns := []column{
		{"WORKLOAD", "name"},
		{"JOBS", "jobs"},
		{"AVG JCT", "avg_jct_s"},
		{"P50", "p50_jct_s"},
		{"P99", "p99_jct_s"},
		{"MAKESPAN", "makespan_s"},
		{"GPU-HOURS", "gpu_hours"},
		{"USED %", "utilisation"},
		{"RESTARTS", "restarts"},
		{"PLAN MS", "plan_ms_p50"},
		{"P99 MS", "plan_ms_p99"},
	}
	if s.Pooled["due"] != nil {
		columns = append(columns, column{"LATE", "late"})
	}
	if s.Pooled["cost"] != nil {
		columns = append(columns, column{"COST", "cost"})
	}
	uses := s.Pooled["types"]
	for _, r := range rows {
		rounded(r)
		r["late"] = first(text(r["late"]), "0")
	}
	if err := a.print(rows, columns); err != nil {
		return err
	}
	if types, ok := uses.([]any); ok {
		var rows []client.Object
		for _, t := range types {
			if o, ok := t.(map[string]any); ok {
				rows = append(rows, rounded(o))
			}
		}
		a.say("")
		if err := a.print(rows, []column{{"TYPE", "type"}, {"GPUS", "gpus"}, {"GPU-HOURS", "gpu_hours"}, {"USED %", "utilisation"}, {"COST", "cost"}}); err != nil {
			return err
		}
	}
	if hours, ok := s.Pooled["guessed_gpu_hours"].(float64); ok {
		a.say("\n%.2f GPU-hours used unmeasured configurations, with the step time of the nearest measured one.", hours)
	}
	if c := s.Compared; c != nil {
		a.say("\n%s has %s of %s's average JCT, %s of its p99 and %s of its makespan.", s.Policy, c.Avg, c.Policy, c.P99, c.Makespan)
	}
	return nil
}

// sized shows which sizes were tried.
func (a *app) sized(s summary) error {
	z := s.Smallest
	for _, t := range z.Tried {
		if t["gave_up"] == true {
			t["late"] = fmt.Sprintf("%v or more", t["late"])
		}
		rounded(t)
	}
	columns := []column{
		{"NODES", "nodes"},
		{"GPUS", "gpus"},
		{"ENOUGH", "meets"},
		{"LATE", "late"},
		{"AVG JCT", "avg_jct_s"},
		{"P99", "p99_jct_s"},
		{"MAKESPAN", "makespan_s"},
		{"USED %", "utilisation"},
		{"PRICE/H", "price_per_hour"},
	}
	if err := a.print(z.Tried, columns); err != nil {
		return err
	}
	of := ""
	if z.Group != "" {
		of = " of type " + z.Group
	}
	if z.Nodes == 0 {
		a.say("\nWith up to %d nodes%s, fewer than %g %% of the %d jobs with a deadline meet it.", z.Most, of, 100*z.Meet, z.Due)
		return nil
	}
	how := "assuming that more nodes are not worse; use --every to check all sizes"
	if z.Every {
		how = "all sizes were simulated"
	}
	a.say("\nWith %d nodes%s, at least %g %% of the %d jobs with a deadline meet it (%s):", z.Nodes, of, 100*z.Meet, z.Due, how)
	if len(z.Anomalies) > 0 {
		a.say("more nodes are not always better: %v nodes suffice, but a larger number does not.", z.Anomalies)
	}
	return nil
}

// rounded has whole seconds and hours, and one digit of milliseconds and per cent.
func rounded(o client.Object) client.Object {
	for _, key := range []string{"avg_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s", "gpu_hours", "cost"} {
		o[key] = digits(o[key], 0)
	}
	for _, key := range []string{"plan_ms_p50", "plan_ms_p99"} {
		o[key] = digits(o[key], 1)
	}
	if f, ok := o["utilisation"].(float64); ok {
		o["utilisation"] = digits(100*f, 1)
	}
	return o
}

func text(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

type ratio struct {
	Ratio float64 `json:"ratio"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// String is a percentage with its interval; of one number there is none.
func (r ratio) String() string {
	percent := func(v float64) string { return strconv.FormatFloat(100*v, 'f', 1, 64) }
	if r.Low == r.High {
		return percent(r.Ratio) + " %"
	}
	return percent(r.Ratio) + " % (" + percent(r.Low) + " to " + percent(r.High) + ")"
}

func digits(v any, n int) any {
	if f, ok := v.(float64); ok {
		return strconv.FormatFloat(f, 'f', n, 64)
	}
	return v
}

// share draws a bar of how much is done on terminals; done ends it.
func (a *app) share(what string) (show func(share float64), done func()) {
	if !a.terminal() {
		return func(float64) {}, func() {}
	}
	const whole = 1000
	p := mpb.New(mpb.WithOutput(a.screen), mpb.WithWidth(40))
	bar := p.AddBar(whole, mpb.PrependDecorators(decor.Name(plain(what)+" ")), mpb.AppendDecorators(decor.Percentage(), decor.AverageETA(decor.ET_STYLE_GO)))
	return func(share float64) { bar.SetCurrent(int64(share * whole)) }, func() {
		bar.Abort(false)
		p.Wait()
	}
}
