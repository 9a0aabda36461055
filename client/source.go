package client

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Source is an uploaded archive that jobs name by its digest.
type Source struct {
	Digest string `json:"digest"`
	Files  int    `json:"files"`
	Size   int64  `json:"size"` // unpacked bytes
}

// UploadSource keeps a gzipped tar archive, such as Pack makes, for the jobs of
// a project.
func (c *Client) UploadSource(ctx context.Context, project string, archive io.Reader) (Source, error) {
	resp, err := c.Send(ctx, http.MethodPost, "/api/v1/projects/"+url.PathEscape(project)+"/sources", archive,
		http.Header{"Content-Type": {"application/gzip"}})
	if err != nil {
		return Source{}, err
	}
	defer resp.Body.Close()
	var s Source
	return s, Decode(resp.Body, &s)
}

// Packed is a file of an archive.
type Packed struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// always is what Pack leaves out of every directory.
const always = ".git/\n__pycache__/\n*.pyc\n.venv/\n.ipynb_checkpoints/\n.DS_Store\n"

// maxPacked bounds an archive, in files and unpacked bytes: the server's limits.
const (
	maxPackedFiles = 20_000
	maxPackedBytes = 1 << 30
)

// Pack writes the files below dir as a gzipped tar archive and lists them. The
// same files give the same bytes, whatever their times and owners. Left out is
// what .gitignore and .falajignore of dir and of the directories below it say
// (the latter last), and what no job needs: .git, caches of Python, virtual
// environments. Symbolic links and devices are refused.
func Pack(dir string, w io.Writer) ([]Packed, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	gz := gzip.NewWriter(w)
	t := tar.NewWriter(gz)
	var packed []Packed
	ignored := ignores{}
	ignored.add(".", always)
	size := int64(0)
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name != "." && ignored.match(name, e.IsDir()) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if e.IsDir() {
			for _, file := range []string{".gitignore", ".falajignore"} {
				b, err := root.ReadFile(path.Join(name, file))
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err != nil {
					return err
				}
				ignored.add(name, string(b))
			}
			return nil
		}
		if !e.Type().IsRegular() {
			return fmt.Errorf("%s is a link or no plain file; name it in .falajignore, or put the file there", filepath.Join(dir, name))
		}
		f, err := packFile(root, name, t)
		packed = append(packed, f)
		size += f.Size
		if len(packed) > maxPackedFiles || size > maxPackedBytes {
			return tooMuch(dir, packed)
		}
		return err
	})
	return packed, errors.Join(err, t.Close(), gz.Close())
}

// tooMuch says that a directory is no source, and where most of it is.
func tooMuch(dir string, packed []Packed) error {
	limit, weight := fmt.Sprintf("%d files", maxPackedFiles), func(Packed) int64 { return 1 }
	if len(packed) <= maxPackedFiles {
		limit, weight = fmt.Sprintf("%d bytes", maxPackedBytes), func(f Packed) int64 { return f.Size }
	}
	all, below := int64(0), map[string]int64{}
	for _, f := range packed {
		all += weight(f)
		for d := path.Dir(f.Name); d != "."; d = path.Dir(d) {
			below[d] += weight(f)
		}
	}
	most := "" // the deepest directory that has more than half
	for d, n := range below {
		if 2*n > all && len(d) > len(most) {
			most = d
		}
	}
	if most == "" {
		return fmt.Errorf("%s has more than %s, the most of a source; list in %s what the job does not need, and give it data as datasets", dir, limit, filepath.Join(dir, ".falajignore"))
	}
	return fmt.Errorf("%s has more than %s, the most of a source, and most are in %s; if the job does not need them, write the line /%s/ into %s; if it does, import them as a dataset, or pack them into one file, such as a .tar or .parquet",
		dir, limit, filepath.Join(dir, most), most, filepath.Join(dir, ".falajignore"))
}

// packFile writes one file; of its mode only whether it may be executed is kept.
func packFile(root *os.Root, name string, t *tar.Writer) (Packed, error) {
	f, err := root.Open(name)
	if err != nil {
		return Packed{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Packed{}, err
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: info.Size(), Mode: 0o644, Format: tar.FormatPAX}
	if info.Mode()&0o100 != 0 {
		h.Mode = 0o755
	}
	if err := t.WriteHeader(h); err != nil {
		return Packed{}, err
	}
	_, err = io.Copy(t, f) // more or less than the size is an error of the archive
	return Packed{Name: name, Size: info.Size()}, err
}

// ignores are the patterns of ignore files, in order.
type ignores []ignore

type ignore struct {
	re        *regexp.Regexp
	keep, dir bool
}

// add reads an ignore file of a directory. The rules are git's: "#" begins a
// comment, "!" takes back, a trailing "/" means directories, a "/" elsewhere ties
// the pattern to the directory, "*" and "?" stop at "/", "**" does not.
func (i *ignores) add(dir, text string) {
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		p := strings.TrimRight(lines.Text(), " \t\r")
		if p == "" || p[0] == '#' {
			continue
		}
		var g ignore
		p, g.keep = strings.CutPrefix(p, "!")
		p, g.dir = strings.CutSuffix(p, "/")
		tied := strings.Contains(p, "/")
		p = strings.TrimPrefix(p, "/")
		expr := "^"
		if dir != "." {
			expr += regexp.QuoteMeta(dir) + "/"
		}
		if !tied {
			expr += "(?:.*/)?"
		}
		re, err := regexp.Compile(expr + glob(p) + "$")
		if err != nil {
			continue // such as an unclosed class: git matches nothing with it, too
		}
		g.re = re
		*i = append(*i, g)
	}
}

// glob is a git pattern as a regular expression.
func glob(p string) string {
	var b strings.Builder
	for len(p) > 0 {
		switch {
		case strings.HasPrefix(p, "**/"):
			b.WriteString("(?:.*/)?")
			p = p[3:]
			continue
		case strings.HasPrefix(p, "**"):
			b.WriteString(".*")
			p = p[2:]
			continue
		case p[0] == '*':
			b.WriteString("[^/]*")
		case p[0] == '?':
			b.WriteString("[^/]")
		case p[0] == '\\' && len(p) > 1:
			b.WriteString(regexp.QuoteMeta(p[1:2]))
			p = p[1:]
		case p[0] == '[':
			if end := strings.IndexByte(p, ']'); end > 1 {
				b.WriteString("[" + strings.Replace(p[1:end], "!", "^", 1) + "]")
				p = p[end+1:]
				continue
			}
			b.WriteString(`\[`)
		default:
			b.WriteString(regexp.QuoteMeta(p[:1]))
		}
		p = p[1:]
	}
	return b.String()
}

// match reports whether the last pattern that fits says to leave a name out.
func (i *ignores) match(name string, dir bool) bool {
	for _, g := range slices.Backward(*i) {
		if (dir || !g.dir) && g.re.MatchString(name) {
			return !g.keep
		}
	}
	return false
}
