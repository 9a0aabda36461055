package dataset_test

import (
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// TestImportKeepsTheSchema: a file that lacks a column of the newest accepted version, or has
// it with another type, is refused unless that is asked for. A type that the dataset declares
// and a column that it leaves out are changed on purpose; the same bytes are the same version
// also after a change.
func TestImportKeepsTheSchema(t *testing.T) {
	h := datasettest.New(t, nil)
	h.Declare(t, "orders", dataset.Spec{})
	first, err := imports(t, h, "orders", "id,amount,note\n1,2,x\n")
	if err != nil {
		t.Fatal(err)
	}
	for file, says := range map[string]string{
		"id,sum,note\n1,2,x\n":      `column "amount" does not exist in the file, and exists in orders@1`,
		"id,amount,note\n1,2.5,x\n": `column "amount" is float64 in the file and int64 in orders@1`,
	} {
		_, err := imports(t, h, "orders", file)
		if fault.KindOf(err) != fault.Conflict || !strings.Contains(err.Error(), says) || !strings.Contains(fault.HintOf(err), "--allow-schema-change") {
			t.Errorf("%q: %v, hint %q", file, err, fault.HintOf(err))
		}
	}
	if v, err := imports(t, h, "orders", "note,more,amount,id\nx,y,2,1\n"); err != nil || v.Number != 2 {
		t.Fatalf("another order and a new column: %v, %v", v.Ref(), err)
	}
	v, err := h.Writes.Import(datasettest.Context(t), dataset.ImportRequest{Project: project, Name: "orders", Body: strings.NewReader("id,sum\n1,2\n"), SchemaChange: true})
	if err != nil || v.Number != 3 {
		t.Fatalf("on purpose: %v, %v", v.Ref(), err)
	}
	if v, err := imports(t, h, "orders", "id,amount,note\n1,2,x\n"); err != nil || v.ID != first.ID || !v.Unchanged {
		t.Errorf("the first file again: %v, %v", v.Ref(), err)
	}
	h.Declare(t, "orders", dataset.Spec{Columns: []dataset.Column{{Name: "id", Type: table.Float64}}, LeaveOut: []string{"sum"}})
	if v, err := imports(t, h, "orders", "id,sum\n1.5,2\n"); err != nil || v.Number != 4 {
		t.Errorf("as declared: %v, %v", v.Ref(), err)
	}
}
