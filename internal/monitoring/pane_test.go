package monitoring

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/monitoring/change"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/sketch"
)

func record(at time.Time, version int64, v float64) *prediction.Record {
	return &prediction.Record{
		At: at, Version: version, Replay: true, Rows: 1, Scores: []float64{v}, Latency: time.Millisecond,
		Inputs: []prediction.Column{{Name: "x", Numbers: []float64{v}}},
	}
}

// shape is what a test compares of a closed window.
func shape(c closed) string {
	return fmt.Sprintf("%s %d-%d requests %d rows %d x %d score %d mean %.6f detections %v", c.Key, c.From, c.To, c.all.Requests, c.all.Rows,
		c.all.named("x").Rows(), c.all.Score.Rows(), c.all.Score.Mean(), c.all.Detections)
}

// TestPanes: however records come, each is in as many windows as it should be, or
// counted as late; and what is stored and read again in between goes on as if it
// had not been.
func TestPanes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := layout{Slide: 10 * 60e6}
		many := rapid.Int64Range(1, 4).Draw(t, "slides of a window")
		l.Size = many * l.Slide
		l.Lateness = rapid.Int64Range(0, 20).Draw(t, "minutes late") * 60e6
		p, stored := newPanes(l, change.Detectors()), newPanes(l, change.Detectors())
		start := time.Date(2013, 1, 1, 0, 0, 0, 0, time.UTC)
		end := start
		var a, b []string
		rows := map[WindowKey]int64{}
		n := rapid.IntRange(1, 120).Draw(t, "records")
		in := int64(0)
		take := func(done []closed, into *[]string) {
			for _, c := range done {
				if c.To-c.From != l.Size || mod(c.From-monday, l.Slide) != 0 {
					t.Fatalf("window %s from %d to %d", c.Key, c.From, c.To)
				}
				*into = append(*into, shape(c))
			}
		}
		for i := range n {
			at := start.Add(time.Duration(rapid.Int64Range(0, 180).Draw(t, "minute")) * time.Minute)
			if at.After(end) {
				end = at
			}
			r := record(at, rapid.Int64Range(1, 2).Draw(t, "version"), float64(i))
			done := p.Add(r)
			take(done, &a)
			for _, c := range done {
				rows[c.Key] += c.all.Rows
			}
			take(stored.Add(r), &b)
			if rapid.Bool().Draw(t, "restart") {
				bytes, err := stored.encode()
				if err != nil {
					t.Fatal(err)
				}
				late := stored.late
				if stored, err = decodePanes(bytes, l, change.Detectors()); err != nil {
					t.Fatal(err)
				}
				stored.late = late
			}
		}
		last := record(end.Add(1000*time.Hour), 1, 0) // closes everything
		done := p.Add(last)
		take(done, &a)
		for _, c := range done {
			rows[c.Key] += c.all.Rows
		}
		take(stored.Add(last), &b)
		if !reflect.DeepEqual(a, b) {
			t.Fatalf("with restarts\n%q\nwithout\n%q", b, a)
		}
		for _, n := range rows {
			in += n
		}
		for _, n := range p.late {
			in += n
		}
		if in != int64(n)*many {
			t.Fatalf("%d records of %d windows each are %d times in windows or late", n, many, in)
		}
		if len(p.open) != 1 {
			t.Fatalf("%d panes are open", len(p.open))
		}
	})
}

func TestPanesByRows(t *testing.T) {
	l := layout{ByRows: true, Size: 30, Slide: 10}
	p := newPanes(l, nil)
	start := time.Date(2013, 1, 1, 0, 0, 0, 0, time.UTC)
	var got []closed
	for i := range 75 {
		got = append(got, p.Add(record(start.Add(time.Duration(i)*time.Minute), 1, float64(i)))...)
		if len(p.open) > 4 {
			t.Fatalf("%d panes", len(p.open))
		}
	}
	if len(got) != 5 {
		t.Fatalf("%d windows", len(got))
	}
	for i, c := range got {
		if c.Key.Start != int64(i) || c.all.Rows != 30 || c.all.Score.Min() != float64(10*i) || c.all.Score.Max() != float64(10*i+29) {
			t.Errorf("window %d is %s", i, shape(c))
		}
	}
}

// TestPanesAreBounded feeds ten years of minutes in no order, a million
// categories and ever new inputs.
func TestPanesAreBounded(t *testing.T) {
	l := layout{Slide: 60e6, Size: 60e6, Lateness: 64 * 60e6}
	p := newPanes(l, nil)
	r := rand.New(rand.NewPCG(1, 1))
	start := time.Date(2013, 1, 1, 0, 0, 0, 0, time.UTC)
	for v := range 3000 {
		p.Add(record(start.Add(time.Duration(r.IntN(3600))*time.Second), int64(v), 1))
	}
	if len(p.open) > maxOpen || p.lost == 0 {
		t.Errorf("%d panes, %d lost", len(p.open), p.lost)
	}
	one := newPane(WindowKey{Version: 1})
	for i := range 2000 {
		rec := record(start, 1, 0)
		rec.Failure = fmt.Sprint("kind ", i)
		rec.Inputs = []prediction.Column{{Name: fmt.Sprint("input ", i), Numbers: []float64{1}}, {Name: "category"}}
		for n := range 500 {
			rec.Inputs[1].Texts = append(rec.Inputs[1].Texts, strconv.Itoa(i*500+n))
		}
		one.add(rec)
	}
	if len(one.Columns) != maxColumns || len(one.Failures) != maxFailures+1 || one.Skipped == 0 {
		t.Errorf("%d inputs, %d failures", len(one.Columns), len(one.Failures))
	}
	b, err := one.encode()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(b.Columns[one.index["category"]]); n > sketch.MaxEncoded {
		t.Errorf("%d bytes for a million categories", n)
	}
	if got, _ := one.named("category").Distinct(); got < 900_000 || got > 1_100_000 {
		t.Errorf("about %d categories", got)
	}
}

// TestFalseAlarms replays weeks without drift: no more windows are called drifted
// than the manifest allows.
func TestFalseAlarms(t *testing.T) {
	replays, days, rows := 40, 7, 300
	if testing.Short() {
		replays = 10
	}
	methods := []string{"auto", "ks", "mann_whitney"}
	monitors := map[string]Monitor{}
	for _, method := range methods {
		monitors[method] = Monitor{Spec: Spec{Drift: DriftSpec{Method: method}}.WithDefaults("m")}
	}
	alarms, judged := map[string]int{}, 0
	for replay := range replays {
		r := rand.New(rand.NewPCG(uint64(replay), 11))
		draw := func(p *pane) {
			rec := &prediction.Record{Rows: 1, Replay: true, Version: 1}
			sum := 0.0
			for i := range 6 {
				v := r.NormFloat64()
				switch i {
				case 4:
					v = float64(r.IntN(7))
				case 5:
					v = r.ExpFloat64()
				}
				sum += v
				rec.Inputs = append(rec.Inputs, prediction.Column{Name: fmt.Sprint("f", i), Numbers: []float64{v}})
			}
			rec.Scores = []float64{sum}
			p.add(rec)
		}
		base := newPane(WindowKey{Version: 1, Start: -1})
		for range 3000 {
			draw(base)
		}
		baselines := map[string]*baseline{}
		for _, method := range methods {
			baselines[method] = fromWindow(monitors[method], closed{Key: base.Key, all: base}, "", Watched{}, time.Time{})
		}
		for day := range days {
			p := newPane(WindowKey{Version: 1, Start: int64(replay*days + day)})
			for range rows {
				draw(p)
			}
			judged++
			for _, method := range methods {
				win := evaluate(monitors[method], closed{Key: p.Key, all: p}, against{baseline: baselines[method]})
				if !win.Judged {
					t.Fatal(win.Note)
				}
				if win.Drifted {
					alarms[method]++
				}
			}
		}
	}
	for _, method := range methods {
		// 99.9 % of the time, alpha's share of judged windows stays under this.
		alpha := monitors[method].Spec.Drift.Alpha
		most := max(alpha*float64(judged)+3.1*10*alpha*2, 8)
		if testing.Short() {
			most = 4
		}
		if float64(alarms[method]) > most {
			t.Errorf("%s: %d of %d windows without drift are called drifted, at most %.0f may be", method, alarms[method], judged, most)
		}
		t.Logf("%s: %d of %d", method, alarms[method], judged)
	}
}

// TestWideRecordsAreBounded: panes of records with hundreds of columns of text are
// given up before they take all memory, the oldest first.
func TestWideRecordsAreBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("fills 128 MiB")
	}
	p := newPanes(layout{Size: 60e6, Slide: 60e6, Lateness: 3600e6}, nil)
	start := time.Date(2013, 1, 1, 0, 0, 0, 0, time.UTC)
	texts := make([]string, sketch.MaxCategories)
	for i := range texts {
		texts[i] = fmt.Sprintf("%0250d", i)
	}
	r := &prediction.Record{Version: 1, Replay: true, Rows: len(texts)}
	for i := range 50 {
		r.Inputs = append(r.Inputs, prediction.Column{Name: strconv.Itoa(i), Texts: texts})
	}
	for n := range 15 { // 14 MB each
		r.At = start.Add(time.Duration(n) * time.Minute)
		p.Add(r)
	}
	if p.lost < 4 || p.held() > maxHeld+20<<20 || p.open[WindowKey{1, true, r.At.UnixMicro()}] == nil {
		t.Errorf("%d panes of %d bytes, %d lost", len(p.open), p.held(), p.lost)
	}
	b, err := p.encode()
	if err != nil || len(b) > 2*maxHeld {
		t.Errorf("%d bytes are stored, %v", len(b), err)
	}
}
