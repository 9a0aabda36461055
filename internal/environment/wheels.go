package environment

import (
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
)

// Which C library an environment needs is in the tags of its wheels, which
// installers leave beside the packages: "Tag: cp311-cp311-manylinux_2_28_x86_64".

var manylinuxRE = regexp.MustCompile(`^Tag: \S+-manylinux_(2_[0-9]{1,3})_\S+$`)

// legacy are the names that tags had before they were versions (PEP 600).
var legacy = map[string]string{"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}

const maxWheelFile = 64 << 10

// glibcOf is the least C library that every wheel in a virtual environment runs
// with; empty when none asks for one.
func glibcOf(venv string) (string, error) {
	root, err := os.OpenRoot(venv)
	if err != nil {
		return "", err
	}
	defer root.Close()
	files, err := fs.Glob(root.FS(), "lib/python3.*/site-packages/*.dist-info/WHEEL")
	if err != nil {
		return "", err
	}
	needed := ""
	for _, name := range files {
		f, err := root.Open(path.Clean(name))
		if err != nil {
			return "", err
		}
		b, err := io.ReadAll(io.LimitReader(f, maxWheelFile))
		_ = f.Close()
		if err != nil {
			return "", err
		}
		if v := wheelGlibc(string(b)); v != "" && compareVersions(v, needed) > 0 {
			needed = v
		}
	}
	return needed, nil
}

// wheelGlibc is the least C library of one wheel: the oldest of its tags.
func wheelGlibc(text string) string {
	least := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		v := ""
		if m := manylinuxRE.FindStringSubmatch(line); m != nil {
			v = strings.ReplaceAll(m[1], "_", ".")
		}
		for name, is := range legacy {
			if v == "" && strings.HasPrefix(line, "Tag: ") && strings.Contains(line, "-"+name+"_") {
				v = is
			}
		}
		if v != "" && (least == "" || compareVersions(v, least) < 0) {
			least = v
		}
	}
	return least
}
