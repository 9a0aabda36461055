package label

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/keyset"

	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/serving/rollout"
)

func sealing(tb testing.TB) key {
	tb.Helper()
	h, err := keyset.NewHandle(aead.AES128GCMKeyTemplate())
	if err != nil {
		tb.Fatal(err)
	}
	a, err := aead.New(h)
	if err != nil {
		tb.Fatal(err)
	}
	return key{Place{"nyc", "delay"}, a}
}

func TestLabelsAsTheyAreKept(t *testing.T) {
	k := sealing(t)
	for name, want := range map[string]truth{
		"a number":          {numbers: []float64{1}},
		"numbers":           {numbers: []float64{0, -1.5, math.MaxFloat64}},
		"a class":           {texts: []string{"cat"}},
		"classes":           {texts: []string{"cat", "dog", "7", "قط"}},
		"classes of 8 text": {texts: []string{"1234567"}},
		"many":              {texts: strings.Split(strings.Repeat("a,", 999)+"b", ",")},
	} {
		sealed, err := k.seal("x", want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := k.open(Row{ID: "x", Sealed: sealed})
		if err != nil || !got.equal(want) || got.rows() != want.rows() {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if _, err := k.open(Row{ID: "y", Sealed: sealed}); err == nil {
			t.Errorf("%s opens under another id", name)
		}
	}
}

func FuzzDecodeTruth(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("12345678"))
	f.Add([]byte("T\x01\x03cat\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := decodeTruth(b)
		if ok && len(got.numbers) > 0 == (len(got.texts) > 0) && len(b) > 0 {
			t.Errorf("%q is %+v", b, got)
		}
	})
}

// An answer of several classes is judged by its class alone; labels of classes say
// nothing about a number.
func TestLossOfClasses(t *testing.T) {
	of := func(task prediction.Task, predicted ...string) *prediction.Record {
		r := &prediction.Record{Rows: 2, Task: task, Scores: []float64{0.9, 0.2}}
		if predicted != nil {
			r.Predicted = predicted
		}
		return r
	}
	for name, test := range map[string]struct {
		metric rollout.Metric
		pair   Pair
		loss   float64
		ok     bool
	}{
		"classes by number": {rollout.Error, Pair{Record: of(prediction.Multiclass, "2", "0"), Labels: []float64{2, 1}}, 0.5, true},
		"classes by text":   {rollout.Error, Pair{Record: of(prediction.Multiclass, "cat", "dog"), Texts: []string{"cat", "dog"}}, 0, true},
		// 0.9 is the probability of the last class, and the label 1 is of another one.
		"a probability of one class":      {rollout.Brier, Pair{Record: of(prediction.Multiclass, "2", "0"), Labels: []float64{1, 0}}, 0, false},
		"classes that are not known":      {rollout.Error, Pair{Record: of(prediction.Multiclass), Labels: []float64{1, 0}}, 0, false},
		"text for a number":               {rollout.SquaredError, Pair{Record: of(prediction.Regression), Texts: []string{"a", "b"}}, 0, false},
		"a binary answer":                 {rollout.Error, Pair{Record: of(prediction.Binary), Labels: []float64{1, 1}}, 0.5, true},
		"a label outside of 0 and 1":      {rollout.Brier, Pair{Record: of(prediction.Binary), Labels: []float64{1, 2}}, 0, false},
		"one row of two":                  {rollout.Error, Pair{Record: of(prediction.Binary), Labels: []float64{math.NaN(), 1}}, 1, true},
		"one class of two":                {rollout.Error, Pair{Record: of(prediction.Multiclass, "cat", "dog"), Texts: []string{"cat", ""}}, 0, true},
		"one class of two by number":      {rollout.Error, Pair{Record: of(prediction.Multiclass, "2", "0"), Labels: []float64{1, math.NaN()}}, 1, true},
		"an answer whose task is unknown": {rollout.Error, Pair{Record: of(""), Labels: []float64{0, 1}}, 1, true},
	} {
		loss, ok := lossOf(rollout.Spec{Metric: test.metric}, test.pair)
		if ok != test.ok || loss != test.loss {
			t.Errorf("%s: loss %v, %t", name, loss, ok)
		}
	}
	if got := []string{ClassOf(2), ClassOf(-1), ClassOf(1e6), ClassOf(0.5)}; !reflect.DeepEqual(got, []string{"2", "-1", "1000000", "0.5"}) {
		t.Error(got)
	}
}
