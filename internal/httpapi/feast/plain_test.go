package feast

import (
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
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
		var got, want readRequest
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
