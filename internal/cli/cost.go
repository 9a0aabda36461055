package cli

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

func (a *app) cost() *cobra.Command {
	cmd := &cobra.Command{Use: "cost", Short: "Show usage and cost, forecasts to month end, and total cost of ownership"}
	cmd.AddCommand(a.costReport(), a.costForecast(), a.costCompare())
	return cmd
}

// costScope are the flags that all questions about cost have.
type costScope struct {
	since string
	wide  bool
}

func (s *costScope) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.since, "since", "30d", "start of the period: an age such as 30d or 12h, a date, or a time (RFC 3339)")
	cmd.Flags().BoolVar(&s.wide, "installation", false, allProjects)
}

// query is the project and the time that are asked about.
func (a *app) costQuery(s costScope) (url.Values, error) {
	q := a.narrowed(s.wide)
	since, err := ago(s.since, time.Now())
	if err != nil {
		return nil, err
	}
	q.Set("since", since.UTC().Format(time.RFC3339))
	return q, nil
}

// ago reads 30d, 12h, 2026-11-01 or a time.
func ago(text string, now time.Time) (time.Time, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n > 0 && n <= 3660 {
			return now.AddDate(0, 0, -n), nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return now, usage("--since is %q; write such as 30d, 12h, 2026-11-01 or a time in RFC 3339", text)
}

// ask gets an answer about cost into v, or prints it when no table is wanted.
func (a *app) ask(cmd *cobra.Command, path string, q url.Values, v any) (printed bool, err error) {
	c, err := a.connect()
	if err != nil {
		return false, err
	}
	path += "?" + q.Encode()
	if a.output == "table" {
		return false, c.Do(cmd.Context(), http.MethodGet, path, nil, v)
	}
	var o client.Object
	if err := c.Do(cmd.Context(), http.MethodGet, path, nil, &o); err != nil {
		return false, err
	}
	return true, a.printOne(o)
}

// costRow is a row of a report.
type costRow struct {
	Key                string
	Workloads, Running int
	NodeHours          float64            `json:"node_hours"`
	Accelerators       map[string]float64 `json:"accelerator_hours"`
	Energy             float64            `json:"energy_kwh"`
	Cost               float64
}

func (r costRow) accelerators() string {
	parts := make([]string, 0, len(r.Accelerators))
	for _, name := range keys(r.Accelerators) {
		parts = append(parts, fmt.Sprintf("%.1f %s", r.Accelerators[name], name))
	}
	return first(strings.Join(parts, ", "), "-")
}

func (a *app) costReport() *cobra.Command {
	var scope costScope
	var by string
	var limit int
	cmd := &cobra.Command{
		Use: "report", Short: "Show usage and cost by project, user, queue, pool, job, model or day", Args: cobra.NoArgs,
		Long: "Running jobs are counted up to now. NODE-HOURS are computed from the requested share of a node; KWH is estimated\n" +
			"from the power of the nodes. For the whole installation, the cost of each pool's idle hours is shown as well.",
		Example: "  falaj cost report --project nyc --by job --since 7d\n  falaj cost report --installation --by pool -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			q, err := a.costQuery(scope)
			if err != nil {
				return err
			}
			q.Set("by", by)
			q.Set("limit", strconv.Itoa(limit))
			var r struct {
				Currency, By string
				Items        []costRow
				Others       *costRow
				Total        costRow
				Idle         []struct {
					Pool                    string
					Nodes                   int
					NodeHours               float64 `json:"node_hours"`
					Used                    float64 `json:"used_node_hours"`
					Utilisation, Cost, Idle float64
					IdleCost                float64 `json:"idle_cost"`
				}
				LeftOut int `json:"left_out"`
			}
			if done, err := a.ask(cmd, "/api/v1/cost/report", q, &r); done || err != nil {
				return err
			}
			w := tabwriter.NewWriter(a.Stdout, 0, 4, 2, ' ', 0)
			fmt.Fprintf(w, "%s\tWORKLOADS\tRUNNING\tNODE-HOURS\tACCELERATOR-HOURS\tKWH\tCOST (%s)\n", strings.ToUpper(r.By), r.Currency)
			if r.Others != nil {
				r.Items = append(r.Items, *r.Others)
			}
			r.Total.Key = "total"
			for _, row := range append(r.Items, r.Total) {
				fmt.Fprintf(w, "%s\t%d\t%d\t%.2f\t%s\t%.1f\t%s\n", plain(first(row.Key, "-")), row.Workloads, row.Running, row.NodeHours, row.accelerators(), row.Energy, money(row.Cost))
			}
			if len(r.Idle) > 0 {
				fmt.Fprintf(w, "\nPOOL\tNODES\tNODE-HOURS\tUSED\tUTILISATION\tIDLE (%s)\n", r.Currency)
				for _, i := range r.Idle {
					fmt.Fprintf(w, "%s\t%d\t%.1f\t%.1f\t%.1f %%\t%s\n", i.Pool, i.Nodes, i.NodeHours, i.Used, 100*i.Utilisation, money(i.IdleCost))
				}
			}
			if err := w.Flush(); err != nil {
				return err
			}
			if r.LeftOut > 0 {
				a.say("\n%d workloads were metered in another currency and are excluded.", r.LeftOut)
			}
			return nil
		},
	}
	scope.flags(cmd)
	cmd.Flags().StringVar(&by, "by", "project", "project, user, queue, pool, job, model or day")
	cmd.Flags().IntVar(&limit, "limit", 100, "maximum number of rows; the others are summed into one")
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions([]string{"project", "user", "queue", "pool", "job", "model", "day"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) costForecast() *cobra.Command {
	var scope costScope
	cmd := &cobra.Command{
		Use: "forecast", Short: "Forecast cost to month end and when budgets run out", Args: cobra.NoArgs,
		Long: "The forecast is the cost so far plus, for each remaining day, the mean of the whole days since --since; before the\n" +
			"first whole day there is no forecast. The range is the 95 % prediction interval of the month's total if days vary\n" +
			"independently. Months are in UTC.",
		Example: "  falaj cost forecast --project nyc\n  falaj cost forecast --installation --since 14d -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			q, err := a.costQuery(scope)
			if err != nil {
				return err
			}
			type row struct {
				Project string
				Spent   float64
				Budget  float64
				UsedUp  *time.Time `json:"used_up_at"`
				Month   struct {
					PerDay    float64 `json:"per_day"`
					Days      int
					Total     float64
					Low, High *float64
				}
			}
			var r struct {
				Currency string
				Items    []row
				Total    row
			}
			if done, err := a.ask(cmd, "/api/v1/cost/forecast", q, &r); done || err != nil {
				return err
			}
			w := tabwriter.NewWriter(a.Stdout, 0, 4, 2, ' ', 0)
			fmt.Fprintf(w, "PROJECT\tSPENT (%s)\tA DAY\tDAYS\tMONTH\t95 %%\tBUDGET\tUSED UP\n", r.Currency)
			r.Total.Project = "total"
			for _, f := range append(r.Items, r.Total) {
				daily, total, between, budget, end := "-", "-", "-", "-", "-" // nothing is foreseen before a day is whole
				if f.Month.Days > 0 {
					daily, total = money(f.Month.PerDay), money(f.Month.Total)
				}
				if f.Month.Low != nil && f.Month.High != nil {
					between = money(*f.Month.Low) + " to " + money(*f.Month.High)
				}
				if f.Budget > 0 {
					if budget = money(f.Budget); f.Month.Days > 0 {
						end = "not this month"
					}
				}
				if f.UsedUp != nil {
					end = f.UsedUp.Local().Format("2006-01-02 15:04")
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", f.Project, money(f.Spent), daily, f.Month.Days, total, between, budget, end)
			}
			return w.Flush()
		},
	}
	scope.flags(cmd)
	return cmd
}

// comparison is what the server answers to compare.
type comparison struct {
	Currency    string
	Own         string `json:"own_pool"`
	Rented      string `json:"rented_pool"`
	Since       time.Time
	Until       time.Time
	Measured    float64  `json:"measured_node_hours"`
	LeftOut     float64  `json:"left_out_node_hours"`
	Nodes       int      `json:"nodes"`
	NodeHours   float64  `json:"node_hours_per_month"`
	Utilisation float64  `json:"utilisation"`
	OwnFixed    float64  `json:"own_fixed_per_month"`
	OwnEnergy   float64  `json:"own_energy_per_node_hour"`
	RentedHour  float64  `json:"rented_per_node_hour"`
	OwnMonth    float64  `json:"own_per_month"`
	RentedMonth float64  `json:"rented_per_month"`
	BreakEven   *float64 `json:"break_even_utilisation"`
	Months      *float64 `json:"break_even_months"`
	Answer      string   `json:"answer"`
	Points      []struct{ Utilisation, Own, Rented float64 }
}

func (a *app) costCompare() *cobra.Command {
	var scope costScope
	var own, rented, job, html string
	var nodes int
	var speed, egress float64
	cmd := &cobra.Command{
		Use: "compare", Short: "Compare the total cost of owned and rented nodes, with the break-even", Args: cobra.NoArgs,
		Long: "--own is a pool whose manifest has cost.owned, --rented a pool with cost.rented or price_per_hour. The rented pool may\n" +
			"be closed and exist only for its prices. The work that ran on both pools since --since, or since the first measurement, is scaled to a\n" +
			"month. The formulae are in docs/guides/cost.md.",
		Example: "  falaj cost compare --own home --rented cloud --project nyc\n  falaj cost compare --own home --rented cloud --job job_01J… --speed 1.5 --html break-even.html",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if own == "" || rented == "" {
				return usage("--own and --rented are required")
			}
			q, err := a.costQuery(scope)
			if err != nil {
				return err
			}
			q.Set("own", own)
			q.Set("rented", rented)
			for name, v := range map[string]float64{"nodes": float64(nodes), "speed": speed, "egress": egress} {
				if v != 0 {
					q.Set(name, strconv.FormatFloat(v, 'f', -1, 64))
				}
			}
			if job != "" {
				q.Set("job", job)
			}
			var c comparison
			if html != "" {
				if err := a.drawCost(cmd, html, q); err != nil {
					return err
				}
			}
			if done, err := a.ask(cmd, "/api/v1/cost/compare", q, &c); done || err != nil {
				return err
			}
			return a.sayComparison(c)
		},
	}
	scope.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&own, "own", "", "pool of owned nodes")
	f.StringVar(&rented, "rented", "", "pool of rented nodes")
	f.StringVar(&job, "job", "", "only the usage of this job")
	f.IntVar(&nodes, "nodes", 0, "number of owned nodes (default those of the pool, or as many as the work needs)")
	f.Float64Var(&speed, "speed", 0, "speed of a rented node relative to an owned one (default 1)")
	f.Float64Var(&egress, "egress", 0, "egress from the provider, in GiB a month")
	f.StringVar(&html, "html", "", "also write the break-even chart to this file, as a self-contained HTML page")
	return cmd
}

func (a *app) sayComparison(c comparison) error {
	a.say("%s.", capital(c.Answer))
	const minute = "2006-01-02 15:04"
	a.say("measured: %s to %s, %s\n", c.Since.Local().Format(minute), c.Until.Local().Format(minute), span(c.Until.Sub(c.Since).Seconds()))
	w := tabwriter.NewWriter(a.Stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintf(w, "A MONTH (%s)\tOWN: %s\tRENTED: %s\n", c.Currency, c.Own, c.Rented)
	fmt.Fprintf(w, "fixed, %d nodes\t%s\t-\n", c.Nodes, money(c.OwnFixed))
	fmt.Fprintf(w, "a node-hour of work\t%s\t%s\n", money(c.OwnEnergy), money(c.RentedHour))
	fmt.Fprintf(w, "the workload, %.1f node-hours\t%s\t%s\n", c.NodeHours, money(c.OwnMonth), money(c.RentedMonth))
	if err := w.Flush(); err != nil {
		return err
	}
	a.say("\nutilisation of owned nodes: %.1f %%", 100*c.Utilisation)
	if c.BreakEven != nil {
		a.say("break-even utilisation: %.1f %%", 100**c.BreakEven)
	}
	if c.Months != nil {
		a.say("purchase earned after: %.1f months", *c.Months)
	}
	if c.LeftOut > 0 {
		a.say("excluded: %.1f node-hours on other pools", c.LeftOut)
	}
	return nil
}

// drawCost writes the break-even chart.
func (a *app) drawCost(cmd *cobra.Command, file string, q url.Values) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	var of comparison
	if err := c.Do(cmd.Context(), http.MethodGet, "/api/v1/cost/compare?"+q.Encode(), nil, &of); err != nil {
		return err
	}
	page, err := breakEven(of)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, page, 0o600); err != nil {
		return usage("%v", err)
	}
	return nil
}

func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// money writes an amount: whole from 1,000 on, otherwise with what is below.
func money(v float64) string {
	switch {
	case v != 0 && v < 0.01 && v > -0.01:
		return strconv.FormatFloat(v, 'g', 2, 64)
	case v >= 1000 || v <= -1000:
		text := strconv.FormatFloat(v, 'f', 0, 64)
		for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
			text = text[:i] + "," + text[i:]
		}
		return text
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
