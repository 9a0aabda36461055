// Package python knows Python's packages: their names and versions as an index has them
// (python.go), and those that an interpreter of this machine brings (site.go).
package python

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// versionRE is PEP 440, appendix B.
var versionRE = regexp.MustCompile(`^([0-9]+!)?[0-9]+(\.[0-9]+)*([-_.]?(a|b|c|rc|alpha|beta|pre|preview)[-_.]?[0-9]*)?` +
	`(-[0-9]+|[-_.]?(post|rev|r)[-_.]?[0-9]*)?([-_.]?dev[-_.]?[0-9]*)?(\+[a-z0-9]+([-_.][a-z0-9]+)*)?$`)

// ValidVersion reports a version as an index has them, in lower case.
func ValidVersion(version string) bool { return versionRE.MatchString(version) }

var nameRE = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?`)

// Name is the package's name that a requirement begins with; empty for what begins otherwise.
func Name(requirement string) string { return nameRE.FindString(requirement) }

var separatorRE = regexp.MustCompile(`[-_.]+`)

// Canonical is the name under which an index knows a package.
func Canonical(name string) string {
	return strings.ToLower(separatorRE.ReplaceAllString(name, "-"))
}

// Answer runs an interpreter with arguments, and with directories of programs, and gives the first
// limit bytes that it prints.
func Answer(ctx context.Context, interpreter, path string, limit int, arguments ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, interpreter, arguments...)
	cmd.Env = []string{"PATH=" + path, "LANG=C.UTF-8"}
	var out bytes.Buffer
	cmd.Stdout = &limited{w: &out, left: limit}
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	return out.Bytes(), err
}

// limited drops what goes beyond a limit.
type limited struct {
	w    io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	if _, err := l.w.Write(p[:n]); err != nil {
		return 0, err
	}
	return len(p), nil
}
