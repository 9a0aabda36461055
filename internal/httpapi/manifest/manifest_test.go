package manifest

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

var rewrite = flag.Bool("rewrite", false, "write the output files")

type column struct {
	Name     string `json:"name"`
	Nullable bool   `json:"nullable"`
}

type spec struct {
	Format    string            `json:"format"`
	Count     int               `json:"count"`
	Ratio     float64           `json:"ratio"`
	Columns   []column          `json:"columns"`
	Labels    map[string]string `json:"labels"`
	Resources *resource.Amount  `json:"resources"`
}

// TestParse reads testdata/*.yaml and compares what it becomes, or the error,
// with the .txt beside it.
func TestParse(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no testdata: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			in, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := read(in)
			golden := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *rewrite {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func read(in []byte) string {
	docs, err := Parse(in, []string{"Dataset", "FeatureView", "Job"})
	var out strings.Builder
	for _, d := range docs {
		var s spec
		if err = d.Into(&s); err != nil {
			break
		}
		b, _ := json.Marshal(s)
		out.WriteString(d.Kind + " " + d.Project + "/" + d.Name + " " + string(b) + "\n")
	}
	if err != nil {
		out.WriteString("error (" + fault.KindOf(err).String() + "): " + err.Error() + "\n")
		if hint := fault.HintOf(err); hint != "" {
			out.WriteString("hint: " + hint + "\n")
		}
	}
	return out.String()
}

// FuzzParse checks that no input panics, and that an error is the caller's.
func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		docs, err := Parse(in, []string{"Dataset", "FeatureView", "Job"})
		for _, d := range docs {
			var s spec
			if err = d.Into(&s); err != nil {
				break
			}
		}
		if kind := fault.KindOf(err); err != nil && kind != fault.Invalid && kind != fault.TooLarge {
			t.Errorf("kind %s: %v", kind, err)
		}
	})
}
