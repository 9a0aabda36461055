package cli

import (
	"bytes"
	"fmt"
	"html/template"
	"math"
	"strings"
)

// The size of the chart and the room around it, in pixels.
const (
	chartW, chartH           = 720.0, 400.0
	chartL, chartT           = 90.0, 20.0
	chartPlotW, chartPlotH   = chartW - chartL - 20, chartH - chartT - 50
	chartLines, chartPercent = 5, 20
)

// tick is a mark on an axis.
type tick struct {
	X, Y float64
	Text string
}

var chartPage = template.Must(template.New("").Funcs(template.FuncMap{"money": money}).Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Owned and rented nodes</title>
<style>body{font:15px/1.5 system-ui,sans-serif;max-width:760px;margin:2em auto;padding:0 1em}text{font-size:12px;fill:#333}
table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right}td:first-child,th:first-child{text-align:left}</style>
<h1>Owned and rented nodes</h1><p>{{.Answer}}.</p>
<svg viewBox="0 0 {{.W}} {{.H}}" role="img" aria-label="Cost of a month by utilisation">
{{range .YTicks}}<line x1="{{$.L}}" x2="{{$.R}}" y1="{{.Y}}" y2="{{.Y}}" stroke="#ddd"/><text x="{{.X}}" y="{{.Y}}" dy="4" text-anchor="end">{{.Text}}</text>
{{end}}{{range .XTicks}}<text x="{{.X}}" y="{{.Y}}" text-anchor="middle">{{.Text}}</text>
{{end}}<text x="{{.Mid}}" y="{{.Foot}}" text-anchor="middle">utilisation of {{.C.Nodes}} owned nodes</text>
<polyline points="{{.Own}}" fill="none" stroke="#0b6e4f" stroke-width="2"/>
<polyline points="{{.Rented}}" fill="none" stroke="#b23a48" stroke-width="2"/>
<line x1="{{.At}}" x2="{{.At}}" y1="{{.T}}" y2="{{.B}}" stroke="#555" stroke-dasharray="4 4"/><text x="{{.At}}" y="{{.T}}" dy="-6" text-anchor="middle">measured</text>
{{with .Cross}}<circle cx="{{.X}}" cy="{{.Y}}" r="5"/><text x="{{.X}}" y="{{.Y}}" dx="8" dy="16">{{.Text}}</text>
{{end}}</svg>
<table><tr><th>A month ({{.C.Currency}})<th style="color:#0b6e4f">owned: {{.C.Own}}<th style="color:#b23a48">rented: {{.C.Rented}}
<tr><td>fixed<td>{{money .C.OwnFixed}}<td>-
<tr><td>a node-hour of work<td>{{money .C.OwnEnergy}}<td>{{money .C.RentedHour}}
<tr><td>the workload<td>{{money .C.OwnMonth}}<td>{{money .C.RentedMonth}}</table></html>
`))

// round leaves tenths of a pixel.
func round(v float64) float64 { return math.Round(10*v) / 10 }

// breakEven draws a comparison as a page that needs nothing else.
func breakEven(c comparison) ([]byte, error) {
	most := 1e-9
	for _, p := range c.Points {
		most = max(most, p.Own, p.Rented)
	}
	x := func(u float64) float64 { return round(chartL + u*chartPlotW) }
	y := func(v float64) float64 { return round(chartT + chartPlotH*(1-v/most)) }
	var own, rented strings.Builder
	for _, p := range c.Points {
		fmt.Fprintf(&own, "%g,%g ", x(p.Utilisation), y(p.Own))
		fmt.Fprintf(&rented, "%g,%g ", x(p.Utilisation), y(p.Rented))
	}
	var xs, ys []tick
	for i := range chartLines + 1 {
		v := most * float64(i) / chartLines
		ys = append(ys, tick{chartL - 8, y(v), money(v)})
		u := i * chartPercent
		xs = append(xs, tick{x(float64(u) / 100), chartT + chartPlotH + 18, fmt.Sprintf("%d %%", u)})
	}
	var cross *tick
	if c.BreakEven != nil && len(c.Points) > 0 {
		u := *c.BreakEven
		full := c.Points[len(c.Points)-1] // both are straight lines
		cross = &tick{x(u), y(u * full.Rented), fmt.Sprintf("break-even %.0f %%", 100*u)}
	}
	var b bytes.Buffer
	err := chartPage.Execute(&b, map[string]any{
		"C": c, "Answer": capital(c.Answer), "W": chartW, "H": chartH, "L": chartL, "R": chartL + chartPlotW, "T": chartT, "B": chartT + chartPlotH,
		"Mid": chartL + chartPlotW/2, "Foot": chartH - 8, "XTicks": xs, "YTicks": ys, "Own": own.String(), "Rented": rented.String(),
		"At": x(c.Utilisation), "Cross": cross,
	})
	return b.Bytes(), err
}
