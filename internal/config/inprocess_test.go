package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
)

// TestInProcess: the setting names models exactly, and a mistake in it names none.
func TestInProcess(t *testing.T) {
	key := strings.Repeat("0f", 32)
	load := func(t *testing.T, text string) (Config, error) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "falaj.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Load(file, nil, nil)
	}
	for text, want := range map[string]serving.InProcessPolicy{
		"":                          nil,
		"serving: {in_process: []}": nil,
		"serving: {in_process: [{project: nyc}]}":                                      {{Project: "nyc"}},
		"serving: {in_process: [{project: nyc, model: delay}, {signer: " + key + "}]}": {{Project: "nyc", Model: "delay"}, {Signer: key}},
	} {
		c, err := load(t, text)
		if got := c.InProcess(); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for text, says := range map[string]string{
		"serving: {in_process: true}":                                     "not a list",
		"serving: {in_process: {project: nyc}}":                           "serving.in_process",
		"serving: {in_process: [nyc]}":                                    "not a mapping",
		"serving: {in_process: [{}]}":                                     "in_process[0] is empty",
		"serving: {in_process: [{project: nyc}, {}]}":                     "[1] is empty",
		"serving: {in_process: [{project: ''}]}":                          "is empty",
		"serving: {in_process: [{project: nyc, model: ''}]}":              "is empty",
		"serving: {in_process: [{project: nyc, model: null}]}":            "is empty",
		"serving: {in_process: [{project: nyc, mode: delay}]}":            "mode",
		"serving: {in_process: [{project: '*'}]}":                         "project",
		"serving: {in_process: [{signer: falaj}]}":                        "signer",
		"serving: {in_process: [{signer: " + strings.ToUpper(key) + "}]}": "signer",
	} {
		if _, err := load(t, text); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := Load("", []string{"FALAJ_SERVING_IN_PROCESS=nyc"}, nil); !fault.Is(err, fault.Invalid) {
		t.Errorf("by a variable: %v", err)
	}
	if _, err := Load("", nil, map[string]any{"serving.in_process": "nyc"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("by a flag: %v", err)
	}
	c, err := load(t, "serving: {in_process: [{project: nyc, model: delay}]}")
	if err != nil || !strings.Contains(c.Show(), "(project=nyc model=delay)") {
		t.Errorf("it is not shown: %v", err)
	}
}
