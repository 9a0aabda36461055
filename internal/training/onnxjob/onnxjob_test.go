package onnxjob

import (
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/id"
)

func TestNames(t *testing.T) {
	for version, want := range map[string]string{"3": "models:/delay/3", "champion": "models:/delay@champion", "v3": "models:/delay@v3"} {
		if got := Reference("delay", version); got != want {
			t.Errorf("%s: %s", version, got)
		}
	}
	for of, want := range map[string]string{"delay_2": "predict-delay-2", "Été!": "predict-t", "ResNet50.v2": "predict-resnet50-v2", strings.Repeat("x", 54) + "-yyy": "predict-" + strings.Repeat("x", 54)} {
		got := Name("predict", of)
		if got != want || id.CheckName("job", got) != nil {
			t.Errorf("%s: %s", of, got)
		}
	}
}
