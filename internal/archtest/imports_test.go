package archtest

import (
	"slices"
	"strings"
	"testing"
)

// maxImports is how many packages of ours a package of the domains, of governance or of the
// foundation imports at most, beside those of its own domain, which are parts of it. App, the
// edges and the use cases connect domains, and may import more.
const maxImports = 14

// wideImports import more, and how many. The list only shrinks.
var wideImports = map[string]int{
	"internal/training": 20,
}

// TestImports: a package that imports much of the rest changes with all of it.
func TestImports(t *testing.T) {
	imports := map[string]int{}
	for _, p := range load(t) {
		if layer, _ := place(p.Path); layer <= inDomain {
			own := domain(p.Path)
			imports[p.Path] = len(slices.DeleteFunc(ours(p.Imports), func(i string) bool { return domain(i) == own && own != "internal/governance" }))
		}
	}
	onlyShrinks(t, "imports of ours", imports, wideImports, maxImports, "split it, or declare what it needs as an interface")
}

// domain is the folder of a package's domain, such as internal/dataset of
// internal/dataset/source/kafka.
func domain(path string) string {
	parts := strings.SplitN(path, "/", 3)
	return strings.Join(parts[:min(len(parts), 2)], "/")
}
