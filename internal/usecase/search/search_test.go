package search

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
)

func TestSearchWords(t *testing.T) {
	for q, want := range map[string][]word{
		"Delay":                       {{"", "delay"}},
		` owner:alice  tag:team=ops `: {{"owner", "alice"}, {"tag", "team=ops"}},
		`from:"a b" "c d" column:x`:   {{"from", "a b"}, {"", "c d"}, {"column", "x"}},
		"s3://lake/x":                 {{"", "s3://lake/x"}},
		`"open`:                       {{"", "open"}},
	} {
		got, err := wordsOf(q)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(word{})); err != nil || diff != "" {
			t.Errorf("%q: %v %s", q, err, diff)
		}
	}
	for _, q := range []string{"", "  ", "owner:", `""`, "a b c d e f g h i j k"} {
		if got, err := wordsOf(q); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v %v", q, got, err)
		}
	}
}

func TestSearchMatches(t *testing.T) {
	texts := []Match{{"name", "delays"}, {"tag", "team=Ops"}, {"column", "temp"}, {"from", "weather@3"}}
	for q, want := range map[string]string{
		"delay": "delays", "OPS temp": "team=Ops temp", "tag:ops": "team=Ops", "from:weather kind:dataset": "weather@3", "column:delay": "-", "delay nothing": "-", "kind:model": "-", "kind:dataset": "",
	} {
		words, err := wordsOf(q)
		if err != nil {
			t.Fatal(err)
		}
		got := "-"
		if found, all := (thing{}).matches(words, "dataset", texts); all {
			values := make([]string, len(found))
			for i, m := range found {
				values[i] = m.Value
			}
			got = strings.Join(values, " ")
		}
		if got != want {
			t.Errorf("%q: %q, want %q", q, got, want)
		}
	}
}

// without is an authorizer that keeps one object from everybody.
type without struct {
	policy.Authorizer
	name string
}

func (w without) Allow(ctx context.Context, action policy.Action, object policy.Object) error {
	if object.Name == w.name {
		return fault.New(fault.PermissionDenied, "%s is kept", w.name)
	}
	return w.Authorizer.Allow(ctx, action, object)
}
