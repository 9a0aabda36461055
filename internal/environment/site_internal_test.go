package environment

import (
	"slices"
	"strings"
	"testing"
)

// TestReplace: an environment has its own version of the packages of the interpreter that
// are in conflict, except those that its requirements name.
func TestReplace(t *testing.T) {
	e := Environment{
		Spec:        Spec{SitePackages: true, Requirements: []string{"Torch", "mlflow-skinny>=3"}},
		Interpreter: Interpreter{Site: map[string]string{"torch": "1.13", "typing-extensions": "4.4", "pyyaml": "6", "numpy": "1.24"}},
	}
	log := "Because a depends on torch>=2 and torch==1.13+falaj.site, a conflicts. And because " +
		"mlflow-skinny>=3.12.0 depends on typing-extensions{python_full_version < '3.13'}==4.4+falaj.site and pyyaml[c]==6+falaj.site, " +
		"and numpy==1.24 and other==1+falaj.site, we can conclude that your requirements are unsatisfiable."
	if !replace(&e, log) || !slices.Equal(e.Interpreter.Replaced, []string{"typing-extensions", "pyyaml"}) {
		t.Fatalf("%v", e.Interpreter.Replaced)
	}
	if id := e.workload(); !strings.HasSuffix(string(id), "-r2") {
		t.Errorf("the next lock is workload %s", id)
	}
	if replace(&e, log) {
		t.Error("what was replaced is replaced again")
	}
	if kept := e.Interpreter.kept(); len(kept) != 2 || kept["numpy"] == "" {
		t.Errorf("kept %v", kept)
	}
	e.SBOM = append([]Package{{Name: "typing_extensions", Version: "4.16"}, {Name: "tqdm", Version: "4"}}, siteSBOM(e.Interpreter.kept())...)
	if said := replacements(e); !strings.Contains(said, "typing_extensions 4.16 instead of 4.4.") {
		t.Errorf("%q", said)
	}
	e.Spec.SitePackages = false
	if e.Interpreter.Replaced = nil; replace(&e, log) {
		t.Error("without site_packages there is nothing to replace")
	}
}
