package monitoring

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/serving/prediction"
)

// BenchmarkWindow reads 10,000 records of 13 numbers and evaluates their window
// against a baseline of 10,000 rows.
func BenchmarkWindow(b *testing.B) {
	const rows, columns = 10_000, 13
	r := rand.New(rand.NewPCG(1, 1))
	start := time.Date(2013, 1, 7, 0, 0, 0, 0, time.UTC)
	records := make([]*prediction.Record, rows)
	for i := range records {
		rec := &prediction.Record{
			At: start.Add(time.Duration(i) * time.Second), Version: 1, Replay: true, Rows: 1, Latency: time.Millisecond, Scores: []float64{r.Float64()},
		}
		for c := range columns {
			rec.Inputs = append(rec.Inputs, prediction.Column{Name: "f" + strconv.Itoa(c), Numbers: []float64{r.NormFloat64()}})
		}
		records[i] = rec
	}
	m := Monitor{Spec: Spec{}.WithDefaults("m")}
	base := newPane(WindowKey{Version: 1, Start: -1})
	for _, rec := range records {
		base.add(rec)
	}
	compared := against{baseline: fromWindow(m, closed{Key: base.Key, all: base}, "", Watched{}, start)}
	last := &prediction.Record{At: start.AddDate(0, 0, 3), Version: 1, Replay: true}
	l, err := layoutOf(m.Spec)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		p := newPanes(l, nil)
		for _, rec := range records {
			p.Add(rec)
		}
		for _, c := range p.Add(last) {
			if w := evaluate(m, c, compared); !w.Judged || w.Rows != rows {
				b.Fatal(w.Note)
			}
		}
	}
	b.ReportMetric(float64(rows*b.N)/b.Elapsed().Seconds(), "records/s")
}
