package tracking

import (
	"context"
	"errors"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/quota"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

// Objects keeps the bytes of artifacts. It is *blob.Store: Put is atomic and durable, and a
// reader fails, and never gives wrong bytes, when what is stored was changed.
type Objects interface {
	Put(ctx context.Context, ref blob.Ref, body io.Reader, opts ...blob.Option) (blob.Info, error)
	Open(ctx context.Context, ref blob.Ref) (*blob.Reader, error)
	Delete(ctx context.Context, ref blob.Ref) error
	List(ctx context.Context, prefix blob.Key, yield func(blob.Key) error) error
}

var _ Objects = (*blob.Store)(nil)

// artifactKeys is the key scope that seals artifacts.
const artifactKeys = "artifacts"

// Bounds of an artifact's path.
const (
	MaxPath     = 1000 // bytes
	MaxPathPart = 255
	MaxDepth    = 32
)

// CheckPath refuses an artifact path that is not plainly a relative one: no
// empty, "." or ".." part, no leading slash, back slash, or drive ("C:/x"), no '#', which
// clients take for the end of a path, and no characters that control a terminal or the
// direction of text. Percent-encoded, however often, it may not leave its directory; else a
// '%' is a character as any other, as in "loss%step%23.png". The empty path is the root,
// which only listings take.
func CheckPath(p string) error {
	refuse := func(why string) error {
		return fault.New(fault.Invalid, "Invalid path. %q %s", clip(p), why).
			WithHint("Use a relative path, such as model/model.onnx.")
	}
	if len(p) > MaxPath {
		return refuse("is longer than 1000 bytes")
	}
	if !utf8.ValidString(p) {
		return refuse("is not valid UTF-8")
	}
	if why := badPath(p); why != "" {
		return refuse(why)
	}
	for s, decoded := p, DecodePercent(p); decoded != s; s, decoded = decoded, DecodePercent(decoded) {
		if leaves(decoded) {
			return refuse("leaves its directory when it is decoded")
		}
	}
	return nil
}

// driveRE begins a path that is absolute on Windows. "k:5" is a name like any other.
var driveRE = regexp.MustCompile(`^[A-Za-z]:[/\\]`)

// leaves reports whether a decoded path leads out of the directory that it is joined with,
// on a client of any kind.
func leaves(p string) bool {
	p = strings.ReplaceAll(p, `\`, "/")
	return strings.HasPrefix(p, "/") || driveRE.MatchString(p) || slices.ContainsFunc(strings.Split(p, "/"), func(part string) bool {
		return part == "." || part == ".."
	})
}

// DecodePercent decodes each percent-encoded byte once and leaves a '%' that
// encodes nothing, which must not hide the rest from a check.
func DecodePercent(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil && s[i+1] != '+' && s[i+1] != '-' {
				b.WriteByte(byte(c))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func badPath(s string) string {
	if s == "" {
		return ""
	}
	if strings.ContainsAny(s, `\#`) {
		return `has one of \ #`
	}
	if strings.ContainsFunc(s, func(r rune) bool {
		mark := r == '\u200e' || r == '\u200f' || r == '\u061c' // which right-to-left names have
		return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) && !mark
	}) {
		return "has control characters"
	}
	parts := strings.Split(s, "/")
	if len(parts) > MaxDepth {
		return "is more than 32 directories deep"
	}
	if driveRE.MatchString(s) {
		return "begins with a drive"
	}
	for _, part := range parts {
		switch {
		case part == "" || part == "." || part == "..":
			return `has an empty, "." or ".." part`
		case len(part) > MaxPathPart:
			return "has a part longer than 255 bytes"
		}
	}
	return ""
}

// Artifacts writes, lists, reads and deletes the files of runs and logged models. Its callers are
// MLflow's protocol, the HTTP API, jobs and the registry.
type Artifacts struct{ *core }

// PutArtifact stores a file, replacing the one at the path. It is there, whole
// and synced, when PutArtifact returns. Errors: fault.TooLarge,
// fault.Conflict when a directory has the path or a file is in the way.
func (s *Artifacts) PutArtifact(ctx context.Context, p project.Name, place Place, name string, body io.Reader) (File, error) {
	return s.putArtifact(ctx, p, place, name, body, ActionWrite, nil)
}

// putArtifact stores a file; an import may store it in what is deleted. parts are what the file
// is made of, and the caller deletes afterwards.
func (s *Artifacts) putArtifact(ctx context.Context, p project.Name, place Place, name string, body io.Reader, action policy.Action, parts []Part) (File, error) {
	if err := s.artifactPlace(ctx, p, place, action, false); err != nil {
		return File{}, err
	}
	if err := checkFilePath(name); err != nil {
		return File{}, err
	}
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error { return s.pathFree(ctx, tx, place, name) })
	if err != nil {
		return File{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, blob.RecordWithin)
	defer cancel()
	ref := blob.Ref{Project: string(p), Owner: artifactKeys, Key: artifactPrefix(p) + blob.Key(place.ID()+"/"+id.New("art"))}
	replacing := quota.Replacing(ctx, func(ctx context.Context) (objects []blob.Key, err error) {
		old, err := s.current(ctx, place, name)
		if old != "" {
			objects = append(objects, old)
		}
		for _, part := range parts {
			objects = append(objects, blob.Key(part.Object))
		}
		return objects, err
	})
	info, err := s.objects.Put(replacing, ref, body, blob.WithLimit(s.maxFile))
	if err != nil {
		return File{}, fault.Wrap(err, "storing artifact %s of %s", name, place)
	}
	stored := Stored{File: File{Path: name, Size: info.Size, Digest: info.Digest, Created: s.now(), OfJob: ofJob(ctx)}, Object: string(ref.Key)}
	replaced := ""
	err = s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		replaced = ""
		if err := s.placeThere(ctx, tx, p, place, action); err != nil {
			return err
		}
		if err := s.pathFree(ctx, tx, place, name); err != nil {
			return err
		}
		old, err := s.store.Artifact(ctx, tx, place.ID(), name)
		switch {
		case err == nil:
			replaced = old.Object
		case !fault.Is(err, fault.NotFound):
			return err
		}
		if err := s.store.PutArtifact(ctx, tx, p, place.ID(), stored); err != nil {
			return err
		}
		return s.audit(ctx, tx, p, place.String(), map[string]any{"act": "put_artifact", "path": name, "digest": info.Digest, "size": info.Size})
	})
	if err != nil {
		s.drop(ctx, ref)
		return File{}, err
	}
	if replaced != "" {
		s.drop(ctx, blob.Ref{Project: string(p), Owner: artifactKeys, Key: blob.Key(replaced)})
	}
	return stored.File, nil
}

// current is the object of the file at a path; empty when there is none.
func (s *Artifacts) current(ctx context.Context, place Place, name string) (object blob.Key, err error) {
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		stored, err := s.store.Artifact(ctx, tx, place.ID(), name)
		object = blob.Key(stored.Object)
		return err
	})
	if fault.Is(err, fault.NotFound) {
		return "", nil
	}
	return object, err
}

// ofJob reports whether what is written comes out of a job: by its attempt's own
// token, or by the loop that takes what it left. Nothing else of Falaj writes
// artifacts by itself.
func ofJob(ctx context.Context) bool {
	kind := identity.From(ctx).Kind
	return kind == identity.Attempt || kind == identity.System
}

// OpenArtifact opens a file for reading. Close it. The log of a job's attempt needs job.logs too.
func (s *Artifacts) OpenArtifact(ctx context.Context, p project.Name, place Place, name string) (*blob.Reader, File, error) {
	if err := s.artifactPlace(ctx, p, place, ActionRead, true); err != nil {
		return nil, File{}, err
	}
	if err := checkFilePath(name); err != nil {
		return nil, File{}, err
	}
	if attemptLog.MatchString(name) {
		if err := s.mayReadLog(ctx, p, place, s.authz.Allow); err != nil {
			return nil, File{}, err
		}
	}
	var stored Stored
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		stored, err = s.store.Artifact(ctx, tx, place.ID(), name)
		return err
	})
	if err != nil {
		return nil, File{}, err
	}
	r, err := s.objects.Open(ctx, blob.Ref{Project: string(p), Owner: artifactKeys, Key: blob.Key(stored.Object)})
	if err != nil {
		return nil, File{}, fault.Wrap(err, "opening artifact %s of %s", name, place)
	}
	return r, stored.File, nil
}

// ListArtifacts gives the direct children of a directory (a file has none), by
// path. It leaves out logs that the caller may not read, so that clients that download all
// that is listed succeed.
func (s *Artifacts) ListArtifacts(ctx context.Context, p project.Name, place Place, dir string) ([]Entry, error) {
	files, err := s.Files(ctx, p, place, dir)
	if err != nil {
		return nil, err
	}
	isLog := func(f File) bool { return attemptLog.MatchString(f.Path) }
	if slices.ContainsFunc(files, isLog) {
		err := s.mayReadLog(ctx, p, place, func(ctx context.Context, action policy.Action, object policy.Object) error {
			may, err := policy.Permits(ctx, s.authz, action, object)
			if err == nil && !may {
				err = errNoLogs
			}
			return err
		})
		switch {
		case errors.Is(err, errNoLogs):
			files = slices.DeleteFunc(files, isLog)
		case err != nil:
			return nil, err
		}
	}
	return Children(files, dir), nil
}

// attemptLog matches the log of a job's attempt among the files of its run; training names it.
var attemptLog = regexp.MustCompile(`^logs/attempt-[0-9]+\.log$`)

var errNoLogs = errors.New("the caller may not read logs")

// mayReadLog asks whether the principal may read the log of the job that a run is of. A run
// without a job has no log of one, whatever its files are called.
func (s *Artifacts) mayReadLog(ctx context.Context, p project.Name, place Place, ask func(context.Context, policy.Action, policy.Object) error) error {
	if place.Run == "" {
		return nil
	}
	r, err := s.run(ctx, p, place.Run, ActionRead)
	if err != nil || r.Job == "" || r.own(ctx) {
		return err
	}
	object := r.object(p, "job", r.Job, r.Owner)
	object.Contents = true
	return ask(ctx, ActionLogs, object)
}

// Children are the direct children of a directory, by path, given the files
// below it (and perhaps others).
func Children(files []File, dir string) []Entry {
	var out []Entry
	for _, f := range files {
		rest := f.Path
		if dir != "" {
			var below bool
			if rest, below = strings.CutPrefix(f.Path, dir+"/"); !below {
				continue // the file dir itself
			}
		}
		child, _, deeper := strings.Cut(rest, "/")
		e := Entry{Path: path.Join(dir, child), Dir: deeper}
		if !deeper {
			e.Size = f.Size
		}
		if len(out) == 0 || out[len(out)-1].Path != e.Path {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	return slices.CompactFunc(out, func(a, b Entry) bool { return a.Path == b.Path })
}

// Files gives the file at prefix and all below it, by path; prefix "" is all.
func (s *Artifacts) Files(ctx context.Context, p project.Name, place Place, prefix string) ([]File, error) {
	if err := s.artifactPlace(ctx, p, place, ActionRead, false); err != nil {
		return nil, err
	}
	if err := CheckPath(prefix); err != nil {
		return nil, err
	}
	var stored []Stored
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		stored, err = s.store.Artifacts(ctx, tx, place.ID(), prefix, s.maxFiles)
		return err
	})
	files := make([]File, len(stored))
	for i, st := range stored {
		files[i] = st.File
	}
	return files, err
}

// DeleteArtifacts removes the file at prefix and all below it. That there is none is no
// error, as in MLflow: clients repeat what they had no answer to.
func (s *Artifacts) DeleteArtifacts(ctx context.Context, p project.Name, place Place, prefix string) error {
	if err := s.artifactPlace(ctx, p, place, ActionWrite, false); err != nil {
		return err
	}
	if err := CheckPath(prefix); err != nil {
		return err
	}
	var gone []Stored
	err := s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		var err error
		if gone, err = s.store.Artifacts(ctx, tx, place.ID(), prefix, s.maxFiles); err != nil {
			return err
		}
		if len(gone) == 0 {
			return nil
		}
		if err := s.store.DeleteArtifacts(ctx, tx, place.ID(), prefix); err != nil {
			return err
		}
		return s.audit(ctx, tx, p, place.String(), map[string]any{"act": "delete_artifacts", "path": prefix, "files": len(gone)})
	})
	if err != nil {
		return err
	}
	for _, g := range gone {
		s.drop(ctx, blob.Ref{Project: string(p), Owner: artifactKeys, Key: blob.Key(g.Object)})
	}
	return nil
}

// MayRead refuses who may not read the files of a run or logged model.
func (s *Artifacts) MayRead(ctx context.Context, p project.Name, place Place) error {
	return s.artifactPlace(ctx, p, place, ActionRead, true)
}

func artifactPrefix(p project.Name) blob.Key {
	return blob.Key("projects/" + string(p) + "/artifacts/")
}

func checkFilePath(name string) error {
	if name == "" {
		return fault.New(fault.Invalid, "Invalid path. '' names no file")
	}
	return CheckPath(name)
}

// artifactPlace asks whether the principal may act on the place's artifacts; contents
// says that it reads their bytes, and not only their names.
func (s *Artifacts) artifactPlace(ctx context.Context, p project.Name, place Place, action policy.Action, contents bool) error {
	if place.Run != "" {
		r, err := s.run(ctx, p, place.Run, action)
		if err != nil || !contents {
			return err
		}
		return s.mayRead(ctx, p, "run", string(r.ID), r.Owner, r.Origin)
	}
	m, err := s.loggedModel(ctx, p, place.Model, action)
	if err != nil || !contents {
		return err
	}
	return s.mayRead(ctx, p, "logged_model", string(m.ID), m.Owner, m.Origin)
}

// placeThere refuses writes into what was deleted or removed meanwhile; an import may write
// into what is deleted.
func (s *Artifacts) placeThere(ctx context.Context, tx *store.Tx, p project.Name, place Place, action policy.Action) (err error) {
	switch {
	case action != ActionImport:
		return s.placeActive(ctx, tx, p, place)
	case place.Run != "":
		_, err = s.store.Run(ctx, tx, p, place.Run)
	default:
		_, err = s.store.LoggedModel(ctx, tx, p, place.Model)
	}
	return err
}

// placeActive refuses writes into what was deleted meanwhile.
func (s *Artifacts) placeActive(ctx context.Context, tx *store.Tx, p project.Name, place Place) error {
	if place.Run != "" {
		r, err := s.store.Run(ctx, tx, p, place.Run)
		if err != nil {
			return err
		}
		return r.mustBeActive()
	}
	_, err := s.activeModel(ctx, tx, p, place.Model)
	return err
}

// pathFree refuses a file where a directory is, below a file, and one too many.
func (s *Artifacts) pathFree(ctx context.Context, tx *store.Tx, place Place, name string) error {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		switch _, err := s.store.Artifact(ctx, tx, place.ID(), dir); {
		case err == nil:
			return fault.New(fault.Conflict, "artifact %q cannot be stored: %q is a file", clip(name), clip(dir))
		case !fault.Is(err, fault.NotFound):
			return err
		}
	}
	below, err := s.store.Artifacts(ctx, tx, place.ID(), name, 2)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(below, func(f Stored) bool { return f.Path != name }) {
		return fault.New(fault.Conflict, "artifact %q cannot be stored: it is a directory", clip(name))
	}
	if len(below) > 0 {
		return nil // replaces a file
	}
	n, err := s.store.CountArtifacts(ctx, tx, place.ID())
	if err == nil && n >= s.maxFiles {
		err = fault.New(fault.TooLarge, "%s has %d artifacts, the limit", place, n).
			WithHint("Log one archive instead of many small files.")
	}
	return err
}

// drop deletes an object that nothing refers to; what it cannot delete, Sweep
// will.
func (s *core) drop(ctx context.Context, ref blob.Ref) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	_ = s.objects.Delete(ctx, ref)
}
