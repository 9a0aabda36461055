package cli

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var rewrite = flag.Bool("rewrite", false, "write docs/reference/cli.md")

// generated is the line of docs/reference/cli.md below which the commands stand.
const generated = "<!-- Below: go test ./internal/cli -run Reference -rewrite -->\n"

func TestReference(t *testing.T) {
	const path = "../../docs/reference/cli.md"
	committed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, old, ok := strings.Cut(string(committed), generated)
	if !ok {
		t.Fatalf("%s has no line %q", path, generated)
	}
	a := &app{}
	var b strings.Builder
	root := a.root()
	root.InitDefaultHelpFlag()
	for _, g := range root.Groups() {
		for _, c := range root.Commands() {
			if c.GroupID == g.ID {
				reference(&b, c, 2)
			}
		}
	}
	if *rewrite {
		if err := os.WriteFile(path, []byte(head+generated+b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(old, b.String()); diff != "" {
		t.Errorf("%s is stale; run go test ./internal/cli -run Reference -rewrite\n%s", path, diff)
	}
}

// reference writes a command and those below it as Markdown.
func reference(b *strings.Builder, c *cobra.Command, level int) {
	if c.Hidden {
		return
	}
	text := c.Short + "."
	if c.Long != "" {
		text += "\n\n" + c.Long
	}
	fmt.Fprintf(b, "\n%s `%s`\n\n%s\n", strings.Repeat("#", level), c.CommandPath(), text)
	if len(c.Aliases) > 0 {
		fmt.Fprintf(b, "\nAlso `%s`.\n", strings.Join(c.Aliases, "`, `"))
	}
	if !c.HasSubCommands() {
		use := strings.TrimSuffix(c.UseLine(), " [flags]")
		fmt.Fprintf(b, "\n```\n%s\n", use)
		if flags := c.NonInheritedFlags().FlagUsages(); flags != "" {
			fmt.Fprintf(b, "\n%s", flags)
		}
		b.WriteString("```\n")
	}
	if c.Example != "" {
		b.WriteString("\n```sh\n")
		for line := range strings.Lines(c.Example) {
			b.WriteString(strings.TrimPrefix(line, "  "))
		}
		b.WriteString("\n```\n")
	}
	for _, sub := range c.Commands() {
		reference(b, sub, level+1)
	}
}

// TestFlagsNameTheirValues: in a flag's help, backquotes stand around the name of its value,
// which is one word.
func TestFlagsNameTheirValues(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, set := range []*pflag.FlagSet{c.LocalFlags(), c.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) {
				if name, _ := pflag.UnquoteUsage(f); strings.ContainsAny(name, " \n") {
					t.Errorf("%s --%s takes a %q", c.CommandPath(), f.Name, name)
				}
			})
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	a := &app{}
	walk(a.root())
}
