package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

// maxPage bounds the page of pictures.
const maxPage = 64 << 20

func (a *app) sweep() *cobra.Command {
	cmd := &cobra.Command{
		Use: "sweep", Aliases: []string{"sweeps"}, Short: "Manage hyper-parameter sweeps, and serve as Optuna storage",
		Long: "Create a sweep with a manifest of kind Sweep: falaj apply -f sweep.yaml. Each trial is a job.\n" +
			"Studies that Optuna clients store in Falaj are sweeps, too.",
	}
	cmd.AddCommand(&cobra.Command{
		Use: "list", Short: "List sweeps with their state", Example: "  falaj sweep list -p nyc", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.list(cmd, kinds["sweeps"].columns, "sweeps")
		},
	}, a.sweepShow(), a.sweepTrials(), a.sweepWait(), a.sweepPlot(), a.sweepStop(), a.sweepResume(), a.sweepStorage())
	return cmd
}

func (a *app) sweepShow() *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show the progress and the best trials of a sweep",
		Example: "  falaj sweep show mlp -p nyc\n  falaj sweep show mlp -o json -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var o client.Object
			if err := a.call(cmd, http.MethodGet, nil, &o, "sweeps", args[0]); err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(o)
			}
			return a.sweepSaid(o)
		},
	}
}

// sweepSaid tells people of a sweep.
func (a *app) sweepSaid(o client.Object) error {
	state := o.Text("state")
	if reason := o.Text("reason"); reason != "" {
		state += ": " + plain(reason)
	}
	a.say("sweep %s: %s", cell(o, "name"), state)
	if hint := o.Text("hint"); hint != "" {
		a.say("  %s", plain(hint))
	}
	counts, _ := o["counts"].(map[string]any)
	var said []string
	for _, s := range slices.Sorted(maps.Keys(counts)) {
		said = append(said, fmt.Sprintf("%v %s", counts[s], s))
	}
	if len(said) == 0 {
		a.say("No trial has begun yet.")
		return nil
	}
	a.say("trials: %s", strings.Join(said, ", "))
	for _, f := range objectsAt(o, "failures") {
		a.say("  %s failed, such as trial %s (%s): %s", f.Text("trials"), f.Text("trial"), first(f.Text("job"), "no job"), plain(f.Text("reason")))
	}
	best := objectsAt(o, "best")
	if len(best) == 0 {
		if _, some := counts["complete"]; some {
			a.say("No complete trial is feasible.")
			return nil
		}
		a.say("No trial is complete yet.")
		return nil
	}
	return a.tried(o, best)
}

// tried prints trials with their values and parameters.
func (a *app) tried(sweep client.Object, trials []client.Object) error {
	spec, _ := sweep["spec"].(map[string]any)
	columns := []column{{"TRIAL", "number"}, {"STATE", "state"}}
	for i, objective := range objectsAt(spec, "objectives") {
		head := objective.Text("metric")
		path := "value" + strconv.Itoa(i)
		columns = append(columns, column{strings.ToUpper(plain(head)), path})
		for _, t := range trials {
			if values, _ := t["values"].([]any); i < len(values) {
				t[path] = values[i]
			}
		}
	}
	for i, p := range objectsAt(spec, "parameters") {
		path := "param" + strconv.Itoa(i)
		columns = append(columns, column{plain(p.Text("name")), path})
		for _, t := range trials {
			params, _ := t["params"].(map[string]any)
			if v, ok := params[p.Text("name")]; ok && v != nil {
				t[path] = v
			} else if ok {
				t[path] = "null"
			}
		}
	}
	return a.print(trials, append(columns, column{"JOB", "job"}, column{"REASON", "reason"}))
}

func (a *app) sweepTrials() *cobra.Command {
	return &cobra.Command{
		Use: "trials NAME", Short: "List the trials of a sweep with their parameters and results",
		Example: "  falaj sweep trials mlp -p nyc\n  falaj sweep trials mlp -o json -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var o client.Object
			if err := a.call(cmd, http.MethodGet, nil, &o, "sweeps", args[0]); err != nil {
				return err
			}
			path, err := a.inProjectPath("sweeps", args[0], "trials")
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			trials := []client.Object{}
			err = c.List(cmd.Context(), path, url.Values{"page_size": {"1000"}}, func(t client.Object) error {
				trials = append(trials, t)
				return nil
			})
			if err != nil {
				return err
			}
			if a.output != "table" {
				return a.print(trials, nil)
			}
			return a.tried(o, trials)
		},
	}
}

func (a *app) sweepWait() *cobra.Command {
	return &cobra.Command{
		Use: "wait NAME", Short: "Wait until a sweep has finished; exit code 1 unless it completed",
		Example: "  falaj apply -f sweep.yaml -p nyc && falaj sweep wait mlp -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := a.inProjectPath("sweeps", args[0])
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			var o client.Object
			bars := a.sweepBar(args[0])
			defer bars.close()
			for {
				o = client.Object{}
				if err := a.patiently(cmd.Context(), func(ctx context.Context) error {
					return c.Do(ctx, http.MethodGet, path, nil, &o)
				}); err != nil {
					return err
				}
				bars.show(o)
				if o.Text("state") != "running" {
					break
				}
				select {
				case <-time.After(time.Second):
				case <-cmd.Context().Done():
					return cmd.Context().Err()
				}
			}
			bars.close()
			if o.Text("state") == "client" {
				return fault.New(fault.Conflict, "%s is an Optuna study, which does not end", args[0]).
					WithHint("`falaj sweep show %s` shows its progress; its clients control it.", args[0])
			}
			if a.output != "table" {
				err = a.printOne(o)
			} else {
				err = a.sweepSaid(o)
			}
			if err == nil && o.Text("state") != "complete" {
				return fmt.Errorf("sweep %s is %s", args[0], o.Text("state"))
			}
			return err
		},
	}
}

// sweepBar is a progress bar of trials on a terminal, and elsewhere a line whenever more of
// them have ended.
type sweepBar struct {
	lines *phases
	bars  *mpb.Progress
	bar   *mpb.Bar
	best  string
}

func (a *app) sweepBar(name string) *sweepBar {
	b := &sweepBar{}
	if !a.terminal() {
		b.lines = a.phases()
		return b
	}
	b.bars = mpb.New(mpb.WithOutput(a.screen), mpb.WithWidth(60))
	b.bar = b.bars.AddBar(0, mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(plain(name)), decor.CountersNoUnit(" %d of %d trials ")),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return b.best })))
	return b
}

func (b *sweepBar) show(o client.Object) {
	if b.bar == nil && b.lines == nil {
		return
	}
	counts, _ := o["counts"].(map[string]any)
	ended := int64(0)
	for state, n := range counts {
		if v, err := strconv.ParseInt(fmt.Sprint(n), 10, 64); err == nil && state != "running" && state != "queued" && state != "waiting" {
			ended += v
		}
	}
	if b.lines != nil {
		b.lines.show(fmt.Sprintf("%s: %d of %s trials have ended", o.Text("state"), ended, first(o.Text("spec.budget.trials"), "any number of")))
		return
	}
	total, _ := strconv.ParseInt(o.Text("spec.budget.trials"), 10, 64)
	b.bar.SetTotal(max(total, ended+1), false) // a bar that is full is gone
	b.bar.SetCurrent(ended)
	if best := objectsAt(o, "best"); len(best) > 0 {
		if values, _ := best[0]["values"].([]any); len(values) > 0 {
			b.best = plain(fmt.Sprintf(" best %v", values[0]))
		}
	}
}

func (b *sweepBar) close() {
	if b.bar == nil {
		return
	}
	b.bar.Abort(true)
	b.bars.Wait()
	b.bar = nil
}

// fileNameOf makes a name of somebody else's, such as a study's, a file in the working directory:
// the name of a study may hold a path that leads elsewhere.
func fileNameOf(name string) string {
	name = strings.Map(func(r rune) rune {
		if r == '/' || r == '\\' || r == ':' || unicode.IsControl(r) {
			return '_'
		}
		return r
	}, name)
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "-") {
		name = "_" + name
	}
	return strings.ToValidUTF8(name[:min(len(name), 200)], "") // file systems take 255 bytes
}

func (a *app) sweepPlot() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "plot NAME", Short: "Plot a sweep: history, intermediate values, parallel coordinates, importance, contours",
		Long:    "The plot is one self-contained HTML file without scripts.",
		Example: "  falaj sweep plot mlp --html mlp.html -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				file = fileNameOf(args[0]) + ".html"
			}
			if err := a.download(cmd, file, nil, "sweeps", args[0], "report"); err != nil || file == "-" {
				return err
			}
			a.say("%s", file)
			return nil
		},
	}
	cmd.Flags().StringVar(&file, "html", "", "file to write, or - for standard output (default NAME.html, with _ instead of /)")
	return cmd
}

func (a *app) sweepStop() *cobra.Command {
	return &cobra.Command{
		Use: "stop NAME", Short: "Stop a sweep and its running trials", Example: "  falaj sweep stop mlp -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var o client.Object
			if err := a.call(cmd, http.MethodPost, map[string]any{}, &o, "sweeps", args[0], "stop"); err != nil {
				return err
			}
			return a.sayOr(o, "sweep %s is being stopped", args[0])
		},
	}
}

func (a *app) sweepResume() *cobra.Command {
	var trials int
	cmd := &cobra.Command{
		Use: "resume NAME", Short: "Resume a finished sweep",
		Long:    "The sampler learns from the existing trials. If the budget is used up, extend it with --trials or in the manifest.",
		Example: "  falaj sweep resume mlp --trials 20 -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if trials < 0 {
				return usage("--trials is %d; it must be 0 or more", trials)
			}
			var o client.Object
			if err := a.call(cmd, http.MethodPost, map[string]any{"trials": trials}, &o, "sweeps", args[0], "resume"); err != nil {
				return err
			}
			return a.sayOr(o, "sweep %s: %s", args[0], o.Text("state"))
		},
	}
	cmd.Flags().IntVar(&trials, "trials", 0, "number of additional trials")
	return cmd
}

// sweepStorage forwards Optuna's calls, which have no token, until it is stopped.
func (a *app) sweepStorage() *cobra.Command {
	var listen string
	var patience time.Duration
	cmd := &cobra.Command{
		Use: "storage", Short: "Serve as gRPC storage for Optuna studies on this machine, until stopped",
		Long: "Optuna's GrpcStorageProxy supports a host and a port, but neither tokens nor TLS. This command listens on this\n" +
			"machine only, adds your token, the project and TLS, and retries calls while the server is unavailable. Any local\n" +
			"process that connects reads and writes the project's sweeps with your permissions; other calls are refused.",
		Example: "  falaj sweep storage -p nyc &\n" +
			"  python -c 'import optuna; s = optuna.storages.GrpcStorageProxy(host=\"127.0.0.1\", port=13000); optuna.create_study(storage=s, study_name=\"delay\")'",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if patience < 0 || patience > time.Hour {
				return usage("--patience is %s; it must be 0s to 1h", patience)
			}
			if err := loopback(listen); err != nil {
				return err
			}
			p, err := a.inProject()
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			// Who may not is told here, and not by a study that fails.
			if err := c.Do(cmd.Context(), http.MethodGet, "/api/v1/projects/"+url.PathEscape(p)+"/sweeps?page_size=1", nil, nil); err != nil {
				return err
			}
			return a.forward(cmd.Context(), cmd.OutOrStdout(), listen, c.Storage(p, patience))
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:13000", "local address to listen on; port 0 selects a free port")
	cmd.Flags().DurationVar(&patience, "patience", 5*time.Minute, "how long to retry while the server is unavailable")
	return cmd
}

// loopback refuses addresses that others could reach.
func loopback(listen string) error {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return usage("--listen is %q; write it as 127.0.0.1:13000", listen)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return usage("--listen is %q; its port must be a number", listen)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return usage("--listen is %q, but every client that connects acts on your behalf; use 127.0.0.1, [::1] or localhost", listen)
	}
	return nil
}

// forward serves until ctx ends.
func (a *app) forward(ctx context.Context, out io.Writer, listen string, h http.Handler) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return usage("cannot listen on %s: %w; set another address with --listen", listen, err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 10 * time.Minute, Protocols: new(http.Protocols)}
	server.Protocols.SetUnencryptedHTTP2(true) // and no HTTP/1, which web pages speak
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	_, _ = fmt.Fprintf(out, "Optuna storage is listening on %s\n", l.Addr())
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = server.Shutdown(end)
		return server.Close()
	}
}
