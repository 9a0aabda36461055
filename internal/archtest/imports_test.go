package archtest

import "testing"

// maxImports is how many packages of ours a package of the domains, of governance or of the
// foundation imports at most. App, the edges and the use cases connect domains, and may import
// more.
const maxImports = 14

// wideImports import more, and how many. The list only shrinks.
var wideImports = map[string]int{
	"internal/compute":               20,
	"internal/compute/engine/remote": 15,
	"internal/dataset":               20,
	"internal/dataset/ingestion":     16,
	"internal/environment":           18,
	"internal/feature":               19,
	"internal/monitoring":            19,
	"internal/serving":               18,
	"internal/training":              32,
	"internal/tuning/sweep":          18,
}

// TestImports: a package that imports much of the rest changes with all of it.
func TestImports(t *testing.T) {
	imports := map[string]int{}
	for _, p := range load(t) {
		if layer, _ := place(p.Path); layer <= inDomain {
			imports[p.Path] = len(ours(p.Imports))
		}
	}
	for name, n := range imports {
		switch known, wide := wideImports[name]; {
		case n > maxImports && !wide:
			t.Errorf("%s imports %d packages of ours, more than %d: split it, or declare what it needs as an interface", name, n, maxImports)
		case n > known && wide:
			t.Errorf("%s imports %d packages of ours, and imported %d: declare what it needs as an interface", name, n, known)
		case n <= maxImports && wide:
			t.Errorf("%s imports %d packages of ours: remove it from wideImports", name, n)
		case n < known:
			t.Errorf("%s imports %d packages of ours, and imported %d: correct wideImports", name, n, known)
		}
	}
	for name := range wideImports {
		if _, ok := imports[name]; !ok {
			t.Errorf("%s is in wideImports, and is no package below the use cases: remove it", name)
		}
	}
}
