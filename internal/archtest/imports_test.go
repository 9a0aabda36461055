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
	onlyShrinks(t, "imports of ours", imports, wideImports, maxImports, "split it, or declare what it needs as an interface")
}
