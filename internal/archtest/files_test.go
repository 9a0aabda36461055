package archtest

import "testing"

// maxFiles is how many files without tests a package of the domains, of governance or of the
// foundation has at most: one that has more does several things.
const maxFiles = 30

// largeFolders have more, and how many. The list only shrinks.
var largeFolders = map[string]int{
	"internal/feature": 34,
	"internal/serving": 34,
}

// TestFiles counts the files of packages.
func TestFiles(t *testing.T) {
	files := map[string]int{}
	for _, p := range load(t) {
		if layer, _ := place(p.Path); layer <= inDomain {
			files[p.Path] = len(p.GoFiles)
		}
	}
	onlyShrinks(t, "files", files, largeFolders, maxFiles, "make a package of what has a purpose of its own")
}
