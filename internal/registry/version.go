package registry

import (
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// VersionSpec describes a version to register.
type VersionSpec struct {
	Source      string                 // see ParseSource
	Run         tracking.RunID         // as the request says; must agree with Source
	LoggedModel tracking.LoggedModelID // likewise
	RunLink     string
	Description string
	Tags        []tracking.Pair
	Parents     []string // model versions that it was made from, "delay@2", as the caller knows

	imported *ImportSpec // it comes from another server
}

// origin is a source after it was looked up.
type origin struct {
	tracking.Origin
	run         tracking.RunID
	loggedModel tracking.LoggedModelID
	parents     []string
	ofJob       bool // jobs wrote all of the files
	files       []sourceFile
}

type sourceFile struct {
	File
	open func(ctx context.Context) (io.ReadCloser, error)
}

// Versions registers, changes, finds and lists versions of models, and moves them through
// MLflow's stages. Its callers are the HTTP API, MLflow's protocol, jobs, lineage, monitoring and
// deployments.
type Versions struct {
	*core
	approvals *Approvals
	files     *Files
}

// CreateVersion copies the source's files into a new version, signs them, and
// returns when the version is ready. What fails on the way leaves a failed
// version that says why. Errors: fault.Invalid for a source that is not accepted
// or has no files, fault.PermissionDenied when no zone may hold the result.
func (s *Versions) CreateVersion(ctx context.Context, p project.Name, name string, spec VersionSpec) (Version, error) {
	if err := s.allow(ctx, ActionWrite, p, name); err != nil {
		return Version{}, err
	}
	if err := CheckName(name); err != nil {
		return Version{}, err
	}
	src, err := ParseSource(spec.Source, spec.Run, spec.LoggedModel)
	if err != nil {
		return Version{}, err
	}
	if err := checkTags(spec.Tags); err != nil {
		return Version{}, err
	}
	if spec.imported == nil { // MLflow's copy brings the tags of the original; this one is worked out anew
		spec.Tags = slices.DeleteFunc(slices.Clone(spec.Tags), func(t tracking.Pair) bool { return t.Key == ErasedTag })
	}
	if err := checkText("description", spec.Description, MaxDescription); err != nil {
		return Version{}, err
	}
	if err := checkText("run_link", spec.RunLink, MaxSource); err != nil {
		return Version{}, err
	}
	from, err := s.lookUp(ctx, p, src)
	if err != nil {
		return Version{}, err
	}
	if err := s.checkFiles(spec.Source, from.files); err != nil {
		return Version{}, err
	}
	if spec.Run != "" && from.run != "" && spec.Run != from.run {
		return Version{}, fault.New(fault.Invalid, "Invalid model version source: '%s'. The run_id and model_id request parameters must match the referenced model version.", clip(spec.Source))
	}
	own, err := s.origins.OriginOf(ctx, p)
	if err != nil {
		return Version{}, err
	}
	if identity.From(ctx).Kind == identity.Attempt && own.Attempt != from.Attempt {
		label, err := residency.Derive(
			residency.Parent{Name: spec.Source, Label: from.Residency},
			residency.Parent{Name: identity.From(ctx).String(), Label: own.Residency})
		if err != nil {
			return Version{}, err
		}
		from.Residency, from.Classification = label, tracking.Stricter(from.Classification, own.Classification)
	}
	key, err := s.key(ctx, p)
	if err != nil {
		return Version{}, err
	}

	v := Version{
		Project: p, State: Pending, Stage: StageNone, Description: spec.Description, Source: spec.Source,
		Run: from.run, LoggedModel: from.loggedModel, RunLink: spec.RunLink, Owner: identity.From(ctx).Owner(),
		Origin: from.Origin, Parents: once(from.parents, spec.Parents), OfJob: from.ofJob, Tags: spec.Tags,
	}
	v.Created, v.Updated = spec.times(s.now())
	err = s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		m, err := s.store.Model(ctx, tx, p, name)
		if err != nil {
			return err
		}
		v.ModelID, v.Model = m.ID, m.Name
		if v.Number, err = s.number(ctx, tx, m, spec.imported); err != nil {
			return err
		}
		if spec.imported == nil {
			if err := s.touch(ctx, tx, m, v.Updated); err != nil {
				return err
			}
		}
		if err := s.store.PutVersion(ctx, tx, v); err != nil {
			return err
		}
		if err := s.store.PutVersionTags(ctx, tx, v.ModelID, v.Number, spec.Tags); err != nil {
			return err
		}
		if err := s.flagNew(ctx, tx, v); err != nil {
			return err
		}
		return s.audit(ctx, tx, ActionWrite, p, "model "+v.String(), map[string]any{
			"act": "register", "source": spec.Source, "run": string(v.Run), "residency": v.Residency.String(),
		})
	})
	if err != nil {
		return Version{}, err
	}
	files, err := s.copyFiles(ctx, v, from.files)
	if err == nil {
		err = s.examine(ctx, &v, files)
	}
	if err == nil {
		_, v.Updated = spec.times(s.now())
		err = s.finish(ctx, &v, files, key, spec.imported == nil)
	}
	if err != nil {
		s.fail(ctx, v, err.Error())
		return Version{}, fault.Wrap(err, "registering %s", v)
	}
	return s.reread(ctx, v)
}

// touch says that a model was last updated when a version of it was made, moved to another
// stage, or deleted.
func (s *Versions) touch(ctx context.Context, tx *store.Tx, m Model, at time.Time) error {
	m.Updated = at
	return s.store.PutModel(ctx, tx, m)
}

func (s *Versions) reread(ctx context.Context, v Version) (Version, error) {
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		v, err = s.store.Version(ctx, tx, v.Project, v.Model, v.Number)
		return err
	})
	return v, err
}

// lookUp finds the source's files; tracking asks whether the principal may read
// them.
func (s *Versions) lookUp(ctx context.Context, p project.Name, src Source) (origin, error) {
	if src.Model != "" {
		return s.lookUpVersion(ctx, p, src)
	}
	var from origin
	if src.Place.Run != "" {
		r, err := s.runs.Run(ctx, p, src.Place.Run)
		if err != nil {
			return from, err
		}
		from.Origin, from.run = r.Origin, r.ID
	} else {
		m, err := s.loggedModels.LoggedModel(ctx, p, src.Place.Model)
		if err != nil {
			return from, err
		}
		if m.Status != tracking.ModelReady {
			return from, fault.New(fault.Conflict, "logged model %s is not ready (%s)", m.ID, m.Status).
				WithHint("Finalize it when its files are uploaded.")
		}
		from.Origin, from.run, from.loggedModel = m.Origin, m.Run, m.ID
	}
	if err := s.artifacts.MayRead(ctx, p, src.Place); err != nil {
		return from, err
	}
	files, err := s.artifacts.Files(ctx, p, src.Place, src.Path)
	if err != nil {
		return from, err
	}
	from.ofJob = true
	for _, f := range files {
		from.ofJob = from.ofJob && f.OfJob
		name := f.Path
		switch {
		case f.Path == src.Path:
			name = path.Base(f.Path)
		case src.Path != "":
			name = strings.TrimPrefix(f.Path, src.Path+"/")
		}
		from.files = append(from.files, sourceFile{
			File: File{Path: name, Size: f.Size, Digest: f.Digest},
			open: func(ctx context.Context) (io.ReadCloser, error) {
				r, _, err := s.artifacts.OpenArtifact(ctx, p, src.Place, f.Path)
				return r, err
			},
		})
	}
	return from, nil
}

func (s *Versions) lookUpVersion(ctx context.Context, p project.Name, src Source) (origin, error) {
	ref := src.Alias
	if ref == "" {
		ref = itoa(src.Version)
	}
	verified, err := s.files.OpenReadable(ctx, p, src.Model, ref)
	if err != nil {
		return origin{}, err
	}
	v := verified.Version
	// A copy is made from its original, too, which may be gone when somebody asks.
	from := origin{Origin: v.Origin, run: v.Run, loggedModel: v.LoggedModel, parents: once(v.Parents, []string{v.String()}), ofJob: v.OfJob}
	for _, f := range verified.Files() {
		from.files = append(from.files, sourceFile{File: f, open: func(ctx context.Context) (io.ReadCloser, error) {
			return verified.Open(ctx, f.Path)
		}})
	}
	return from, nil
}

// once joins lists, each name once.
func once(lists ...[]string) (out []string) {
	for _, name := range slices.Concat(lists...) {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

func (s *Versions) checkFiles(source string, files []sourceFile) error {
	if len(files) == 0 {
		return fault.New(fault.Invalid, "Invalid model version source: '%s'. It has no files.", clip(source)).
			WithHint("Log the model's files before registering it.")
	}
	if len(files) > MaxFiles {
		return fault.New(fault.TooLarge, "the model has %d files, over the limit of %d", len(files), MaxFiles)
	}
	total := int64(0)
	for _, f := range files {
		total += f.Size
	}
	if total > s.maxSize {
		return fault.New(fault.TooLarge, "the model has %d bytes, over the limit of %d", total, s.maxSize)
	}
	return nil
}

// modelKeys is the key scope that seals a model's files.
func modelKeys(m ModelID) string { return "model/" + string(m) }

func modelPrefix(p project.Name) blob.Key { return blob.Key("projects/" + string(p) + "/models/") }

func versionPrefix(v Version) blob.Key {
	return modelPrefix(v.Project) + blob.Key(fmt.Sprintf("%s/v%d/", v.ModelID, v.Number))
}

// copyFiles stores each file under its digest. A file whose bytes are not those
// that were logged is refused.
func (s *Versions) copyFiles(ctx context.Context, v Version, files []sourceFile) ([]Stored, error) {
	out := make([]Stored, 0, len(files))
	done := map[string]bool{}
	for _, f := range files {
		key := versionPrefix(v) + blob.Key(strings.TrimPrefix(f.Digest, "sha256:"))
		out = append(out, Stored{File: f.File, Object: string(key)})
		if done[f.Digest] {
			continue
		}
		done[f.Digest] = true
		if err := s.copyFile(ctx, blob.Ref{Project: string(v.Project), Owner: modelKeys(v.ModelID), Key: key}, f); err != nil {
			return nil, fault.Wrap(err, "copying %s", f.Path)
		}
	}
	slices.SortFunc(out, func(a, b Stored) int { return comparePaths(a.Path, b.Path) })
	return out, nil
}

func (s *Versions) copyFile(ctx context.Context, ref blob.Ref, f sourceFile) error {
	r, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = s.objects.Put(ctx, ref, r, blob.WithDigest(f.Digest), blob.WithLimit(s.maxSize))
	return err
}

// finish signs the files and makes the version ready; tell says whether webhooks
// hear of it.
func (s *Versions) finish(ctx context.Context, v *Version, files []Stored, key signingKey, tell bool) error {
	list := make([]File, len(files))
	for i, f := range files {
		list[i] = f.File
	}
	v.KeyID, v.State = key.id, Ready
	var err error
	if v.Digest, err = rootDigest(list); err != nil {
		return err
	}
	bundle, err := key.sign(statementOf(*v, list))
	if err != nil {
		return err
	}
	return s.db.Update(ctx, string(v.Project), func(ctx context.Context, tx *store.Tx) error {
		// The number could not be given again, but the model may be gone.
		state, err := s.store.State(ctx, tx, v.Project, v.ModelID, v.Number)
		if err != nil {
			return err
		}
		if state != Pending {
			return fault.New(fault.Conflict, "version %s is %s, not pending", v, state)
		}
		if err := s.store.PutVersion(ctx, tx, *v); err != nil {
			return err
		}
		if err := s.store.PutFiles(ctx, tx, v.ModelID, v.Number, files, bundle); err != nil {
			return err
		}
		if err := s.audit(ctx, tx, ActionWrite, v.Project, "model "+v.String(), map[string]any{
			"act": "sign", "digest": v.Digest, "key": v.KeyID, "files": len(files),
		}); err != nil {
			return err
		}
		if c := v.change(VersionCreated); tell {
			c.Description, c.Source, c.Run, c.Tags = v.Description, v.Source, v.Run, v.Tags
			if err := s.told(ctx, tx, c); err != nil {
				return err
			}
		}
		return publish(ctx, tx, v.Project, EventVersionCreated, v.event())
	})
}

// fail marks a pending version failed and drops its files. It outlives the
// request, whose end may be what failed.
func (s *core) fail(ctx context.Context, v Version, why string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	v.State, v.Message, v.Updated = Failed, clip(why), s.now()
	v.Digest, v.KeyID = "", ""
	err := s.db.Update(ctx, string(v.Project), func(ctx context.Context, tx *store.Tx) error {
		state, err := s.store.State(ctx, tx, v.Project, v.ModelID, v.Number)
		if err != nil || state != Pending {
			return err
		}
		if err := s.store.PutVersion(ctx, tx, v); err != nil {
			return err
		}
		if err := s.audit(ctx, tx, ActionWrite, v.Project, "model "+v.String(), map[string]any{"act": "fail", "why": v.Message}); err != nil {
			return err
		}
		return publish(ctx, tx, v.Project, EventVersionFailed, v.event())
	})
	if err == nil { // else Recover does it at the next start
		s.dropFiles(ctx, v)
	}
}

// dropFiles deletes a version's objects; what it cannot delete, Sweep will.
func (s *core) dropFiles(ctx context.Context, v Version) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	_ = s.objects.List(ctx, versionPrefix(v), func(key blob.Key) error {
		return s.objects.Delete(ctx, blob.Ref{Project: string(v.Project), Owner: modelKeys(v.ModelID), Key: key})
	})
}
