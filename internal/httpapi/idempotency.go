package httpapi

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"sync"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/share"
)

// The headers of requests that must take effect at most once.
const (
	idempotencyKey = "Idempotency-Key"
	replayedHeader = "Idempotency-Replayed" // "true" on an answer given before
)

// keyLocks lets requests with the same key act one after the other in this process:
// a repetition that comes while the first still acts waits for its answer. Over
// several processes db.Once answers it with a conflict.
type keyLocks struct {
	mu    sync.Mutex
	taken map[string]chan struct{} // closed when the turn ends
}

// take waits for the turn of a key, no longer than maxWait: who waited in vain
// hears the conflict from db.Once. Call what it returns to end the turn.
func (t *keyLocks) take(ctx context.Context, key string) (end func()) {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	for {
		t.mu.Lock()
		other, taken := t.taken[key]
		if !taken {
			mine := make(chan struct{})
			if t.taken == nil {
				t.taken = map[string]chan struct{}{}
			}
			t.taken[key] = mine
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				defer t.mu.Unlock()
				delete(t.taken, key)
				close(mine)
			}
		}
		t.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return func() {}
		}
	}
}

// storedAnswer is an answer as it is stored for repetitions of the request.
type storedAnswer struct {
	Status int         `json:"status"`
	Header http.Header `json:"header"`
	Body   []byte      `json:"body"`
}

// idempotent acts; for a POST with an Idempotency-Key at most once in 24 hours for this
// token, and a repetition gets the first answer. The route's permission was asked
// before, so who lost it gets no old answer either. A request that changed
// nothing may be repeated and is acted on again.
func (s *Server) idempotent(w http.ResponseWriter, r *http.Request, act http.HandlerFunc) {
	key := r.Header.Get(idempotencyKey)
	if r.Method != http.MethodPost || key == "" {
		act(w, r)
		return
	}
	if s.mux.of(r).Body.file {
		s.fail(w, r, fault.New(fault.Unsupported, "uploads do not support the header %s", idempotencyKey).
			WithHint("Remove the header: uploads are idempotent by the file's digest; check whether the version exists before you repeat the upload."))
		return
	}
	sent, err := io.ReadAll(r.Body) // bounded by authenticated
	if err != nil {
		s.fail(w, r, err)
		return
	}
	who := identity.From(r.Context())
	scope := who.ID + " " + who.Token + " " + string(who.Project)
	same, err := requestDigest(s.bearer(r), r.Method, r.URL.RequestURI(), r.Header.Get("If-Match"), string(sent))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	share.TurnOf(r.Context()).End() // its turn at this key may come later
	defer s.idempotency.take(r.Context(), scope+"\x00"+key)()
	ctx, claim, err := s.db.Once(r.Context(), scope, key, same)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	seal, err := answerSeal(s.bearer(r))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if sealed, ok := claim.Replayed(); ok {
		answer, err := unseal(seal, sealed)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		answer.Header.Set(replayedHeader, "true")
		answer.write(w)
		return
	}
	// It goes on when the client is gone: the answer is for the repetition.
	repeated := r.WithContext(context.WithoutCancel(ctx))
	repeated.Body = rereadBody(repeated, bytes.NewReader(sent)) // whose turn nobody gives up, either
	got := &recorder{header: http.Header{}}
	act(got, repeated)
	answer := storedAnswer{Status: max(got.status, http.StatusOK), Header: got.header, Body: got.body.Bytes()}
	b, err := json.Marshal(answer)
	if err == nil {
		nonce := make([]byte, seal.NonceSize())
		_, _ = rand.Read(nonce) // never fails
		err = claim.Keep(r.Context(), seal.Seal(nonce, nonce, b, nil))
	}
	if err != nil { // the effect stays guarded: a repetition gets a conflict
		s.log.WarnContext(r.Context(), "an idempotent response was not stored", slog.String("path", r.URL.Path), slog.String("error", err.Error()))
	}
	answer.write(w)
}

func (a storedAnswer) write(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.Header)
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body) // the client went away: nobody to tell
}

// requestDigest tells a request from others. It is kept, and what a request says may be few
// words that can be guessed, such as a person's key: so it is keyed by the bearer
// token, of which we keep only a digest.
func requestDigest(bearer string, request ...string) ([]byte, error) {
	key, err := hkdf.Key(sha256.New, []byte(bearer), nil, "falaj kept request", sha256.Size)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	m := hmac.New(sha256.New, key)
	m.Write(b)
	return m.Sum(nil), nil
}

// answerSeal encrypts stored answers under the bearer token, of which we keep
// only a digest: an answer may hold a new token's secret, and only who sent the
// request can read it again.
func answerSeal(bearer string) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, []byte(bearer), nil, "falaj kept answer", 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

func unseal(seal cipher.AEAD, b []byte) (storedAnswer, error) {
	if len(b) < seal.NonceSize() {
		return storedAnswer{}, fault.New(fault.Internal, "a kept answer of %d bytes", len(b))
	}
	open, err := seal.Open(nil, b[:seal.NonceSize()], b[seal.NonceSize():], nil)
	if err != nil {
		return storedAnswer{}, fault.Wrap(err, "a kept answer")
	}
	answer := storedAnswer{Header: http.Header{}}
	return answer, fault.Wrap(json.Unmarshal(open, &answer), "a kept answer")
}

// recorder holds an answer until it is kept.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(b)
}
