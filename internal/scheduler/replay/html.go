package replay

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// The size of the charts. Of many workloads, those that end last are shown.
const (
	chartWidth = 1000
	ganttRow   = 9
	levelRows  = 120
	mostRows   = 500
)

// drawing is one play on the page. Its markup is made of numbers, fixed colours and escaped names.
type drawing struct {
	Title  string
	Sums   Sums
	Used   []template.HTML // of each pool
	Queue  template.HTML
	Gantt  template.HTML
	Height int
	Most   int // that wait at once
}

// WritePage writes an answer as a self-contained page.
func WritePage(w io.Writer, a Answer) error {
	data := struct {
		Answer
		Hours    float64
		Drawings []drawing
		Left     int
		Colours  []colour
	}{Answer: a}
	until := a.Now.LastEnd
	if a.WhatIf != nil && a.WhatIf.LastEnd.After(until) {
		until = a.WhatIf.LastEnd
	}
	data.Hours = max(until.Sub(a.At).Hours(), 0)
	rows := slices.Clone(a.Jobs)
	if len(rows) > mostRows {
		last := func(r Row) time.Time {
			if r.WhatIf != nil {
				return r.WhatIf.End
			}
			return r.Now.End
		}
		slices.SortStableFunc(rows, func(a, b Row) int { return last(b).Compare(last(a)) })
		data.Left, rows = len(rows)-mostRows, rows[:mostRows]
	}
	for i, u := range a.Now.Pools {
		data.Colours = append(data.Colours, colour{u.Pool, template.CSS(fmt.Sprintf("hsl(%d 55%% 50%%)", i*360/len(a.Now.Pools)))}) //nolint:gosec // a number
	}
	d := drawer{at: a.At, until: until, all: a.Jobs, rows: rows, colours: data.Colours}
	data.Drawings = append(data.Drawings, d.draw("As it is", a.Now, func(r Row) *Forecast { return r.Now }))
	if a.WhatIf != nil {
		data.Drawings = append(data.Drawings, d.draw("What if", *a.WhatIf, func(r Row) *Forecast { return r.WhatIf }))
	}
	return page.Execute(w, data)
}

type colour struct {
	Pool   string
	Colour template.CSS
}

type drawer struct {
	at, until time.Time
	all       []Row
	rows      []Row // of all, those that are shown
	colours   []colour
}

func (d drawer) x(t time.Time) float64 {
	whole := d.until.Sub(d.at).Seconds()
	if t.IsZero() || whole <= 0 {
		return chartWidth
	}
	return min(max(t.Sub(d.at).Seconds()/whole, 0), 1) * chartWidth
}

func (d drawer) draw(title string, sums Sums, of func(Row) *Forecast) drawing {
	out := drawing{Title: title, Sums: sums, Height: max(len(d.rows)*ganttRow, 1)}
	var b strings.Builder
	var starts []time.Time
	for _, r := range d.all {
		if f := of(r); f != nil && (f.Start.After(d.at) || f.Start.IsZero()) {
			starts = append(starts, f.Start)
		}
	}
	waiting := len(starts)
	for i, r := range d.rows {
		f := of(r)
		if f == nil {
			continue
		}
		y := i * ganttRow
		state := "ends " + f.End.UTC().Format(time.RFC3339)
		if f.End.IsZero() {
			state = "does not end"
		}
		fmt.Fprintf(&b, `<g><title>%s: %s</title>`, template.HTMLEscapeString(r.Label), state)
		fmt.Fprintf(&b, `<path class="wait" d="M0 %dH%.1f"/>`, y+ganttRow/2, d.x(f.End))
		for _, s := range f.spans {
			at := slices.IndexFunc(d.colours, func(c colour) bool { return c.Pool == s.Pool })
			fill := template.CSS("#888")
			if at >= 0 {
				fill = d.colours[at].Colour
			}
			fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.2f" height="%d" fill="%s"/>`, d.x(s.From), y, max(d.x(s.To)-d.x(s.From), 0.5), ganttRow-2, fill)
		}
		b.WriteString(`</g>`)
	}
	for _, p := range sums.Pools {
		out.Used = append(out.Used, d.used(p.Pool, of))
	}
	out.Gantt = template.HTML(b.String()) //nolint:gosec // numbers, our colours and escaped names
	out.Most = waiting
	slices.SortFunc(starts, func(a, b time.Time) int {
		if a.IsZero() != b.IsZero() { // a workload that never starts is pending to the end
			if a.IsZero() {
				return 1
			}
			return -1
		}
		return a.Compare(b)
	})
	var q strings.Builder
	level := func(n int) float64 { return levelRows * (1 - float64(n)/float64(max(waiting, 1))) }
	fmt.Fprintf(&q, `<path class="area" d="M0 %dV%.1f`, levelRows, level(waiting))
	for i, t := range starts {
		fmt.Fprintf(&q, "H%.1fV%.1f", d.x(t), level(waiting-i-1))
	}
	fmt.Fprintf(&q, `H%dV%dZ"/>`, chartWidth, levelRows)
	out.Queue = template.HTML(q.String()) //nolint:gosec // numbers only
	return out
}

// used draws the used share of a pool's schedulable nodes over time. It is capped at 100 %: it would
// exceed that where nodes with running workloads are removed.
func (d drawer) used(pool string, of func(Row) *Forecast) template.HTML {
	type change struct {
		at   time.Time
		more float64
	}
	var all []change
	for _, r := range d.all {
		f := of(r)
		if f == nil {
			continue
		}
		for i, s := range f.spans {
			if s.Pool != pool {
				continue
			}
			all = append(all, change{s.From, f.shares[i]})
			if !s.To.IsZero() {
				all = append(all, change{s.To, -f.shares[i]})
			}
		}
	}
	slices.SortFunc(all, func(a, b change) int { return a.at.Compare(b.at) })
	var b strings.Builder
	fmt.Fprintf(&b, `<path class="area" d="M0 %d`, levelRows)
	level := 0.0
	for _, c := range all {
		level += c.more
		fmt.Fprintf(&b, "H%.1fV%.1f", d.x(c.at), levelRows*(1-min(max(level, 0), 1)))
	}
	fmt.Fprintf(&b, `H%dV%dZ"/>`, chartWidth, levelRows)
	return template.HTML(b.String()) //nolint:gosec // numbers only
}
