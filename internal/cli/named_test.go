package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// command is a command line as texts name it: in backquotes, or in quotation marks within
// a text.
var command = regexp.MustCompile("(?:`|\\\\\")falaj ((?:[a-z][a-z0-9-]*)(?: [a-z][a-z0-9-]*)*)")

// TestTextsNameCommands: each command that a hint, a page or the console names exists.
func TestTextsNameCommands(t *testing.T) {
	t.Parallel()
	root := (&app{}).root()
	found := 0
	for _, dir := range []string{"../../internal", "../../client", "../../cmd", "../../docs", "../../sdk", "../../README.md", "../../ARCHITECTURE.md"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() {
				switch d.Name() {
				case "node_modules", "dist", "adr", ".venv", "testdata":
					return filepath.SkipDir
				}
				return nil
			}
			switch filepath.Ext(path) {
			case ".go", ".py", ".md", ".ts", ".tsx":
			default:
				return nil
			}
			text, err := os.ReadFile(path)
			if err != nil || strings.HasSuffix(path, "_test.go") {
				return err
			}
			for _, m := range command.FindAllStringSubmatch(string(text), -1) {
				found++
				words := strings.Fields(m[1])
				cmd, rest, err := root.Find(words)
				if err != nil || cmd == root || cmd.HasSubCommands() && len(rest) > 0 {
					t.Errorf("%s names %q, which is not a command", path, "falaj "+m[1])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 100 {
		t.Errorf("%d commands are named", found)
	}
}
