package cli

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

// optimized is what a job measured, as the server says it.
type optimized struct {
	Metric     string  `json:"metric"`
	Labelled   bool    `json:"labelled"`
	Rows       int     `json:"rows"`
	Threads    int     `json:"threads"`
	MaxLoss    float64 `json:"max_loss"`
	Chosen     string  `json:"chosen"`
	Reason     string  `json:"reason"`
	Of         string  `json:"of"`
	Made       string  `json:"made"`
	State      string  `json:"state"`
	Candidates []struct {
		Name      string   `json:"name"`
		Reason    string   `json:"reason"`
		Bytes     int64    `json:"bytes"`
		Value     *float64 `json:"value"`
		Loss      *float64 `json:"loss"`
		LossError *float64 `json:"loss_error"`
		Measured  []struct {
			Batch    int     `json:"batch"`
			P50      float64 `json:"p50_ms"`
			P99      float64 `json:"p99_ms"`
			RowsPerS float64 `json:"rows_per_s"`
			Speedup  float64 `json:"speedup"`
		} `json:"measured"`
	} `json:"candidates"`
}

func (a *app) modelOptimize() *cobra.Command {
	body := map[string]any{}
	var data, label, metric, choose, environment string
	var maxLoss, speedup float64
	var try, columns, shapes, pools []string
	var batches []int
	var threads, rows, rounds int
	var dryRun, detach bool
	cmd := &cobra.Command{
		Use:   "optimize NAME@VERSION",
		Short: "Optimise a model: create faster variants, measure them and register the best",
		Long: "A job creates variants of the ONNX model: fused operators, 8-bit weights (int8-dynamic; int8-static and\n" +
			"int8-static-all with calibration), 16-bit weights (fp16), pruned hidden units, a distilled student model. It\n" +
			"measures each variant alternately with the original and evaluates it on dataset rows used neither for\n" +
			"calibration nor for distillation. The fastest variant that loses at most --max-loss becomes a new version with\n" +
			"its lineage. Without --label, predictions are compared with those of the original model. The exit code is 1 if\n" +
			"every faster variant loses more, and 0 without a new version if no variant is faster.",
		Example: "  falaj model optimize delay@3 --data flights --label late --max-loss 0.01 -p nyc\n" +
			"  falaj model optimize delay@champion --data flights --label late --columns minute_of_day,weekday,distance --try int8-dynamic,pruned -p nyc\n" +
			"  falaj model optimize digits@1 --data images --shape image=1,28,28 --dry-run -o json -p vision",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at := strings.LastIndexByte(args[0], '@')
			if at < 1 || at == len(args[0])-1 {
				return usage("%q names no version: write %s@3 or %s@champion", args[0], strings.Trim(args[0], "@"), strings.Trim(args[0], "@"))
			}
			for name, v := range map[string]any{
				"data": data, "label": label, "metric": metric, "choose": choose, "environment": environment, "max_loss": maxLoss, "min_speedup": speedup,
				"try": try, "pools": pools, "batches": batches, "threads": threads, "rows": rows, "rounds": rounds, "dry_run": dryRun,
			} {
				if flag := strings.NewReplacer("_", "-", "environment", "env", "batches", "batch", "pools", "pool").Replace(name); cmd.Flags().Changed(flag) {
					body[name] = v
				}
			}
			of, err := named(columns)
			if err != nil {
				return err
			}
			if len(of) > 0 {
				body["columns"] = of
			}
			each, err := sizes(shapes)
			if err != nil {
				return err
			}
			if len(each) > 0 {
				body["shapes"] = each
			}
			body["max_loss"] = maxLoss
			var job client.Object
			if err := a.call(cmd, http.MethodPost, body, &job, "models", args[0][:at], "versions", args[0][at+1:], "optimize"); err != nil {
				return err
			}
			if detach {
				return a.sayOr(job, "%s", job.Text("id"))
			}
			a.note("job %s", job.Text("id"))
			return a.optimized(cmd, job.Text("id"))
		},
	}
	f := cmd.Flags()
	f.StringVar(&data, "data", "", "dataset for evaluation, calibration and distillation, with or without @version")
	f.StringVar(&label, "label", "", "label column; without it, the predictions of the original model are the reference")
	f.StringVar(&metric, "metric", "", "accuracy, auc, rmse, agreement or r2 (default chosen by the outputs)")
	f.Float64Var(&maxLoss, "max-loss", 0.01, "maximum loss of the metric, absolute; for rmse, the maximum relative increase")
	f.Float64Var(&speedup, "min-speedup", 1.05, "minimum speed-up factor of a registered variant")
	f.StringSliceVar(&try, "try", nil, "candidates, such as fused,int8-dynamic,pruned (default all)")
	f.StringVar(&choose, "choose", "", "candidate to register if its loss is within --max-loss (default the fastest)")
	f.BoolVar(&dryRun, "dry-run", false, "measure only, and register nothing")
	f.StringArrayVar(&columns, "columns", nil, "columns of an input in the order of the model: a,b,c or INPUT=a,b,c")
	f.StringArrayVar(&shapes, "shape", nil, "shape of one row of an input: INPUT=3,224,224")
	f.IntVar(&threads, "threads", 1, "threads per inference run, as in the deployment")
	f.IntSliceVar(&batches, "batch", []int{1, 32}, "batch sizes to measure; the first selects the fastest variant")
	f.IntVar(&rows, "rows", 4096, "sample size, in rows")
	f.IntVar(&rounds, "rounds", 10, "number of measurement rounds")
	f.StringVar(&environment, "env", "optimize", "environment of the job; optimize is created if missing")
	f.StringSliceVar(&pools, "pool", nil, "pools the job may run in (default all eligible)")
	f.BoolVar(&detach, "detach", false, "print the job and return without waiting")
	_ = cmd.MarkFlagRequired("data")
	return cmd
}

// named reads a,b,c or NAME=a,b,c, each once.
func named(flags []string) (map[string][]string, error) {
	out := map[string][]string{}
	for _, f := range flags {
		name, list, ok := strings.Cut(f, "=")
		if !ok {
			name, list = "", f
		}
		if _, twice := out[name]; twice || list == "" {
			return nil, usage("%q is empty or duplicate", f)
		}
		out[name] = strings.Split(list, ",")
	}
	return out, nil
}

// sizes reads NAME=3,224,224, each once.
func sizes(flags []string) (map[string][]int, error) {
	shapes, err := named(flags)
	if err != nil {
		return nil, err
	}
	out := map[string][]int{}
	for input, shape := range shapes {
		for _, d := range shape {
			n, err := strconv.Atoi(d)
			if err != nil || input == "" {
				return nil, usage("--shape %s=%s is not a shape such as image=3,224,224", input, strings.Join(shape, ","))
			}
			out[input] = append(out[input], n)
		}
	}
	return out, nil
}

// optimized waits for the job and shows what it measured.
func (a *app) optimized(cmd *cobra.Command, job string) error {
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
	ended := fault.New(fault.Internal, "%s %s: %s", job, o.Text("state"), o.Text("reason")).WithHint("See `falaj job logs %s`.", job)
	var raw client.Object
	if err := a.await(cmd.Context(), c, path+"/optimization", &raw); err != nil {
		if o.Text("state") != "succeeded" {
			return ended
		}
		return err
	}
	if a.output != "table" {
		err = a.printOne(raw)
	} else {
		var r optimized
		if err = a.await(cmd.Context(), c, path+"/optimization", &r); err == nil {
			err = a.showOptimized(r)
		}
	}
	if o.Text("state") == "failed" && raw.Text("reason") != "" {
		ended = fault.New(fault.Internal, "no version is created: %s", raw.Text("reason"))
	}
	if err == nil && o.Text("state") != "succeeded" {
		return ended
	}
	return err
}

var step = regexp.MustCompile(`^\[(\d{1,3})/(\d{1,3})\] (.*)`)

// steps draws a bar of lines such as "[3/10] fp16".
func (a *app) steps() (w io.Writer, done func()) {
	r, w2 := io.Pipe()
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		p := mpb.New(mpb.WithOutput(a.screen), mpb.WithWidth(40))
		what := "waiting"
		bar := p.AddBar(100, mpb.PrependDecorators(decor.Any(func(decor.Statistics) string { return fmt.Sprintf("%-18.18s", what) })),
			mpb.AppendDecorators(decor.CountersNoUnit("%d/%d")))
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			if m := step.FindStringSubmatch(lines.Text()); m != nil {
				at, _ := strconv.ParseInt(m[1], 10, 64)
				of, _ := strconv.ParseInt(m[2], 10, 64)
				what = wholeCell(client.Object{"x": m[3]}, "x")
				bar.SetTotal(of, false)
				bar.SetCurrent(at - 1)
			}
		}
		_, _ = io.Copy(io.Discard, r)
		bar.Abort(true)
		p.Wait()
	}()
	return w2, func() {
		_ = w2.Close()
		<-finished
	}
}

// showOptimized writes the table, the plot and what became of it.
func (a *app) showOptimized(r optimized) error {
	number := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return strconv.FormatFloat(*v, 'f', 4, 64)
	}
	var table []client.Object
	var left []string
	for _, c := range r.Candidates {
		if len(c.Measured) == 0 {
			left = append(left, c.Name+": "+c.Reason)
			continue
		}
		loss := number(c.Loss)
		if c.LossError != nil {
			loss += " ±" + number(c.LossError)
		}
		for i, m := range c.Measured {
			o := client.Object{
				"batch": strconv.Itoa(m.Batch), "p50": fmt.Sprintf("%.3f", m.P50), "p99": fmt.Sprintf("%.3f", m.P99),
				"rows": fmt.Sprintf("%.0f", m.RowsPerS), "speedup": fmt.Sprintf("%.2f", m.Speedup),
			}
			if i == 0 {
				o["name"], o["kib"], o["value"], o["loss"] = c.Name, fmt.Sprintf("%.0f", float64(c.Bytes)/1024), number(c.Value), loss
			}
			table = append(table, o)
		}
	}
	err := a.printTable(table, []column{
		{"CANDIDATE", "name"}, {"KIB", "kib"}, {strings.ToUpper(r.Metric), "value"}, {"LOSS", "loss"}, {"BATCH", "batch"}, {"P50 MS", "p50"}, {"P99 MS", "p99"}, {"ROWS/S", "rows"}, {"TIMES", "speedup"},
	}, func(o client.Object, path string) string { return o.Text(path) })
	if err != nil {
		return err
	}
	for _, l := range left {
		a.say("%s", wholeCell(client.Object{"x": l}, "x"))
	}
	a.say("\n%s", a.scatter(r))
	against := "right answers"
	if !r.Labelled {
		against = "the model's own outputs"
	}
	a.say("by %s of %d rows, %d threads", against, r.Rows, r.Threads)
	a.say("%s", wholeCell(client.Object{"x": r.Reason}, "x"))
	if r.Made != "" {
		a.say("registered %s", r.Made)
	}
	return nil
}

// The plot's room, in characters.
const scatterW, scatterH = 60, 12

// scatter draws the metric over the latency of the first batch: each candidate is a
// letter.
func (a *app) scatter(r optimized) string {
	type point struct {
		name string
		x, y float64
	}
	var points []point
	for _, c := range r.Candidates {
		if c.Value != nil && len(c.Measured) > 0 && c.Measured[0].P50 > 0 {
			points = append(points, point{c.Name, math.Log(c.Measured[0].P50), *c.Value})
		}
	}
	if len(points) == 0 {
		return ""
	}
	span := func(of func(point) float64) (low, size float64) {
		low, high := of(points[0]), of(points[0])
		for _, p := range points {
			low, high = min(low, of(p)), max(high, of(p))
		}
		return low, max(high-low, 1e-12)
	}
	x0, dx := span(func(p point) float64 { return p.x })
	y0, dy := span(func(p point) float64 { return p.y })
	grid := make([][]byte, scatterH)
	for i := range grid {
		grid[i] = slices.Repeat([]byte{' '}, scatterW)
	}
	var legend []string
	for i, p := range points {
		mark := byte('a' + i%26)
		x, y := int(math.Round((p.x-x0)/dx*(scatterW-1))), int(math.Round((p.y-y0)/dy*(scatterH-1)))
		if cell := &grid[scatterH-1-y][x]; *cell == ' ' {
			*cell = mark
		} else {
			*cell = '*' // several
		}
		legend = append(legend, string(mark)+" "+p.name)
	}
	var out strings.Builder
	for i, row := range grid {
		side := ""
		switch i {
		case 0:
			side = strconv.FormatFloat(y0+dy, 'g', 4, 64)
		case scatterH - 1:
			side = strconv.FormatFloat(y0, 'g', 4, 64)
		}
		fmt.Fprintf(&out, "%9s |%s\n", side, strings.TrimRight(string(row), " "))
	}
	fmt.Fprintf(&out, "%9s +%s\n", r.Metric, strings.Repeat("-", scatterW))
	low, high := fmt.Sprintf("%.3f ms", math.Exp(x0)), fmt.Sprintf("%.3f ms", math.Exp(x0+dx))
	fmt.Fprintf(&out, "%11s%s%*s\n%11s%s", "", low, scatterW-len(low), high, "", strings.Join(legend, ", "))
	return out.String()
}
