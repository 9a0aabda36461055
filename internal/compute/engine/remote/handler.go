package remote

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/coding"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// maxSaid bounds request bodies that are not streams, in bytes; manifests have a higher bound.
const (
	maxSaid     = 1 << 20
	maxManifest = 32 << 20
)

// Serve answers a request of an agent of the workload; path is what follows
// ".../worker/". The caller has checked that the token is the workload's own. An
// error was not answered yet; after the first byte of a stream, the connection is
// cut instead.
func (h *Hub) Serve(w http.ResponseWriter, r *http.Request, id, path string) error {
	ctx := r.Context()
	if r.Method == http.MethodPost && path == "join" {
		var j protocol.Join
		if err := decode(r, maxSaid, &j); err != nil {
			return err
		}
		order, waiting, err := h.Join(ctx, id, j)
		switch {
		case err != nil:
			return err
		case order == nil:
			return answer(w, http.StatusAccepted, waiting)
		}
		return answer(w, http.StatusOK, order)
	}
	s, err := senderOf(r)
	if err != nil {
		return err
	}
	switch {
	case r.Method == http.MethodPost && path == "log":
		offset, err := strconv.ParseInt(r.URL.Query().Get("offset"), 10, 64)
		if err != nil {
			return fault.New(fault.Invalid, "the log offset is not a number")
		}
		reached, err := h.log(id, s, offset, r.URL.Query().Get("last") == "true", r.Body)
		if err != nil {
			return err
		}
		return answer(w, http.StatusOK, reached)
	case r.Method == http.MethodPost && path == "beat":
		var b protocol.Beat
		if err := decode(r, maxSaid, &b); err != nil {
			return err
		}
		told, err := h.beat(ctx, id, s, b)
		if err != nil {
			return err
		}
		return answer(w, http.StatusOK, told)
	case r.Method == http.MethodPost && path == "profile":
		var l protocol.Look
		if err := decode(r, maxManifest, &l); err != nil {
			return err
		}
		if err := h.profile(id, s, l); err != nil {
			return err
		}
		return answer(w, http.StatusOK, struct{}{})
	case r.Method == http.MethodPost && path == "output":
		var f protocol.Found
		if err := decode(r, maxManifest, &f); err != nil {
			return err
		}
		if err := h.output(ctx, id, s, f); err != nil {
			return err
		}
		return answer(w, http.StatusOK, struct{}{})
	case r.Method == http.MethodPut && path == "output":
		if r.Header.Get("Content-Encoding") != "" {
			return fault.New(fault.Invalid, "a file of the output is sent as it is, not as %.40q", r.Header.Get("Content-Encoding"))
		}
		if err := h.outputFile(ctx, id, s, r.URL.Query().Get("id"), r.ContentLength, r.Body); err != nil {
			return err
		}
		return answer(w, http.StatusOK, struct{}{})
	case r.Method == http.MethodPost && path == "end":
		var e protocol.End
		if err := decode(r, maxSaid, &e); err != nil {
			return err
		}
		if err := h.end(ctx, id, s, e); err != nil {
			return err
		}
		return answer(w, http.StatusOK, struct{}{})
	}
	rest, ok := strings.CutPrefix(path, "mounts/")
	if !ok {
		return fault.New(fault.NotFound, "there is no worker route %.100q", path)
	}
	number, what, _ := strings.Cut(rest, "/")
	n, err := strconv.Atoi(number)
	if err != nil {
		return fault.New(fault.Invalid, "%.40q is not the number of a mount", number)
	}
	switch {
	case r.Method == http.MethodGet && what == "":
		return h.serveMount(w, r, id, s, n)
	case r.Method == http.MethodPost && what == "manifest":
		var m protocol.Manifest
		done, err := h.turn(ctx, id, func(w *work) chan struct{} { return w.turns })
		if err != nil {
			return err
		}
		defer done()
		if err := decode(r, maxManifest, &m); err != nil {
			return err
		}
		needed, err := h.manifest(id, s, n, m)
		if err != nil {
			return err
		}
		return answer(w, http.StatusOK, needed)
	case r.Method == http.MethodPut && what == "tree":
		body, err := plainBody(r)
		if err != nil {
			return err
		}
		q := r.URL.Query()
		if err := h.tree(ctx, id, s, n, q.Get("name"), q.Get("manifest"), body); err != nil {
			return err
		}
		return answer(w, http.StatusOK, struct{}{})
	}
	return fault.New(fault.NotFound, "there is no worker route %.100q", path)
}

// turn waits until few of the workload's requests of a kind are under way: all of
// a manifest is held in memory, and packing a mount takes a core.
func (h *Hub) turn(ctx context.Context, id string, of func(*work) chan struct{}) (done func(), err error) {
	w, err := h.d.find(engine.Handle(id))
	if err != nil {
		return nil, err
	}
	turns := of(w)
	select {
	case turns <- struct{}{}:
		return func() { <-turns }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ServeAgent is the Hub's Serve.
func (d *Driver) ServeAgent(w http.ResponseWriter, r *http.Request, id, path string) error {
	return d.Hub().Serve(w, r, id, path)
}

func senderOf(r *http.Request) (sender, error) {
	q := r.URL.Query()
	index, err := strconv.Atoi(q.Get("index"))
	if err != nil {
		return sender{}, fault.New(fault.Invalid, "the worker's index is not a number")
	}
	return sender{index: index, start: q.Get("start")}, nil
}

func decode(r *http.Request, limit int64, v any) error {
	b, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err != nil {
		return fault.New(fault.Invalid, "reading the request: %w", err)
	}
	if int64(len(b)) > limit {
		return fault.New(fault.TooLarge, "the request is longer than %d bytes", limit)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fault.New(fault.Invalid, "the request is not valid JSON of this route: %w", err)
	}
	return nil
}

func answer(w http.ResponseWriter, status int, v any) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the agent went away: it asks again
	return nil
}

// plainBody undoes the compression that Content-Encoding names.
func plainBody(r *http.Request) (io.Reader, error) {
	kind, err := coding.Of(r.Header.Get("Content-Encoding"), coding.Gzip)
	switch {
	case err != nil:
		return nil, err
	case kind == coding.Gzip:
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, fault.New(fault.Invalid, "the stream is not gzip: %w", err)
		}
		return z, nil
	}
	return r.Body, nil
}

// serveMount streams a mount. The status is decided by its first byte.
func (h *Hub) serveMount(w http.ResponseWriter, r *http.Request, id string, s sender, n int) error {
	done, err := h.turn(r.Context(), id, func(w *work) chan struct{} { return w.packs })
	if err != nil {
		return err
	}
	defer done()
	out := &stream{w: w, ctx: r.Context(), zip: coding.Accepted(r.Header.Get("Accept-Encoding"), coding.Gzip) == coding.Gzip}
	err = h.mount(id, s, n, out)
	if err == nil {
		err = out.close()
	}
	if err != nil && out.begun {
		panic(http.ErrAbortHandler) // the agent sees that it is not complete
	}
	return err
}

// stream is an answer that begins with its first byte.
type stream struct {
	w     http.ResponseWriter
	ctx   context.Context //nolint:containedctx // The request's.
	zip   bool
	begun bool
	to    io.Writer
}

func (s *stream) Write(b []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	s.begin()
	return s.to.Write(b)
}

func (s *stream) begin() {
	if s.begun {
		return
	}
	s.begun, s.to = true, s.w
	s.w.Header().Set("Content-Type", "application/x-tar")
	if s.zip {
		s.w.Header().Set("Content-Encoding", "gzip")
		z, err := gzip.NewWriterLevel(s.w, gzip.BestSpeed)
		if err == nil {
			s.to = z
		}
	}
	s.w.WriteHeader(http.StatusOK)
}

func (s *stream) close() error {
	s.begin()
	if z, ok := s.to.(*gzip.Writer); ok {
		return z.Close()
	}
	return nil
}
