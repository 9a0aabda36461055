package tracking_test

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/tracking"
)

// TestLoggedModelName: what a job registers is logged under the nearest name.
func TestLoggedModelName(t *testing.T) {
	for registered, want := range map[string]string{
		"delay": "delay", "ResNet50.v2": "ResNet50_v2", "نموذج + 2": "نموذج + 2", `it's 5%, "so"`: "it_s 5_, _so_", "": "",
	} {
		if got := tracking.LoggedModelName(registered); got != want {
			t.Errorf("%q: %q, want %q", registered, got, want)
		}
	}
}
