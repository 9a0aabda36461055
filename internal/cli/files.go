package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// runFile is a file or directory among the artifacts of a run.
type runFile struct {
	Path      string `json:"path"` // from the root of the run's artifacts, "plots/loss.png"
	Directory bool   `json:"is_dir"`
	Size      int64  `json:"file_size"` // bytes

	model string // the logged model that has it; empty for the run itself
}

// maxRunFiles bounds what one command lists or fetches.
const maxRunFiles = 100_000

func (a *app) runFiles() *cobra.Command {
	return &cobra.Command{
		Use: "files RUN [PATH]", Short: "List the artifacts of a run, all or below a path",
		Example: "  falaj run files run_01J… -p nyc\n  falaj run files run_01J… plots -p nyc -o json", Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := a.artifactsOf(args[0])
			if err != nil {
				return err
			}
			files, err := r.below(cmd.Context(), optional(args, 1))
			if err != nil {
				return err
			}
			items := make([]client.Object, len(files))
			for i, f := range files {
				items[i] = client.Object{"path": f.Path, "bytes": f.Size, "size": resource.Bytes(f.Size).Words()}
			}
			return a.print(items, []column{{"PATH", "path"}, {"SIZE", "size"}})
		},
	}
}

func (a *app) runDownload() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use: "download RUN [PATH]", Short: "Download artifacts of a run: a file, a directory or all",
		Long: "Downloads artifacts into a directory, under their own paths. Existing files are never overwritten: if one\n" +
			"exists, the command fails before the first download.",
		Example: "  falaj run download run_01J… model -p nyc --to ./from-run\n  falaj run download run_01J… plots/loss.png -p nyc", Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := a.artifactsOf(args[0])
			if err != nil {
				return err
			}
			files, err := r.below(cmd.Context(), optional(args, 1))
			if err != nil {
				return err
			}
			paths := make([]string, len(files))
			for i, f := range files {
				paths[i] = f.Path
			}
			root, err := target(to, paths)
			if err != nil {
				return err
			}
			defer func() { _ = root.Close() }()
			for _, f := range files {
				if err := r.fetch(cmd.Context(), root, f); err != nil {
					return err
				}
				a.note("%s  %s", filepath.Join(to, f.Path), resource.Bytes(f.Size).Words())
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&to, "to", ".", "target directory, created if missing")
	_ = cmd.MarkFlagDirname("to")
	return cmd
}

func optional(args []string, i int) string {
	if i < len(args) {
		return args[i]
	}
	return ""
}

// artifacts are those of one run. The files of a logged model that it created are below the name
// of the model, as in MLflow's clients: runs:/RUN/model.
type artifacts struct {
	c       *client.Client
	header  http.Header
	project string
	run     string

	asked  bool
	models map[string]string // identifiers, by name
}

func (a *app) artifactsOf(run string) (*artifacts, error) {
	p, err := a.inProject()
	if err != nil {
		return nil, err
	}
	c, err := a.connect()
	return &artifacts{c: c, header: http.Header{"Falaj-Project": {p}}, project: p, run: run}, err
}

// below lists the files at and below a path: a file itself, or those of a directory.
func (r *artifacts) below(ctx context.Context, at string) (files []runFile, err error) {
	at = strings.TrimPrefix(path.Clean("/"+at), "/") // as the server names it
	dirs := 0                                        // a server may list them without end
	for next := []string{at}; len(next) > 0; next = next[1:] {
		entries, err := r.list(ctx, next[0])
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.Directory {
				if dir := next[0]; dir != "" && !strings.HasPrefix(e.Path, dir+"/") {
					return nil, fault.New(fault.Unavailable, "the server lists the directory %q in %q", e.Path, dir).WithHint("Is it a server of Falaj?")
				}
				next = append(next, e.Path)
				dirs++
			} else {
				files = append(files, e)
			}
		}
		if len(files)+dirs > maxRunFiles {
			return nil, fault.New(fault.TooLarge, "the run has more than %d files and directories there", maxRunFiles).WithHint("Name a directory of it.")
		}
	}
	if len(files) > 0 || at == "" {
		return files, nil
	}
	// A file is an entry of its directory.
	parent := path.Dir(at)
	if parent == "." {
		parent = ""
	}
	entries, err := r.list(ctx, parent)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Path == at && !e.Directory {
			return []runFile{e}, nil
		}
	}
	return nil, fault.New(fault.NotFound, "run %s has no file or directory %q", r.run, at).WithHint("See `falaj run files %s`.", r.run)
}

// created asks for the logged models that the run created; of one name, the last counts.
func (r *artifacts) created(ctx context.Context) error {
	if r.asked {
		return nil
	}
	var run struct {
		Models []struct {
			ID, Name string
			Output   bool
		}
	}
	path := "/api/v1/projects/" + url.PathEscape(r.project) + "/runs/" + url.PathEscape(r.run)
	if err := r.c.Do(ctx, http.MethodGet, path, nil, &run); err != nil {
		return err
	}
	r.asked, r.models = true, map[string]string{}
	for _, m := range run.Models {
		if m.Output && m.Name != "" {
			r.models[m.Name] = m.ID
		}
	}
	return nil
}

// list lists a directory. A file of a logged model replaces one of the run with its path.
func (r *artifacts) list(ctx context.Context, dir string) ([]runFile, error) {
	if err := r.created(ctx); err != nil {
		return nil, err
	}
	query := url.Values{"run_id": {r.run}}
	if dir != "" {
		query.Set("path", dir)
	}
	files, err := r.ask(ctx, "/api/2.0/mlflow/artifacts/list?"+query.Encode())
	if err != nil {
		return nil, err
	}
	var more []runFile
	name, within, _ := strings.Cut(dir, "/")
	if dir == "" {
		for _, name := range slices.Sorted(maps.Keys(r.models)) {
			more = append(more, runFile{Path: name, Directory: true})
		}
	} else if model := r.models[name]; model != "" {
		query := url.Values{}
		if within != "" {
			query.Set("artifact_directory_path", within)
		}
		more, err = r.ask(ctx, "/api/2.0/mlflow/logged-models/"+url.PathEscape(model)+"/artifacts/directories?"+query.Encode())
		if err != nil {
			return nil, err
		}
		for i := range more {
			more[i].Path, more[i].model = name+"/"+more[i].Path, model
		}
	}
	for _, m := range more {
		files = slices.DeleteFunc(files, func(f runFile) bool { return f.Path == m.Path })
	}
	return append(files, more...), nil
}

func (r *artifacts) ask(ctx context.Context, path string) ([]runFile, error) {
	resp, err := r.c.Send(ctx, http.MethodGet, path, nil, r.header)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var page struct {
		Files []runFile `json:"files"`
	}
	err = client.Decode(resp.Body, &page)
	return page.Files, err
}

// fetch writes a file below root, whole or not at all.
func (r *artifacts) fetch(ctx context.Context, root *os.Root, f runFile) error {
	if f.Size < 0 {
		return fault.New(fault.Unavailable, "the server lists %q with %d bytes", f.Path, f.Size).WithHint("Is it a server of Falaj?")
	}
	from := "/get-artifact?" + url.Values{"run_id": {r.run}, "path": {f.Path}}.Encode()
	if f.model != "" {
		_, within, _ := strings.Cut(f.Path, "/")
		from = "/ajax-api/2.0/mlflow/logged-models/" + url.PathEscape(f.model) + "/artifacts/files?" + url.Values{"artifact_file_path": {within}}.Encode()
	}
	resp, err := r.c.Send(ctx, http.MethodGet, from, nil, r.header)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = keep(root, f.Path, resp.Body, f.Size)
	return err
}

// anySize is the size of a file that may have any.
const anySize = -1

// target makes the directory that files are put into.
func target(to string, paths []string) (*os.Root, error) {
	if err := os.MkdirAll(to, 0o755); err != nil { //nolint:gosec // as the user's umask has it
		return nil, err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return nil, err
	}
	for _, p := range paths {
		if _, err := root.Lstat(filepath.FromSlash(p)); !errors.Is(err, fs.ErrNotExist) {
			if err == nil {
				err = fault.New(fault.Conflict, "%s is already there", filepath.Join(to, p)).WithHint("Name another directory with --to, or move it.")
			}
			return nil, errors.Join(err, root.Close())
		}
	}
	return root, nil
}

// keep writes a file below root, whole or not at all.
func keep(root *os.Root, at string, from io.Reader, size int64) (n int64, err error) {
	name := filepath.FromSlash(at)
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return 0, err
	}
	part := name + ".part"
	out, err := root.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			_ = root.Remove(part)
		}
	}()
	if size != anySize {
		from = io.LimitReader(from, size+1) // however much more comes
	}
	n, err = io.Copy(out, from)
	if err = errors.Join(err, out.Close()); err != nil {
		return n, fmt.Errorf("fetching %s: %w", at, err)
	}
	if size != anySize && n > size {
		return n, fault.New(fault.Unavailable, "%s has more than the %d bytes that were listed", at, size).WithHint("Retry: the file may have been replaced during the download.")
	}
	if size != anySize && n != size {
		return n, fault.New(fault.Unavailable, "%s broke off after %d of %d bytes", at, n, size).WithHint("Try again.")
	}
	return n, root.Rename(part, name)
}

// jobFiles lists what a running job has written below its output directory.
func (a *app) jobFiles() *cobra.Command {
	return &cobra.Command{
		Use: "files JOB [PATH]", Short: "List the files that a running job has written to its output directory",
		Long: "Lists files before the job ends, such as TensorBoard's events, images and logs. Afterwards they are artifacts of\n" +
			"its run: see \"falaj run files\".",
		Example: "  falaj job files job_01J… -p nyc\n  falaj job files job_01J… plots -p nyc -o json", Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := a.written(cmd, args)
			if err != nil {
				return err
			}
			for i, f := range found.Items {
				n, err := strconv.ParseInt(f.Text("bytes"), 10, 64)
				if err != nil {
					return fmt.Errorf("the size of %s: %w", f.Text("path"), err)
				}
				found.Items[i]["size"] = resource.Bytes(n).Words()
			}
			if err := a.print(found.Items, []column{{"PATH", "path"}, {"SIZE", "size"}, {"CHANGED", "changed_at"}}); err != nil {
				return err
			}
			if found.More {
				a.note("the list is truncated; set a directory")
			}
			return nil
		},
	}
}

// writtenFiles is the answer of the server.
type writtenFiles struct {
	Items []client.Object `json:"items"`
	More  bool            `json:"more"`
}

func (a *app) written(cmd *cobra.Command, args []string) (found writtenFiles, err error) {
	base, err := a.inProjectPath("jobs", args[0], "files")
	if err != nil {
		return found, err
	}
	c, err := a.connect()
	if err != nil {
		return found, err
	}
	if len(args) > 1 {
		base += "?" + url.Values{"path": {args[1]}}.Encode()
	}
	return found, c.Do(cmd.Context(), http.MethodGet, base, nil, &found)
}

// jobDownload fetches what a running job has written.
func (a *app) jobDownload() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use: "download JOB [PATH]", Short: "Download the current output files of a running job",
		Long: "Downloads files of the job's output directory under their own paths. If a target file exists, the command fails\n" +
			"before it downloads anything. A file that the job removes during the download is skipped, with a note. After the\n" +
			"job's end, see \"falaj run download\".",
		Example: "  falaj job download job_01J… tensorboard -p nyc --to ./events", Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := a.written(cmd, args)
			if err != nil {
				return err
			}
			if found.More {
				return fault.New(fault.TooLarge, "the job has written more files there than are listed").WithHint("Name a directory of it.")
			}
			paths := make([]string, len(found.Items))
			for i, f := range found.Items {
				paths[i] = f.Text("path")
			}
			root, err := target(to, paths)
			if err != nil {
				return err
			}
			defer func() { _ = root.Close() }()
			for _, p := range paths {
				n, err := a.fetchWritten(cmd, args[0], root, p)
				if e, ok := errors.AsType[*client.Error](err); ok && e.Kind == fault.NotFound.String() {
					a.note("%s  not fetched, it was listed before: %s", filepath.Join(to, p), e.Detail)
					continue
				}
				if err != nil {
					return err
				}
				a.note("%s  %s", filepath.Join(to, p), resource.Bytes(n).Words())
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&to, "to", ".", "target directory; created if it does not exist")
	_ = cmd.MarkFlagDirname("to")
	return cmd
}

func (a *app) fetchWritten(cmd *cobra.Command, job string, root *os.Root, name string) (n int64, err error) {
	base, err := a.inProjectPath("jobs", job, "files", "content")
	if err != nil {
		return 0, err
	}
	c, err := a.connect()
	if err != nil {
		return 0, err
	}
	resp, err := c.Send(cmd.Context(), http.MethodGet, base+"?"+url.Values{"path": {name}}.Encode(), nil, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	return keep(root, name, resp.Body, anySize)
}
