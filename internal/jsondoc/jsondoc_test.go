package jsondoc_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/jsondoc"
)

// Texts that two readers could understand differently, and what is said of each.
var refused = []struct{ text, what string }{
	{`{"events":[],"events":[1]}`, `duplicate key "events"`},
	{`{"a":{"b":1,"\u0062":2}}`, `a (byte 13): duplicate key "b"`},
	{`[1,{"x":[{"k":1,"k":1}]}]`, `[1].x[0] (byte 17): duplicate key "k"`},
	{"{\"shop\":\"caf\xe9\"}", `shop (byte 13): not UTF-8`},
	{"{\"caf\xe9\":1}", `not UTF-8`},
	{"\"\xed\xa0\x80\"", `not UTF-8`}, // a surrogate half as bytes
	{`"\ud800"`, `half a surrogate pair`},
	{`"\udc00\ud800"`, `half a surrogate pair`},
	{`{"a":["x\ud83dx"]}`, `half a surrogate pair`},
	{`{"\ud800":1}`, `half a surrogate pair`},
	{`{"a":1} {"a":2}`, `after its end`},
	{`{"a":1`, `truncated`},
	{``, `truncated`},
	{` `, `truncated`},
	{`{'a':1}`, `not JSON`},
	{`{"a":NaN}`, `not JSON`},
	{`01`, `after its end`},
}

func TestRefused(t *testing.T) {
	for _, c := range refused {
		var x any
		for door, err := range map[string]error{"Check": jsondoc.Check([]byte(c.text)), "Decode": jsondoc.Decode([]byte(c.text), &x)} {
			if _, ours := errors.AsType[*jsondoc.Error](err); !ours {
				t.Errorf("%s of %q: %v", door, c.text, err)
			} else if door == "Decode" && !strings.Contains(err.Error(), c.what) {
				t.Errorf("%s of %q: %v, want %q", door, c.text, err, c.what)
			}
		}
	}
}

func TestDecode(t *testing.T) {
	type inner struct {
		Events []json.RawMessage `json:"events"`
		Any    any               `json:"any"`
		Number json.Number       `json:"number"`
		Text   *string           `json:"text,omitempty"`
		Rates  map[string]float64
	}
	text := `{"events":[{"a":1}, 2],"Events":[],"any":[9007199254740993,1.50,{"x":1e400}],"number":18446744073709551615,"text":"\ud83d\ude00","other":{"a":1}}`
	var got inner
	if err := jsondoc.Decode([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	smile := "😀"
	want := inner{
		Events: []json.RawMessage{json.RawMessage(`{"a":1}`), json.RawMessage(`2`)},
		Any:    []any{json.Number("9007199254740993"), json.Number("1.50"), map[string]any{"x": json.Number("1e400")}},
		Number: "18446744073709551615", Text: &smile,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if err := jsondoc.Decode([]byte(text), &got, jsondoc.Known); err == nil || !strings.Contains(err.Error(), `there is no field "Events"`) {
		t.Errorf("a name of another case: %v", err)
	}
	var x any
	if err := jsondoc.Decode([]byte(`[1,2.5]`), &x, jsondoc.Floats); err != nil || !cmp.Equal(x, any([]any{1.0, 2.5})) {
		t.Errorf("%v, %v", x, err)
	}
	if err := jsondoc.DecodeFrom(strings.NewReader(`{"number":"5"}`), &got); err == nil || !strings.Contains(err.Error(), "number (byte ") {
		t.Errorf("text for a number: %v", err)
	}
	if err := jsondoc.Decode([]byte(`{"events":5}`), &got); err == nil || !strings.Contains(err.Error(), "events (byte ") {
		t.Errorf("a number for a list: %v", err)
	}
}

type picky struct{}

func (*picky) UnmarshalJSON([]byte) error { return fault.New(fault.TooLarge, "too many") }

// What a type's own reader says stays what it is.
func TestOwnReaders(t *testing.T) {
	var in struct {
		A picky `json:"a"`
	}
	if err := jsondoc.Decode([]byte(`{"a":1}`), &in); !fault.Is(err, fault.TooLarge) {
		t.Error(err)
	}
	// The value is checked before it gets there.
	if err := jsondoc.Decode([]byte(`{"a":{"x":1,"x":2}}`), &in); fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), "duplicate") {
		t.Error(err)
	}
}

// FuzzCheck: what is taken means the same to encoding/json.
func FuzzCheck(f *testing.F) {
	for _, c := range refused {
		f.Add([]byte(c.text))
	}
	f.Add([]byte(`{"a":[1,2.5e3,"\u00e9",null,true,{"b":{}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		err := jsondoc.Check(text)
		var ours, theirs any
		if derr := jsondoc.Decode(text, &ours, jsondoc.Floats); (derr == nil) != (err == nil) {
			if err == nil && strings.Contains(derr.Error(), "float64") { // a number beyond its range
				return
			}
			t.Fatalf("Check %v, Decode %v", err, derr)
		}
		if err != nil {
			return
		}
		if err := json.Unmarshal(text, &theirs); err != nil {
			t.Fatalf("taken, and encoding/json refuses it: %v", err)
		}
		if !cmp.Equal(ours, theirs) {
			t.Fatalf("%v is not %v", ours, theirs)
		}
	})
}
