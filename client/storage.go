package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	storagePrefix = "/optuna.StorageService/"
	storageCall   = 16 << 20        // bytes of a call, as the server takes them
	storageAnswer = 512 << 20       // bytes of an answer
	storageTry    = time.Minute     // for one try
	storagePause  = 2 * time.Second // at most, between two
)

// Codes of gRPC.
const (
	grpcOK            = "0"
	grpcInvalid       = "3"
	grpcNotFound      = "5"
	grpcUnimplemented = "12"
	grpcUnavailable   = "14"
)

// Storage is a handler of Optuna's calls of its gRPC storage, which it sends to the
// server with the client's token and for a project: an unmodified
// optuna.storages.GrpcStorageProxy knows neither tokens nor TLS. It wants HTTP/2
// without TLS, and whoever reaches it acts with the token, so it listens where
// nobody else can.
//
// Calls that nobody answers are sent again for as long as patience, or until their
// client gives up; none takes effect twice.
func (c *Client) Storage(project string, patience time.Duration) http.Handler {
	transport := c.http.Transport.(*http.Transport).Clone()
	transport.Protocols = new(http.Protocols)
	transport.Protocols.SetUnencryptedHTTP2(c.base.Scheme == "http")
	transport.Protocols.SetHTTP2(c.base.Scheme == "https")
	transport.ResponseHeaderTimeout = storageTry
	return &storage{base: c.base, token: c.token, project: project, patience: patience, http: &http.Client{Transport: transport, Timeout: storageTry}}
}

type storage struct {
	base           *url.URL
	token, project string
	patience       time.Duration
	http           *http.Client
}

// said is a whole answer.
type said struct {
	header        http.Header
	body          []byte
	code, message string
}

// ServeHTTP implements http.Handler.
func (s *storage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	call, ours := strings.CutPrefix(r.URL.Path, storagePrefix)
	if !ours || strings.Contains(call, "/") || r.Method != http.MethodPost {
		refuseCall(w, grpcUnimplemented, "this is the storage of Optuna's studies and nothing else")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, storageCall))
	if err != nil {
		refuseCall(w, grpcInvalid, "the call was not read: "+err.Error())
		return
	}
	got := s.ask(r.Context(), call, body, r.Header)
	if got.code != grpcOK {
		for name, values := range got.header {
			if strings.HasPrefix(name, "Falaj-") {
				w.Header()[name] = values
			}
		}
		refuseCall(w, got.code, got.message)
		return
	}
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	w.WriteHeader(http.StatusOK)
	if _, err := w.Write(got.body); err == nil { // else the client went away: nobody to tell
		w.Header().Set("Grpc-Status", grpcOK)
	}
}

// refuseCall answers a call with a code; message is as the header has it.
func refuseCall(w http.ResponseWriter, code, message string) {
	h := w.Header()
	h.Set("Content-Type", "application/grpc")
	h.Set("Grpc-Status", code)
	h.Set("Grpc-Message", strings.ReplaceAll(message, "\n", " "))
	w.WriteHeader(http.StatusOK)
}

// ask sends a call until it is answered. Its key tells the server a repetition.
func (s *storage) ask(ctx context.Context, call string, body []byte, header http.Header) said {
	key, begun := rand.Text(), time.Now()
	for pause, again := 50*time.Millisecond, false; ; pause, again = min(2*pause, storagePause), true {
		got := s.once(ctx, call, body, header, key)
		if again && call == "DeleteStudy" && got.code == grpcNotFound { // one of the tries deleted it
			return said{code: grpcOK, body: make([]byte, 5)}
		}
		if got.code != grpcUnavailable || ctx.Err() != nil || time.Since(begun) >= s.patience {
			return got
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// once sends a call. No answer is one that the server is away.
func (s *storage) once(ctx context.Context, call string, body []byte, header http.Header, key string) said {
	away := func(err error) said {
		return said{code: grpcUnavailable, message: "no answer from " + s.base.Redacted() + ": " + err.Error()}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(s.base.String(), "/")+storagePrefix+call, bytes.NewReader(body)) //nolint:gosec // to our server, whatever the call is
	if err != nil {
		return said{code: grpcInvalid, message: err.Error()}
	}
	maps.Copy(req.Header, http.Header{
		"Authorization": {"Bearer " + s.token}, "Falaj-Project": {s.project}, "Idempotency-Key": {key},
		"Content-Type": {"application/grpc"}, "Te": {"trailers"},
	})
	if limit := header.Get("Grpc-Timeout"); limit != "" {
		req.Header.Set("Grpc-Timeout", limit)
	}
	resp, err := s.http.Do(req) //nolint:gosec // to our server, whatever the call is
	if err != nil {
		return away(err)
	}
	defer resp.Body.Close()
	got := said{header: resp.Header}
	got.body, err = io.ReadAll(io.LimitReader(resp.Body, storageAnswer+1))
	if err != nil {
		return away(err)
	}
	got.code, got.message = resp.Header.Get("Grpc-Status"), resp.Header.Get("Grpc-Message")
	if got.code == "" {
		got.code, got.message = resp.Trailer.Get("Grpc-Status"), resp.Trailer.Get("Grpc-Message")
	}
	switch {
	case got.code == "" && resp.StatusCode >= http.StatusInternalServerError: // of something between us and the server
		return said{code: grpcUnavailable, message: "the server answers " + strconv.Itoa(resp.StatusCode)}
	case got.code == "":
		return said{code: grpcUnimplemented, message: s.base.Redacted() + " has no storage of Optuna's studies: is it a Falaj server, and as new as this client?"}
	case got.code == grpcOK && (len(got.body) < 5 || len(got.body)-5 != int(binary.BigEndian.Uint32(got.body[1:]))):
		return said{code: grpcUnavailable, message: "the answer was cut off, or is too large"}
	}
	return got
}
