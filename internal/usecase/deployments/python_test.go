package deployments

import (
	"slices"
	"testing"

	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
)

// TestDormantEnvironments: what a model runs in that is not in memory is held, by what is
// known of it.
func TestDormantEnvironments(t *testing.T) {
	newest := func(_, name string) (string, error) {
		if name == "gone" {
			return "", fault.New(fault.NotFound, "there is none")
		}
		return "newest-" + name, nil
	}
	made := func(_, model string, version int64) (string, error) {
		if version != 2 {
			return "", fault.New(fault.NotFound, "there is none")
		}
		return "made-" + model, nil
	}
	got, err := dormantEnvironments([]serving.Unloaded{
		{Model: "a", Version: 1, Environment: "e@pinned"},
		{Model: "b", Version: 1, Environment: "e"},
		{Model: "c", Version: 1, Environment: "gone"},
		{Model: "d", Version: 2},
		{Model: "e", Version: 2, Known: true}, // ONNX
		{Model: "f", Version: 1},              // deleted
	}, newest, made)
	if want := []environment.Digest{"pinned", "newest-e", "made-d"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	broken := func(string, string) (string, error) { return "", fault.New(fault.Unavailable, "no database") }
	if _, err := dormantEnvironments([]serving.Unloaded{{Environment: "e"}}, broken, made); err == nil {
		t.Error("what is not known is pruned")
	}
}
