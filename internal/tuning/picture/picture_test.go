package picture_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/tuning/picture"
	"github.com/falaj-ml/falaj/internal/tuning/search"
	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/space/spacetest"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

var write = flag.String("write", "", "write the page of TestPage to this file, to be looked at")

var image = regexp.MustCompile(`data:image/[a-z]+;base64,[A-Za-z0-9+/=\s]*`)

// drawn is a page, whose pictures are well-formed.
func drawn(t interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}, s picture.Sweep,
) string {
	t.Helper()
	var b bytes.Buffer
	if err := picture.Page(&b, s); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, part := range strings.Split(page, "<svg")[1:] {
		element, _, ok := strings.Cut(part, "</svg>")
		if !ok {
			t.Fatal("a picture does not end")
		}
		element = image.ReplaceAllString(element, "")
		if strings.Contains(element, "NaN") || strings.Contains(element, "Inf") {
			at := max(strings.Index(element, "NaN"), strings.Index(element, "Inf"))
			t.Fatalf("a picture has numbers that are none: %s", element[max(at-200, 0):min(at+100, len(element))])
		}
		d := xml.NewDecoder(strings.NewReader("<svg" + element + "</svg>"))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("a picture is not XML: %v", err)
			}
		}
	}
	return page
}

func parabola(objectives int) picture.Sweep {
	s := picture.Sweep{
		Name: "<mlp>", State: "complete", Reason: "60 trials were started, of 60", Watched: "loss",
		Space: space.Space{Parameters: []space.Parameter{
			{Name: "lr", Type: space.Float, Low: 1e-5, High: 1, Log: true},
			{Name: "opt", Type: space.Categorical, Choices: space.Choices{"sgd", "<b>adam</b>", nil}},
			{Name: "momentum", Type: space.Float, High: 1, When: &space.Condition{Parameter: "opt", In: space.Choices{"sgd"}}},
			{Name: "layers", Type: space.Int, Low: 1, High: 5},
		}},
	}
	problem := search.Problem{Space: s.Space}
	for i := range objectives {
		s.Objectives = append(s.Objectives, picture.Objective{Metric: fmt.Sprint("loss", i), Direction: trial.Minimize})
		problem.Directions = append(problem.Directions, trial.Minimize)
	}
	for n := range 60 {
		params, err := search.Suggest(problem, search.Config{Seed: 1}, s.Trials, n)
		if err != nil {
			panic(err)
		}
		lr, _ := params["lr"].(float64)
		layers, _ := params["layers"].(int64)
		t := trial.Trial{Number: n, State: trial.Complete, Params: params}
		for i := range objectives {
			t.Values = append(t.Values, math.Pow(math.Log10(lr)+2, 2)+math.Abs(float64(layers)-3-float64(i)))
		}
		for step := range int64(10) {
			t.Reports = append(t.Reports, trial.Report{Step: step, Value: t.Values[0] + 1/float64(step+1)})
		}
		if n%7 == 6 {
			t.State, t.Values, t.Reports = trial.Stopped, nil, t.Reports[:4]
		}
		s.Trials = append(s.Trials, t)
	}
	return s
}

func TestPage(t *testing.T) {
	page := drawn(t, parabola(1))
	if *write != "" {
		if err := os.WriteFile(*write, []byte(page), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{
		"Sweep &lt;mlp&gt;", "History of loss0", "Values on the way", "Parallel coordinates", "Importance for loss0", "60 trials, 52 complete, 8 stopped", "The best trials",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not have %q", want)
		}
	}
	for _, not := range []string{"<b>adam", "<script", "http://", "https://"} {
		if text := strings.ReplaceAll(strings.ReplaceAll(page, "http://www.w3.org/2000/svg", ""), "http://www.w3.org/1999/xlink", ""); strings.Contains(text, not) {
			t.Errorf("the page has %q", not)
		}
	}
	if n := strings.Count(page, "<svg"); n != 4+3 {
		t.Errorf("%d pictures", n)
	}
	two := drawn(t, parabola(2))
	if !strings.Contains(two, "Objectives against each other") || !strings.Contains(two, "no other surpasses in all") {
		t.Error("two objectives are not drawn against each other")
	}
}

// TestPageOfAnything: whatever was tried and came of it, there is a page.
func TestPageOfAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := picture.Sweep{Name: "x", State: "running", Watched: "loss", Space: spacetest.Space(t)}
		problem := search.Problem{Space: s.Space}
		for i := range rapid.IntRange(1, 3).Draw(t, "objectives") {
			d := rapid.SampledFrom([]trial.Direction{trial.Minimize, trial.Maximize}).Draw(t, "direction")
			s.Objectives = append(s.Objectives, picture.Objective{Metric: fmt.Sprint("m", i), Direction: d})
			problem.Directions = append(problem.Directions, d)
		}
		value := rapid.OneOf(rapid.Float64Range(-10, 10), rapid.SampledFrom([]float64{0, 1, 1e300, -1e300, 1e308, -1.7e308, 1e99, -1e99, math.Inf(1), math.Inf(-1), math.NaN()}))
		for n := range rapid.IntRange(0, 12).Draw(t, "trials") {
			params, err := search.Suggest(problem, search.Config{Algorithm: search.Random}, nil, n)
			if err != nil {
				t.Fatal(err)
			}
			one := trial.Trial{Number: n, Params: params, State: rapid.SampledFrom([]trial.State{trial.Running, trial.Complete, trial.Stopped, trial.Failed}).Draw(t, "state")}
			if one.State == trial.Complete {
				for range s.Objectives {
					one.Values = append(one.Values, value.Draw(t, "value"))
				}
			}
			for step := range int64(rapid.IntRange(0, 3).Draw(t, "reports")) {
				one.Reports = append(one.Reports, trial.Report{Step: step, Value: value.Draw(t, "report")})
			}
			s.Trials = append(s.Trials, one)
		}
		drawn(t, s)
	})
}

func TestCompare(t *testing.T) {
	var runs []picture.Run
	for i, opt := range []string{"adam", "sgd", "<i>adam</i>"} {
		r := picture.Run{
			ID: fmt.Sprint("run_", i), Name: fmt.Sprint("fit <", i, ">"), Status: "FINISHED",
			Params:  map[string]string{"lr": fmt.Sprint(math.Pow(10, float64(-i))), "opt": opt, "seed": "1"},
			Metrics: map[string][]trial.Report{"acc": {{Step: 0, Value: math.NaN()}}},
		}
		for step := range int64(20) {
			r.Metrics["loss"] = append(r.Metrics["loss"], trial.Report{Step: step, Value: float64(i+1) / float64(step+1)})
		}
		runs = append(runs, r)
	}
	delete(runs[2].Params, "lr")
	var b bytes.Buffer
	if err := picture.Compare(&b, runs); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, want := range []string{"fit &lt;0&gt;", "<th>lr<td>1<td>0.1<td>\n", "<th>opt<td>adam<td>sgd<td>&lt;i&gt;adam", "<th>loss<td>0.05<td>0.1<td>0.15", "By step, of 3 runs.", "Parameters and loss"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not have %q", want)
		}
	}
	for _, not := range []string{"<i>adam", "<script", "<th>seed"} {
		if strings.Contains(page, not) {
			t.Errorf("the page has %q", not)
		}
	}
	if n := strings.Count(page, "<svg"); n != 2 {
		t.Errorf("%d pictures", n)
	}
	if *write != "" {
		if err := os.WriteFile(*write+".runs.html", []byte(page), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
