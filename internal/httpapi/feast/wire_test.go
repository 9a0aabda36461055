package feast

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/feature/value"
)

// TestValues: what values are in Feast's JSON.
func TestValues(t *testing.T) {
	at := time.Date(2013, 1, 1, 11, 0, 0, 500_000_000, time.UTC)
	before := time.Date(1969, 12, 31, 23, 59, 59, 500_000_000, time.UTC)
	micro := at.Add(time.Microsecond)
	whole := at.Truncate(time.Second)
	for want, x := range map[string]any{
		"9007199254740993": cell{value.OfInt(9007199254740993)}, `"NaN"`: cell{value.OfFloat(math.NaN())}, "3.0": cell{value.OfFloat(3)},
		"null": cell{value.Null(value.Timestamp)}, "1357038000": cell{value.OfTime(at)}, "-1": cell{value.OfTime(before)},
		`"1970-01-01T00:00:00Z"`: stamp{}, `"2013-01-01T11:00:00.500Z"`: stamp{&at}, `"2013-01-01T11:00:00.500001Z"`: stamp{&micro}, `"2013-01-01T11:00:00Z"`: stamp{&whole},
	} {
		if got, err := json.Marshal(x); err != nil || string(got) != want {
			t.Errorf("%s, want %s: %v", got, want, err)
		}
	}
	for _, text := range []string{"2013-01-01T11:00:00.5", "2013-01-01 11:00:00.5", "2013-01-01T13:00:00.5+02:00", "2013-01-01 06:00:00.5-05:00", "2013-01-01T11:00:00.500000Z"} {
		if got, ok := instant(text); !ok || !got.Equal(at) {
			t.Errorf("%s is read as %s", text, got)
		}
	}
	if _, ok := instant("yesterday"); ok {
		t.Error("yesterday is a time")
	}
}

// TestColumns: columns keep their order and their digits; what is none is refused.
func TestColumns(t *testing.T) {
	var c columns
	if err := json.Unmarshal([]byte(`{"b":[9007199254740993,null],"a":["x",1.50]}`), &c); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"b", "a"}, c.names); diff != "" || c.rows() != 2 {
		t.Error(diff)
	}
	if got, _ := json.Marshal(c.values); string(got) != `{"a":["x",1.50],"b":[9007199254740993,null]}` {
		t.Errorf("%s", got)
	}
	for _, text := range []string{`[]`, `1`, `null`, `{"a":1}`, `{"a":null}`, `{"a":{"0":1}}`, `{"a":[1],"b":[]}`, `{"a":[1],"a":[1]}`} {
		var c columns
		if err := c.UnmarshalJSON([]byte(text)); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

// TestRefs: versions in Feast's form.
func TestRefs(t *testing.T) {
	for feast, want := range map[string]string{
		"weather:temp": "weather:temp", "weather@v2:temp": "weather@2:temp", "weather@v2": "weather@2", "weather@latest:temp": "weather@latest:temp", "weather@v2x:t": "weather@v2x:t",
	} {
		if got := refOf(feast); got != want {
			t.Errorf("%s is %s, want %s", feast, got, want)
		}
	}
}
