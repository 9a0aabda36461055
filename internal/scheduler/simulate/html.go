package simulate

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// The size of the charts, and what is left out of large ones.
const (
	chartWidth = 1000
	levelRows  = 120
	ganttRow   = 7
	mostRows   = 500 // jobs of a Gantt chart: those that ran longest
	mostPoints = 1000
)

// chart is a workload on the page. Its drawings are made here of numbers only.
type chart struct {
	Row
	Hours       float64
	Used        []area // of each group
	Queue       template.HTML
	Gantt       template.HTML
	Shown       int
	Height      int
	Colours     []legend // of types, or, where there is one, of applications
	MostWaiting int
}

type area struct {
	Type  string
	Total int
	Area  template.HTML
}

type legend struct {
	Name   string
	Colour template.CSS
}

// WritePage writes utilisation, queue and placements of a policy's runs as one
// HTML page that needs nothing else.
func WritePage(w io.Writer, s Summary, traces []Trace) error {
	data := struct {
		Summary
		Cluster Cluster
		Charts  []chart
	}{Summary: s}
	for i, t := range traces {
		data.Cluster = t.Cluster
		data.Charts = append(data.Charts, draw(t, s.Workloads[i], t.Cluster))
	}
	return page.Execute(w, data)
}

func draw(t Trace, r Row, c Cluster) chart {
	d := chart{Row: r, Hours: r.Makespan / 3600}
	for _, l := range t.Load {
		d.MostWaiting = max(d.MostWaiting, l.Waiting)
	}
	most := 0
	for i, g := range c.Groups {
		a := area{Type: g.Type, Total: g.Nodes * g.GPUs}
		a.Area = steps(t.Load, r.Makespan, float64(a.Total), func(l Level) int { return l.By[i] })
		d.Used = append(d.Used, a)
		most = max(most, g.GPUs)
	}
	d.Queue = steps(t.Load, r.Makespan, float64(max(d.MostWaiting, 1)), func(l Level) int { return l.Waiting })

	kind := func(o Outcome, s Span) string {
		if len(c.Groups) > 1 {
			return s.Type
		}
		return o.Family
	}
	var names []string
	for _, o := range t.Jobs {
		for _, s := range o.Spans {
			if k := kind(o, s); !slices.Contains(names, k) {
				names = append(names, k)
			}
		}
	}
	slices.Sort(names)
	for i, n := range names {
		d.Colours = append(d.Colours, legend{n, template.CSS(fmt.Sprintf("hsl(%d 55%% 50%%)", i*360/len(names)))}) //nolint:gosec // a number
	}
	jobs := slices.Clone(t.Jobs)
	if len(jobs) > mostRows {
		slices.SortStableFunc(jobs, func(a, b Outcome) int { return b.Service - a.Service })
		jobs = jobs[:mostRows]
	}
	slices.SortStableFunc(jobs, func(a, b Outcome) int { return int(a.Submitted) - int(b.Submitted) })
	d.Shown, d.Height = len(jobs), len(jobs)*ganttRow
	x := func(seconds float64) float64 { return seconds / max(r.Makespan, 1) * chartWidth }
	var b strings.Builder
	for i, o := range jobs {
		y := i * ganttRow
		state := ""
		if o.Late() {
			state = ", late"
		}
		fmt.Fprintf(&b, `<g><title>%s: %d s, %d restarts%s</title>`, template.HTMLEscapeString(o.Name), int(o.JCT()), o.Restarts, state)
		fmt.Fprintf(&b, `<path class="wait" d="M%.1f %dH%.1f"/>`, x(o.Submitted), y+ganttRow/2, x(o.Completed))
		for _, s := range o.Spans { // the more GPUs, the darker
			strength := 0.25 + 0.75*min(1, float64(s.Placement.Replicas())/float64(4*most))
			colour := d.Colours[slices.Index(names, kind(o, s))].Colour
			fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.2f" height="%d" fill="%s" fill-opacity="%.2f"/>`,
				x(float64(s.From)), y, max(x(float64(s.To))-x(float64(s.From)), 0.3), ganttRow-1, colour, strength)
		}
		b.WriteString(`</g>`)
	}
	d.Gantt = template.HTML(b.String()) //nolint:gosec // numbers, our colours and one escaped name
	return d
}

// steps draws a level over time as an area.
func steps(levels []Level, makespan, top float64, of func(Level) int) template.HTML {
	var b strings.Builder
	fmt.Fprintf(&b, `<path class="area" d="M0 %d`, levelRows)
	every := max(1, len(levels)/mostPoints)
	for i := 0; i < len(levels); i += every {
		sum, n := 0, 0
		for _, l := range levels[i:min(i+every, len(levels))] {
			sum += of(l)
			n++
		}
		x := float64(levels[i].Time) / max(makespan, 1) * chartWidth
		fmt.Fprintf(&b, "H%.1fV%.1f", x, levelRows*(1-float64(sum)/float64(n)/top))
	}
	fmt.Fprintf(&b, `H%dV%dZ"/>`, chartWidth, levelRows)
	return template.HTML(b.String()) //nolint:gosec // numbers only
}
