package cli

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestProfileIsDrawn: bars for people, the answer for programs.
func TestProfileIsDrawn(t *testing.T) {
	t.Parallel()
	answer := `{"version":"w@3","rows":100,"quarantined":2,"sampled":10,"columns":[
		{"column":"temp","type":"float64","count":99,"nulls":1,"distinct":40,"min":"-3","max":"40.5","mean":12.25,"std":4,
			"quantiles":[{"share":0.5,"value":"12"}],"histogram":{"edges":["0","10","20","30"],"shares":[0.1,0.8,0.1]}},
		{"column":"origin","type":"string","count":100,"nulls":0,"distinct":2000,"distinct_estimated":true,"top":[{"value":"EWR\u001b[2J","share":0.75},{"value":"` + strings.Repeat("ü", 40) + `","share":0.001}]}]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }))
	defer server.Close()
	run := func(line string) string {
		var out, said strings.Builder
		if code := Run(t.Context(), World{Args: append(strings.Fields(line), "--server", server.URL), Env: []string{"FALAJ_TOKEN=x"}, Stdout: &out, Stderr: &said}); code != 0 {
			t.Fatalf("%s: exit code %d: %s", line, code, &said)
		}
		return out.String()
	}
	want := "w@3: 100 rows, 2 in quarantine; quantiles, histograms and frequent values of a random sample of 10, shares ± 42.1 %\n" +
		"\ntemp  float64\n  99 values, 40 distinct, 1 null, -3 to 40.5, mean 12.25 ± 4\n  ≤ 0 ▁█▁ > 30\n" +
		"\norigin  string\n  100 values, about 2000 distinct\n" +
		"  EWR\\x1b[2J                   ██████████████████        75.0 %\n" +
		"  " + strings.Repeat("ü", 27) + "… ▏                          0.1 %\n"
	if got := run("dataset profile w -p nyc"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	var p map[string]any
	if err := json.Unmarshal([]byte(run("dataset profile w -p nyc -o json")), &p); err != nil || p["rows"] != 100.0 {
		t.Errorf("%v, %v", p["rows"], err)
	}
}

// TestQuarantineIsExported: all pages of one version into a new file, or no file.
func TestQuarantineIsExported(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path + " " + r.URL.Query().Get("from") {
		case "/api/v1/projects/shop/datasets/orders/quarantine 0":
			_, _ = io.WriteString(w, `{"version":"orders@3","columns":["id","name"],"total":3,"rows":[{"row":2,"reasons":["unique(id)","not_null(name)"],"values":[9007199254740993,null]},{"row":5,"reasons":["x"],"values":[1,"a,b"]}]}`)
		case "/api/v1/projects/shop/datasets/orders@3/quarantine 2":
			_, _ = io.WriteString(w, `{"version":"orders@3","columns":["id","name"],"total":3,"rows":[{"row":9,"reasons":["x"],"values":[2,"<b>"]}]}`)
		case "/api/v1/projects/shop/datasets/gone/quarantine 0":
			_, _ = io.WriteString(w, `{"version":"gone@1","columns":["id"],"total":3,"rows":[{"row":2,"reasons":["x"],"values":[1]}]}`)
		default:
			w.WriteHeader(http.StatusGone)
		}
	}))
	defer server.Close()
	dir := t.TempDir()
	run := func(line string) (int, string) {
		var out, said strings.Builder
		code := Run(t.Context(), World{Args: append(strings.Fields(line), "-p", "shop", "--server", server.URL), Env: []string{"FALAJ_TOKEN=x"}, Stdout: &out, Stderr: &said})
		return code, out.String() + said.String()
	}
	for name, want := range map[string]string{
		"a.csv":   "quarantine_row,quarantine_reasons,id,name\n2,unique(id); not_null(name),9007199254740993,\n5,x,1,\"a,b\"\n9,x,2,<b>\n",
		"a.jsonl": `{"reasons":["unique(id)","not_null(name)"],"row":2,"values":{"id":9007199254740993,"name":null}}` + "\n" + `{"reasons":["x"],"row":5,"values":{"id":1,"name":"a,b"}}` + "\n" + `{"reasons":["x"],"row":9,"values":{"id":2,"name":"<b>"}}` + "\n",
	} {
		file := filepath.Join(dir, name)
		if code, said := run("dataset quarantine orders --file " + file); code != 0 || !strings.Contains(said, "wrote 3 rows") {
			t.Errorf("%s: exit code %d: %s", name, code, said)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
		if code, said := run("dataset quarantine orders --file " + file); code != 2 || !strings.Contains(said, "file exists") {
			t.Errorf("%s again: exit code %d: %s", name, code, said)
		}
	}
	if code, said := run("dataset quarantine gone --file " + filepath.Join(dir, "gone.csv")); code == 0 {
		t.Errorf("a page is missing, and it says %s", said)
	}
	if _, err := os.Stat(filepath.Join(dir, "gone.csv")); err == nil {
		t.Error("half a file is left")
	}
	if code, said := run("dataset quarantine orders"); code != 0 || !strings.Contains(said, "ROW  REASONS") || !strings.Contains(said, "2 of 3 rows") {
		t.Errorf("exit code %d: %s", code, said)
	}
}
