package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
)

// FetchModel writes a version of a model, a number or an alias, into a new directory:
// its files below model/, the signature model.sig and the public key key.pub. The
// directory has its name only when all of it is there, on this disk with the digests that
// were signed. Whose signature it is says a verifier of model signing.
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
	err = unpack(resp.Body, tmp)
	if err == nil {
		err = asSigned(filepath.Join(tmp, "model"), filepath.Join(tmp, "model.sig"))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("version %s of %s did not come whole: %w", version, name, err), os.RemoveAll(tmp))
	}
	return os.Rename(tmp, dir)
}

// asSigned compares the files below a directory with the digests in a signature.
func asSigned(dir, signature string) error {
	b, err := os.ReadFile(signature)
	if err != nil {
		return err
	}
	var bundle struct {
		Envelope struct {
			Payload []byte `json:"payload"`
		} `json:"dsseEnvelope"`
	}
	var statement struct {
		Predicate struct {
			Resources []struct {
				Name   string `json:"name"`
				Digest string `json:"digest"`
			} `json:"resources"`
		} `json:"predicate"`
	}
	if err := json.Unmarshal(b, &bundle); err != nil {
		return fmt.Errorf("reading its signature: %w", err)
	}
	if err := json.Unmarshal(bundle.Envelope.Payload, &statement); err != nil {
		return fmt.Errorf("reading its signature: %w", err)
	}
	signed := map[string]string{}
	for _, r := range statement.Predicate.Resources {
		signed[r.Name] = r.Digest
	}
	files := os.DirFS(dir)
	err = fs.WalkDir(files, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		f, err := files.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return err
		}
		if got := hex.EncodeToString(h.Sum(nil)); got != signed[name] {
			return fmt.Errorf("file %q has the digest %s, and %.64q was signed", name, got, signed[name])
		}
		delete(signed, name)
		return nil
	})
	if err == nil && len(signed) > 0 {
		err = fmt.Errorf("file %q was signed and is missing", slices.Min(slices.Collect(maps.Keys(signed))))
	}
	return err
}
