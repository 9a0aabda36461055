package feast

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// TestValues: what values are in Feast's JSON.
func TestValues(t *testing.T) {
	at := time.Date(2013, 1, 1, 11, 0, 0, 500_000_000, time.UTC)
	before := time.Date(1969, 12, 31, 23, 59, 59, 500_000_000, time.UTC)
	micro := at.Add(time.Microsecond)
	whole := at.Truncate(time.Second)
	for want, x := range map[string]value.Value{
		"9007199254740993": value.OfInt(9007199254740993), `"NaN"`: value.OfFloat(math.NaN()), "3.0": value.OfFloat(3),
		"null": value.Null(value.Timestamp), "1357038000": value.OfTime(at), "-1": value.OfTime(before), `"a\"b"`: value.OfString(`a"b`),
	} {
		if got := appendCell(nil, x); string(got) != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for want, x := range map[string]*time.Time{
		`"1970-01-01T00:00:00Z"`: nil, `"2013-01-01T11:00:00.500Z"`: &at, `"2013-01-01T11:00:00.500001Z"`: &micro, `"2013-01-01T11:00:00Z"`: &whole,
	} {
		if got := appendStamp(nil, x); string(got) != want {
			t.Errorf("%s, want %s", got, want)
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

// TestInstants: seconds since 1970 are an instant as long as they are of a year that has
// a number; what would come out of others is refused, not taken.
func TestInstants(t *testing.T) {
	for text, want := range map[string]any{
		"0": time.Unix(0, 0).UTC(), "253402300799": time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		"253402300800": json.Number("253402300800"), "9223372036854775807": json.Number("9223372036854775807"), "-62135596801": json.Number("-62135596801"), "1.5": json.Number("1.5"),
	} {
		if got := asInstant(json.Number(text)); got != want {
			t.Errorf("%s is read as %v", text, got)
		}
	}
}

// TestTooManyValues: a body of the largest size is refused before it is many times as
// large in memory.
func TestTooManyValues(t *testing.T) {
	body := `{"feature_view_name": "weather", "df": {"temp": [1` + strings.Repeat(",1", maxValues+1) + `]}}`
	r := httptest.NewRequest(http.MethodPost, writePath, strings.NewReader(body))
	var in writeRequest
	before, after := new(runtime.MemStats), new(runtime.MemStats)
	runtime.ReadMemStats(before)
	if err := decode(r, &in); !fault.Is(err, fault.TooLarge) || len(in.Rows.values) > 0 {
		t.Errorf("%d values are taken: %v", maxValues+2, err)
	}
	runtime.ReadMemStats(after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > uint64(8*len(body)) {
		t.Errorf("%d bytes are taken for a body of %d", grown, len(body))
	}
	r = httptest.NewRequest(http.MethodPost, writePath, strings.NewReader(`{"feature_view_name": "weather", "df": {"temp": [1, 2], "note": ["a, b", ","]}}`))
	if err := decode(r, &in); err != nil || len(in.Rows.values["note"]) != 2 {
		t.Errorf("%v, %v", in.Rows.values, err)
	}
}

// TestAnswer: an answer as a whole, with times that features share and do not.
func TestAnswer(t *testing.T) {
	at, later := time.Date(2013, 1, 1, 11, 0, 0, 0, time.UTC), time.Date(2013, 1, 1, 12, 0, 0, 0, time.UTC)
	a := readAnswer{Metadata: metadata{Names: []string{"origin", "temp", "sky"}}, Results: []vector{
		{keys: []any{"EWR", nil}},
		{column: &feature.Column{
			Values: []value.Value{value.OfFloat(1.5), value.Null(value.Float64)}, Statuses: []online.Status{online.Present, online.NotFound}, EventTimes: []*time.Time{&at, nil},
		}},
		{column: &feature.Column{
			Values: []value.Value{value.OfString("clear"), value.OfString("<snow>")}, Statuses: []online.Status{online.Present, online.Present}, EventTimes: []*time.Time{&at, &later},
		}},
	}}
	got, err := a.appendJSON(nil)
	want := `{"metadata":{"feature_names":["origin","temp","sky"]},"results":[` +
		`{"values":["EWR",null],"statuses":["PRESENT","NULL_VALUE"],"event_timestamps":["1970-01-01T00:00:00Z","1970-01-01T00:00:00Z"]},` +
		`{"values":[1.5,null],"statuses":["PRESENT","NOT_FOUND"],"event_timestamps":["2013-01-01T11:00:00Z","1970-01-01T00:00:00Z"]},` +
		`{"values":["clear","\u003csnow\u003e"],"statuses":["PRESENT","PRESENT"],"event_timestamps":["2013-01-01T11:00:00Z","2013-01-01T12:00:00Z"]}]}` + "\n"
	if err != nil || string(got) != want {
		t.Errorf("%v\n got: %s\nwant: %s", err, got, want)
	}
	if !json.Valid(got) {
		t.Error("it is no JSON")
	}
	if got, err := new(readAnswer).appendJSON(nil); err != nil || string(got) != `{"metadata":{"feature_names":null},"results":[]}`+"\n" {
		t.Errorf("%s, %v", got, err)
	}
}

// BenchmarkAnswer writes the answer of 100 entities and 50 features.
func BenchmarkAnswer(b *testing.B) {
	a := readAnswer{}
	times := make([]*time.Time, 100)
	for i := range times {
		at := time.Date(2013, 1, 1, 0, i, 0, 0, time.UTC)
		times[i] = &at
	}
	for f := range 50 {
		c := feature.Column{EventTimes: times}
		for i := range times {
			c.Values, c.Statuses = append(c.Values, value.OfFloat(float64(f*i)/1000)), append(c.Statuses, online.Present)
		}
		a.Results = append(a.Results, vector{column: &c})
	}
	b.ReportAllocs()
	for b.Loop() {
		text, err := a.appendJSON(nil)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(text)))
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
