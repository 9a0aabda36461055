package cli

import (
	"encoding/json"
	"fmt"
	"strconv"
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

func (a *app) simulate() *cobra.Command {
	var args SimulateArgs
	cmd := &cobra.Command{
		Use: "simulate", Short: "Play workloads of training jobs on a cluster under a scheduling policy, in virtual time", Args: cobra.NoArgs,
		Long: "No server is needed. A workload is a CSV file of jobs (name, time, application, num_replicas, batch_size, and\n" +
			"perhaps deadline); the profiles are a folder for each application with what was measured of it. A policy knows\n" +
			"only what a scheduler can see. Policies: fifo, tiresias (two queues by attained service), goodput (learns how\n" +
			"jobs scale, and on which type of GPU, and resizes them). The same seed gives the same figures. Job completion\n" +
			"times (JCT) are in seconds.\n\n" +
			"--cluster takes a YAML file with several types of GPU, their prices, and times at which nodes are down.\n" +
			"--smallest looks for the least number of nodes with which enough jobs are done by their deadline.",
		Example: "  falaj simulate --workload jobs.csv --profiles traces --policy goodput\n" +
			"  falaj simulate --workload a.csv --workload b.csv --profiles traces --policy goodput --compare tiresias -o json\n" +
			"  falaj simulate --workload jobs.csv --profiles traces --nodes 8 --rigid 0.5 --load 1.5 --html out.html\n" +
			"  falaj simulate --workload jobs.csv --cluster cluster.yaml --compare tiresias\n" +
			"  falaj simulate --workload jobs.csv --profiles traces --smallest --deadline 12h --meet 0.95\n" +
			"  falaj simulate --workload jobs.csv --cluster cluster.yaml --smallest --group a100 --deadline 6h",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := args.check(cmd); err != nil {
				return err
			}
			if a.output != "table" && a.output != "json" && a.output != "yaml" { // before it takes long
				return usage("--output is %q; it may be table, json or yaml", a.output)
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
	f.StringArrayVar(&args.Workloads, "workload", nil, "CSV file of jobs; may be repeated")
	f.StringVar(&args.Profiles, "profiles", "", "directory with a folder of measurements for each application")
	f.StringVar(&args.Cluster, "cluster", "", "YAML file of a cluster with several types of GPU")
	f.StringVar(&args.Policy, "policy", "goodput", "fifo, tiresias or goodput")
	f.StringVar(&args.Compare, "compare", "", "also run this policy, and give ratios with 95 % confidence intervals")
	f.IntVar(&args.Nodes, "nodes", 16, "nodes of the cluster")
	f.IntVar(&args.GPUs, "gpus-per-node", 4, "GPUs of each node")
	f.DurationVar(&args.Interval, "interval", time.Minute, "time from plan to plan")
	f.Uint64Var(&args.Seed, "seed", 1, "seed of all draws")
	f.Float64Var(&args.Rigid, "rigid", 0, "share of the jobs that keep the replicas and batch that their user asks for")
	f.Float64Var(&args.Load, "load", 1, "submit the jobs so many times as fast")
	f.DurationVar(&args.Deadline, "deadline", 0, "a job is late so long after its submission, unless the workload gives its own deadline")
	f.StringVar(&args.HTML, "html", "", "write utilisation, queue and placements as a page that needs nothing else")
	f.BoolVar(&args.Smallest, "smallest", false, "look for the least number of nodes with which enough jobs are in time")
	f.StringVar(&args.Group, "group", "", "with --smallest and --cluster: the type whose nodes are counted")
	f.Float64Var(&args.Meet, "meet", 1, "with --smallest: share of the jobs with a deadline that may not be late")
	f.IntVar(&args.MostNodes, "max-nodes", 64, "with --smallest: most nodes to try")
	f.BoolVar(&args.Every, "every", false, "with --smallest: try every number of nodes, and do not rely on more being better")
	_ = cmd.RegisterFlagCompletionFunc("policy", cobra.FixedCompletions([]string{"fifo", "tiresias", "goodput"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// check refuses flags that do not go together.
func (args *SimulateArgs) check(cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	switch {
	case len(args.Workloads) == 0:
		return usage("which workload? Give --workload")
	case args.Profiles == "" && args.Cluster == "":
		return usage("which profiles? Give --profiles")
	case args.Cluster != "" && (given("nodes") || given("gpus-per-node")):
		return usage("--cluster says how many nodes there are; --nodes and --gpus-per-node do not go with it")
	case given("deadline") && args.Deadline <= 0:
		return usage("--deadline %s is not more than 0", args.Deadline)
	case !args.Smallest && (given("group") || given("meet") || given("max-nodes") || given("every")):
		return usage("--group, --meet, --max-nodes and --every go with --smallest")
	case args.Smallest && args.Cluster != "" && args.Group == "":
		return usage("the nodes of which type shall be counted? Give --group")
	case args.Cluster == "" && args.Group != "":
		return usage("--group goes with --cluster")
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
		a.say("\nNo size up to %d nodes%s has %g %% of the %d jobs with a deadline in time.", z.Most, of, 100*z.Meet, z.Due)
		return nil
	}
	how := "the search took for granted that more nodes are not worse; --every does not"
	if z.Every {
		how = "all sizes were tried"
	}
	a.say("\n%d nodes%s have %g %% of the %d jobs with a deadline in time (%s):", z.Nodes, of, 100*z.Meet, z.Due, how)
	if len(z.Anomalies) > 0 {
		a.say("more nodes are not always better here: %v are enough, and some larger size is not.", z.Anomalies)
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
	p := mpb.New(mpb.WithOutput(a.Stderr), mpb.WithWidth(40))
	bar := p.AddBar(whole, mpb.PrependDecorators(decor.Name(what+" ")), mpb.AppendDecorators(decor.Percentage(), decor.AverageETA(decor.ET_STYLE_GO)))
	return func(share float64) { bar.SetCurrent(int64(share * whole)) }, func() {
		bar.Abort(false)
		p.Wait()
	}
}
