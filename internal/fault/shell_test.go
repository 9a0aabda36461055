package fault_test

import (
	"os/exec"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
)

// TestShellWord: a shell reads back the text, and nothing of it is run.
func TestShellWord(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"delay":             "delay",
		"a/b@1:c=d+e%f_g-h": "a/b@1:c=d+e%f_g-h",
		"تأخير2":            "تأخير2",
		"":                  "''",
		"two words":         "'two words'",
		"delay;id":          "'delay;id'",
		"$(id)":             "'$(id)'",
		"`id`":              "'`id`'",
		"a|b>c&":            "'a|b>c&'",
		"x'y z":             `'x'\''y z'`,
		"'":                 `''\'''`,
		`a\b"c`:             `'a\b"c'`,
		"~/x":               "'~/x'",
		"*?[x]{a,b}!#":      "'*?[x]{a,b}!#'",
		"two\nlines":        "'two\nlines'",
		"not \xff UTF-8":    "'not \xff UTF-8'",
	} {
		got := fault.ShellWord(text)
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
		if out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", "printf %s "+got).Output(); err != nil || string(out) != text {
			t.Errorf("%q: a shell reads %q, %v", text, out, err)
		}
	}
}
