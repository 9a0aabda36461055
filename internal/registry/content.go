package registry

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/registry/scan"
	"github.com/falaj-ml/falaj/internal/store"
)

// scanTime bounds how long the files of one version are looked at, scans how many
// versions at once: one may take 500 MiB.
const (
	scanTime = 15 * time.Minute
	scans    = 1
)

// signatureFile is what the tool of model signing writes beside a model.
const signatureFile = "model.sig"

// look says what a version's files are. Error: fault.Unavailable when it took too long.
func (s *core) look(ctx context.Context, v Version, files []Stored) (scan.Report, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, scanTime, fault.New(fault.Unavailable, "scanning the files of %s exceeded %s", v, scanTime))
	defer cancel()
	free, err := s.scanning.Take(ctx, identity.Share(ctx, v.Project))
	if err != nil {
		return scan.Report{}, err
	}
	defer free()
	list := make([]scan.File, 0, len(files))
	for _, f := range files {
		list = append(list, scan.File{Path: f.Path, Size: f.Size, Open: func(ctx context.Context) (io.ReadCloser, error) {
			return s.objects.Open(ctx, blob.Ref{Project: string(v.Project), Owner: modelKeys(v.ModelID), Key: blob.Key(f.Object)})
		}})
	}
	return scan.Files(ctx, list, scan.Default)
}

// examine looks at the files of a version that is being registered, and holds the policy
// of its model against them. Error: fault.Invalid for what the policy does not accept.
func (s *Versions) examine(ctx context.Context, v *Version, files []Stored) error {
	var asked ModelPolicy
	if err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		asked, err = s.policyOf(ctx, tx, v.Project, v.Model)
		return err
	}); err != nil {
		return err
	}
	report, err := s.look(ctx, *v, files)
	if err != nil {
		return err
	}
	v.Content = &report
	if most := asked.Spec.accepts(); report.Level.Over(most) {
		return fault.New(fault.Invalid, "its files are rejected: %s", report.Why(most)).
			WithHint("The policy accepts models up to the level %q, and this one is %q. Save the model in another format, such as ONNX or safetensors, or ask an owner of the ModelPolicy to change `spec.content`.", most, report.Level)
	}
	return s.signedByOther(ctx, *v, files, asked.Spec)
}

// signedByOther holds a version to the signature that came with it, if its policy names
// who must have signed.
func (s *Versions) signedByOther(ctx context.Context, v Version, files []Stored, asked PolicySpec) error {
	if len(asked.Signers) == 0 {
		return nil
	}
	const hint = "Sign the folder with `model_signing sign key --signature model.sig`, and log the file model.sig with the model."
	at := slices.IndexFunc(files, func(f Stored) bool { return f.Path == signatureFile })
	if at < 0 {
		return fault.New(fault.Invalid, "it has no file %s, and its policy requires a signature", signatureFile).WithHint(hint)
	}
	r, err := s.openFile(ctx, v, files[at])
	if err != nil {
		return err
	}
	defer r.Close()
	bundle, err := io.ReadAll(io.LimitReader(r, maxBundle+1))
	if err != nil {
		return err
	}
	list := make([]File, 0, len(files))
	for _, f := range files {
		if f.Path != signatureFile {
			list = append(list, f.File)
		}
	}
	var last error
	for _, key := range asked.Signers {
		out, err := VerifyExternalSignature(bundle, key, list)
		if err == nil && len(out.Unsigned) > 0 {
			err = fault.New(fault.Conflict, "the signature does not cover file %s", out.Unsigned[0])
		}
		if err == nil && asked.SignedAs != "" && out.Name != asked.SignedAs {
			err = fault.New(fault.Conflict, "it was signed as %q, and must be signed as %q", clip(out.Name), asked.SignedAs)
		}
		if err == nil {
			return nil
		}
		if last == nil || !strings.Contains(err.Error(), "another key") {
			last = err
		}
	}
	return fault.New(fault.Invalid, "%s is not signed by a signer of the policy: %w", signatureFile, last).WithHint(hint)
}

// ContentOf says what a version's files are. A version of before it was asked, or that
// was looked at by older rules, is looked at now.
func (s *Files) ContentOf(ctx context.Context, p project.Name, name, ref string) (scan.Report, error) {
	v, err := s.readVersion(ctx, p, name, ref)
	if err != nil {
		return scan.Report{}, err
	}
	if v.State != Ready {
		return scan.Report{}, fault.New(fault.Conflict, "model %s is %s, not ready", v, v.State)
	}
	if v.Content != nil && v.Content.Scanner >= scan.Rules {
		return *v.Content, nil
	}
	files, _, err := s.signedFiles(ctx, v)
	if err != nil {
		return scan.Report{}, s.refused(ctx, v, err)
	}
	report, err := s.look(ctx, v, files)
	if err != nil {
		return report, err
	}
	return report, s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		return s.store.PutContent(ctx, tx, v.ModelID, v.Number, report)
	})
}
