package cli

import (
	"encoding/csv"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// TestRowsAreWhatTheyAre: a table shows every digit of a value and the names of its columns,
// as do CSV and JSON.
func TestRowsAreWhatTheyAre(t *testing.T) {
	t.Parallel()
	answer := `{"columns":["Bought At","sum(a.b)","total","n","l","s"],"truncated":false,"rows":[
		["2026-01-02T03:04:05.678Z",1364363.326,123456789.123,9007199254740993,[1.5,null,"<x>"],"12345678.9012"],
		[null,0.32161943319838027,1e-7,-56668.025,[],"a,b\u001b[2J"]]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }))
	defer server.Close()
	run := func(args ...string) (string, string, int) {
		var out, said strings.Builder
		code := Run(t.Context(), World{Args: append(args, "-p", "shop", "--server", server.URL), Env: []string{"FALAJ_TOKEN=x"}, Stdout: &out, Stderr: &said})
		return out.String(), said.String(), code
	}
	want := "Bought At                 sum(a.b)             total          n                 l                 s\n" +
		"2026-01-02T03:04:05.678Z  1364363.326          123456789.123  9007199254740993  [1.5,null,\"<x>\"]  12345678.9012\n" +
		"-                         0.32161943319838027  1e-7           -56668.025        []                a,b\\x1b[2J\n"
	for _, of := range [][]string{{"dataset", "query", "SELECT 1"}, {"dataset", "preview", "orders"}} {
		if got, said, code := run(of...); got != want || code != 0 {
			t.Errorf("%v: exit code %d, %s, got\n%s\nwant\n%s", of, code, said, got, want)
		}
		got, _, _ := run(append(of, "-o", "csv")...)
		lines, err := csv.NewReader(strings.NewReader(got)).ReadAll()
		if err != nil || len(lines) != 3 || !slices.Equal(lines[0], []string{"Bought At", "sum(a.b)", "total", "n", "l", "s"}) ||
			!slices.Equal(lines[1], []string{"2026-01-02T03:04:05.678Z", "1364363.326", "123456789.123", "9007199254740993", `[1.5,null,"<x>"]`, "12345678.9012"}) || lines[2][0] != "" {
			t.Errorf("%v as CSV: %v, %q", of, err, lines)
		}
		got, _, _ = run(append(of, "-o", "json")...)
		var objects []map[string]json.RawMessage
		if err := json.Unmarshal([]byte(got), &objects); err != nil || len(objects) != 2 || string(objects[0]["sum(a.b)"]) != "1364363.326" || string(objects[0]["n"]) != "9007199254740993" {
			t.Errorf("%v as JSON: %v, %s", of, err, got)
		}
	}
	if _, said, code := run("get", "jobs", "-o", "csv"); code != 2 || !strings.Contains(said, "--output csv is only for `falaj dataset query` and `falaj dataset preview`") {
		t.Errorf("exit code %d, %s", code, said)
	}
}

// TestSignificant: a statistic keeps all digits of its whole part.
func TestSignificant(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		v    float64
		want string
	}{{1364363.326, "1364363"}, {-56668.025, "-56668"}, {0.321619, "0.3216"}, {12.3456, "12.35"}, {0, "0"}, {1e-7, "1e-07"}, {9999.96, "10000"}, {2.5e18, "2.5e+18"}} {
		if got := significant(c.v, 4); got != c.want {
			t.Errorf("significant(%v) = %s, want %s", c.v, got, c.want)
		}
	}
}
