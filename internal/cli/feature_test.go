package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
)

func TestDifferences(t *testing.T) {
	of := func(text string) (o client.Object) {
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	one := of(`{"name": "weather", "version": 1, "digest": "a", "created_at": "x", "ttl": "3h", "entities": ["origin"],
		"features": [{"name": "temp", "type": "int64"}, {"name": "humid", "type": "float64"}], "keys": [{"entity": "origin@1", "name": "origin", "type": "string"}]}`)
	two := of(`{"name": "weather", "version": 2, "digest": "b", "created_at": "y", "entities": ["origin", "plane"],
		"features": [{"name": "sky", "type": "string"}, {"name": "humid", "type": "float64"}, {"name": "temp", "type": "float64"}], "keys": [{"entity": "origin@2", "name": "origin", "type": "string"}]}`)
	if same := differences(one, one); len(same) > 0 {
		t.Error(same)
	}
	var got strings.Builder
	for _, c := range differences(one, two) {
		fmt.Fprintf(&got, "%s: %s → %s\n", c["what"], c["a"], c["b"])
	}
	const want = `entities.plane:  → there
features.sky:  → there
features.sky.type:  → string
features.temp.type: int64 → float64
keys.origin.entity: origin@1 → origin@2
ttl: 3h → 
`
	if got.String() != want {
		t.Errorf("got\n%s", got.String())
	}
}
