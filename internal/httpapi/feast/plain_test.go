package feast

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
)

// FuzzPlain: what is taken as plain is what encoding/json makes of it.
func FuzzPlain(f *testing.F) {
	for _, body := range []string{
		`{"features": ["weather:temp", "weather:humid"], "entities": {"origin": ["EWR", null], "route": [1, -2.50e3]}}`,
		`{"feature_service":"delay","entities":{"id":[]},"full_feature_names":true,"include_feature_view_version_metadata":false}`,
		`{"entities":{"id":[true,false],"id":[1,2]}}`,
		`{"features":["a"],"features":["b"],"Features":["c"]}`,
		"{\"features\":[],\"entities\":{\"ö\":[\"é\",\"\xff\"]}}",
		`{"entities":{"a":[01],"b":[1.],"c":[1e],"d":[-]}}`,
		`{"entities":{"a":[1],"b":[]},"x":{}}`, ` { } `, `{} {}`, `{"features":[],}`, "{\"features\":[\"\n\"]}",
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, want := readRequest{Entities: columns{reads: true}}, readRequest{Entities: columns{reads: true}}
		if !got.plain(body) {
			return
		}
		if err := decodeFrom(strings.NewReader(string(body)), &want); err != nil {
			t.Fatalf("%q is taken, and is refused by encoding/json: %v", body, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%q is taken as %#v, want %#v", body, got, want)
		}
	})
}

// TestPlain: what clients send is plain, and what is not is left alone.
func TestPlain(t *testing.T) {
	for body, want := range map[string]bool{
		`{"features": ["weather:temp"], "entities": {"origin": ["EWR", "JFK"], "route": [1, 2]}, "full_feature_names": true}`: true,
		`{"feature_service": "delay", "entities": {"origin": ["é"]}}`:                                                         true,
		`{"entities": {"route": [1.5e-3, 0, -0.1, true, null]}}`:                                                              true,
		`{}`:                                   true,
		`{"entities": {"origin": ["\u00e9"]}}`: false,
		"{\"entities\": {\"origin\": [\"\xff\"]}}":       false,
		`{"entities": {"origin": [["EWR"]]}}`:            false,
		`{"entities": {"origin": ["EWR"], "route": []}}`: false,
		`{"entities": {"origin": [], "origin": []}}`:     false,
		`{"Entities": {"origin": []}}`:                   false,
		`{"features": "weather:temp"}`:                   false,
		`{"features": ["a"]} {}`:                         false,
		`{"entities": {"route": [01]}}`:                  false,
		`{"entities": {"route": [1.]}}`:                  false,
		`{"full_feature_names": null}`:                   false,
		`{"features": ["a"`:                              false,
		``:                                               false,
	} {
		if got := new(readRequest).plain([]byte(body)); got != want {
			t.Errorf("%s is plain: %t", body, got)
		}
	}
}

// TestManyEntities: a read has so many, and no more of them are read.
func TestManyEntities(t *testing.T) {
	list := func(n int, item string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + "]"
	}
	columns := func(n int, list string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"%d":%s,`, i, list)
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	const most = feature.MaxEntities
	for name, c := range map[string]struct {
		entities string
		want     fault.Kind
	}{
		"as many":            {`"a":` + list(most, "1"), 0},
		"too many":           {`"a":` + list(most+1, "1"), fault.TooLarge},
		"too many, escaped":  {`"\u0061":` + list(most+1, "1"), fault.TooLarge},
		"as many keys":       {columns(maxRead/most, list(most, "1")), 0},
		"too many keys":      {columns(maxRead/most+1, list(most, "1")), fault.TooLarge},
		"lists":              {`"a":[` + list(maxRead, "1") + `]`, fault.TooLarge},
		"nested":             {`"a":` + list(most, strings.Repeat("[", 100)+strings.Repeat("]", 100)), fault.TooLarge},
		"each kind of value": {`"a":[1.50,"\u00e9,",true,false,null,[1],{"b":[2]}]`, 0},
	} {
		var in readRequest
		r := httptest.NewRequest(http.MethodPost, readPath, strings.NewReader(`{"entities":{`+c.entities+`}}`))
		if err := in.receive(r); fault.KindOf(err) != c.want || (err == nil) != (c.want == 0) {
			t.Errorf("%s: %v", name, err)
		}
		for _, values := range in.Entities.values {
			if c.want == 0 && len(values) != in.Entities.rows() || len(values) > most {
				t.Errorf("%s: %d values", name, len(values))
			}
		}
		if want := []any{json.Number("1.50"), "é,", true, false, nil, []any{json.Number("1")}, map[string]any{"b": []any{json.Number("2")}}}; name == "each kind of value" && !reflect.DeepEqual(in.Entities.values["a"], want) {
			t.Errorf("%v, want %v", in.Entities.values["a"], want)
		}
	}
}

// gone is a client that went away.
type gone struct{ http.ResponseWriter }

func (gone) Write([]byte) (int, error) { return 0, net.ErrClosed }

// TestBuffersOfBrokenAnswers: a buffer that was not written is not used again.
func TestBuffersOfBrokenAnswers(t *testing.T) {
	text := buffer()
	text.WriteString("null")
	write(gone{httptest.NewRecorder()}, 0, text)
	for range 10 {
		if buffer() == text {
			t.Error("it is used again")
		}
	}
}
