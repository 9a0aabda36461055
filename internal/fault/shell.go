package fault

import (
	"regexp"
	"strings"
)

var plainWord = regexp.MustCompile(`^[\p{L}\p{N}@%+=._/:-]+$`)

// ShellWord is a text as one word of a shell's command, for hints with commands to paste: names
// of models, paths and other free text can have any character.
func ShellWord(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
