// Package picture draws a sweep: its history, what trials logged on the way, parallel
// coordinates, the importance of parameters and contours, and the front of several
// objectives, as one page that needs nothing else and runs no scripts.
//
// # Map
//
//   - picture.go: Page, and what is on it.
//   - draw.go: the pictures, by gonum's plot.
//   - field.go: values between trials, for contours.
//   - runs.go: runs of tracking beside each other.
//
// It is pure. What has too many trials to be seen is drawn of the newest.
package picture

import (
	_ "embed"
	"html/template"
	"io"
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/tuning/importance"
	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

// Sweep is what is drawn.
type Sweep struct {
	Name       string
	State      string
	Reason     string
	Space      space.Space
	Objectives []Objective
	Watched    string // metric of the reports
	Trials     []trial.Trial
}

// Objective is a metric and what of it is better.
type Objective struct {
	Metric    string
	Direction trial.Direction
}

func (s Sweep) directions() (all []trial.Direction) {
	for _, o := range s.Objectives {
		all = append(all, o.Direction)
	}
	return all
}

// done are the complete trials with finite values, by number.
func (s Sweep) done() (all []trial.Trial) {
	for _, t := range s.Trials {
		losses, ok := t.Losses(s.directions())
		for _, l := range losses {
			ok = ok && drawable(l)
		}
		if ok {
			all = append(all, t)
		}
	}
	return all
}

// drawable says that an axis can have a value: of differences of larger ones the plots
// make infinities, and count ticks for ever.
func drawable(v float64) bool { return math.Abs(v) < 1e100 }

// Limits of what is drawn.
const (
	mostTrials = 2000 // of points
	mostLines  = 300  // of trials as lines
	mostAxes   = 12   // of parallel coordinates
	mostRows   = 20   // of the table
	contours   = 3    // of the most important parameters, in pairs
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// Figure is a picture with its words.
type Figure struct {
	Title string        `json:"title"`
	Words string        `json:"words" doc:"Description of the picture"`
	SVG   template.HTML `json:"svg" doc:"SVG element, without scripts"`
}

type row struct {
	Number int
	Values []string
	Params []string
}

// Page writes the pictures of a sweep as HTML.
func Page(w io.Writer, s Sweep) error {
	done := s.done()
	data := struct {
		Sweep
		Counts  map[trial.State]int
		Best    []row
		Names   []string // of parameters
		Figures []Figure
	}{Sweep: s, Counts: map[trial.State]int{}}
	for _, t := range s.Trials {
		data.Counts[t.State]++
	}
	for _, p := range s.Space.Parameters {
		data.Names = append(data.Names, p.Name)
	}
	for _, t := range s.best(done) {
		data.Best = append(data.Best, s.row(t))
	}
	var err error
	if data.Figures, err = Figures(s); err != nil {
		return err
	}
	return page.Execute(w, data)
}

// Figures are the pictures of a sweep by themselves.
func Figures(s Sweep) (all []Figure, err error) {
	done := s.done()
	for _, draw := range []func(Sweep, []trial.Trial) ([]Figure, error){history, reports, front, coordinates, weights, fields} {
		figures, err := draw(s, done)
		if err != nil {
			return nil, err
		}
		all = append(all, figures...)
	}
	return all, nil
}

// best are the trials of the front, or the best ones of a single objective.
func (s Sweep) best(done []trial.Trial) []trial.Trial {
	all := trial.Front(done, s.directions())
	if len(s.Objectives) == 1 {
		all = byLoss(slices.DeleteFunc(slices.Clone(done), func(t trial.Trial) bool { return t.Infeasible }), s.Objectives[0].Direction)
		all = all[:min(len(all), 5)]
	}
	return all[:min(len(all), mostRows)]
}

func (s Sweep) row(t trial.Trial) row {
	r := row{Number: t.Number}
	for _, v := range t.Values {
		r.Values = append(r.Values, number(v))
	}
	for _, p := range s.Space.Parameters {
		v, ok := t.Params[p.Name]
		if !ok {
			r.Params = append(r.Params, "–")
			continue
		}
		r.Params = append(r.Params, word(v))
	}
	return r
}

// importances are the parameters' shares in an objective, the greatest first.
func (s Sweep) importances(objective int) []importance.Weight {
	return importance.Of(s.Space, s.Trials, s.directions(), objective)
}
