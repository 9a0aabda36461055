package inside

import (
	"strings"
	"testing"
)

// TestIsProgram: what starts a program is never taken for it.
func TestIsProgram(t *testing.T) {
	t.Parallel()
	const (
		status = "Name:\tx\nUid:\t70001\t70001\t70001\t70001\nGid:\t70002\t70002\t70002\t70002\nSeccomp:\t2\n"
		open   = "Uid:\t70001\nGid:\t70002\nSeccomp:\t0\n"
		root   = "Uid:\t0\nGid:\t0\nSeccomp:\t2\n"
		user   = "      1000      70001          1\n"
		image  = "         0      70000          1\n      1000      70001          1\n"
		argv   = "python\x00train.py\x00"
		one    = "Seccomp_filters:\t1\n" // the server's
		two    = "Seccomp_filters:\t2\n"
	)
	for name, c := range map[string]struct {
		status, uids, argv string
		want               bool
	}{
		"with a filter of its own": {status + two, user, argv, true},
		"with the server's only":   {status + one, user, argv, false},
		"a program":                {status, user, argv, true},
		"of a container":           {status, image, argv, true},
		"no word":                  {status, user, "", true},
		"root of a container":      {"Uid:\t70000\nGid:\t70000\nSeccomp:\t2\n", image, argv, false},
		"root of the first":        {status, "0 70001 1\n", argv, false},
		"not in the namespace":     {status, "0 0 4294967295\n", argv, false},
		"no filter yet":            {open, user, argv, false},
		"a container's init":       {status, image, "/.falaj-worker\x00init\x00", false},
		"the step before":          {status, user, "falaj-worker\x00exec\x00", false},
		"root of the machine":      {root, "1000 0 1\n", argv, false},
		"nothing that can be read": {"", user, argv, false},
	} {
		if gid, err := isProgram(first(c.status), c.status, c.uids, c.argv); (err == nil) != c.want || c.want && gid != 70002 {
			t.Errorf("%s: %d %v", name, gid, err)
		}
	}
}

// first is the status of the sandbox's first process, of a kernel that counts filters or
// of one that does not.
func first(status string) string {
	if strings.Contains(status, "Seccomp_filters") {
		return "Seccomp:\t2\nSeccomp_filters:\t1\n"
	}
	return "Seccomp:\t0\n"
}
