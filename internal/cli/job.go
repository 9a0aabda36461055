package cli

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

func (a *app) job() *cobra.Command {
	cmd := &cobra.Command{Use: "job", Aliases: []string{"jobs"}, Short: "Submit, inspect, resize, move and cancel jobs"}
	why := &cobra.Command{
		Use: "why JOB", Short: "Explain a job's state: wait reasons or placement", Example: "  falaj job why job_01J… -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var o client.Object
			if err := a.call(cmd, http.MethodGet, nil, &o, "jobs", args[0], "why"); err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(o)
			}
			if o["possible"] == false {
				a.say("cannot run as things are:")
			}
			reasons, _ := o["reasons"].([]any)
			for _, r := range reasons {
				a.say("%v", r)
			}
			return nil
		},
	}
	cancel := &cobra.Command{
		Use: "cancel JOB", Short: "Cancel a job: SIGTERM, a grace period, SIGKILL", Example: "  falaj job cancel job_01J… -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var o client.Object
			if err := a.call(cmd, http.MethodPost, map[string]any{}, &o, "jobs", args[0], "cancel"); err != nil {
				return err
			}
			if state := o.Text("state"); state == "running" || state == "queued" { // until its program has saved and left
				return a.sayOr(o, "job %s is being stopped; `falaj job wait %s` returns when it has ended", args[0], args[0])
			}
			return a.sayOr(o, "job %s: %s", args[0], o.Text("state"))
		},
	}
	wait := &cobra.Command{
		Use: "wait JOB", Short: "Wait until a job has finished; exit code 1 unless it succeeded", Example: "  falaj job wait job_01J… -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := a.inProjectPath("jobs", args[0])
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			o, err := a.ended(cmd, c, path)
			if err != nil {
				return err
			}
			state := o.Text("state")
			if state == "succeeded" {
				return a.sayOr(o, "%s succeeded", args[0])
			}
			if a.output != "table" {
				if err := a.printOne(o); err != nil {
					return err
				}
			}
			return fault.New(fault.Internal, "%s %s: %s", args[0], state, o.Text("reason")).
				WithHint("See `falaj job describe %s`.", args[0])
		},
	}
	cmd.AddCommand(a.jobSubmit(), a.jobRun(), a.jobDescribe(), a.jobTop(), a.jobAdvise(), a.jobProfile(), a.jobResize(), a.jobMove(), a.jobLogs(), a.jobFiles(), a.jobDownload(), a.redact(), why, cancel, wait)
	cmd.AddCommand(a.checkpoints()...)
	return cmd
}

func (a *app) jobLogs() *cobra.Command {
	var follow bool
	var worker, attempt int
	cmd := &cobra.Command{
		Use: "logs JOB", Short: "Print a job's output", Args: cobra.ExactArgs(1),
		Long: "Lines of multiple workers are interleaved in the order written, each prefixed by its worker: [1] step 3 ….\n" +
			"On a terminal, control characters are shown as escapes such as \\x1b; a pipe or a file receives every byte.",
		Example: "  falaj job logs job_01J… --follow -p nyc\n  falaj job logs job_01J… --worker 1 --attempt 2 -p nyc",
		RunE: func(cmd *cobra.Command, args []string) error {
			of, err := a.collection("jobs", false)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("worker") && worker < 0 {
				return usage("--worker %d: workers count from 0", worker)
			}
			if !follow && worker < 0 {
				return a.stream(cmd, a.raw(), fmt.Sprintf("?attempt=%d", attempt), "jobs", args[0], "logs")
			}
			var j shownJob
			if err := a.await(cmd.Context(), of.client, of.full(args[0]), &j); err != nil {
				return err
			}
			// What broke off goes on in the same attempt, whatever came after it.
			if attempt == 0 && len(j.Tries) > 0 {
				attempt = j.Tries[len(j.Tries)-1].Number
			}
			workers := 0 // not known before there is an attempt
			for _, t := range j.Tries {
				if t.Number == attempt {
					workers = t.Workers
				}
			}
			if workers > 0 && worker >= workers {
				return fault.New(fault.NotFound, "attempt %d of %s has no worker %d: it has %d, counted from 0", attempt, args[0], worker, workers)
			}
			copied := func(w io.Writer) error {
				if !follow {
					return a.stream(cmd, w, fmt.Sprintf("?attempt=%d", attempt), "jobs", args[0], "logs")
				}
				return a.follow(cmd, of.client, w, func(offset int64) string {
					n := attempt
					if n == 0 && offset > 0 {
						n = 1 // it waited for the first
					}
					return of.path + "/" + url.PathEscape(args[0]) + fmt.Sprintf("/logs?follow=true&attempt=%d&offset=%d", n, offset)
				})
			}
			if worker < 0 || workers == 1 { // the lines of one alone have no mark
				return copied(a.raw())
			}
			r, w := io.Pipe()
			done := make(chan error, 1)
			go func() { done <- onlyWorker(a.raw(), r, worker) }()
			return errors.Join(copied(w), w.Close(), <-done)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "stream new lines until the job finishes")
	cmd.Flags().IntVar(&worker, "worker", -1, "only lines of this worker, counted from 0")
	cmd.Flags().IntVar(&attempt, "attempt", 0, "number of the attempt (default the newest)")
	return cmd
}

// onlyWorker copies the lines of one worker, without its mark.
func onlyWorker(w io.Writer, r io.Reader, worker int) error {
	mark := []byte("[" + strconv.Itoa(worker) + "] ")
	lines := bufio.NewReaderSize(r, 64<<10)
	begins, mine := true, false
	for {
		part, err := lines.ReadSlice('\n')
		if begins && len(part) > 0 {
			if part, mine = bytes.CutPrefix(part, mark); !mine {
				part = nil
			}
		}
		if mine {
			if _, werr := w.Write(part); werr != nil {
				_, _ = io.Copy(io.Discard, lines) // the stream shall end by itself
				return werr
			}
		}
		switch {
		case err == nil:
			begins = true
		case errors.Is(err, bufio.ErrBufferFull):
			begins = false
		case errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
	}
}

func (a *app) jobResize() *cobra.Command {
	return &cobra.Command{
		Use: "resize JOB WORKERS", Short: "Change the number of workers of a job", Args: cobra.ExactArgs(2),
		Long: "The running attempt is asked to save a checkpoint (SIGTERM and the job's grace period). The next attempt resumes\n" +
			"from it with the new number of workers or, for a range such as 2-4, with as many as fit.",
		Example: "  falaj job resize job_01J… 4 -p nyc\n  falaj job resize job_01J… 2-4 -p nyc",
		RunE: func(cmd *cobra.Command, args []string) error {
			least, most, isRange := strings.Cut(args[1], "-")
			low, err := strconv.Atoi(least)
			if err != nil {
				return usage("%q is not a number of workers, such as 4 or 2-4", args[1])
			}
			var workers any = low
			if isRange {
				high, err := strconv.Atoi(most)
				if err != nil {
					return usage("%q is not a number of workers, such as 4 or 2-4", args[1])
				}
				workers = map[string]int{"min": low, "max": high}
			}
			var o client.Object
			if err := a.call(cmd, http.MethodPost, map[string]any{"workers": workers}, &o, "jobs", args[0], "resize"); err != nil {
				return err
			}
			return a.sayOr(o, "job %s: %s workers from its next attempt on", args[0], args[1])
		},
	}
}

func (a *app) jobMove() *cobra.Command {
	return &cobra.Command{
		Use: "move JOB POOL…", Short: "Move a job to another pool, on any engine", Args: cobra.MinimumNArgs(2),
		Long: "The running attempt is asked to save a checkpoint (SIGTERM and the job's grace period). The next attempt resumes\n" +
			"from it in one of the named pools. The job's requirements (isolation, environment, residency) still apply.",
		Example: "  falaj job move job_01J… hpc -p nyc\n  falaj job move job_01J… hpc cluster -p nyc",
		RunE: func(cmd *cobra.Command, args []string) error {
			var o client.Object
			if err := a.call(cmd, http.MethodPost, map[string]any{"pools": args[1:]}, &o, "jobs", args[0], "move"); err != nil {
				return err
			}
			return a.sayOr(o, "job %s: in %s from its next attempt on", args[0], strings.Join(args[1:], " or "))
		},
	}
}

// shownJob is what describe says of a job; everything is in -o json.
type shownJob struct {
	ID, Name, State, Pool, Reason, Hint, Class, From string
	Spec                                             struct {
		Framework string
		Workers   json.RawMessage
		Disk      map[string]any
		Roles     []struct {
			Name, Until string
			Workers     int
			Resources   shownAmount
			Command     []string
		}
	}
	Submitted time.Time `json:"submitted_at"`
	Ended     time.Time `json:"ended_at"`
	Tries     []struct {
		Number, Workers                       int
		State, Class, Reason, Hint, Pool, Run string
		Machine, Zone                         string
		Nodes, Notes, Evidence                []string
		Lines                                 []struct {
			Worker, Number int
			Text           string
		}
		Made    time.Time `json:"made_at"`
		Started time.Time `json:"started_at"`
		Ended   time.Time `json:"ended_at"`
	}
	Profiles []shownProfile
	Why      []string
}

func (a *app) jobDescribe() *cobra.Command {
	return &cobra.Command{
		Use: "describe JOB", Short: "Show a job's history and diagnosis: evidence, decisive log lines, remedies", Args: cobra.ExactArgs(1),
		Example: "  falaj job describe job_01J… -p nyc",
		RunE: func(cmd *cobra.Command, args []string) error {
			of, err := a.collection("jobs", false)
			if err != nil {
				return err
			}
			if a.output != "table" {
				var o client.Object
				if err := of.client.Do(cmd.Context(), http.MethodGet, of.full(args[0]), nil, &o); err != nil {
					return err
				}
				return a.printOne(o)
			}
			var j shownJob
			if err := of.client.Do(cmd.Context(), http.MethodGet, of.full(args[0]), nil, &j); err != nil {
				return err
			}
			a.sayJob(j)
			if !j.Ended.IsZero() {
				a.sayAdvice(cmd, args[0])
			}
			return nil
		},
	}
}

// noFailure are the ends of an attempt that are as they should be.
var noFailure = []string{"succeeded", "saved", "resized", "moved", "preempted", "cancelled"}

func (a *app) sayJob(j shownJob) {
	state := j.State
	if j.Class != "" && j.Class != "succeeded" {
		state += " (" + j.Class + ")"
	}
	a.say("%s  %s  %s", j.ID, plain(j.Name), state)
	if j.From != "" {
		a.say("repeats %s", j.From)
	}
	if len(j.Spec.Roles) > 0 {
		a.say("\nRoles")
		w := tabwriter.NewWriter(a.Stdout, 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "  ROLE\tWORKERS\tEACH HAS\tUNTIL\tCOMMAND")
		for _, r := range j.Spec.Roles {
			fmt.Fprintf(w, "  %s\t%d\t%s\t%s\t%s\n", r.Name, r.Workers, plain(r.Resources.short()), first(r.Until, "it ends"), fault.Clip(first(plain(strings.Join(r.Command, " ")), "the job's"), 60))
		}
		_ = w.Flush()
	}
	if len(j.Spec.Disk) > 0 {
		var limits []string
		for _, kind := range slices.Sorted(maps.Keys(j.Spec.Disk)) {
			limits = append(limits, plain(fmt.Sprintf("%s %v", kind, j.Spec.Disk[kind])))
		}
		a.say("\nDisk\n  %s", strings.Join(limits, ", "))
	}
	ended := j.State == "failed" || j.State == "succeeded" || j.State == "cancelled"
	if ended && j.Reason != "" {
		a.say("\nDiagnosis\n  %s", plain(j.Reason))
	}
	if !ended {
		a.say("\nWhere it is")
		for _, w := range j.Why {
			a.say("  %s", plain(w))
		}
	}
	for _, t := range slices.Backward(j.Tries) { // of the last attempt that failed
		if t.Class == "" || slices.Contains(noFailure, t.Class) {
			continue
		}
		if !ended || j.State == "succeeded" {
			a.say("\nThe last failure, attempt %d (%s)\n  %s", t.Number, t.Class, plain(t.Reason))
		}
		if len(t.Evidence) > 0 {
			a.say("\nEvidence")
			for _, e := range t.Evidence {
				a.say("  %s", plain(e))
			}
		}
		if len(t.Lines) > 0 {
			a.say("\nThe lines that decide")
			for _, l := range t.Lines { // a line may be as long as the whole log
				who := ""
				if t.Workers > 1 {
					who = fmt.Sprintf("[%d] ", l.Worker)
				}
				a.say("  %6d  %s%s", l.Number, who, fault.Clip(plain(l.Text), 300))
			}
		}
		if hint := first(j.Hint, t.Hint); hint != "" {
			a.say("\nWhat to do\n  %s", plain(hint))
		}
		break
	}
	a.say("\nAttempts")
	w := tabwriter.NewWriter(a.Stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "  #\tWORKERS\tPOOL\tZONE\tMACHINE\tWAITED\tRAN\tEND\tREASON")
	for _, t := range j.Tries {
		waited, ran := "-", "-"
		if !t.Started.IsZero() {
			since := t.Made
			if t.Number == 1 { // the wait for its environment is before there is an attempt
				since = j.Submitted
			}
			waited = t.Started.Sub(since).Round(time.Millisecond).String()
			if !t.Ended.IsZero() {
				ran = t.Ended.Sub(t.Started).Round(time.Millisecond).String()
			}
		}
		machine := first(t.Machine, strings.Join(t.Nodes, ", "), "-")
		workers := "-" // not placed yet
		if t.Workers > 0 {
			workers = strconv.Itoa(t.Workers)
		}
		fmt.Fprintf(w, "  %d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", t.Number, workers, first(t.Pool, "-"), first(t.Zone, "-"), fault.Clip(plain(machine), 60), waited, ran, first(t.Class, t.State), fault.Clip(plain(t.Reason), 60))
		for _, n := range t.Notes {
			fmt.Fprintf(w, "  \t\t\t\t\t\t\t\t%s\n", plain(n))
		}
	}
	_ = w.Flush()
	a.sayProfiles(j.Profiles)
}

// shownTop is the answer of top.
type shownTop struct {
	ID       string `json:"job"`
	Name     string
	State    string
	Number   int
	Pool     string
	Started  time.Time `json:"started_at"`
	Step     int64
	Steps    int64
	PerStep  float64 `json:"steps_per_second"`
	Left     int64   `json:"left_ns"`
	Workers  []shownWorker
	LastSeen time.Time `json:"metric_at"`
}

type shownWorker struct {
	Index       int
	Node, State string
	Role        string
	CPU         int64           `json:"cpu_ns"`
	Peak        json.RawMessage `json:"peak_rss"`
	Usage       struct {
		CPU          float64
		Memory       json.RawMessage
		Disk         json.RawMessage
		DiskLimit    json.RawMessage `json:"disk_limit"`
		In           float64         `json:"network_in"`
		Out          float64         `json:"network_out"`
		NoNetwork    bool            `json:"no_network"`
		Accelerators []struct {
			Name        string
			Index       int
			Utilisation *float64
			Memory      json.RawMessage
			Watts       float64
			Celsius     float64
		}
	}
}

func (a *app) jobTop() *cobra.Command {
	var every time.Duration
	cmd := &cobra.Command{
		Use: "top JOB", Short: "Show the current resource use of a job's workers, its progress and the time left", Args: cobra.ExactArgs(1),
		Example: "  falaj job top job_01J… -p nyc\n  falaj job top job_01J… --every 2s -p nyc",
		RunE: func(cmd *cobra.Command, args []string) error {
			for {
				if a.output != "table" {
					var o client.Object
					if err := a.call(cmd, http.MethodGet, nil, &o, "jobs", args[0], "top"); err != nil {
						return err
					}
					return a.printOne(o)
				}
				var t shownTop
				ask := func(context.Context) error { return a.call(cmd, http.MethodGet, nil, &t, "jobs", args[0], "top") }
				if err := a.patiently(cmd.Context(), ask); err != nil {
					return err
				}
				a.sayTop(t)
				if every <= 0 || t.State == "failed" || t.State == "succeeded" || t.State == "cancelled" {
					return nil
				}
				select {
				case <-time.After(max(every, time.Second)):
				case <-cmd.Context().Done():
					return nil
				}
			}
		},
	}
	cmd.Flags().DurationVar(&every, "every", 0, "refresh interval, at least 1s; repeats until the job finishes")
	return cmd
}

func (a *app) sayTop(t shownTop) {
	line := fmt.Sprintf("%s  %s  %s", t.ID, plain(t.Name), t.State)
	if t.Number > 0 {
		line += fmt.Sprintf("  attempt %d", t.Number)
		if t.Pool != "" {
			line += " on " + t.Pool
		}
	}
	if t.Step > 0 {
		line += fmt.Sprintf("  step %d", t.Step)
		if t.Steps > 0 {
			line += fmt.Sprintf(" of %d", t.Steps)
		}
	}
	if t.PerStep > 0 {
		line += fmt.Sprintf("  %.3g steps/s", t.PerStep)
	}
	if t.Left > 0 {
		line += "  " + time.Duration(t.Left).Round(time.Second).String() + " left"
	}
	a.say("%s", line)
	w := tabwriter.NewWriter(a.Stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "WORKER\tNODE\tSTATE\tCPU\tMEMORY\tPEAK\tDISK\tNET IN\tNET OUT\tCPU TIME\tACCELERATORS")
	for _, m := range t.Workers {
		accelerators := make([]string, 0, len(m.Usage.Accelerators))
		for _, d := range m.Usage.Accelerators {
			busy := "-" // not known
			if d.Utilisation != nil {
				busy = fmt.Sprintf("%.0f%%", 100*(*d.Utilisation))
			}
			accelerators = append(accelerators, fmt.Sprintf("%s %d: %s %s %.0fW %.0f°C", plain(d.Name), d.Index, busy, bytesText(d.Memory), d.Watts, d.Celsius))
		}
		in, out := rate(m.Usage.In), rate(m.Usage.Out)
		if m.Usage.NoNetwork {
			in, out = "-", "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%.2f\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", strings.TrimSpace(fmt.Sprint(m.Index, " ", plain(m.Role))), first(plain(m.Node), "-"), m.State, m.Usage.CPU, bytesText(m.Usage.Memory),
			bytesText(m.Peak), diskText(m.Usage.Disk, m.Usage.DiskLimit), in, out, time.Duration(m.CPU).Round(10*time.Millisecond), first(strings.Join(accelerators, "; "), "-"))
	}
	_ = w.Flush()
}

// diskText is what a worker keeps on disk, of what it may.
func diskText(used, limit json.RawMessage) string {
	if len(limit) == 0 {
		return "-"
	}
	return first(bytesText(used), "0") + " of " + bytesText(limit)
}

// bytesText is an amount as the API writes it: "12MiB", or a number.
func bytesText(b json.RawMessage) string {
	text := first(strings.Trim(string(b), `"`), "-")
	number, small := strings.CutSuffix(text, "KiB") // amounts are exact, and nobody reads so many digits
	n, err := strconv.ParseFloat(number, 64)
	switch {
	case err != nil:
		return text
	case small:
		n *= 1024
	}
	return speed(n)
}

func speed(bytes float64) string {
	for _, unit := range []string{"B", "KiB", "MiB", "GiB"} {
		if bytes < 1024 || unit == "GiB" {
			return strconv.FormatFloat(bytes, 'f', 0, 64) + unit
		}
		bytes /= 1024
	}
	return ""
}

func (a *app) jobSubmit() *cobra.Command {
	var file, source, revision, from string
	var pools []string
	var list bool
	cmd := &cobra.Command{
		Use: "submit [-f FILE | --from JOB]", Short: "Submit a job with a snapshot of its code", Args: cobra.NoArgs,
		Long: "Prints the ID of each job. --source packs a directory, without files matched by .gitignore or .falajignore, and\n" +
			"identifies it by its digest; with --git, it packs the directory as of a revision. --from repeats a job with the\n" +
			"same specification, inputs, source and environment, each pinned by digest. --pool restricts the pools, overriding\n" +
			"the manifest.",
		Example: "  falaj job submit -f job.yaml --source . -p nyc\n  falaj job submit -f job.yaml --source . --git v1.2 --pool hpc -p nyc\n  falaj job submit --from job_01J… -p nyc",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (file == "") == (from == "") {
				return usage("set either -f FILE or --from JOB")
			}
			if from != "" {
				if source != "" || revision != "" || pools != nil {
					return usage("--from repeats a job with its source and pools, and does not support --source and --pool")
				}
				return a.submit(cmd, map[string]any{"from": from})
			}
			if source == "" && revision != "" {
				return usage("--git needs --source, the directory in the repository")
			}
			jobs, err := a.jobManifests(cmd, file)
			if err != nil {
				return err
			}
			named := a.project
			for _, j := range jobs {
				a.project = first(named, j.Project)
				if pools != nil {
					j.Spec["pools"] = pools
				}
				if source != "" {
					if err := a.snapshot(cmd, source, revision, list, j.Spec); err != nil {
						return err
					}
				} else if err := a.packSource(cmd, file, j, false); err != nil {
					return err
				}
				if err := a.submit(cmd, map[string]any{"name": j.Name, "spec": j.Spec}); err != nil {
					if len(jobs) > 1 {
						err = fmt.Errorf("job %s: %w", j.Name, err)
					}
					return err
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "file", "f", "", "manifest of one or more jobs, or - for standard input")
	f.StringVar(&source, "source", "", "directory with the job's code")
	f.StringVar(&revision, "git", "", "use the directory as of this git revision")
	f.StringVar(&from, "from", "", "job to repeat")
	f.StringSliceVar(&pools, "pool", nil, "pool the job may run in; repeatable")
	f.BoolVar(&list, "list", false, "list the files of the snapshot")
	return cmd
}

// jobManifest is a manifest of kind Job.
type jobManifest struct {
	Name    string
	Project string
	Spec    map[string]any
}

// jobManifests reads those of a file, as the server reads what is applied.
func (a *app) jobManifests(cmd *cobra.Command, file string) ([]jobManifest, error) {
	b, err := a.read(file)
	if err != nil {
		return nil, err
	}
	c, err := a.connect()
	if err != nil {
		return nil, err
	}
	var read struct{ Items []jobManifest }
	if err := c.Do(cmd.Context(), http.MethodPost, "/api/v1/jobs/read", bytes.NewReader(b), &read); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for i, j := range read.Items {
		if j.Spec == nil {
			read.Items[i].Spec = map[string]any{}
		}
	}
	return read.Items, nil
}

// packSource puts the digest of the directory that a job names as its source in its place;
// it is uploaded unless the job is only tried.
func (a *app) packSource(cmd *cobra.Command, file string, j jobManifest, dryRun bool) error {
	dir, ok := j.Spec["source"].(string)
	if !ok || !isDirectory(dir) {
		return nil
	}
	digest, err := a.sourceBeside(cmd, file, dir, dryRun)
	if err != nil {
		return fmt.Errorf("%s: job %s: %w", file, j.Name, err)
	}
	j.Spec["source"] = digest
	return nil
}

// jobManifest reads a file of one, and takes its project where no other is named.
func (a *app) jobManifest(cmd *cobra.Command, file string) (jobManifest, error) {
	jobs, err := a.jobManifests(cmd, file)
	if err != nil {
		return jobManifest{}, err
	}
	if len(jobs) != 1 {
		return jobManifest{}, usage("%s has %d jobs; one is supported", file, len(jobs))
	}
	a.project = first(a.project, jobs[0].Project)
	return jobs[0], nil
}

func (a *app) jobRun() *cobra.Command {
	var environment, framework, name, workers, cpu, memory string
	var data map[string]string
	var processes int
	var list bool
	cmd := &cobra.Command{
		Use: "run [FLAGS] FILE.py [ARGS...]", Short: "Submit a Python file and its directory as a job", Args: cobra.MinimumNArgs(1),
		Long:    "The directory of the file becomes the job's source (see submit); arguments after the file are passed to it.",
		Example: "  falaj job run --env torch --workers 2 --framework torchrun train.py --steps 100 -p nyc",
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, script := filepath.Split(args[0])
			if _, err := os.Stat(args[0]); err != nil {
				return usage("%v", err)
			}
			spec := map[string]any{"environment": environment, "command": append([]string{"python", script}, args[1:]...)}
			if framework != "" {
				spec["framework"] = framework
			}
			if processes > 0 {
				spec["processes"] = processes
			}
			if len(data) > 0 {
				spec["data"] = data
			}
			resources := map[string]string{}
			for what, amount := range map[string]string{"cpu": cpu, "memory": memory} {
				if amount != "" {
					resources[what] = amount
				}
			}
			if len(resources) > 0 {
				spec["resources"] = resources
			}
			if workers != "" {
				least, most, isRange := strings.Cut(workers, "-")
				low, err := strconv.Atoi(least)
				high := low
				if isRange && err == nil {
					high, err = strconv.Atoi(most)
				}
				if err != nil {
					return usage("%q is not a number of workers, such as 4 or 2-4", workers)
				}
				spec["workers"] = map[string]int{"min": low, "max": high}
			}
			if err := a.snapshot(cmd, first(dir, "."), "", list, spec); err != nil {
				return err
			}
			return a.submit(cmd, map[string]any{"name": first(name, jobName(script)), "spec": spec})
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVar(&environment, "env", "", "environment")
	f.StringVar(&framework, "framework", "", "launcher of the processes: plain, torchrun …")
	f.StringVar(&name, "name", "", "name of the job (default that of the file)")
	f.StringVar(&workers, "workers", "", "number of workers, such as 4 or 2-4")
	f.IntVar(&processes, "processes", 0, "number of processes per worker")
	f.StringVar(&cpu, "cpu", "", "CPU cores per worker")
	f.StringVar(&memory, "memory", "", "memory per worker, such as 8GiB")
	f.StringToStringVar(&data, "data", nil, "input dataset, such as train=flights@3; repeatable")
	f.BoolVar(&list, "list", false, "list the files of the snapshot")
	_ = cmd.MarkFlagRequired("env")
	return cmd
}

// jobName makes a name of a file's.
func jobName(file string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return '-'
	}, strings.TrimSuffix(file, filepath.Ext(file)))
	return first(strings.Trim(name, "-"), "job")
}

// submit sends a job and says its ID.
func (a *app) submit(cmd *cobra.Command, body map[string]any) error {
	var o client.Object
	if err := a.call(cmd, http.MethodPost, body, &o, "jobs"); err != nil {
		return err
	}
	return a.sayOr(o, "%s", o.Text("id"))
}

// snapshot packs and uploads a job's code and names it in its specification.
func (a *app) snapshot(cmd *cobra.Command, dir, revision string, list bool, spec map[string]any) error {
	c, project, err := a.in()
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	var files []client.Packed
	if revision == "" {
		files, err = client.Pack(dir, &archive)
	} else {
		files, err = packRevision(cmd, dir, revision, &archive)
	}
	if err != nil {
		return usage("%v", err)
	}
	if len(files) == 0 {
		return usage("%v", noFiles(dir))
	}
	if list {
		for _, f := range files {
			a.note("  %s (%d bytes)", f.Name, f.Size)
		}
	}
	s, err := c.UploadSource(cmd.Context(), project, &archive)
	if err != nil {
		return err
	}
	spec["source"] = s.Digest
	a.note("source %s: %d files, %d bytes", s.Digest, s.Files, s.Size)
	return nil
}

func noFiles(dir string) error {
	return fmt.Errorf("%s has no files that would go into the snapshot", dir)
}

// packRevision packs a directory as git has it at a revision.
func packRevision(cmd *cobra.Command, dir, revision string, w io.Writer) ([]client.Packed, error) {
	if strings.HasPrefix(revision, "-") {
		return nil, fmt.Errorf("%q is not a git revision", revision)
	}
	git := exec.CommandContext(cmd.Context(), "git", "-C", dir, "archive", "--format=tar", revision)
	var said bytes.Buffer
	git.Stderr = &said
	out, err := git.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := git.Start(); err != nil {
		return nil, err
	}
	files, err := repack(out, w)
	_, _ = io.Copy(io.Discard, out)
	if werr := git.Wait(); werr != nil {
		return nil, fmt.Errorf("git archive %s: %s", revision, first(strings.TrimSpace(said.String()), werr.Error()))
	}
	return files, err
}

// repack writes a tar archive of git's without its times, so that a directory
// that did not change has the same digest at another revision.
func repack(r io.Reader, w io.Writer) ([]client.Packed, error) {
	gz := gzip.NewWriter(w)
	out, in := tar.NewWriter(gz), tar.NewReader(r)
	var files []client.Packed
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files, errors.Join(out.Close(), gz.Close())
		}
		if err != nil {
			return nil, err
		}
		switch h.Typeflag {
		case tar.TypeReg:
		case tar.TypeDir, tar.TypeXGlobalHeader:
			continue
		default:
			return nil, fmt.Errorf("%s is a link or no plain file", h.Name)
		}
		mode := int64(0o644)
		if h.Mode&0o100 != 0 {
			mode = 0o755
		}
		files = append(files, client.Packed{Name: h.Name, Size: h.Size})
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: h.Name, Size: h.Size, Mode: mode, Format: tar.FormatPAX}); err != nil {
			return nil, err
		}
		if _, err := io.Copy(out, in); err != nil { //nolint:gosec // G110: git's own archive of the user's files
			return nil, err
		}
	}
}
