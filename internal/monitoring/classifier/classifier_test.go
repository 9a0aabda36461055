package classifier_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/monitoring/classifier"
)

const answer = `{"auc": 0.71, "low": 0.69, "high": 0.73, "p_value": 0.001, "sampled": [20000, 900], "rows": [80000, 900],
	"features": [{"name": "weather:temp", "importance": 0.2, "deviation": 0.01}, {"name": "wind", "importance": -0.001, "deviation": 0}]}`

func TestDecode(t *testing.T) {
	r, err := classifier.Decode([]byte(answer))
	if err != nil {
		t.Fatal(err)
	}
	if r.AUC != .71 || r.Low != .69 || r.High != .73 || r.PValue != .001 || r.Sampled != [2]int64{20000, 900} || len(r.Features) != 2 || r.Features[0].Name != "weather:temp" {
		t.Errorf("%+v", r)
	}
	for name, b := range map[string]string{
		"no JSON":            `0.71`,
		"cut short":          answer[:len(answer)-3],
		"no interval":        strings.Replace(answer, `"low": 0.69, `, "", 1),
		"area over 1":        strings.Replace(answer, "0.71", "1.71", 1),
		"outside itself":     strings.Replace(answer, "0.69", "0.72", 1),
		"no rows":            strings.Replace(answer, "[20000, 900]", "[0, 900]", 1),
		"strange importance": strings.Replace(answer, "0.2,", "2e300,", 1),
		"control characters": strings.Replace(answer, "wind", "wi\\u001bnd", 1),
		"too long":           strings.Replace(answer, "wind", strings.Repeat("w", 600), 1),
		"too large":          answer + strings.Repeat(" ", classifier.MaxOutput),
	} {
		if _, err := classifier.Decode([]byte(b)); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDecodeOfWhatCouldNotBeDone(t *testing.T) {
	_, err := classifier.Decode([]byte(`{"error": "the environment has no sklearn\u001b[2J"}`))
	if !fault.Is(err, fault.Conflict) || err.Error() != "the environment has no sklearn [2J" {
		t.Error(err)
	}
}

func TestTask(t *testing.T) {
	zero := 0.0
	text, err := classifier.TaskOf([]classifier.Column{{Name: "plane:built", Column: "plane__built", Otherwise: &zero}, {Name: "carrier", Column: "carrier", Text: true}}).Argument()
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"columns":[{"name":"plane:built","column":"plane__built","otherwise":0},{"name":"carrier","column":"carrier","text":true}],"rows":20000,"seed":1,"permutations":999,"minimum":50}`; text != want {
		t.Errorf("%s\nwant %s", text, want)
	}
	for _, word := range []string{`"FALAJ_DATA_" + side.upper()`, `("baseline", "window")`, classifier.Output, "HistGradientBoostingClassifier", "domain_auc"} {
		if !strings.Contains(classifier.Script, word) {
			t.Errorf("the program has no %s", word)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{answer, `{"error": "x"}`, `{"auc": 1e999}`, `{}`, `[]`, `{"auc":0,"low":0,"high":0,"p_value":0,"sampled":[1,1],"features":null}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := classifier.Decode(b)
		if err != nil {
			return
		}
		if math.IsNaN(r.AUC) || r.AUC < 0 || r.AUC > 1 || r.Low > r.High+1e-9 || len(r.Features) > 100 {
			t.Errorf("%+v", r)
		}
		if _, err := json.Marshal(r); err != nil { // it is stored so
			t.Error(err)
		}
	})
}
