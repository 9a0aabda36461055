package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Verified is a version whose files were all found to be what was signed. It
// checks each file again while it is read: what a reader got up to io.EOF is
// what was signed.
type Verified struct {
	Version Version
	Bundle  []byte // the signature: a sigstore bundle, JSON
	files   []Stored
	s       *core
}

// Files lists the version's files in signing order.
func (v *Verified) Files() []File {
	out := make([]File, len(v.files))
	for i, f := range v.files {
		out[i] = f.File
	}
	return out
}

// Open opens a file. A read fails with fault.Conflict, before io.EOF, when the
// bytes are not those that were signed. Error: fault.NotFound. Close it.
func (v *Verified) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	for _, f := range v.files {
		if f.Path == name {
			r, err := v.s.openRefusing(ctx, v.Version, f)
			if err != nil {
				return nil, err
			}
			return r, nil
		}
	}
	return nil, fault.New(fault.NotFound, "model %s has no file %q", v.Version, clip(name))
}

// ReadFile gives a file's bytes, of at most limit. Errors as Open's and
// fault.TooLarge.
func (v *Verified) ReadFile(ctx context.Context, name string, limit int64) ([]byte, error) {
	r, err := v.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fault.New(fault.TooLarge, "file %s of model %s has more than %d bytes", name, v.Version, limit)
	}
	return b, err
}

// Files opens, lists and verifies the files of versions. Its callers are the HTTP API, MLflow's
// protocol, jobs, deployments and gateways.
type Files struct{ *core }

// Files lists a version's files and gives its signature, without checking them.
func (s *Files) Files(ctx context.Context, p project.Name, name, ref string) ([]File, []byte, error) {
	v, err := s.readVersion(ctx, p, name, ref)
	if err != nil {
		return nil, nil, err
	}
	files, bundle, err := s.filesOf(ctx, v)
	out := make([]File, len(files))
	for i, f := range files {
		out[i] = f.File
	}
	return out, bundle, err
}

func (s *Files) filesOf(ctx context.Context, v Version) (files []Stored, bundle []byte, err error) {
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		files, bundle, err = s.store.Files(ctx, tx, v.ModelID, v.Number)
		return err
	})
	slices.SortFunc(files, func(a, b Stored) int { return comparePaths(a.Path, b.Path) })
	return files, bundle, err
}

// OpenFile opens one file of a version for download; it is checked while it is
// read, and what is not as it was signed is in the journal. Close it.
func (s *Files) OpenFile(ctx context.Context, p project.Name, name, ref, file string) (io.ReadCloser, File, error) {
	v, err := s.readVersion(ctx, p, name, ref)
	if err != nil {
		return nil, File{}, err
	}
	if err := s.mayReadFiles(ctx, v); err != nil {
		return nil, File{}, err
	}
	files, _, err := s.signedFiles(ctx, v)
	if err != nil {
		return nil, File{}, s.refused(ctx, v, err)
	}
	for _, f := range files {
		if f.Path == file {
			r, err := s.openRefusing(ctx, v, f)
			if err != nil {
				return nil, File{}, err
			}
			return r, f.File, nil
		}
	}
	return nil, File{}, fault.New(fault.NotFound, "No such artifact: '%s'", clip(file))
}

// OpenVerified is what deployment asks: the signature of the version (a number
// or an alias) holds, and every file is, now, what was signed. Errors:
// fault.NotFound; fault.Conflict naming the file or claim that is not as signed,
// which is also in the journal.
func (s *Files) OpenVerified(ctx context.Context, p project.Name, name, ref string) (*Verified, error) {
	v, err := s.readVersion(ctx, p, name, ref)
	if err != nil {
		return nil, err
	}
	if v.State != Ready {
		return nil, fault.New(fault.Conflict, "model %s is %s, not ready", v, v.State).WithHint("%s", v.Message)
	}
	files, bundle, err := s.signedFiles(ctx, v)
	if err != nil {
		return nil, s.refused(ctx, v, err)
	}
	for _, f := range files {
		if err := s.checkFile(ctx, v, f); err != nil {
			return nil, s.refused(ctx, v, err)
		}
	}
	return &Verified{Version: v, Bundle: bundle, files: files, s: s.core}, nil
}

// OpenReadable is OpenVerified for who reads the bytes of the files: downloads them, gives
// them to a job, or copies them into another version. The version's class decides.
func (s *Files) OpenReadable(ctx context.Context, p project.Name, name, ref string) (*Verified, error) {
	v, err := s.readVersion(ctx, p, name, ref)
	if err != nil {
		return nil, err
	}
	if err := s.mayReadFiles(ctx, v); err != nil {
		return nil, err
	}
	return s.OpenVerified(ctx, p, name, strconv.Itoa(v.Number))
}

// Verify is OpenVerified for those who only want to know.
func (s *Files) Verify(ctx context.Context, p project.Name, name, ref string) (Version, error) {
	v, err := s.OpenVerified(ctx, p, name, ref)
	if err != nil {
		return Version{}, err
	}
	return v.Version, nil
}

// signedFiles gives the version's files after checking that the signature is
// ours, for this version, and for exactly these files.
func (s *Files) signedFiles(ctx context.Context, v Version) ([]Stored, []byte, error) {
	files, bundle, err := s.filesOf(ctx, v)
	if err != nil {
		return nil, nil, err
	}
	key, err := s.key(ctx, v.Project)
	if err != nil {
		return nil, nil, err
	}
	st, err := openBundle(bundle, key.id, &key.private.PublicKey)
	if err != nil {
		return nil, nil, err
	}
	if got, want := claimsOf(v), st.Predicate.Falaj; !reflect.DeepEqual(got, want) {
		return nil, nil, fault.New(fault.Conflict, "the version's record does not match its signature: %s", difference(got, want))
	}
	signed := st.Predicate.Resources
	for i, f := range files {
		if i >= len(signed) || signed[i].Name != f.Path {
			return nil, nil, fault.New(fault.Conflict, "file %s was not signed", f.Path)
		}
		if signed[i].Algorithm != "sha256" || "sha256:"+signed[i].Digest != f.Digest {
			return nil, nil, fault.New(fault.Conflict, "file %s is recorded with the digest %s, and sha256:%s was signed", f.Path, f.Digest, clip(signed[i].Digest))
		}
	}
	if len(signed) > len(files) {
		return nil, nil, fault.New(fault.Conflict, "file %s was signed and is missing", clip(signed[len(files)].Name))
	}
	plain := make([]File, len(files))
	for i, f := range files {
		plain[i] = f.File
	}
	root, err := rootDigest(plain)
	if err != nil {
		return nil, nil, err
	}
	if "sha256:"+st.Subject[0].Digest["sha256"] != root || v.Digest != root {
		return nil, nil, fault.New(fault.Conflict, "the version's digest %s does not match its files", v.Digest)
	}
	return files, bundle, nil
}

// difference names the first claim that differs.
func difference(got, want claims) string {
	g, w := reflect.ValueOf(got), reflect.ValueOf(want)
	for i := range g.NumField() {
		if !reflect.DeepEqual(g.Field(i).Interface(), w.Field(i).Interface()) {
			name, _, _ := strings.Cut(g.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return "nothing"
}

func (s *Files) checkFile(ctx context.Context, v Version, f Stored) error {
	r, err := s.openFile(ctx, v, f)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	return err
}

func (s *core) openFile(ctx context.Context, v Version, f Stored) (io.ReadCloser, error) {
	r, err := s.objects.Open(ctx, blob.Ref{Project: string(v.Project), Owner: modelKeys(v.ModelID), Key: blob.Key(f.Object)})
	switch {
	case fault.Is(err, fault.NotFound):
		return nil, fault.New(fault.Conflict, "file %s of model %s is missing from storage", f.Path, v)
	case errors.Is(err, blob.ErrDamaged):
		return nil, damaged(v, f, err)
	case err != nil:
		return nil, fault.Wrap(err, "opening file %s of model %s", f.Path, v)
	}
	return &checkedReader{v: v, f: f, r: r, h: sha256.New()}, nil
}

// openRefusing is openFile for who hands the file on: what is wrong with it is noted, and
// said with what to do.
func (s *core) openRefusing(ctx context.Context, v Version, f Stored) (*refusingReader, error) {
	r, err := s.openFile(ctx, v, f)
	if err != nil {
		return nil, s.refused(ctx, v, err)
	}
	return &refusingReader{ReadCloser: r, refused: func(err error) error { return s.refused(ctx, v, err) }}, nil
}

type refusingReader struct {
	io.ReadCloser
	refused func(error) error
	ended   error
}

func (r *refusingReader) Read(b []byte) (int, error) {
	if r.ended != nil {
		return 0, r.ended
	}
	n, err := r.ReadCloser.Read(b)
	if err != nil {
		r.ended = r.refused(err) // once; io.EOF is no refusal
	}
	return n, r.ended
}

func damaged(v Version, f Stored, err error) error {
	return fault.New(fault.Conflict, "file %s of model %s does not match its signature: its stored bytes were modified (%w)", f.Path, v, err)
}

// checkedReader compares the digest before it says io.EOF.
type checkedReader struct {
	v Version
	f Stored
	r io.ReadCloser
	h hash.Hash
}

func (c *checkedReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.h.Write(b[:n])
	switch {
	case errors.Is(err, io.EOF):
		if got := "sha256:" + hex.EncodeToString(c.h.Sum(nil)); got != c.f.Digest {
			return 0, fault.New(fault.Conflict, "file %s of model %s does not match its signature: it has the digest %s, and %s was signed", c.f.Path, c.v, got, c.f.Digest)
		}
	case errors.Is(err, blob.ErrDamaged):
		return n, damaged(c.v, c.f, err)
	}
	return n, err
}

func (c *checkedReader) Close() error { return c.r.Close() }

// refused notes a failed verification in the journal.
func (s *core) refused(ctx context.Context, v Version, err error) error {
	if !fault.Is(err, fault.Conflict) {
		return err
	}
	if s.journal != nil {
		jerr := s.journal.Record(ctx, audit.Entry{
			Project: string(v.Project), Action: "model.verify", Object: "model " + v.String(), Outcome: audit.Refused, Reason: err.Error(),
		})
		if jerr != nil {
			return errors.Join(err, jerr)
		}
	}
	out := fault.New(fault.Conflict, "model %s failed verification: %w", v, err)
	return out.WithHint("Do not deploy it. Investigate write access to the storage and the database, and register the model again from its run.")
}
