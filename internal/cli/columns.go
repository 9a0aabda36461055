package cli

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// versionProfile is what a version's columns look like, as the server answers.
type versionProfile struct {
	Version     string          `json:"version"`
	Rows        int64           `json:"rows"`
	Quarantined int64           `json:"quarantined,omitempty"`
	Sampled     int64           `json:"sampled"`
	Columns     []columnProfile `json:"columns"`
}

type columnProfile struct {
	Column    string   `json:"column"`
	Type      string   `json:"type"`
	Count     int64    `json:"count"`
	Nulls     int64    `json:"nulls"`
	NaNs      int64    `json:"nans,omitempty"`
	Distinct  int64    `json:"distinct"`
	Estimated bool     `json:"distinct_estimated,omitempty"`
	Min       string   `json:"min,omitempty"`
	Max       string   `json:"max,omitempty"`
	Mean      *float64 `json:"mean,omitempty"`
	Std       *float64 `json:"std,omitempty"`
	Quantiles []struct {
		Share float64 `json:"share"`
		Value string  `json:"value"`
	} `json:"quantiles,omitempty"`
	Histogram *struct {
		Edges  []string  `json:"edges"`
		Shares []float64 `json:"shares"`
	} `json:"histogram,omitempty"`
	Top []struct {
		Value string  `json:"value"`
		Share float64 `json:"share"`
	} `json:"top,omitempty"`
}

func (a *app) datasetProfile() *cobra.Command {
	return &cobra.Command{
		Use:   "profile NAME[@VERSION]",
		Short: "Show statistics of a version's columns",
		Long: "Prints statistics, a histogram and the most frequent values with their shares for each column. For large\n" +
			"datasets, quantiles, histograms and frequent values are computed from a random sample, whose size and error are\n" +
			"in the first line. ± after a mean is the sample standard deviation (n-1). Reads of classified data are journaled.",
		Example: "  falaj dataset profile weather@1 -p nyc\n  falaj dataset profile weather -o json -p nyc",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var p versionProfile
			if err := a.call(cmd, http.MethodGet, nil, &p, "datasets", args[0], "profile"); err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(p)
			}
			fmt.Fprint(a.Stdout, p)
			return nil
		},
	}
}

const (
	barWidth  = 24
	nameWidth = 28
)

// shareError bounds the error of a sample's shares in percent, with 99 % probability: of the
// sketch of a column, and of the sample.
func shareError(rows int64) float64 {
	const sketched, normal = 1.33, 2.576
	return min(sketched+100*normal*0.5/math.Sqrt(float64(max(rows, 1))), 100)
}

// String draws it for a terminal.
func (p versionProfile) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d rows", p.Version, p.Rows)
	if p.Quarantined > 0 {
		fmt.Fprintf(&b, ", %d in quarantine", p.Quarantined)
	}
	if p.Sampled < p.Rows {
		fmt.Fprintf(&b, "; quantiles, histograms and frequent values of a random sample of %d, shares ± %.1f %%", p.Sampled, shareError(p.Sampled))
	}
	b.WriteString("\n")
	for _, c := range p.Columns {
		fmt.Fprintf(&b, "\n%s  %s\n  %s\n", plain(c.Column), c.Type, c.facts())
		if h := c.Histogram; h != nil && len(h.Edges) > 1 {
			fmt.Fprintf(&b, "  %s %s %s\n", outer("≤ ", h.Edges[0], c.Min), heights(h.Shares), outer("> ", h.Edges[len(h.Edges)-1], c.Max))
		}
		for _, v := range c.Top {
			name := plain(v.Value)
			if r := []rune(name); len(r) > nameWidth {
				name = string(r[:nameWidth-1]) + "…"
			}
			fmt.Fprintf(&b, "  %s%s %-*s %5.1f %%\n", name, strings.Repeat(" ", nameWidth-utf8.RuneCountInString(name)), barWidth, bar(v.Share), 100*v.Share)
		}
	}
	return b.String()
}

// outer is the edge of an outermost bin, with a mark where the bin also has what lies
// beyond it.
func outer(mark, edge, extreme string) string {
	if edge == extreme {
		mark = ""
	}
	return mark + plain(edge)
}

// facts are a column's statistics in a line.
func (c columnProfile) facts() string {
	about := ""
	if c.Estimated {
		about = "about "
	}
	facts := []string{fmt.Sprintf("%d values", c.Count), fmt.Sprintf("%s%d distinct", about, c.Distinct)}
	if c.Nulls > 0 {
		facts = append(facts, fmt.Sprintf("%d null", c.Nulls))
	}
	if c.NaNs > 0 {
		facts = append(facts, fmt.Sprintf("%d NaN", c.NaNs))
	}
	if c.Min != "" || c.Max != "" {
		facts = append(facts, fmt.Sprintf("%s to %s", plain(c.Min), plain(c.Max)))
	}
	switch {
	case c.Mean != nil && c.Std == nil:
		facts = append(facts, "mean "+significant(*c.Mean, 5))
	case c.Mean != nil:
		facts = append(facts, "mean "+significant(*c.Mean, 5)+" ± "+significant(*c.Std, 5))
	}
	return strings.Join(facts, ", ")
}

// bar is a share of the width, never nothing for something.
func bar(share float64) string {
	n := int(share*barWidth + 0.5)
	if n == 0 && share > 0 {
		return "▏"
	}
	return strings.Repeat("█", max(0, min(n, barWidth)))
}

// heights draws shares beside each other, the greatest full.
func heights(shares []float64) string {
	const steps = " ▁▂▃▄▅▆▇█"
	most := 0.0
	for _, s := range shares {
		most = max(most, s)
	}
	var b strings.Builder
	for _, s := range shares {
		step := 0
		if most > 0 && s > 0 {
			step = max(1, int(8*s/most+0.5))
		}
		b.WriteRune([]rune(steps)[step])
	}
	return b.String()
}
