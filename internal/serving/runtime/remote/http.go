package remote

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/coding"
	"github.com/falaj-ml/falaj/internal/serving/inference"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// pages asks by HTTP, with tensors as bytes behind the JSON (Triton's extension for
// binary tensor data). net/http sends a request again only where nothing of it was
// sent.
type pages struct {
	base   string // ends before /v2
	client *http.Client
	looks  *http.Client // over a connection of its own: they wait for no requests
	token  bearer
}

func openHTTP(s Server) *pages {
	scheme := "http"
	if s.TLS != nil {
		scheme = "https"
	}
	client := func(connections int) *http.Client {
		return &http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{
				TLSClientConfig: s.TLS.Clone(), ForceAttemptHTTP2: true, DisableCompression: true, Proxy: nil,
				DialContext:     (&net.Dialer{Timeout: probeTime, KeepAlive: 15 * time.Second}).DialContext,
				MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections, IdleConnTimeout: 90 * time.Second,
				TLSHandshakeTimeout: probeTime, MaxResponseHeaderBytes: 64 << 10,
			},
		}
	}
	return &pages{
		base: scheme + "://" + s.Address + strings.TrimSuffix(s.Path, "/"), token: bearer{path: s.TokenFile},
		client: client(max(1, s.Connections)), looks: client(1),
	}
}

func (p *pages) close() error {
	p.client.CloseIdleConnections()
	p.looks.CloseIdleConnections()
	return nil
}

func (m model) path() string {
	path := "/v2/models/" + url.PathEscape(m.name)
	if m.version != "" {
		path += "/versions/" + url.PathEscape(m.version)
	}
	return path
}

// headerLength is the header that says where the JSON of a body ends.
const headerLength = "Inference-Header-Content-Length"

// ask sends a request, with a body whose JSON has so many bytes, and reads the answer.
// split is where the answer's JSON ends; -1: it is all of it.
func (p *pages) ask(ctx context.Context, method, path string, limit int64, body []byte, length int) (answer []byte, split int, err error) {
	r, err := http.NewRequestWithContext(ctx, method, p.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, 0, &failure{Unreachable}
	}
	token, err := p.token.header()
	if err != nil {
		return nil, 0, err
	}
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	r.Header.Set("User-Agent", "falaj")
	client := p.looks
	if body != nil {
		client = p.client
		r.Header.Set("Content-Type", "application/octet-stream")
		r.Header.Set(headerLength, strconv.Itoa(length))
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil, 0, broken(ctx)
	}
	defer resp.Body.Close()
	if why := reasonOfStatus(resp.StatusCode); why != "" {
		_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection may be kept
		return nil, 0, &failure{why}
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return nil, 0, broken(ctx)
	case int64(len(b)) > limit:
		return nil, 0, &failure{Busy}
	case !plain(resp.Header):
		return nil, 0, &failure{Garbled}
	}
	split = -1
	if h := resp.Header.Get(headerLength); h != "" {
		if split, err = strconv.Atoi(h); err != nil || split < 0 || split > len(b) {
			return nil, 0, &failure{Garbled}
		}
	}
	return b, split, nil
}

// broken is an exchange that broke off.
func broken(ctx context.Context) error {
	if ctx.Err() != nil {
		return &failure{Slow}
	}
	return &failure{Unreachable}
}

func reasonOfStatus(code int) Reason {
	switch code {
	case http.StatusOK:
		return ""
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return Rejected
	case http.StatusUnauthorized, http.StatusForbidden:
		return Denied
	case http.StatusNotFound:
		return Missing
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return Slow
	case http.StatusTooManyRequests, http.StatusRequestEntityTooLarge:
		return Busy
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return Unreachable
	}
	if code >= 400 {
		return Broken
	}
	return Garbled
}

func (p *pages) ready(ctx context.Context, m model) error {
	b, _, err := p.ask(ctx, http.MethodGet, m.path()+"/ready", maxTold, nil, 0)
	if f, ok := errors.AsType[*failure](err); ok && f.why == Rejected {
		return &failure{Missing} // so Triton says it
	}
	var says struct {
		Ready *bool `json:"ready"`
	}
	if err == nil && json.Unmarshal(b, &says) == nil && says.Ready != nil && !*says.Ready {
		return &failure{Missing}
	}
	return err
}

func (p *pages) metadata(ctx context.Context, m model) (runtime.Metadata, []string, error) {
	b, _, err := p.ask(ctx, http.MethodGet, m.path(), maxTold, nil, 0)
	if err != nil {
		return runtime.Metadata{}, nil, err
	}
	var says struct {
		Platform string            `json:"platform"`
		Versions []string          `json:"versions"`
		Inputs   few[told]         `json:"inputs"`
		Outputs  few[runtime.Spec] `json:"outputs"`
	}
	if json.Unmarshal(b, &says) != nil { // a Spec has the protocol's names but for their case
		return runtime.Metadata{}, nil, &failure{Garbled}
	}
	meta := runtime.Metadata{Platform: says.Platform, Outputs: says.Outputs}
	for _, in := range says.Inputs {
		if in.Parameters["optional"] != true { // nothing is asked that has a default there
			meta.Inputs = append(meta.Inputs, in.Spec)
		}
	}
	return believable(meta, says.Versions)
}

// told is an input as a server describes it.
type told struct {
	runtime.Spec

	Parameters map[string]any `json:"parameters"`
}

func (p *pages) maxRows(ctx context.Context, m model) (int, error) {
	b, _, err := p.ask(ctx, http.MethodGet, m.path()+"/config", maxTold, nil, 0)
	if err != nil {
		return 0, err
	}
	var told struct {
		Rows int `json:"max_batch_size"`
	}
	if json.Unmarshal(b, &told) != nil {
		return 0, &failure{Garbled}
	}
	return max(0, told.Rows), nil
}

// few is a list in JSON, of which no more is read than a model may have ports.
type few[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (f *few[T]) UnmarshalJSON(b []byte) error {
	*f = nil
	d := json.NewDecoder(bytes.NewReader(b))
	switch t, err := d.Token(); {
	case err != nil:
		return err
	case t == nil: // null
		return nil
	case t != json.Delim('['):
		return &failure{Garbled}
	}
	for d.More() {
		var v T
		if len(*f) == runtime.MaxPorts {
			return &failure{Garbled}
		}
		if err := d.Decode(&v); err != nil {
			return err
		}
		*f = append(*f, v)
	}
	return nil
}

// The JSON of a request and of an answer.
type (
	document struct {
		ID      string `json:"id"`
		Inputs  []port `json:"inputs"`
		Outputs []port `json:"outputs"`
	}
	reply struct {
		Model   string    `json:"model_name"`
		Version string    `json:"model_version"`
		ID      string    `json:"id"`
		Outputs few[port] `json:"outputs"`
	}
	port struct {
		Name       string           `json:"name"`
		Datatype   runtime.Datatype `json:"datatype,omitempty"`
		Shape      few[int64]       `json:"shape,omitzero"`
		Parameters parameters       `json:"parameters,omitzero"`
		Data       json.RawMessage  `json:"data,omitempty"`
	}
	parameters struct {
		Size   *int `json:"binary_data_size,omitempty"`
		Binary bool `json:"binary_data,omitempty"`
		Type   any  `json:"content_type,omitempty"` // base64: that of BYTES
	}
)

func (p *pages) infer(ctx context.Context, m model, id string, inputs []runtime.Tensor, outputs []string) (answer, error) {
	q := document{ID: id}
	var raws [][]byte
	size := 0
	for _, t := range inputs {
		raw, err := inference.ToRaw(t)
		if err != nil {
			return answer{}, &failure{Rejected}
		}
		n := len(raw)
		q.Inputs = append(q.Inputs, port{Name: t.Name, Datatype: t.Datatype, Shape: t.Shape, Parameters: parameters{Size: &n}})
		raws, size = append(raws, raw), size+n
	}
	for _, name := range outputs {
		q.Outputs = append(q.Outputs, port{Name: name, Parameters: parameters{Binary: true}})
	}
	head, err := json.Marshal(q)
	if err != nil {
		return answer{}, &failure{Rejected}
	}
	body := append(make([]byte, 0, len(head)+size), head...)
	for _, raw := range raws {
		body = append(body, raw...)
	}
	b, split, err := p.ask(ctx, http.MethodPost, m.path()+"/infer", maxAnswer, body, len(head))
	if err != nil {
		return answer{}, err
	}
	return parse(b, split)
}

// parse reads an answer, whose memory its tensors may keep.
func parse(b []byte, split int) (answer, error) {
	head, rest := b, []byte(nil)
	if split >= 0 {
		head, rest = b[:split], b[split:]
	}
	var d reply
	if json.Unmarshal(head, &d) != nil {
		return answer{}, &failure{Garbled}
	}
	a := answer{id: d.ID, model: d.Model, version: d.Version}
	for _, o := range d.Outputs {
		t := runtime.Tensor{Name: o.Name, Datatype: o.Datatype, Shape: o.Shape}
		if t.Shape == nil {
			t.Shape = []int64{}
		}
		if size := o.Parameters.Size; size != nil {
			if *size < 0 || *size > len(rest) || o.Data != nil || inference.FromRaw(&t, rest[:*size:*size]) != nil {
				return a, &failure{Garbled}
			}
			rest = rest[*size:]
		} else if list(&t, o.Data) != nil || o.Parameters.Type == "base64" && !unwrap(t.Data) {
			return a, &failure{Garbled}
		}
		a.outputs = append(a.outputs, t)
	}
	if len(rest) > 0 {
		return a, &failure{Garbled}
	}
	return a, nil
}

// unwrap makes bytes of texts in base64; false where they are none.
func unwrap(data any) bool {
	texts, ok := data.([]string)
	for i, text := range texts {
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return false
		}
		texts[i] = string(b)
	}
	return ok
}

// list reads a tensor's data from JSON, flat or nested.
func list(t *runtime.Tensor, data []byte) error {
	n, err := inference.Check(*t)
	if err != nil {
		return err
	}
	switch t.Datatype {
	case runtime.Bool:
		t.Data, err = flat[bool](data, n)
	case runtime.Uint8:
		t.Data, err = flat[uint8](data, n)
	case runtime.Uint16:
		t.Data, err = flat[uint16](data, n)
	case runtime.Uint32:
		t.Data, err = flat[uint32](data, n)
	case runtime.Uint64:
		t.Data, err = flat[uint64](data, n)
	case runtime.Int8:
		t.Data, err = flat[int8](data, n)
	case runtime.Int16:
		t.Data, err = flat[int16](data, n)
	case runtime.Int32:
		t.Data, err = flat[int32](data, n)
	case runtime.Int64:
		t.Data, err = flat[int64](data, n)
	case runtime.FP32:
		t.Data, err = flat[float32](data, n)
	case runtime.FP64:
		t.Data, err = flat[float64](data, n)
	case runtime.Bytes:
		t.Data, err = flat[string](data, n)
	default:
		err = &failure{Garbled} // it has no form in JSON
	}
	return err
}

// flat reads n elements of arrays in arrays.
func flat[T any](data []byte, n int) ([]T, error) {
	out := make([]T, 0, min(n, len(data)/2+1))
	d := json.NewDecoder(bytes.NewReader(data))
	for depth := 0; ; {
		for depth > 0 && !d.More() {
			if _, err := d.Token(); err != nil { // ]
				return nil, err
			}
			if depth--; depth == 0 && len(out) == n {
				return out, nil
			}
		}
		next := data[d.InputOffset():]
		next = bytes.TrimLeft(next, " \t\r\n,")
		switch {
		case len(next) > 0 && next[0] == '[' && depth < inference.MaxDims:
			if _, err := d.Token(); err != nil {
				return nil, err
			}
			depth++
		case depth == 0 || len(out) == n:
			return nil, &failure{Garbled}
		default:
			var v T
			if err := d.Decode(&v); err != nil || bytes.HasPrefix(next, []byte("null")) {
				return nil, &failure{Garbled}
			}
			out = append(out, v)
		}
	}
}

// plain reports whether an answer is in no coding: Go's client has undone the one it asked for.
func plain(h http.Header) bool {
	_, err := coding.Of(h.Get("Content-Encoding"))
	return err == nil
}
