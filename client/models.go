package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
)

// FetchModel writes a version of a model, a number or an alias, into a new directory:
// its files below model/, the signature model.sig and the public key key.pub. The
// directory has its name only when all of it is there.
func (c *Client) FetchModel(ctx context.Context, project, name, version, dir string) error {
	if _, err := os.Lstat(dir); err == nil {
		return fmt.Errorf("%s exists; name a new directory", dir)
	}
	resp, err := c.Send(ctx, http.MethodGet, "/api/v1/projects/"+url.PathEscape(project)+"/models/"+url.PathEscape(name)+"/versions/"+url.PathEscape(version)+"/archive", nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	tmp, err := os.MkdirTemp(filepath.Dir(filepath.Clean(dir)), ".fetch-*")
	if err != nil {
		return err
	}
	if err := unpack(resp.Body, tmp); err != nil {
		return errors.Join(fmt.Errorf("version %s of %s did not come whole: %w", version, name, err), os.RemoveAll(tmp))
	}
	return os.Rename(tmp, dir)
}
