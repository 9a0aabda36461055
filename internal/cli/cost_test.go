package cli

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAgo(t *testing.T) {
	now := time.Date(2026, 3, 30, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"30d": "2026-02-28T12:00:00Z", "12h": "2026-03-30T00:00:00Z", "2026-01-02": "2026-01-02T00:00:00Z", "2026-01-02T03:04:05+04:00": "2026-01-01T23:04:05Z",
		"": "", "-3d": "", "0d": "", "99999d": "", "-1h": "", "last year": "", "NaNd": "",
	} {
		got, err := ago(text, now)
		if want == "" && err == nil || want != "" && (err != nil || got.UTC().Format(time.RFC3339) != want) {
			t.Errorf("%q is %s, %v; want %q", text, got, err, want)
		}
	}
}

func TestMoney(t *testing.T) {
	for v, want := range map[float64]string{0: "0.00", 0.001: "0.001", 3.456: "3.46", 999.99: "999.99", 1000: "1,000", 1234567.8: "1,234,568", -1234: "-1,234", -123456: "-123,456"} {
		if got := money(v); got != want {
			t.Errorf("%g is %s, want %s", v, got, want)
		}
	}
}

// TestForecastOfTheFirstDay: before a day is whole nothing is foreseen.
func TestForecastOfTheFirstDay(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"currency":"AED","items":[{"project":"new","spent":0.03,"budget":5,"month":{"per_day":0,"days":0,"total":0.03}},
			{"project":"old","spent":3,"budget":50,"month":{"per_day":1,"days":3,"total":8}}],"total":{"spent":3.03,"month":{"days":0}}}`)
	}))
	defer server.Close()
	var out strings.Builder
	code := Run(t.Context(), World{
		Args: []string{"--server", server.URL, "cost", "forecast", "--installation"}, Env: []string{"FALAJ_TOKEN=x"}, Stdout: &out, Stderr: &out,
	})
	lines := strings.Split(out.String(), "\n")
	if code != 0 || len(lines) < 4 {
		t.Fatalf("%d: %s", code, &out)
	}
	for i, want := range map[int][]string{1: {"new", "0.03", "-", "0", "-", "-", "5.00", "-"}, 2: {"old", "3.00", "1.00", "3", "8.00", "-", "50.00", "not", "this", "month"}} {
		if got := strings.Fields(lines[i]); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestComparisonSaysItsWindow: what a verdict was measured on is printed.
func TestComparisonSaysItsWindow(t *testing.T) {
	var out strings.Builder
	a := &app{World: World{Stdout: &out}}
	at := time.Date(2026, 3, 30, 12, 0, 0, 0, time.Local)
	if err := a.sayComparison(comparison{Answer: "owning is cheaper", Since: at, Until: at.Add(10 * time.Minute)}); err != nil || !strings.Contains(out.String(), "measured: 2026-03-30 12:00 to 2026-03-30 12:10, 10m0s") {
		t.Errorf("%v: %s", err, &out)
	}
}

func TestBreakEvenChart(t *testing.T) {
	var c comparison
	err := json.Unmarshal([]byte(`{"currency":"AED","own_pool":"home","rented_pool":"<script>","nodes":2,"node_hours_per_month":1000,"utilisation":0.68,
		"own_fixed_per_month":100,"own_energy_per_node_hour":0.01,"rented_per_node_hour":0.2,"own_per_month":110,"rented_per_month":200,
		"break_even_utilisation":0.36,"answer":"owning is cheaper",
		"points":[{"utilisation":0,"own":100,"rented":0},{"utilisation":0.5,"own":107.3,"rented":146},{"utilisation":1,"own":114.6,"rented":292}]}`), &c)
	if err != nil {
		t.Fatal(err)
	}
	page, err := breakEven(c)
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	for _, want := range []string{"Owning is cheaper.", "break-even 36 %", "&lt;script&gt;", `<polyline points="90,`, "measured"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(text, "<script>") || strings.Contains(text, "http") || strings.Contains(text, "NaN") {
		t.Errorf("the page needs something else, or is not escaped:\n%s", text)
	}
	drawing := text[strings.Index(text, "<svg"):strings.Index(text, "</svg>")] + "</svg>"
	for d := xml.NewDecoder(strings.NewReader(drawing)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the drawing is not well-formed: %v\n%s", err, drawing)
		}
	}
	for _, odd := range []comparison{{}, {BreakEven: c.BreakEven}} {
		if page, err := breakEven(odd); err != nil || strings.Contains(string(page), "NaN") {
			t.Errorf("%v: %s", err, page)
		}
	}
}
