package deletion_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/deletion"
)

func TestWhatIsCitedStaysUntilSomebodySaysYes(t *testing.T) {
	t.Parallel()
	run := deletion.Citation{By: "run 01J", Of: "orders@1"}
	used := deletion.Citation{By: "deployment shop", Of: "orders@1", InUse: true}
	for name, c := range map[string]struct {
		request deletion.Request
		cited   []deletion.Citation
		kind    fault.Kind // 0: it may go
		says    string
	}{
		"nothing cites it":              {},
		"a run":                         {cited: []deletion.Citation{run}, kind: fault.Conflict, says: "cited by run 01J"},
		"a run, yes":                    {deletion.Request{Yes: true}, []deletion.Citation{run}, 0, ""},
		"a deployment":                  {cited: []deletion.Citation{run, used}, kind: fault.Conflict, says: "in use by deployment shop"},
		"a deployment, yes":             {deletion.Request{Yes: true}, []deletion.Citation{used}, fault.Conflict, "deployment shop"},
		"a deployment, force":           {deletion.Request{Force: true}, []deletion.Citation{used}, fault.Invalid, "reason"},
		"a deployment, an empty reason": {deletion.Request{Force: true, Reason: " "}, []deletion.Citation{used}, fault.Invalid, "reason"},
		"a deployment, with a reason":   {deletion.Request{Force: true, Reason: "court order"}, []deletion.Citation{run, used}, 0, ""},
		"a long reason":                 {deletion.Request{Force: true, Reason: strings.Repeat("x", 2001)}, nil, fault.Invalid, "limit"},
	} {
		err := c.request.Allow("dataset orders@1", c.cited)
		if c.says == "" && err != nil || c.says != "" && (!fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNamesAreFew(t *testing.T) {
	t.Parallel()
	var many []deletion.Citation
	for i := range 25 {
		many = append(many, deletion.Citation{By: fmt.Sprintf("run %02d", i/2)})
	}
	if got, want := deletion.Names(many), "run 00, run 01, run 02, run 03, run 04, run 05, run 06, run 07, run 08, run 09 and 3 more"; got != want {
		t.Errorf("%s", got)
	}
}
