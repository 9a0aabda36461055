package client

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

func checkpoints(project, job string, rest ...string) string {
	p := []string{"/api/v1/projects", url.PathEscape(project), "jobs", url.PathEscape(job), "checkpoints"}
	for _, r := range rest {
		p = append(p, url.PathEscape(r))
	}
	return strings.Join(p, "/")
}

// Checkpoints lists the kept checkpoints of a job in the order in which they
// were taken, each with why it is kept.
func (c *Client) Checkpoints(ctx context.Context, project, job string) ([]Object, error) {
	var all []Object
	err := c.List(ctx, checkpoints(project, job), nil, func(o Object) error {
		all = append(all, o)
		return nil
	})
	return all, err
}

// FetchCheckpoint writes a checkpoint, by its name (the newest of that name) or
// identifier, into a new directory. The directory has its name only when all of
// the checkpoint is in it.
func (c *Client) FetchCheckpoint(ctx context.Context, project, job, name, dir string) error {
	if _, err := os.Lstat(dir); err == nil {
		return fmt.Errorf("%s exists; name a new directory", dir)
	}
	resp, err := c.Send(ctx, http.MethodGet, checkpoints(project, job, name, "archive"), nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	tmp, err := os.MkdirTemp(filepath.Dir(filepath.Clean(dir)), ".fetch-*")
	if err != nil {
		return err
	}
	if err := unpack(resp.Body, tmp); err != nil {
		return errors.Join(fmt.Errorf("checkpoint %s did not come whole: %w", name, err), os.RemoveAll(tmp))
	}
	return os.Rename(tmp, dir)
}

// DeleteCheckpoint drops a checkpoint by name or identifier; the newest good one
// of a job that has not ended is refused. With yes it goes also when another job names it.
func (c *Client) DeleteCheckpoint(ctx context.Context, project, job, name string, yes bool) error {
	path := checkpoints(project, job, name)
	if yes {
		path += "?yes=true"
	}
	return c.Do(ctx, http.MethodDelete, path, nil, nil)
}

// unpack writes a tar stream of plain files and directories below dir, and
// nothing outside of it.
func unpack(r io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(h.Name, "/")
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o700)
		case tar.TypeReg:
			err = place(root, name, h, t)
		default:
			err = fmt.Errorf("%q is neither a file nor a directory", h.Name)
		}
		if err != nil {
			return err
		}
	}
}

func place(root *os.Root, name string, h *tar.Header, from io.Reader) error {
	if dir := path.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600|h.FileInfo().Mode()&0o100)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return root.Chtimes(name, time.Time{}, h.ModTime)
}
