package dataset

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"slices"

	"github.com/falaj-ml/falaj/internal/blob/quota"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Relocate writes the Iceberg files of open datasets anew whose directory is not where it
// was, as after a restore into another one: they name files by absolute paths, and other
// engines follow these. Rows, digests and lineage stay as they are. Call it before the
// catalog answers. It may be called again after a crash.
func (s *Maintenance) Relocate(ctx context.Context, p project.Name) error {
	// A server whose project is at its quota starts all the same: only then is room made.
	ctx = identity.With(quota.Exempt(ctx), identity.Loop("dataset-recovery"))
	return s.eachDataset(ctx, p, func(d Dataset) error {
		moved, err := s.elsewhere(ctx, d)
		if err == nil && moved {
			err = s.relocate(ctx, d)
		}
		return fault.Wrap(err, "updating the location of table %s", d.Name)
	})
}

// elsewhere reports whether a table's metadata says that it is at another place.
func (s *Maintenance) elsewhere(ctx context.Context, d Dataset) (bool, error) {
	if d.Metadata == "" || d.Spec.Protection != Open {
		return false, nil
	}
	f, err := s.cfg.Files.Open(ctx, File{Project: d.Project, Dataset: d.Name, Key: d.Metadata, Form: Plain})
	if fault.Is(err, fault.NotFound) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	var said struct {
		Location string `json:"location"`
	}
	err = json.NewDecoder(io.NewSectionReader(f, 0, f.Size())).Decode(&said)
	return err != nil || said.Location != s.cfg.Files.URI(location(d)), nil
}

func (s *Maintenance) relocate(ctx context.Context, d Dataset) error {
	var all []Version
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		all, err = s.present(ctx, tx, d.ID)
		return err
	}); err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(v Version) bool { return v.Protection != Open })
	at := slices.IndexFunc(all, func(v Version) bool { return v.Number == d.Accepted })
	if at < 0 {
		return nil // its newest version is sealed: no engine is let in
	}
	oldest := inOrder(all)
	slices.Reverse(oldest)
	for i := range oldest {
		before := slices.Clone(oldest[:i])
		slices.Reverse(before)
		if err := s.manifests(ctx, before, &oldest[i]); err != nil {
			return err
		}
	}
	metadata, err := s.describeTable(ctx, d, all, all[at])
	if err != nil {
		return err
	}
	if err := s.cfg.DB.Update(ctx, string(d.Project), func(ctx context.Context, tx *store.Tx) error {
		now, err := s.live(ctx, tx, d.Project, d.Name)
		if err != nil || now.ID != d.ID || now.Metadata != d.Metadata {
			return err // somebody has written to it, and told where it is
		}
		now.Metadata = metadata
		if err := s.cfg.Store.PutDataset(ctx, tx, now); err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{
			Project: string(d.Project), Action: string(ActionImport), Object: "dataset " + d.Name, Detail: map[string]any{"phase": "relocated", "versions": len(all)},
		})
	}); err != nil {
		return err
	}
	s.cfg.Log.InfoContext(ctx, "the location of an open table was updated", slog.String("project", string(d.Project)), slog.String("dataset", d.Name), slog.Int("versions", len(all)))
	return nil
}
