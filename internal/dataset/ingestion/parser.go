package ingestion

import (
	"context"
	"io"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/dataset/source"
)

// ParserOf lends drivers the parser process of datasets.
func ParserOf(s *dataset.Writes) source.Parser { return lent{s} }

type lent struct{ s *dataset.Writes }

// Parse implements source.Parser.
func (l lent) Parse(ctx context.Context, body io.Reader, req parser.Request) (source.Rows, error) {
	rows, err := l.s.Parse(ctx, body, req)
	if err != nil {
		return nil, err
	}
	return rows, nil
}
