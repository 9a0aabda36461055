package table

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// TestPlan: what clients of the REST catalog send, and what it comes to.
func TestPlan(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	s := Schema{{ID: 1, Name: "a", Type: Int64}, {ID: 2, Name: "b", Type: String}}
	whole := Table{Name: "nyc/t", Location: "file:///t", LastField: 2, Now: at, Snapshots: []Snapshot{
		{ID: 1, Version: 1, Time: at, Schema: s, ManifestList: "file:///t/1"}, {ID: 77, Version: 3, Time: at, Schema: s, ManifestList: "file:///t/3"},
	}}
	empty := Table{Name: "nyc/t", Location: "file:///t", LastField: 2, Now: at, Next: s}
	const (
		add  = `{"action":"add-snapshot","snapshot":{"snapshot-id":88,"parent-snapshot-id":77,"manifest-list":"file:///t/l","schema-id":0}}`
		move = `{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":88}`
	)
	schema := func(fields string) string {
		return `{"action":"add-schema","schema":{"schema-id":1,"fields":[` + fields + `]}},{"action":"set-current-schema","schema-id":-1}`
	}
	tests := []struct {
		name          string
		table         Table
		exists        bool
		requirements  string
		updates       string
		kind          fault.Kind // of the error; 0 for none
		want          string     // in the error
		write, schema string     // the snapshot and the columns that come out
	}{
		{name: "append", table: whole, exists: true, requirements: `{"type":"assert-ref-snapshot-id","ref":"main","snapshot-id":77},{"type":"assert-current-schema-id","current-schema-id":0}`, updates: add + "," + move, write: "88", schema: "a b"},
		{name: "stale", table: whole, exists: true, requirements: `{"type":"assert-ref-snapshot-id","ref":"main","snapshot-id":1}`, updates: add + "," + move, kind: fault.Conflict, want: "snapshot of main is 77, not 1"},
		{name: "stale without a requirement", table: whole, exists: true, updates: strings.Replace(add, ":77", ":1", 1) + "," + move, kind: fault.Conflict, want: "does not follow 77"},
		{name: "no parent", table: whole, exists: true, updates: strings.Replace(add, ":77", ":0", 1) + "," + move, kind: fault.Conflict, want: "does not follow 77"},
		{name: "replaced", table: whole, exists: true, updates: schema(`{"id":9,"name":"z","type":"double"}`) + `,{"action":"remove-snapshot-ref","ref-name":"main"},` + strings.Replace(strings.Replace(add, ":77", ":0", 1), `"schema-id":0`, `"schema-id":1`, 1) + "," + move, write: "88", schema: "z"},
		{name: "two snapshots", table: whole, exists: true, updates: add + `,{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":88},{"action":"add-snapshot","snapshot":{"snapshot-id":99,"parent-snapshot-id":88,"manifest-list":"l"}},{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":99}`, write: "99", schema: "a b"},
		{name: "again", table: whole, exists: true, requirements: `{"type":"assert-ref-snapshot-id","ref":"main","snapshot-id":1}`, updates: strings.ReplaceAll(add+","+move, "88", "77"), write: "done"},
		{name: "exists", table: whole, exists: true, requirements: `{"type":"assert-create"}`, updates: move, kind: fault.Conflict, want: "already exists"},
		{name: "created", table: empty, requirements: `{"type":"assert-create"}`, updates: `{"action":"assign-uuid","uuid":"x"},{"action":"upgrade-format-version","format-version":2},` + schema(`{"id":1,"name":"a","type":"int","required":true},{"id":2,"name":"b","type":"string"}`) + `,{"action":"add-spec","spec":{"spec-id":0,"fields":[]}},{"action":"add-sort-order","sort-order":{"order-id":0,"fields":[]}},{"action":"set-location","location":"file:///t/"},` + strings.Replace(add, ":77", ":0", 1) + "," + move, write: "88", schema: "a b"},
		{name: "created by nobody", table: empty, requirements: `{"type":"assert-table-uuid","uuid":"x"}`, updates: move, kind: fault.NotFound, want: "does not exist"},
		{name: "another table", table: whole, exists: true, requirements: `{"type":"assert-table-uuid","uuid":"x"}`, updates: move, kind: fault.Conflict, want: "UUID"},
		{name: "a column", table: whole, exists: true, requirements: `{"type":"assert-last-assigned-field-id","last-assigned-field-id":2}`, updates: schema(`{"id":1,"name":"a","type":"long"},{"id":2,"name":"b","type":"string"},{"id":3,"name":"c","type":"timestamptz"}`), schema: "a b c"},
		{name: "no zone", table: whole, exists: true, updates: schema(`{"id":1,"name":"a","type":"timestamp"}`), kind: fault.Unsupported, want: `type "timestamp"`},
		{name: "nested", table: whole, exists: true, updates: schema(`{"id":1,"name":"a","type":{"type":"list"}}`), kind: fault.Unsupported, want: `"type":"list"`},
		{name: "twice", table: whole, exists: true, updates: schema(`{"id":1,"name":"a","type":"long"},{"id":2,"name":"A","type":"long"}`), kind: fault.Invalid, want: "both named"},
		{name: "partitions", table: whole, exists: true, updates: `{"action":"add-spec","spec":{"fields":[{"source-id":1}]}}`, kind: fault.Unsupported, want: "partitioned"},
		{name: "an order", table: whole, exists: true, updates: `{"action":"add-sort-order","sort-order":{"fields":[{"source-id":1}]}}`, kind: fault.Unsupported, want: "sort order"},
		{name: "version 3", table: whole, exists: true, updates: `{"action":"upgrade-format-version","format-version":3}`, kind: fault.Unsupported, want: "not 3"},
		{name: "elsewhere", table: whole, exists: true, updates: `{"action":"set-location","location":"file:///etc"}`, kind: fault.Invalid, want: "file:///t"},
		{name: "a tag", table: whole, exists: true, updates: `{"action":"set-snapshot-ref","ref-name":"best","type":"tag","snapshot-id":77}`, kind: fault.Unsupported, want: "best"},
		{name: "back", table: whole, exists: true, updates: strings.Replace(move, "88", "1", 1), kind: fault.Unsupported, want: "older snapshot"},
		{name: "expired", table: whole, exists: true, updates: `{"action":"remove-snapshots","snapshot-ids":[1]}`, kind: fault.Unsupported, want: "cannot expire"},
		{name: "merged on reading", table: whole, exists: true, updates: `{"action":"set-properties","updates":{"write.delete.mode":"merge-on-read"}}`, kind: fault.Unsupported, want: "copy-on-write"},
		{name: "what it said itself", table: whole, exists: true, updates: `{"action":"set-properties","updates":{"falaj.protection":"open","k":"v"}}`, schema: "a b"},
		{name: "unknown", table: whole, exists: true, updates: `{"action":"remove-encryption-key"}`, kind: fault.Unsupported, want: "remove-encryption-key"},
		{name: "unknown requirement", table: whole, exists: true, requirements: `{"type":"assert-peace"}`, kind: fault.Invalid, want: "assert-peace"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c Commit
			if err := json.Unmarshal([]byte(`{"requirements":[`+tt.requirements+`],"updates":[`+tt.updates+`]}`), &c); err != nil {
				t.Fatal(err)
			}
			got, err := tt.table.Plan(c, tt.exists)
			if tt.want != "" || err != nil {
				if err == nil || !fault.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.want) {
					t.Fatalf("%v (%v), want %q", err, fault.KindOf(err), tt.want)
				}
				return
			}
			write := ""
			switch {
			case got.Done:
				write = "done"
			case got.Write != nil:
				write = string(rune('0'+got.Write.ID/10)) + string(rune('0'+got.Write.ID%10))
			}
			if names := strings.Join(got.Schema.Names(), " "); write != tt.write || names != tt.schema {
				t.Errorf("writes %q with columns %q, want %q with %q", write, names, tt.write, tt.schema)
			}
			if tt.name == "created" && strings.Join(got.Required, " ") != "a" {
				t.Errorf("required: %v", got.Required)
			}
		})
	}
}

// FuzzPlan: whatever a client sends is planned or refused.
func FuzzPlan(f *testing.F) {
	f.Add(`{"updates":[{"action":"add-snapshot","snapshot":{"snapshot-id":8}},{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":8}]}`)
	f.Add(`{"updates":[{"action":"add-schema","schema":{"fields":[{"type":[]}]}},{"action":"set-current-schema","schema-id":-1}]}`)
	f.Add(`{"requirements":[{"type":"assert-ref-snapshot-id"}],"updates":[{"action":"add-snapshot"}]}`)
	f.Fuzz(func(_ *testing.T, text string) {
		var c Commit
		if json.Unmarshal([]byte(text), &c) != nil {
			return
		}
		for _, exists := range []bool{true, false} {
			_, _ = Table{Name: "t", Next: Schema{{ID: 1, Name: "a", Type: Int64}}}.Plan(c, exists)
		}
	})
}
