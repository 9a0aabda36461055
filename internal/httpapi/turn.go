package httpapi

import (
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/membudget"
	"github.com/falaj-ml/falaj/internal/share"
)

// smallBody is the largest body of which it is known before it is read that it is no heavy
// work, in bytes.
const smallBody = 64 << 10

// turnOf is the turn that a request may take, nil for the small ones of the hot paths:
// predictions and online features.
func turnOf(r *http.Request, body *Body) *share.Turn {
	if body.hot && r.ContentLength >= 0 && r.ContentLength <= smallBody && r.Header.Get("Content-Encoding") == "" {
		return nil
	}
	return share.NewTurn(shareOf(r))
}

// shareOf is for whom a request takes of what is shared: the project of its path, else of
// its token.
func shareOf(r *http.Request) share.Owner {
	in := identity.From(r.Context()).Project
	if rest, ok := strings.CutPrefix(r.URL.Path, "/api/v1/projects/"); ok {
		name, _, _ := strings.Cut(rest, "/")
		in = project.Name(name)
	}
	return identity.Share(r.Context(), in)
}

// turning is a body that is heavy work once it is known whole: its reader gets io.EOF when
// it has a processor, so that nobody holds one while the body comes. Who decodes the body
// ends the turn then; writing the answer does, too.
type turning struct {
	io.ReadCloser
	request *http.Request
	turn    *share.Turn
	weight  func() int64
}

func newTurning(r *http.Request, body *membudget.Meter, turn *share.Turn) *turning {
	return &turning{body, r, turn, body.Weight}
}

// rereadBody returns whole, the body of r that was read already, for a second reader. A read
// of it waits for a processor until the context of r is done.
func rereadBody(r *http.Request, whole io.Reader) io.ReadCloser {
	b := io.NopCloser(whole)
	if t, ok := r.Body.(*turning); ok {
		return &turning{b, r, t.turn, t.weight}
	}
	return b
}

func (b *turning) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) && b.weight() >= share.Heavy {
		if terr := b.turn.Begin(b.request.Context()); terr != nil {
			return n, terr
		}
	}
	return n, err
}
