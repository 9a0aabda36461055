package suite_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/falaj-ml/falaj/internal/cli/suite"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
)

func TestMain(m *testing.M) { datasettest.Main(m, nil) }

// TestVerdictsAreTheSame: a suite that Great Expectations wrote itself, on rows with
// nulls and ties: what is taken of it holds in Falaj exactly where it holds there.
func TestVerdictsAreTheSame(t *testing.T) {
	python, err := filepath.Abs("../../../.tmp/venv/great-expectations/bin/python")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(python); err != nil || testing.Short() {
		if os.Getenv("CI") == "true" && !testing.Short() { //nolint:forbidigo // a test asks where it runs
			t.Fatal("Great Expectations is not installed: make engines")
		}
		t.Skip("it takes a while, and needs Great Expectations: make engines")
	}
	rows, err := os.ReadFile("testdata/rows.csv")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "testdata/verdicts.py")
	cmd.Stdin, cmd.Stderr = bytes.NewReader(rows), os.Stderr
	cmd.Env = append(os.Environ(), "GX_ANALYTICS_ENABLED=false", "HOME="+t.TempDir())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var theirs struct {
		Suite    json.RawMessage `json:"suite"`
		Verdicts []bool          `json:"verdicts"`
	}
	if err := json.Unmarshal(out, &theirs); err != nil {
		t.Fatal(err)
	}
	taken, left, err := suite.Decode(theirs.Suite)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 || left[0].Type != "expect_column_mean_to_be_between" || len(taken)+1 != len(theirs.Verdicts) {
		t.Fatalf("%d taken, left %v", len(taken), left)
	}
	verdicts := slices.Delete(theirs.Verdicts, left[0].Index, left[0].Index+1)
	spec := dataset.Spec{Expectations: make([]expectation.Rule, len(taken))}
	for i, x := range taken {
		line, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(line, &spec.Expectations[i]); err != nil {
			t.Fatal(err)
		}
	}
	h := datasettest.New(t, nil)
	h.Declare(t, "d", spec)
	v, err := h.Writes.Import(datasettest.Context(t), dataset.ImportRequest{Project: datasettest.Project, Name: "d", Filename: "rows.csv", Body: bytes.NewReader(rows)})
	if err != nil {
		t.Fatal(err)
	}
	held := 0
	for i, e := range v.Expectations {
		if e.Passed != verdicts[i] {
			t.Errorf("%s: %t there, here %s", e.Expectation, verdicts[i], e)
		}
		if e.Passed {
			held++
		}
	}
	if held < 20 || len(verdicts)-held < 20 {
		t.Errorf("%d of %d hold: the rows tell little", held, len(verdicts))
	}
	t.Logf("%d expectations, %d hold", len(verdicts), held)
}
