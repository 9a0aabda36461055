package cli

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

func (a *app) monitor() *cobra.Command {
	cmd := &cobra.Command{Use: "monitor", Aliases: []string{"monitors"}, Short: "Show drift and performance of deployments"}
	cmd.AddCommand(&cobra.Command{
		Use: "list", Short: "List monitors with their state", Example: "  falaj monitor list -p nyc", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.list(cmd, kinds["monitors"].columns, "monitors")
		},
	}, a.monitorShow(), a.monitorWindows(), a.monitorClassify(), a.alerts(), a.redeliver(), a.webhookSecret())
	return cmd
}

func (a *app) monitorWindows() *cobra.Command {
	var version, limit int
	cmd := &cobra.Command{
		Use: "windows NAME", Short: "List the windows of a monitor, newest first",
		Example: "  falaj monitor windows delay -p nyc\n  falaj monitor windows delay --version 2 -o json -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			windows, err := a.windows(cmd, args[0], version, limit)
			if err != nil {
				return err
			}
			return a.print(windows, []column{
				{"FROM", "from"},
				{"TO", "to"},
				{"VERSION", "version"},
				{"ROWS", "rows"},
				{"FAILED", "failed"},
				{"LATE", "late"},
				{"DRIFTED", "drifted"},
				{"SHARE", "share"},
				{"PERFORMANCE", "performance.state"},
				{"P99 MS", "latency.p99_ms"},
				{"CLASSIFIER", "classifier.auc"},
				{"ID", "id"},
				{"NOTE", "note"},
			})
		},
	}
	cmd.Flags().IntVar(&version, "version", 0, "only windows of this model version")
	cmd.Flags().IntVar(&limit, "limit", 50, "maximum number of windows")
	return cmd
}

// windows are the newest windows of a monitor, newest first.
func (a *app) windows(cmd *cobra.Command, name string, version, limit int) ([]client.Object, error) {
	path, err := a.inProjectPath("monitors", name, "windows")
	if err != nil {
		return nil, err
	}
	if limit < 1 || limit > 1000 {
		return nil, usage("--limit is %d; it must be 1 to 1000", limit)
	}
	c, err := a.connect()
	if err != nil {
		return nil, err
	}
	query := url.Values{"page_size": {strconv.Itoa(limit)}}
	if version != 0 {
		query.Set("version", strconv.Itoa(version))
	}
	var page struct {
		Items []client.Object `json:"items"`
		Next  string          `json:"next_page_token"`
	}
	err = c.Do(cmd.Context(), http.MethodGet, path+"?"+query.Encode(), nil, &page)
	if err == nil && page.Next != "" {
		a.note("showing the newest %d windows; use --limit for more, at most 1000", len(page.Items))
	}
	return page.Items, err
}

// shownWindow is what `show` draws of a window.
type shownWindow struct {
	From     time.Time      `json:"from"`
	To       time.Time      `json:"to"`
	Version  int64          `json:"version"`
	Rows     int64          `json:"rows"`
	Judged   bool           `json:"judged"`
	Drifted  bool           `json:"drifted"`
	Baseline string         `json:"baseline"`
	Note     string         `json:"note"`
	Features []shownFeature `json:"features"`
	Score    *shownFeature  `json:"score"`

	Classifier *shownClassifier `json:"classifier"`

	Performance struct {
		State       string        `json:"state"`
		Note        string        `json:"note"`
		NotComputed []string      `json:"not_computed"`
		Metrics     []shownMetric `json:"metrics"`
		Segments    []struct {
			Column  string        `json:"column"`
			Value   string        `json:"value"`
			Rows    int64         `json:"rows"`
			Metrics []shownMetric `json:"metrics"`
		} `json:"segments"`
	} `json:"performance"`
}

type shownMetric struct {
	Name     string   `json:"name"`
	Value    *float64 `json:"value"`
	Low      *float64 `json:"low"`
	High     *float64 `json:"high"`
	Estimate bool     `json:"estimate"`
	Limit    *float64 `json:"limit"`
	Breached bool     `json:"breached"`
}

type shownFeature struct {
	Name         string   `json:"name"`
	Method       string   `json:"method"`
	Statistic    *float64 `json:"statistic"`
	PValue       *float64 `json:"p_value"`
	Threshold    *float64 `json:"threshold"`
	Drifted      bool     `json:"drifted"`
	Missing      float64  `json:"missing"`
	Mean         *float64 `json:"mean"`
	BaselineMean *float64 `json:"baseline_mean"`
	Note         string   `json:"note"`
}

func (a *app) monitorShow() *cobra.Command {
	var version, limit int
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show the drift of each input and the performance over the windows",
		Example: "  falaj monitor show delay -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var m client.Object
			if err := a.call(cmd, http.MethodGet, nil, &m, "monitors", args[0]); err != nil {
				return err
			}
			if version == 0 {
				_, _ = fmt.Sscan(m.Text("version"), &version)
			}
			objects, err := a.windows(cmd, args[0], version, limit)
			if err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(client.Object{"monitor": m, "windows": objects})
			}
			windows := make([]shownWindow, len(objects))
			for i, o := range objects { // the oldest first
				b, err := json.Marshal(o)
				if err != nil {
					return err
				}
				if err := json.Unmarshal(b, &windows[len(objects)-1-i]); err != nil {
					return err
				}
			}
			return a.draw(m, windows)
		},
	}
	cmd.Flags().IntVar(&version, "version", 0, "model version (default the version evaluated last)")
	cmd.Flags().IntVar(&limit, "limit", 30, "maximum number of windows")
	return cmd
}

func (a *app) draw(m client.Object, windows []shownWindow) error {
	state := m.Text("state")
	if since := cell(m, "since"); since != "-" {
		state += " since " + cell(m, "since")
	}
	a.say("monitor %s of deployment %s, version %s: %s", cell(m, "name"), cell(m, "deployment"), cell(m, "version"), state)
	for _, field := range []string{"reason", "problem"} {
		if text := m.Text(field); text != "" {
			a.say("  %s", plain(text))
		}
	}
	if len(windows) == 0 {
		a.say("No window was closed yet.")
		return nil
	}
	last := windows[len(windows)-1]
	a.say("%d windows, the newest from %s to %s with %d rows; baseline: %s", len(windows), when(last.From), when(last.To), last.Rows, plain(first(last.Baseline, "none")))
	if last.Note != "" {
		a.say("  %s", plain(last.Note))
	}
	a.say("")
	w := tabwriter.NewWriter(a.Stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "INPUT\tOVER TIME\tNEWEST\tTHRESHOLD\tMEAN\tBASELINE\tMISSING\tMETHOD\tDRIFTED SINCE\tNOTE")
	line := func(name string, now shownFeature, find func(shownWindow) *shownFeature) {
		since, limit := "-", number(now.Threshold)
		value := number(now.Statistic)
		if p := now.PValue; p != nil && *p < 1e-15 {
			value = "p<1e-15"
		} else if p != nil {
			value = "p=" + number(p)
		}
		for _, s := range slices.Backward(windows) {
			f := find(s)
			if f == nil || !f.Drifted {
				break
			}
			since = when(s.From)
		}
		fmt.Fprintln(w, strings.Join([]string{
			plain(name), spark(windows, find), value, limit, number(now.Mean), number(now.BaselineMean), fmt.Sprintf("%.1f %%", 100*now.Missing),
			first(now.Method, "-"), since, short(plain(first(now.Note, "-"))),
		}, "\t"))
	}
	for _, f := range last.Features {
		line(f.Name, f, func(s shownWindow) *shownFeature {
			for i := range s.Features {
				if s.Features[i].Name == f.Name {
					return &s.Features[i]
				}
			}
			return nil
		})
	}
	if last.Score != nil {
		line("(score)", *last.Score, func(s shownWindow) *shownFeature { return s.Score })
	}
	if err := w.Flush(); err != nil {
		return err
	}
	a.drawPerformance(windows)
	if err := a.drawSegments(windows); err != nil {
		return err
	}
	for _, text := range append([]string{last.Performance.Note}, last.Performance.NotComputed...) {
		if text != "" {
			a.say("  %s", plain(text))
		}
	}
	a.drawClassifier(windows)
	return nil
}

// drawPerformance writes the newest window that has labels, and the newest
// estimate.
func (a *app) drawPerformance(windows []shownWindow) {
	for _, estimate := range []bool{false, true} {
		for _, s := range slices.Backward(windows) {
			there := false
			for _, one := range s.Performance.Metrics {
				if one.Estimate != estimate || one.Value == nil {
					continue
				}
				if !there {
					there = true
					title := fmt.Sprintf("\nPerformance, window from %s to %s (%s)", when(s.From), when(s.To), s.Performance.State)
					if estimate {
						title = fmt.Sprintf("\nEstimate without labels, if scores are probabilities, window from %s to %s", when(s.From), when(s.To))
					}
					a.say("%s", title)
				}
				text := fmt.Sprintf("  %-10s %s", plain(one.Name), number(one.Value))
				if one.Low != nil && one.High != nil {
					text += fmt.Sprintf("  [%s, %s]", number(one.Low), number(one.High))
				}
				if one.Limit != nil {
					text += "  limit " + number(one.Limit)
				}
				if one.Breached {
					text += "  BEYOND IT"
				}
				a.say("%s", text)
			}
			if there {
				break
			}
		}
	}
}

// drawSegments lists the metrics of each value of the segments' columns, in the newest window
// that has them.
func (a *app) drawSegments(windows []shownWindow) error {
	for _, s := range slices.Backward(windows) {
		if len(s.Performance.Segments) == 0 {
			continue
		}
		a.say("\nPerformance by segment, window from %s to %s", when(s.From), when(s.To))
		w := tabwriter.NewWriter(a.Stdout, 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "  COLUMN\tVALUE\tROWS\tMETRICS")
		for _, one := range s.Performance.Segments {
			var metrics []string
			for _, m := range one.Metrics {
				text := m.Name + " " + number(m.Value)
				if m.Low != nil && m.High != nil {
					text += fmt.Sprintf(" [%s, %s]", number(m.Low), number(m.High))
				}
				metrics = append(metrics, plain(text))
			}
			fmt.Fprintf(w, "  %s\t%s\t%d\t%s\n", plain(one.Column), short(plain(one.Value)), one.Rows, strings.Join(metrics, ", "))
		}
		return w.Flush()
	}
	return nil
}

// spark draws a feature's statistic over the windows. The highest bar is the
// highest value, or the threshold where nothing reaches it.
func spark(windows []shownWindow, find func(shownWindow) *shownFeature) string {
	const bars = "▁▂▃▄▅▆▇█"
	values, top := make([]float64, len(windows)), 0.0
	for i, s := range windows {
		values[i] = math.NaN()
		if f := find(s); f != nil && f.Statistic != nil {
			values[i] = *f.Statistic
			top = max(top, *f.Statistic)
			if f.Threshold != nil && f.PValue == nil {
				top = max(top, *f.Threshold)
			}
		}
	}
	var b strings.Builder
	for _, v := range values {
		switch {
		case math.IsNaN(v):
			b.WriteByte(' ')
		case top == 0:
			b.WriteRune('▁')
		default:
			at := int(math.Max(0, v/top) * 7.999)
			b.WriteRune([]rune(bars)[min(at, 7)])
		}
	}
	return b.String()
}

func number(v *float64) string {
	if v == nil {
		return "-"
	}
	return significant(*v, 4)
}

func when(t time.Time) string {
	if t = t.UTC(); t.Equal(t.Truncate(24 * time.Hour)) {
		return t.Format(time.DateOnly)
	}
	return t.Format("2006-01-02T15:04Z")
}

// short cuts a remark to what a table has room for; -o json has all of it.
func short(text string) string {
	if runes := []rune(text); len(runes) > 80 {
		return string(runes[:79]) + "…"
	}
	return text
}
