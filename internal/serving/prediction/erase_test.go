package prediction_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/serving/prediction"
)

// asked is a request about some customers.
func asked(n int, who ...string) *prediction.Record {
	r := flights(n)
	r.Rows, r.Keys, r.Inputs, r.Scores = len(who), []prediction.Column{{Name: "customer", Texts: who}, {Name: "shop", Numbers: make([]float64, len(who))}}, nil, nil
	column := prediction.Column{Name: "spent"}
	words := prediction.Column{Name: "word"}
	for i := range who {
		column.Numbers = append(column.Numbers, float64(n)+float64(i)/3)
		words.Texts = append(words.Texts, fmt.Sprintf("word %d of %s", n, who[i]))
		r.Scores = append(r.Scores, float64(n)/7)
		r.Task, r.Predicted = prediction.Multiclass, append(r.Predicted, "class of "+who[i])
		r.Probabilities = append(r.Probabilities, 0.25, 0.5, float64(i+1)/3)
	}
	r.Inputs = []prediction.Column{column, words}
	return r
}

var carla = prediction.Person{Project: "nyc", Keys: []string{"customer"}, Is: func(v []string) bool { return v[0] == "carla" }}

// What a person's rows say goes, also from the segment that is being written; what
// others' say stays, and so do all places in the log.
func TestErase(t *testing.T) {
	dir, c := t.TempDir(), newClock()
	l := open(t, dir, c)
	who := [][]string{{"amal"}, {"carla"}, {"amal", "carla", "badr", "carla"}, {"badr"}}
	var all []*prediction.Record
	put := func(from, to int) {
		t.Helper()
		for n := from; n < to; n++ {
			r := asked(n, who[n%len(who)]...)
			all = append(all, r)
			if err := l.Append(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(0, 40)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, dir, c) // a sealed segment, and one that is being written
	put(40, 80)
	read := func(l *prediction.Log) (records []*prediction.Record, at []prediction.Cursor) {
		t.Helper()
		if err := l.Read(t.Context(), "nyc", "delay", prediction.Cursor{}, func(c prediction.Cursor, r *prediction.Record) error {
			records, at = append(records, r), append(at, c)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return records, at
	}
	before, cursors := read(l)
	if n, err := l.Count(t.Context(), carla); err != nil || n["delay"] != 60 {
		t.Fatalf("counted %v, error %v", n, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "nyc", "delay", ".erase-1"), nil, 0o600); err != nil { // of a crash
		t.Fatal(err)
	}
	told := int64(0)
	for range 2 {
		if err := l.Erase(t.Context(), carla, func(deployment string, rows int64) error {
			told += rows
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if told != 60 {
		t.Errorf("%d rows are told of, not 60", told)
	}
	put(80, 84)
	if err := l.Erase(t.Context(), carla, func(string, int64) error { return nil }); err != nil {
		t.Fatal(err)
	}
	all = all[:80]
	check := func(l *prediction.Log) {
		t.Helper()
		after, at := read(l)
		after, at = after[:80], at[:80]
		if !slices.Equal(at, cursors) {
			t.Error("the places in the log are others")
		}
		for i, r := range after {
			was := before[i]
			theirs := slices.Contains(was.Keys[0].Texts, "carla")
			if r.Erased != theirs {
				t.Errorf("record %d: erased is %t", i, r.Erased)
			}
			for row, name := range was.Keys[0].Texts {
				if name != "carla" {
					if r.Predicted[row] != was.Predicted[row] || !slices.Equal(r.Probabilities[3*row:3*row+3], was.Probabilities[3*row:3*row+3]) {
						t.Errorf("record %d, row %d of %s: its class was changed", i, row, name)
					}
					if r.Keys[0].Texts[row] != name || r.Inputs[0].Numbers[row] != was.Inputs[0].Numbers[row] || r.Inputs[1].Texts[row] != was.Inputs[1].Texts[row] || r.Scores[row] != was.Scores[row] {
						t.Errorf("record %d, row %d of %s was changed", i, row, name)
					}
					continue
				}
				if r.Predicted[row] != string(make([]byte, len("class of carla"))) || slices.ContainsFunc(r.Probabilities[3*row:3*row+3], func(p float64) bool { return !math.IsNaN(p) }) {
					t.Errorf("record %d, row %d says class %q of %v", i, row, r.Predicted[row], r.Probabilities)
				}
				if r.Keys[0].Texts[row] != "\x00\x00\x00\x00\x00" || !math.IsNaN(r.Inputs[0].Numbers[row]) || !math.IsNaN(r.Scores[row]) || r.Inputs[1].Texts[row] != string(make([]byte, len(was.Inputs[1].Texts[row]))) {
					t.Errorf("record %d, row %d says %v", i, row, r)
				}
			}
			r.Keys, r.Inputs, r.Scores, r.Erased = was.Keys, was.Inputs, was.Scores, was.Erased
			r.Predicted, r.Probabilities = was.Predicted, was.Probabilities
			if !reflect.DeepEqual(r, was) {
				t.Errorf("record %d is %+v, and was %+v", i, r, was)
			}
		}
		n, err := l.Count(t.Context(), carla)
		if err != nil || len(n) != 0 {
			t.Errorf("left: %v, error %v", n, err)
		}
		if err := l.Fetch(t.Context(), "nyc", "delay", cursors, func(i int, r *prediction.Record) error {
			if r == nil || r.ID != all[i].ID {
				t.Errorf("at %s is %v", cursors[i], r)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	check(l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, dir, c)
	check(l)
	if left, _ := filepath.Glob(filepath.Join(dir, "nyc", "delay", ".erase-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestErasedBefore: what a request says of somebody who was erased is not logged, from
// when it is known.
func TestErasedBefore(t *testing.T) {
	var erased []prediction.Person
	l, err := prediction.Open(prediction.Config{
		Dir: t.TempDir(), Keys: &ring{}, Now: newClock().now, Logger: quiet(), Erased: func(context.Context, string) ([]prediction.Person, error) { return erased, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	put := func(n int, want int64) {
		t.Helper()
		if err := l.Append(t.Context(), asked(n, "amal", "carla")); err != nil {
			t.Fatal(err)
		}
		if n, err := l.Count(t.Context(), carla); err != nil || n["delay"] != want {
			t.Fatalf("counted %v, error %v, want %d", n, err, want)
		}
	}
	put(1, 1)
	erased = []prediction.Person{carla}
	if err := l.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(2, 1)
	var last *prediction.Record
	if err := l.Read(t.Context(), "nyc", "delay", prediction.Cursor{}, func(_ prediction.Cursor, r *prediction.Record) error {
		last = r
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if last.Rows != 2 || last.Keys[0].Texts[0] != "amal" || last.Keys[0].Texts[1] == "carla" || strings.Trim(last.Inputs[1].Texts[1], "\x00 ") != "" || !math.IsNaN(last.Scores[1]) || math.IsNaN(last.Scores[0]) {
		t.Errorf("%+v", last)
	}
}
