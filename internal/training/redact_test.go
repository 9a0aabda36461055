package training_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
)

// TestRedact: texts go from what the submitter wrote and from the logs, and nothing else
// changes.
func TestRedact(t *testing.T) {
	w := newWorld(t)
	ctx := alice(t.Context())
	j := w.submit(t, training.Spec{
		Command: []string{"/bin/echo", "carla-4711", "other"}, Env: map[string]string{"WHO": "carla-4711"}, Params: training.Params{"who": "carla-4711", "rate": json.Number("0.1")},
		Data: map[string]string{"a": "flights"},
	})
	h := w.started(t)
	w.fake.Print(h, "row of carla-4711, and of badr\n")
	ask := training.RedactRequest{Texts: []string{"carla-4711"}, Reason: "request 2026-17"}
	if _, err := w.Redact(ctx, nyc, j.ID, ask); !fault.Is(err, fault.Conflict) {
		t.Errorf("while it runs: %v", err)
	}
	w.fake.Finish(h, enginetest.Exit{})
	was := w.ended(t, j.ID)

	dry := ask
	dry.Dry, dry.Reason = true, ""
	want := []training.Redacted{{Place: "script", Count: 3}, {Place: "attempts"}, {Place: "logs", Count: 1}}
	if got, err := w.Redact(ctx, nyc, j.ID, dry); err != nil || !slices.Equal(got, want) {
		t.Errorf("the dry run: %+v, %v", got, err)
	}
	if now, err := w.One(ctx, nyc, j.ID); err != nil || now.Spec.Command[1] != "carla-4711" {
		t.Errorf("the dry run changed %+v, %v", now.Spec, err)
	}
	if got, err := w.Redact(ctx, nyc, j.ID, ask); err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	now, err := w.One(ctx, nyc, j.ID)
	if err != nil {
		t.Fatal(err)
	}
	if s := now.Spec; s.Command[1] != "**********" || s.Command[2] != "other" || s.Env["WHO"] != "**********" || s.Params["who"] != "**********" || s.Params["rate"] != json.Number("0.1") ||
		now.Digest != was.Digest || len(now.Inputs) != 1 {
		t.Errorf("redacted: %+v", now)
	}
	w.runs.mu.Lock()
	log := w.runs.artifacts[was.Run+"/logs/attempt-1.log"]
	w.runs.mu.Unlock()
	if log != "row of **********, and of badr\n" {
		t.Errorf("the log is %q", log)
	}
	if _, err := w.Logs(ctx, nyc, j.ID, 0, 0, false); !fault.Is(err, fault.Gone) {
		t.Errorf("what the engine keeps: %v", err)
	}
	if got, err := w.Redact(ctx, nyc, j.ID, ask); err != nil || got[0].Count+got[1].Count+got[2].Count != 0 {
		t.Errorf("once more: %+v, %v", got, err)
	}
	var bodies [][]byte
	if err := w.cfg.DB.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		return tx.NewRaw("SELECT body FROM store_stream WHERE stream = 'audit'").Scan(ctx, &bodies)
	}); err != nil {
		t.Fatal(err)
	}
	told := slices.ContainsFunc(bodies, func(b []byte) bool {
		return strings.Contains(string(b), "redacted") && strings.Contains(string(b), "request 2026-17")
	})
	if !told {
		t.Error("the redaction is not in the audit log")
	}

	for name, r := range map[string]training.RedactRequest{
		"nothing": {Reason: "r"}, "short": {Texts: []string{"ab"}, Reason: "r"}, "no reason": {Texts: []string{"carla"}}, "a reason that says it": {Texts: []string{"carla"}, Reason: "for carla"},
	} {
		if _, err := w.Redact(ctx, nyc, j.ID, r); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
