package featuredata

import (
	"context"
	"encoding/json"

	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// Sources gives feature the messages of sources.
type Sources struct{ Ingestion *ingestion.Service }

// Check implements feature.Sources.
func (f Sources) Check(ctx context.Context, p project.Name, source, dataset string) (reading string, err error) {
	return f.Ingestion.CheckMessages(ctx, p, source, dataset)
}

// Messages implements feature.Sources.
func (f Sources) Messages(ctx context.Context, p project.Name, reading string, after json.RawMessage, take func([][]byte, json.RawMessage) error) error {
	return f.Ingestion.Messages(ctx, p, reading, after, take)
}
