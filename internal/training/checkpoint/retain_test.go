package checkpoint_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/training/checkpoint"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// records reads "1@0m 2@5m=0.5 3@10m!": number, age of the job, metric, damaged.
func records(t *testing.T, text string) []checkpoint.Record {
	t.Helper()
	var all []checkpoint.Record
	for word := range strings.FieldsSeq(text) {
		word, damaged := strings.CutSuffix(word, "!")
		word, metric, measured := strings.Cut(word, "=")
		number, age, _ := strings.Cut(word, "@")
		d, err := time.ParseDuration(age)
		if err != nil {
			t.Fatal(err)
		}
		r := checkpoint.Record{ID: number, Number: len(all) + 1, TakenAt: epoch.Add(d)}
		if damaged {
			r.Damaged = "lost"
		}
		if measured {
			var v float64
			if _, err := fmt.Sscan(metric, &v); err != nil {
				t.Fatal(err)
			}
			r.Metric = &v
		}
		all = append(all, r)
	}
	return all
}

func TestKept(t *testing.T) {
	minutes := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%d@%dm ", i+1, i*5)
		}
		return b.String()
	}
	for name, c := range map[string]struct {
		records string
		rules   checkpoint.Rules
		ended   time.Duration // after the epoch; 0 is not yet
		now     time.Duration
		want    string
	}{
		"none":                       {"", checkpoint.Rules{}, 0, 0, ""},
		"three by default":           {minutes(6), checkpoint.Rules{}, 0, time.Hour, "4 5 6"},
		"one":                        {minutes(6), checkpoint.Rules{KeepLast: 1}, 0, time.Hour, "6"},
		"best of losses":             {"1@0m=0.5 2@5m=0.1 3@10m=0.3 4@15m", checkpoint.Rules{KeepLast: 1, Best: checkpoint.Best{Metric: "loss"}}, 0, time.Hour, "2 4"},
		"best two of accuracies":     {"1@0m=0.5 2@5m=0.1 3@10m=0.3 4@15m", checkpoint.Rules{KeepLast: 1, KeepBest: 2, Best: checkpoint.Best{Metric: "acc", Mode: "max"}}, 0, time.Hour, "1 3 4"},
		"of equal ones the newer":    {"1@0m=0.1 2@5m=0.1 3@10m=0.3", checkpoint.Rules{KeepLast: 1, Best: checkpoint.Best{Metric: "loss"}}, 0, time.Hour, "2 3"},
		"one for each interval":      {minutes(14), checkpoint.Rules{KeepLast: 1, Interval: "30m"}, 0, 2 * time.Hour, "6 12 14"},
		"damaged ones do not count":  {"1@0m 2@5m 3@10m!", checkpoint.Rules{KeepLast: 1}, 0, time.Hour, "2"},
		"nor are they best":          {"1@0m=0.1! 2@5m=0.2 3@10m=0.3", checkpoint.Rules{KeepLast: 1, Best: checkpoint.Best{Metric: "loss"}}, 0, time.Hour, "2 3"},
		"unless there is no other":   {"1@0m! 2@5m!", checkpoint.Rules{}, 0, time.Hour, "2"},
		"the job ended":              {minutes(14), checkpoint.Rules{Interval: "30m"}, time.Hour, 2 * time.Hour, "14"},
		"the job ended long ago":     {minutes(3), checkpoint.Rules{}, time.Hour, 31 * 24 * time.Hour, ""},
		"not so long as it said":     {minutes(3), checkpoint.Rules{After: "60d"}, time.Hour, 31 * 24 * time.Hour, "3"},
		"nothing is to stay":         {minutes(3), checkpoint.Rules{After: "0"}, time.Hour, time.Hour, ""},
		"a job that runs for a year": {minutes(3), checkpoint.Rules{After: "0"}, 0, 365 * 24 * time.Hour, "1 2 3"},
	} {
		t.Run(name, func(t *testing.T) {
			var ended time.Time
			if c.ended > 0 {
				ended = epoch.Add(c.ended)
			}
			why := checkpoint.Kept(records(t, c.records), c.rules, ended, epoch.Add(c.now))
			got := slices.SortedFunc(maps.Keys(why), func(a, b string) int { return len(a)*100 + strings.Compare(a, b) - len(b)*100 })
			if strings.Join(got, " ") != c.want {
				t.Errorf("kept %v", why)
			}
		})
	}
}

// While a job may run again its newest good checkpoint is kept, whatever the
// rules; and no more than they say.
func TestTheLastGoodOneIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []checkpoint.Record
		newest, at := "", epoch
		for i := range rapid.IntRange(0, 30).Draw(t, "records") {
			at = at.Add(time.Duration(rapid.IntRange(0, 3600).Draw(t, "seconds")) * time.Second)
			r := checkpoint.Record{ID: strconv.Itoa(i), Number: i + 1, TakenAt: at}
			if rapid.Bool().Draw(t, "damaged") {
				r.Damaged = "lost"
			} else {
				newest = r.ID
			}
			if rapid.Bool().Draw(t, "measured") {
				v := rapid.Float64Range(-1, 1).Draw(t, "metric")
				r.Metric = &v
			}
			all = append(all, r)
		}
		rules := checkpoint.Rules{
			KeepLast: rapid.IntRange(0, 4).Draw(t, "last"), After: rapid.SampledFrom([]string{"", "0", "1h"}).Draw(t, "after"),
		}
		if rapid.Bool().Draw(t, "best") {
			rules.Best, rules.KeepBest = checkpoint.Best{Metric: "x", Mode: rapid.SampledFrom([]string{"", "min", "max"}).Draw(t, "mode")}, rapid.IntRange(0, 3).Draw(t, "n")
		}
		why := checkpoint.Kept(all, rules, time.Time{}, at.Add(time.Duration(rapid.IntRange(0, 1e6).Draw(t, "later"))*time.Second))
		if newest != "" && why[newest] == "" {
			t.Fatalf("the newest good one (%s) is not kept: %v", newest, why)
		}
		most := max(rules.KeepLast, 3*min(1, 1-min(rules.KeepLast, 1))) + max(rules.KeepBest, 1)
		if len(why) > most {
			t.Fatalf("%d are kept, at most %d should be: %v", len(why), most, why)
		}
	})
}

func TestCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.Int64Range(0, 50), 0, 40).Draw(t, "sizes")
		var fs []checkpoint.File
		total := int64(0)
		for _, n := range sizes {
			fs = append(fs, checkpoint.File{Size: n})
			total += n
		}
		const most = 16
		edges := map[int64]bool{0: true}
		for _, c := range checkpoint.Cut(fs, most) {
			if c.Size < 1 || c.Size > most {
				t.Fatalf("a chunk of %d bytes", c.Size)
			}
			total -= c.Size
			edges[sum(sizes)-total] = true
		}
		if total != 0 {
			t.Fatalf("%d bytes are in no chunk", total)
		}
		at := int64(0)
		for _, n := range sizes {
			if n >= most && (!edges[at] || !edges[at+n]) {
				t.Fatalf("a large file at %d shares chunks with others", at)
			}
			at += n
		}
	})
}

func sum(all []int64) (n int64) {
	for _, v := range all {
		n += v
	}
	return n
}

func FuzzLabel(f *testing.F) {
	for _, s := range []string{
		`{"step": 100, "metric": 0.5}`, `{"step": 1e3, "metrics": {"loss": 0.5, "acc": null}}`, `{"step": -1}`, `{"step": 1.5}`, `{"metric": NaN}`,
		`{"step": 1e300}`, `[]`, `null`, ``, `{"metrics": {"loss": "x"}}`, `{"step":9007199254740993}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		step, metric, err := checkpoint.Label(b, "loss")
		if err != nil && (step != nil || metric != nil) {
			t.Fatal("an error and a value")
		}
		if step != nil && *step < 0 {
			t.Fatalf("step %d", *step)
		}
		if metric != nil && *metric != *metric {
			t.Fatal("the metric is not a number")
		}
	})
}
