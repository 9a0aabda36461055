package cli

import (
	"encoding/json"
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
	Policy    string
	Compare   string
	Nodes     int
	GPUs      int
	Interval  time.Duration
	Seed      uint64
	Rigid     float64
	Load      float64
	HTML      string
}

func (a *app) simulate() *cobra.Command {
	var args SimulateArgs
	cmd := &cobra.Command{
		Use: "simulate", Short: "Play workloads of training jobs on a cluster under a scheduling policy, in virtual time", Args: cobra.NoArgs,
		Long: "No server is needed. A workload is a CSV file of jobs (name, time, application, num_replicas, batch_size); the\n" +
			"profiles are a folder for each application with what was measured of it. A policy knows only what a scheduler\n" +
			"can see. Policies: fifo, tiresias (two queues by attained service), goodput (learns how jobs scale, and resizes\n" +
			"them). The same seed gives the same figures. Job completion times (JCT) are in seconds.",
		Example: "  falaj simulate --workload jobs.csv --profiles traces --policy goodput\n" +
			"  falaj simulate --workload a.csv --workload b.csv --profiles traces --policy goodput --compare tiresias -o json\n" +
			"  falaj simulate --workload jobs.csv --profiles traces --nodes 8 --rigid 0.5 --load 1.5 --html out.html",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(args.Workloads) == 0 {
				return usage("which workload? Give --workload")
			}
			if args.Profiles == "" {
				return usage("which profiles? Give --profiles")
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
	f.StringVar(&args.Policy, "policy", "goodput", "fifo, tiresias or goodput")
	f.StringVar(&args.Compare, "compare", "", "also run this policy, and give ratios with 95 % confidence intervals")
	f.IntVar(&args.Nodes, "nodes", 16, "nodes of the cluster")
	f.IntVar(&args.GPUs, "gpus-per-node", 4, "GPUs of each node")
	f.DurationVar(&args.Interval, "interval", time.Minute, "time from plan to plan")
	f.Uint64Var(&args.Seed, "seed", 1, "seed of all draws")
	f.Float64Var(&args.Rigid, "rigid", 0, "share of the jobs that keep the replicas and batch that their user asks for")
	f.Float64Var(&args.Load, "load", 1, "submit the jobs so many times as fast")
	f.StringVar(&args.HTML, "html", "", "write utilisation, queue and placements as a page that needs nothing else")
	_ = cmd.RegisterFlagCompletionFunc("policy", cobra.FixedCompletions([]string{"fifo", "tiresias", "goodput"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// simulated shows a summary to people.
func (a *app) simulated(result []byte) error {
	var s struct {
		Policy    string          `json:"policy"`
		Workloads []client.Object `json:"workloads"`
		Pooled    client.Object   `json:"pooled"`
		Compared  *struct {
			Policy   string `json:"policy"`
			Avg      ratio  `json:"avg_jct_ratio"`
			P99      ratio  `json:"p99_jct_ratio"`
			Makespan ratio  `json:"makespan_ratio"`
		} `json:"compared"`
	}
	if err := json.Unmarshal(result, &s); err != nil {
		return err
	}
	rows := s.Workloads
	if len(rows) > 1 {
		rows = append(rows, s.Pooled)
	}
	for _, r := range rows { // whole seconds and hours, one digit of a millisecond
		for _, key := range []string{"avg_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s", "gpu_hours"} {
			r[key] = digits(r[key], 0)
		}
		for _, key := range []string{"plan_ms_p50", "plan_ms_p99"} {
			r[key] = digits(r[key], 1)
		}
	}
	if err := a.print(rows, []column{
		{"WORKLOAD", "name"},
		{"JOBS", "jobs"},
		{"AVG JCT", "avg_jct_s"},
		{"P50", "p50_jct_s"},
		{"P99", "p99_jct_s"},
		{"MAKESPAN", "makespan_s"},
		{"GPU-HOURS", "gpu_hours"},
		{"RESTARTS", "restarts"},
		{"PLAN MS", "plan_ms_p50"},
		{"P99 MS", "plan_ms_p99"},
	}); err != nil {
		return err
	}
	if c := s.Compared; c != nil {
		a.say("\n%s has %s of %s's average JCT, %s of its p99 and %s of its makespan.", s.Policy, c.Avg, c.Policy, c.P99, c.Makespan)
	}
	return nil
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
