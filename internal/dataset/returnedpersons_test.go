package dataset_test

import (
	"crypto/sha256"
	"reflect"
	"testing"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
)

// TestReturned: a version from outside says that persons who were erased have rows in it
// again, also when they are in quarantine; what is made of it says it not again.
func TestReturned(t *testing.T) {
	names := pseudonyms{entities: []dataset.Person{carla("orders")}, erased: map[string]map[[sha256.Size]byte]string{"customer": {
		pseudonyms{}.Of(project, "customer", []string{"carla"}): "ers_2",
		pseudonyms{}.Of(project, "customer", []string{"badr"}):  "ers_1",
		pseudonyms{}.Of(project, "customer", []string{"zayd"}):  "ers_3",
	}}}
	h := datasettest.New(t, func(c *dataset.Config) { c.Pseudonyms = names })
	ctx := datasettest.Context(t)
	want := []dataset.Returned{{Entity: "customer", Persons: 2, Erasures: []string{"ers_1", "ers_2"}}}
	check := func(name string, want []dataset.Returned) {
		t.Helper()
		v, err := h.Definitions.Version(ctx, project, ref(t, name))
		if err != nil || !reflect.DeepEqual(v.Returned, want) {
			t.Errorf("%s: %+v, %v", name, v.Returned, err)
		}
	}
	h.Put(t, "orders", dataset.Spec{}, bought(0, 9))
	check("orders@1", want)
	h.Put(t, "orders", dataset.Spec{}, "buyer,n\namal,1\n")
	check("orders@2", nil)
	h.Put(t, "others", dataset.Spec{}, bought(0, 9)) // nobody says that buyers are customers
	check("others@1", nil)
	h.Put(t, "declared", dataset.Spec{Entities: map[string]map[string]string{"customer": {"buyer": "buyer"}}}, bought(0, 3))
	check("declared@1", want)
	derived(t, h, "copies", "orders@1", nil)
	check("copies@1", nil)
}
