package picture

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/palette/moreland"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

// The colours, of which none is told from another by red and green alone.
var (
	ink    = color.RGBA{R: 0x33, G: 0x33, B: 0x33, A: 0xff}
	good   = color.RGBA{R: 0x0b, G: 0x6e, B: 0x4f, A: 0xff}
	point  = color.RGBA{R: 0x3b, G: 0x6f, B: 0xb6, A: 0xff}
	faint  = color.RGBA{R: 0xd9, G: 0x82, B: 0x2b, A: 0xff}
	ground = color.RGBA{R: 0xdd, G: 0xdd, B: 0xdd, A: 0xff}
)

const (
	width  = 1000
	height = 420
	steps  = 64 // of a palette
)

func blank(x, y string) *plot.Plot {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.BackgroundColor = color.Transparent
	for _, style := range []*text.Style{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label} {
		style.Font.Variant = "Sans" // as browsers have it, so that what is measured is what is drawn
	}
	return p
}

// svg is a plot as an element of a page. What is in it is numbers, and names that the
// canvas escapes.
func svg(p *plot.Plot, w, h float64, words string) (template.HTML, error) {
	widen(&p.X)
	widen(&p.Y)
	c := vgsvg.NewWith(vgsvg.UseWH(vg.Points(w), vg.Points(h)))
	p.Draw(draw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", err
	}
	_, element, _ := strings.Cut(b.String(), "<svg")
	element = strings.ReplaceAll(element, "<image ", `<image preserveAspectRatio="none" `)
	return template.HTML(`<svg role="img" aria-label="` + template.HTMLEscapeString(words) + `"` + element), nil //nolint:gosec // see above
}

// widen makes an axis one that has a length.
func widen(a *plot.Axis) {
	if size := max(math.Abs(a.Min), math.Abs(a.Max)); !(a.Max-a.Min > 1e-9*size) && !math.IsInf(size, 0) {
		a.Min, a.Max = a.Min-max(size/10, 1), a.Max+max(size/10, 1)
	}
}

func single(title, words string, p *plot.Plot, w, h float64) ([]Figure, error) {
	picture, err := svg(p, w, h, title)
	return []Figure{{title, words, picture}}, err
}

// history is each trial's value by its number, and the best so far.
func history(s Sweep, done []trial.Trial) (figures []Figure, err error) {
	if len(done) == 0 {
		return nil, nil
	}
	for i, o := range s.Objectives {
		p := blank("trial", o.Metric)
		var all, best plotter.XYs
		least := math.Inf(1)
		for _, t := range done {
			if l := o.Direction.Loss(t.Values[i]); l < least && !t.Infeasible {
				least = l
			}
			all = append(all, plotter.XY{X: float64(t.Number), Y: t.Values[i]})
			if !math.IsInf(least, 1) { // none is feasible yet
				best = append(best, plotter.XY{X: float64(t.Number), Y: value(o.Direction, least)})
			}
		}
		dots, err := plotter.NewScatter(tail(all, mostTrials))
		if err != nil {
			return nil, err
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: point, Radius: 3, Shape: draw.CircleGlyph{}}
		p.Add(dots)
		if len(best) > 0 {
			line, err := plotter.NewLine(tail(best, mostTrials))
			if err != nil {
				return nil, err
			}
			line.StepStyle, line.Color, line.Width = plotter.PostStep, good, 2
			p.Add(line)
		}
		picture, err := svg(p, width, height, "history of "+o.Metric)
		if err != nil {
			return nil, err
		}
		figures = append(figures, Figure{"History of " + o.Metric, "Each complete trial, and the best so far.", picture})
	}
	return figures, nil
}

// reports are what trials logged on the way.
func reports(s Sweep, _ []trial.Trial) ([]Figure, error) {
	p := blank("step", s.Watched)
	drawn := 0
	for _, t := range tail(s.Trials, mostLines) {
		var line plotter.XYs
		for _, r := range t.Reports {
			if drawable(r.Value) {
				line = append(line, plotter.XY{X: float64(r.Step), Y: r.Value})
			}
		}
		if len(line) < 2 {
			continue
		}
		l, err := plotter.NewLine(thin(line))
		if err != nil {
			return nil, err
		}
		l.Color, l.Width = point, 1
		if t.State == trial.Stopped {
			l.Color, l.Dashes = faint, []vg.Length{3, 2}
		}
		p.Add(l)
		drawn++
	}
	if drawn == 0 {
		return nil, nil
	}
	return single("Values on the way", fmt.Sprintf("What %d trials logged of %s by step; dashed are those that were stopped.", drawn, s.Watched), p, width, height)
}

// front is two objectives against each other.
func front(s Sweep, done []trial.Trial) ([]Figure, error) {
	if len(s.Objectives) != 2 || len(done) == 0 {
		return nil, nil
	}
	p := blank(s.Objectives[0].Metric, s.Objectives[1].Metric)
	points := func(trials []trial.Trial) (all plotter.XYs) {
		for _, t := range tail(trials, mostTrials) {
			all = append(all, plotter.XY{X: t.Values[0], Y: t.Values[1]})
		}
		return all
	}
	for _, l := range []struct {
		trials []trial.Trial
		style  draw.GlyphStyle
	}{
		{done, draw.GlyphStyle{Color: point, Radius: 3, Shape: draw.RingGlyph{}}},
		{trial.Front(done, s.directions()), draw.GlyphStyle{Color: good, Radius: 4, Shape: draw.CircleGlyph{}}},
	} {
		dots, err := plotter.NewScatter(points(l.trials))
		if err != nil {
			return nil, err
		}
		dots.GlyphStyle = l.style
		p.Add(dots)
	}
	return single("Objectives against each other", "Filled are the trials that no other surpasses in both.", p, width/1.5, height)
}

// coordinates are the parameters side by side: a line is a trial, its colour how good it
// is.
func coordinates(s Sweep, done []trial.Trial) ([]Figure, error) {
	if len(done) == 0 {
		return nil, nil
	}
	o := s.Objectives[0]
	axes := s.Space.Parameters[:min(len(s.Space.Parameters), mostAxes)]
	shown := byLoss(tail(done, mostLines), o.Direction)
	p := blank("", "")
	p.HideY()
	p.X.Width, p.X.Tick.Width = 0, 0
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = -0.3, float64(len(axes))+0.3, -0.08, 1.08

	// The worst first, so that the best are seen.
	colours := palette()
	for i, t := range slices.Backward(shown) {
		line := plotter.XYs{{X: 0, Y: place(shown, o, t.Values[0])}}
		for a, q := range axes {
			if v, ok := t.Params[q.Name]; ok {
				line = append(line, plotter.XY{X: float64(a + 1), Y: share(q, v)})
			}
		}
		if len(line) < 2 {
			continue
		}
		l, err := plotter.NewLine(line)
		if err != nil {
			return nil, err
		}
		l.Color, l.Width = colours[i*(steps-1)/max(len(shown)-1, 1)], 1.2
		p.Add(l)
	}
	labels := plotter.XYLabels{}
	var styles []text.Style
	add := func(x, y float64, words string, align text.XAlignment) {
		labels.XYs = append(labels.XYs, plotter.XY{X: x, Y: y})
		labels.Labels = append(labels.Labels, short(words))
		style := p.X.Tick.Label
		style.XAlign, style.YAlign, style.Color = align, text.YCenter, ink
		styles = append(styles, style)
	}
	axis := func(x float64, name string, ends [][2]any) error {
		l, err := plotter.NewLine(plotter.XYs{{X: x, Y: 0}, {X: x, Y: 1}})
		if err != nil {
			return err
		}
		l.Color = ink
		p.Add(l)
		add(x, 1.06, name, text.XCenter)
		for _, e := range ends {
			at, _ := e[0].(float64)
			add(x+0.02, at, fmt.Sprint(e[1]), text.XLeft)
		}
		return nil
	}
	low, high := shown[0].Values[0], shown[len(shown)-1].Values[0]
	if err := axis(0, o.Metric, [][2]any{{place(shown, o, low), number(low)}, {place(shown, o, high), number(high)}}); err != nil {
		return nil, err
	}
	for a, q := range axes {
		if err := axis(float64(a+1), q.Name, marks(q)); err != nil {
			return nil, err
		}
	}
	words, err := plotter.NewLabels(labels)
	if err != nil {
		return nil, err
	}
	words.TextStyle = styles
	p.Add(words)
	p.X.Tick.Marker = plot.ConstantTicks(nil)
	note := fmt.Sprintf("%d trials, from dark, the best of %s, to light.", len(shown), o.Metric)
	if len(s.Space.Parameters) > mostAxes {
		note += fmt.Sprintf(" The first %d of %d parameters.", mostAxes, len(s.Space.Parameters))
	}
	return single("Parallel coordinates", note, p, max(width, 110*float64(len(axes)+1)), height)
}

// weights are how much each parameter matters.
func weights(s Sweep, _ []trial.Trial) (figures []Figure, err error) {
	for i, o := range s.Objectives {
		all := s.importances(i)
		if len(all) == 0 || all[0].Share == 0 {
			continue
		}
		all = all[:min(len(all), mostRows)]
		slices.Reverse(all) // the first is at the bottom
		var shares plotter.Values
		var names []string
		for _, w := range all {
			shares, names = append(shares, w.Share), append(names, short(w.Name))
		}
		p := blank("share", "")
		bars, err := plotter.NewBarChart(shares, 14)
		if err != nil {
			return nil, err
		}
		bars.Horizontal, bars.Color, bars.LineStyle.Width = true, point, 0
		p.Add(bars)
		p.NominalY(names...)
		p.X.Min = 0
		picture, err := svg(p, width, 70+26*float64(len(all)), "importance for "+o.Metric)
		if err != nil {
			return nil, err
		}
		figures = append(figures, Figure{
			"Importance for " + o.Metric, "How much of being among the best tenth each parameter explains (PED-ANOVA, Watanabe et al. 2023).", picture,
		})
	}
	return figures, nil
}

// fields are the first objective over pairs of the parameters that matter most.
func fields(s Sweep, done []trial.Trial) (figures []Figure, err error) {
	var top []space.Parameter
	for _, w := range s.importances(0) {
		if q, _ := s.Space.Find(w.Name); !q.Single() && len(top) < contours {
			top = append(top, q)
		}
	}
	for i, y := range top {
		for _, x := range top[:i] {
			f, err := contour(s, done, x, y)
			if err != nil {
				return nil, err
			}
			figures = append(figures, f...)
		}
	}
	return figures, nil
}

func contour(s Sweep, done []trial.Trial, x, y space.Parameter) ([]Figure, error) {
	const cells, fewest, levels = 40, 4, 9
	o := s.Objectives[0]
	var spots []spot
	var dots plotter.XYs
	for _, t := range tail(done, mostTrials) {
		a, okX := t.Params[x.Name]
		b, okY := t.Params[y.Name]
		if !okX || !okY {
			continue
		}
		spots = append(spots, spot{share(x, a), share(y, b), t.Values[0]})
		dots = append(dots, plotter.XY{X: share(x, a), Y: share(y, b)})
	}
	if len(spots) < fewest {
		return nil, nil
	}
	values := make([]float64, len(spots))
	for i, p := range spots {
		values[i] = p.z
	}
	slices.Sort(values)
	// Few bad trials would leave one colour for all others.
	low, high := values[0], values[len(values)-1]
	if o.Direction == trial.Maximize {
		low = values[len(values)/10]
	} else {
		high = values[len(values)-1-len(values)/10]
	}
	if !(low < high) {
		return nil, nil
	}
	same := func(u float64) float64 { return u }
	grid := newField(spots, cells, same, same)
	for i, z := range grid.z {
		grid.z[i] = min(max(z, low), high)
	}
	p := blank(x.Name, y.Name)
	colours := palette()
	if o.Direction == trial.Maximize {
		slices.Reverse(colours)
	}
	heat := plotter.NewHeatMap(grid, shades(colours))
	heat.Min, heat.Max, heat.Rasterized = low, high, true
	var at []float64
	for i := range levels {
		at = append(at, low+(high-low)*(float64(i)+1)/(levels+1))
	}
	lines := plotter.NewContour(grid, at, nil)
	lines.LineStyles[0].Color, lines.LineStyles[0].Width = color.White, 0.6
	trials, err := plotter.NewScatter(dots)
	if err != nil {
		return nil, err
	}
	trials.GlyphStyle = draw.GlyphStyle{Color: ink, Radius: 2.5, Shape: draw.RingGlyph{}}
	p.Add(heat, lines, trials)
	p.X.Tick.Marker, p.Y.Tick.Marker = ticks(x), ticks(y)
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, 1, 0, 1
	title := x.Name + " and " + y.Name
	words := fmt.Sprintf("%s between %s (%s) and %s (%s), estimated between trials, which are the rings.", o.Metric,
		number(low), tone(o.Direction == trial.Minimize), number(high), tone(o.Direction == trial.Maximize))
	return single(title, words, p, width/1.5, height*1.2)
}

func tone(best bool) string {
	if best {
		return "dark"
	}
	return "light"
}

// share is where a value is between the bounds of its parameter, from 0 to 1.
func share(p space.Parameter, v any) float64 {
	x, err := p.Encode(v)
	if err != nil {
		return 0
	}
	low, high := p.Bounds()
	if p.Type != space.Categorical {
		low, high = p.Low, p.Last()
		if p.Log {
			x, low, high = math.Log(x), math.Log(low), math.Log(high)
		}
	}
	if high <= low {
		return 0.5
	}
	return (x - low) / (high - low)
}

// place is where a value of the objective is between the best and the worst that are
// shown, the best on top.
func place(shown []trial.Trial, o Objective, v float64) float64 {
	best, worst := shown[0].Values[0], shown[len(shown)-1].Values[0]
	if best == worst {
		return 0.5
	}
	return 1 - (o.Direction.Loss(v)-o.Direction.Loss(best))/(o.Direction.Loss(worst)-o.Direction.Loss(best))
}

// marks are values of a parameter with their places.
func marks(p space.Parameter) (all [][2]any) {
	const most = 12
	if p.Type == space.Categorical {
		for i, c := range p.Choices {
			if len(p.Choices) <= most || i == 0 || i == len(p.Choices)-1 {
				all = append(all, [2]any{share(p, c), word(c)})
			}
		}
		return all
	}
	for _, v := range []float64{p.Low, p.Last()} {
		all = append(all, [2]any{share(p, p.Decode(v)), word(p.Decode(v))})
	}
	return all
}

func ticks(p space.Parameter) plot.Ticker {
	var out plot.ConstantTicks
	all := marks(p)
	if p.Type != space.Categorical {
		for _, u := range []float64{0.25, 0.5, 0.75} {
			v := p.Low + u*(p.Last()-p.Low)
			if p.Log {
				v = math.Exp(math.Log(p.Low) + u*(math.Log(p.Last())-math.Log(p.Low)))
			}
			all = append(all, [2]any{share(p, p.Decode(v)), word(p.Decode(v))})
		}
	}
	for _, m := range all {
		at, _ := m[0].(float64)
		out = append(out, plot.Tick{Value: at, Label: short(fmt.Sprint(m[1]))})
	}
	return out
}

// shades implements palette.Palette.
type shades []color.Color

func (s shades) Colors() []color.Color { return s }

// palette goes from dark to light.
func palette() []color.Color {
	m := moreland.BlackBody()
	m.SetMin(0)
	m.SetMax(1)
	out := make([]color.Color, steps)
	for i := range out {
		c, err := m.At(0.15 + 0.8*float64(i)/steps)
		if err != nil {
			c = ground
		}
		out[i] = c
	}
	return out
}

func value(d trial.Direction, loss float64) float64 {
	if d == trial.Maximize {
		return -loss
	}
	return loss
}

// byLoss is the best first.
func byLoss(done []trial.Trial, d trial.Direction) []trial.Trial {
	out := slices.Clone(done)
	slices.SortStableFunc(out, func(a, b trial.Trial) int {
		x, y := d.Loss(a.Values[0]), d.Loss(b.Values[0])
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
	return out
}

func tail[S ~[]T, T any](all S, most int) S { return all[max(len(all)-most, 0):] }

// thin leaves as many points of a line as can be seen.
func thin(line plotter.XYs) plotter.XYs {
	const most = 500
	if len(line) <= most {
		return line
	}
	out := make(plotter.XYs, 0, most)
	for i := range most {
		out = append(out, line[i*(len(line)-1)/(most-1)])
	}
	return out
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

func word(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case float64:
		return number(v)
	}
	return fmt.Sprint(v)
}

func short(s string) string {
	const most = 18
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}
