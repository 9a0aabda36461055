package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// maxMethods is how many exported methods a type has at most: more do not fit in the head.
const maxMethods = 25

// wideTypes have more, and how many. The list only shrinks. The methods of client.Client are what
// users of the Go client call: to group them would change their names.
var wideTypes = map[string]int{
	"client.Client": 31,
}

// TestWidth: no exported type has more than maxMethods exported methods. The methods of an
// interface count, those of what it embeds do not, nor do those of generated code.
func TestWidth(t *testing.T) {
	methods := map[string]int{}
	fset := token.NewFileSet()
	for _, p := range load(t) {
		if !strings.HasPrefix(p.Path, "internal/") && !strings.HasPrefix(p.Path, "cmd/") && p.Path != "client" {
			continue
		}
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			if ast.IsGenerated(file) {
				continue
			}
			for _, d := range file.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if of := receiver(d); ast.IsExported(of) && d.Name.IsExported() {
						methods[p.Path+"."+of]++
					}
				case *ast.GenDecl:
					for _, spec := range d.Specs {
						of, ok := spec.(*ast.TypeSpec)
						if !ok || !of.Name.IsExported() {
							continue
						}
						if i, ok := of.Type.(*ast.InterfaceType); ok {
							methods[p.Path+"."+of.Name.Name] += exported(i)
						}
					}
				}
			}
		}
	}
	onlyShrinks(t, "exported methods", methods, wideTypes, maxMethods, "split it by what its callers do")
}

// onlyShrinks allows at most so many of what, and to the exceptions as many as they are known
// to have. An exception that has fewer is corrected, so that it stays so.
func onlyShrinks(t *testing.T, what string, counts, exceptions map[string]int, most int, cure string) {
	t.Helper()
	for name, n := range counts {
		known, exception := exceptions[name]
		switch {
		case n > max(most, known):
			t.Errorf("%s has %d %s, more than %d: %s", name, n, what, max(most, known), cure)
		case exception && n > most && n < known:
			t.Errorf("%s has %d %s, and had %d: correct the list", name, n, what, known)
		}
	}
	for name := range exceptions {
		if counts[name] <= most {
			t.Errorf("%s has %d %s: remove it from the list", name, counts[name], what)
		}
	}
}

// receiver is the name of a method's type; empty for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	of := d.Recv.List[0].Type
	for {
		switch x := of.(type) {
		case *ast.StarExpr:
			of = x.X
		case *ast.IndexExpr:
			of = x.X
		case *ast.IndexListExpr:
			of = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// exported counts the exported methods that an interface names itself.
func exported(i *ast.InterfaceType) int {
	n := 0
	for _, m := range i.Methods.List {
		for _, name := range m.Names {
			if name.IsExported() {
				n++
			}
		}
	}
	return n
}
