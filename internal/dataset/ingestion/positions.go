package ingestion

import (
	"context"
	"encoding/json"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// The positions of tables have values of rows, of the cursor and the key, so they are
// kept under the dataset's key as the rows are. A position is a JSON object; a sealed
// one is a JSON string.

// Ring gives the keys of datasets; that of governance/keys does.
type Ring interface {
	AEAD(ctx context.Context, project, owner string) (tink.AEAD, error)
}

var positionUse = []byte("ingestion/position")

// seal makes a position what may be kept of it.
func (s *Service) seal(ctx context.Context, p project.Name, dataset string, at source.Position) (source.Position, error) {
	if len(at) == 0 {
		return at, nil
	}
	aead, err := s.cfg.Ring.AEAD(ctx, string(p), "dataset/"+dataset)
	if err != nil {
		return nil, fault.Wrap(err, "the key of dataset %s", dataset)
	}
	b, err := aead.Encrypt(at, positionUse)
	if err != nil {
		return nil, fault.Wrap(err, "encrypting the position")
	}
	return source.PositionOf(b), nil
}

// open is the inverse of seal. One from before positions were sealed is as it is.
func (s *Service) open(ctx context.Context, p project.Name, dataset string, at source.Position) (source.Position, error) {
	if len(at) == 0 || at[0] != '"' {
		return at, nil
	}
	aead, err := s.cfg.Ring.AEAD(ctx, string(p), "dataset/"+dataset)
	if err != nil {
		return nil, fault.Wrap(err, "the key of dataset %s", dataset)
	}
	var b []byte
	if err = json.Unmarshal(at, &b); err == nil {
		b, err = aead.Decrypt(b, positionUse)
	}
	if err != nil {
		return nil, fault.New(fault.Internal, "decrypting the position in the source: %w", err).WithHint("To read the source from the beginning, ingest with --anew.")
	}
	return b, nil
}
