package app

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/app/schema"
	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// TestEveryTableHasARetention: the page on retention names each table of the schema, once,
// and none that is not there; and each setting of the block, with its default.
func TestEveryTableHasARetention(t *testing.T) {
	db := storetest.SQLite(t, schema.Migrations...)
	var tables []string // but for the versions of the schema, one row a migration
	err := db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		return tx.NewRaw(`SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'store_version_%' ORDER BY name`).Scan(ctx, &tables)
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("../../docs/reference/retention.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(b), "## Tables")
	section, _, ok2 := strings.Cut(rest, "\n## ")
	if !ok || !ok2 {
		t.Fatal("the page has no section Tables")
	}
	var named []string
	word, setting := regexp.MustCompile("`([a-z_]+)`"), regexp.MustCompile("`((?:retention|predictions|online)\\.[a-z_]+)`")
	for line := range strings.Lines(section) {
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		for _, m := range word.FindAllStringSubmatch(first, -1) {
			named = append(named, m[1])
		}
		if !word.MatchString(first) {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|\n "), "|")
		if len(cells) != 6 || slices.ContainsFunc(cells, func(c string) bool { return strings.TrimSpace(c) == "" }) {
			t.Errorf("the row does not say what, how many bytes, how long, who deletes and what proof stays: %s", line)
			continue
		}
		howLong := strings.TrimSpace(cells[3])
		if strings.HasPrefix(howLong, "for ever") && !strings.Contains(howLong, ":") {
			t.Errorf("the row does not say why for ever: %s", line)
		}
		for _, m := range setting.FindAllStringSubmatch(howLong, -1) {
			if _, known := config.Defaults()[m[1]]; !known {
				t.Errorf("the row names %s, which is no setting: %s", m[1], line)
			}
		}
	}
	slices.Sort(named)
	for _, n := range named {
		if !slices.Contains(tables, n) {
			t.Errorf("the page names the table %s, which is not in the schema", n)
		}
	}
	for i, n := range named {
		if i > 0 && named[i-1] == n {
			t.Errorf("the page names the table %s twice", n)
		}
	}
	for _, n := range tables {
		if !slices.Contains(named, n) {
			t.Errorf("the table %s has no retention: say on docs/reference/retention.md how long its rows stay and who deletes them, or what bounds them", n)
		}
	}
	for key, value := range config.Defaults() {
		if strings.HasPrefix(key, "retention.") && !strings.Contains(string(b), "| `"+key+"` | "+value.(string)) {
			t.Errorf("the page does not have %s with its default %v", key, value)
		}
	}
}

// TestRetentionIsValidated: what would delete everything is refused.
func TestRetentionIsValidated(t *testing.T) {
	for key, values := range map[string]map[string]bool{
		"outputs":          {"7d": true, "400d": true, "401d": false, "10m": true, "0": false, "1m": false, "-1d": false, "soon": false},
		"events":           {"1h": true, "0": false, "59m": false},
		"tokens":           {"0": true, "1h": true, "1m": false, "-1h": false},
		"windows":          {"24h": true, "0": false, "1h": false},
		"deleted_runs":     {"0": true, "90d": true, "1s": false},
		"jobs":             {"0": true, "7d": true, "6d": false, "23h": false}, // no shorter than outputs
		"requests":         {"0": true, "30d": true, "7d": false},
		"ingestions":       {"0": true, "24h": true, "1h": false},
		"materialisations": {"0": true, "24h": true, "1h": false},
		"audit":            {"0": true, "24h": true, "1h": false},
	} {
		for value, good := range values {
			_, err := config.Load("", []string{"FALAJ_RETENTION_" + strings.ToUpper(key) + "=" + value}, nil)
			if (err == nil) != good {
				t.Errorf("retention.%s: %s: %v", key, value, err)
			}
			if err != nil && !strings.Contains(err.Error(), "retention."+key) {
				t.Errorf("retention.%s: %s: the error does not name it: %v", key, value, err)
			}
		}
	}
	for _, jobs := range []string{"0", "1d"} {
		if _, err := config.Load("", []string{"FALAJ_RETENTION_JOBS=" + jobs, "FALAJ_RETENTION_OUTPUTS=1d"}, nil); err != nil {
			t.Errorf("outputs for a day, jobs for %s: %v", jobs, err)
		}
	}
}
