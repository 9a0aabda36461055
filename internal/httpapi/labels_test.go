package httpapi

import (
	"fmt"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/jsondoc"
)

// TestLabelBody: a value for each row, and null where there is none.
func TestLabelBody(t *testing.T) {
	for body, want := range map[string]string{
		`{"id":"a","value":true}`:                   "[1] []",
		`{"id":"a","value":"cat"}`:                  "[] [cat]",
		`{"id":"a","values":[null,1,false]}`:        "[NaN 1 0] []",
		`{"id":"a","values":[null,"cat"]}`:          `[] [ cat]`,
		`{"id":"a","values":["cat",""]}`:            "invalid",
		`{"id":"a","values":[1,"cat"]}`:             "[1] [cat]", // the domain refuses it
		`{"id":"a","value":1,"values":[1]}`:         "invalid",
		`{"id":"a","values":[{}]}`:                  "invalid",
		`{"id":"a","value":1,"at":"the other day"}`: "invalid",
	} {
		var b LabelBody
		if err := jsondoc.Decode([]byte(body), &b); err != nil {
			t.Fatal(err)
		}
		l, err := b.label(0)
		got := fmt.Sprint(l.Values, " ", l.Texts)
		if err != nil {
			got = fault.KindOf(err).String()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
}
