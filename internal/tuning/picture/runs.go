package picture

import (
	_ "embed"
	"fmt"
	"html/template"
	"image/color"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

// Run is a run of tracking, beside others.
type Run struct {
	ID, Name, Status string
	Params           map[string]string
	Metrics          map[string][]trial.Report // by step
}

// Limits of a comparison.
const (
	MaxRuns    = 50
	MaxMetrics = 30 // the first by name
)

//go:embed runs.html
var runsText string

var runsPage = template.Must(template.New("runs").Parse(runsText))

// Okabe and Ito's colours, which the colour-blind tell apart (2008), without yellow.
var hues = []color.Color{
	color.RGBA{G: 0x72, B: 0xb2, A: 0xff},
	color.RGBA{R: 0xd5, G: 0x5e, A: 0xff},
	color.RGBA{G: 0x9e, B: 0x73, A: 0xff},
	color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff},
	color.RGBA{R: 0xe6, G: 0x9f, A: 0xff},
	color.RGBA{R: 0x56, G: 0xb4, B: 0xe9, A: 0xff},
	color.RGBA{A: 0xff},
}

var dashes = [][]vg.Length{nil, {6, 3}, {2, 2}, {8, 3, 2, 3}}

// line of a table: what each run has.
type line struct {
	Name   string
	Values []string
}

// Compare writes runs beside each other as HTML: what they were told where that
// differs, what they measured last, the curves of each metric, and parallel coordinates.
func Compare(w io.Writer, runs []Run) error {
	data := struct {
		Runs            []Run
		Params, Metrics []line
		Figures         []Figure
	}{Runs: runs}
	for _, name := range differing(runs) {
		l := line{Name: name}
		for _, r := range runs {
			l.Values = append(l.Values, r.Params[name])
		}
		data.Params = append(data.Params, l)
	}
	metrics := measured(runs)
	for _, name := range metrics {
		l := line{Name: name}
		for _, r := range runs {
			text := ""
			if all := r.Metrics[name]; len(all) > 0 {
				text = number(all[len(all)-1].Value)
			}
			l.Values = append(l.Values, text)
		}
		data.Metrics = append(data.Metrics, l)
	}
	var err error
	if data.Figures, err = Curves(runs); err != nil {
		return err
	}
	return runsPage.Execute(w, data)
}

// Curves draws each metric by step, and the parameters of runs beside the first three.
func Curves(runs []Run) (all []Figure, err error) {
	metrics := measured(runs)
	for _, name := range metrics {
		figures, err := curves(runs, name)
		if err != nil {
			return nil, err
		}
		all = append(all, figures...)
	}
	for _, name := range metrics[:min(len(metrics), 3)] {
		s := sweepOf(runs, name)
		if len(s.Space.Parameters) == 0 {
			continue
		}
		figures, err := coordinates(s, s.done())
		if err != nil {
			return nil, err
		}
		for _, f := range figures {
			f.Title, f.Words = "Parameters and "+name, fmt.Sprintf("%d runs, from dark, the least last value of %s, to light.", len(s.done()), name)
			all = append(all, f)
		}
	}
	return all, nil
}

// differing are the parameters that are not the same for all runs, by name.
func differing(runs []Run) (names []string) {
	all := map[string]map[string]bool{}
	for _, r := range runs {
		for name := range r.Params {
			all[name] = map[string]bool{}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, r := range runs {
			v, ok := r.Params[name]
			all[name][strconv.FormatBool(ok)+v] = true
		}
		if len(all[name]) > 1 {
			names = append(names, name)
		}
	}
	return names
}

// measured are the metrics that a run has, by name.
func measured(runs []Run) []string {
	all := map[string]bool{}
	for _, r := range runs {
		for name := range r.Metrics {
			all[name] = true
		}
	}
	names := slices.Sorted(maps.Keys(all))
	return names[:min(len(names), MaxMetrics)]
}

func curves(runs []Run, metric string) ([]Figure, error) {
	p := blank("step", metric)
	p.Legend.Top = true
	p.Legend.TextStyle.Font.Variant = "Sans"
	drawn := 0
	for i, r := range runs {
		var points plotter.XYs
		for _, at := range r.Metrics[metric] {
			if drawable(at.Value) {
				points = append(points, plotter.XY{X: float64(at.Step), Y: at.Value})
			}
		}
		if len(points) < 2 {
			continue
		}
		l, err := plotter.NewLine(thin(points))
		if err != nil {
			return nil, err
		}
		l.Color, l.Dashes, l.Width = hues[i%len(hues)], dashes[i/len(hues)%len(dashes)], 1.5
		p.Add(l)
		var thumb plot.Thumbnailer = l
		name := short(r.Name)
		p.Legend.Add(name+strings.Repeat(" ", 1+len(name)/3), thumb) // browsers' fonts are wider than the one that is measured
		drawn++
	}
	if drawn == 0 {
		return nil, nil
	}
	return single(metric, fmt.Sprintf("By step, of %d runs.", drawn), p, width, max(height, 14*float64(drawn)))
}

// sweepOf has the runs as trials: parameters that differ, and the last value of a metric.
// What all runs have as a number is one; all else is a choice.
func sweepOf(runs []Run, metric string) Sweep {
	s := Sweep{Objectives: []Objective{{Metric: metric, Direction: trial.Minimize}}}
	for _, name := range differing(runs) {
		if p, ok := parameter(runs, name); ok {
			s.Space.Parameters = append(s.Space.Parameters, p)
		}
	}
	for i, r := range runs {
		all := r.Metrics[metric]
		if len(all) == 0 {
			continue
		}
		t := trial.Trial{Number: i, State: trial.Complete, Values: []float64{all[len(all)-1].Value}, Params: space.Params{}}
		for _, p := range s.Space.Parameters {
			v, ok := r.Params[p.Name]
			switch f, err := strconv.ParseFloat(v, 64); {
			case !ok:
			case p.Type == space.Categorical:
				t.Params[p.Name] = v
			case err == nil:
				t.Params[p.Name] = f
			}
		}
		s.Trials = append(s.Trials, t)
	}
	return s
}

func parameter(runs []Run, name string) (space.Parameter, bool) {
	p := space.Parameter{Name: name, Type: space.Float, Low: math.Inf(1), High: math.Inf(-1)}
	var choices space.Choices
	numbers := true
	for _, r := range runs {
		v, ok := r.Params[name]
		if !ok {
			continue
		}
		if !slices.Contains(choices, any(v)) {
			choices = append(choices, v)
		}
		f, err := strconv.ParseFloat(v, 64)
		numbers = numbers && err == nil
		p.Low, p.High = min(p.Low, f), max(p.High, f)
	}
	if numbers && p.Low < p.High {
		p.Log = p.Low > 0 && p.High/p.Low >= 100
	} else {
		p = space.Parameter{Name: name, Type: space.Categorical, Choices: choices}
	}
	return p, p.Validate() == nil
}
