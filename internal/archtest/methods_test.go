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

// wideTypes have more, and how many. The list only shrinks.
var wideTypes = map[string]int{
	"client.Client":                            31,
	"internal/governance/audit.Store":          30,
	"internal/governance/audit/auditsql.Store": 30,
	"internal/tracking.Service":                56,
	"internal/tracking/trackingsql.Store":      66,
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
	for name, n := range methods {
		switch known, wide := wideTypes[name]; {
		case n > maxMethods && !wide:
			t.Errorf("%s has %d exported methods, more than %d: split it by what its callers do", name, n, maxMethods)
		case n > known && wide:
			t.Errorf("%s has %d exported methods, and had %d: split it, or put the new ones elsewhere", name, n, known)
		case n < known:
			t.Errorf("%s has %d exported methods, and had %d: correct wideTypes", name, n, known)
		}
	}
	for name := range wideTypes {
		if methods[name] <= maxMethods {
			t.Errorf("%s has %d exported methods: remove it from wideTypes", name, methods[name])
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
