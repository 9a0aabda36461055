package profiler

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// python is a process that runs Python and that no other one of the worker has
// started.
type python struct {
	pid int
	env map[string]string
	bin string // directory of the interpreter, as it was called
}

// pythons finds the uppermost processes of a worker that run Python, by number.
func pythons(r Request, root int) []python {
	parents := parents()
	mine := map[int]python{}
	for pid := range parents {
		if pid == os.Getpid() || root > 0 && !below(parents, pid, root) {
			continue
		}
		p, ok := read(pid)
		if !ok || r.Among && p.env["FALAJ_WORKER_INDEX"] != strconv.Itoa(r.Worker) {
			continue
		}
		mine[pid] = p
	}
	var found []python
	for pid, p := range mine {
		upper := true
		for at := parents[pid]; at > 0 && upper; at = parents[at] {
			_, is := mine[at]
			upper = !is
		}
		if upper {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b python) int { return a.pid - b.pid })
	return found
}

// read gives a process when it runs Python and may be looked at.
func read(pid int) (p python, ok bool) {
	dir := "/proc/" + strconv.Itoa(pid)
	exe, err := os.Readlink(dir + "/exe")
	if err != nil || !strings.HasPrefix(filepath.Base(exe), "python") {
		return p, false
	}
	vars, err := os.ReadFile(dir + "/environ")
	if err != nil {
		return p, false
	}
	p = python{pid: pid, env: map[string]string{}}
	for kv := range strings.SplitSeq(string(vars), "\x00") {
		name, v, _ := strings.Cut(kv, "=")
		p.env[name] = v
	}
	if b, err := os.ReadFile(dir + "/cmdline"); err == nil {
		if first, _, _ := strings.Cut(string(b), "\x00"); filepath.IsAbs(first) {
			p.bin = filepath.Dir(first)
		}
	}
	return p, true
}

// look finds a program: beside the process's interpreter, as it would itself, or
// as the node does.
func (p python) look(name, path string) (string, error) {
	for dir := range strings.SplitSeq(p.bin+":"+p.env["PATH"]+":"+path+":/usr/local/bin:/usr/bin", ":") {
		full := filepath.Join(dir, name)
		if info, err := os.Stat(full); filepath.IsAbs(dir) && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return full, nil
		}
	}
	return "", errors.New("it does not exist")
}

// parents of all processes that are visible.
func parents() map[int]int {
	all := map[int]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return all
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// 12 (name with spaces) S 1 …
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) > 1 && f[0] != "Z" && f[0] != "X" {
			all[pid], _ = strconv.Atoi(f[1])
		}
	}
	return all
}

func below(parents map[int]int, pid, root int) bool {
	for range len(parents) {
		if pid == root {
			return true
		}
		if pid = parents[pid]; pid == 0 {
			return false
		}
	}
	return false
}
