package scan

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/onnxfile"
)

// onnx checks the structure of an ONNX model, whatever its name. One that would crash or
// exhaust its runtime, or reads files outside of the model's folder, is Danger. A file that is
// not well-formed is no ONNX model, and plain data: nothing loads it.
func (s *scanner) onnx(ctx context.Context, f File) error {
	r, err := f.Open(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	m, err := onnxfile.Read(ending{ctx, reading{r}}, f.Size)
	if err == nil && m.Defined() {
		err = m.Check()
	}
	if read, ok := errors.AsType[*readError](err); ok {
		return read.err
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, onnxfile.ErrMalformed) || !m.Defined():
		return nil
	case fault.Is(err, fault.Invalid):
		s.danger(f.Path, "onnx", "%s", err)
		return nil
	case err != nil:
		return err
	}
	for _, at := range m.Locations() {
		if !filepath.IsLocal(at) || strings.ContainsAny(at, "\\*") {
			s.danger(f.Path, "onnx", "reads tensors from %.100q, which is outside the model's directory", at)
			return nil
		}
	}
	return nil
}

// ending ends with its context.
type ending struct {
	ctx context.Context //nolint:containedctx // io.Reader has none
	r   reading
}

func (e ending) Read(b []byte) (int, error) {
	if e.ctx.Err() != nil {
		return 0, context.Cause(e.ctx)
	}
	return e.r.Read(b)
}
