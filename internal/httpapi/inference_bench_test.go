package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/keys/keyssql"
	"github.com/falaj-ml/falaj/internal/governance/policy/policytest"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/onnx"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
)

// oneModel is the registry of the benchmark: its one model.
type oneModel []byte

func (m oneModel) OpenVerified(context.Context, string, string, string) (serving.Model, error) {
	return serving.Model{Name: "logistic", Version: 1, Digest: "sha256:1", Classification: "internal", File: m}, nil
}

func (oneModel) RequireVersion(context.Context, *store.Tx, string, string, int64) error { return nil }

func (oneModel) Cleared(context.Context, *store.Tx, string, string, int64, string) error { return nil }

func (oneModel) Point(context.Context, *store.Tx, string, string, string, int64) error { return nil }

// inferenceWorld is the edge over governance and serving as the server has them, on disk,
// with one model in this process (serving.in_process), deployed without a prediction log and with one.
type inferenceWorld struct {
	server *Server
	secret string // of a token of the project's engineer
	alone  runtime.Session
}

func newInferenceWorld(b *testing.B) *inferenceWorld {
	b.Helper()
	library, err := filepath.Abs("../../lib/libonnxruntime.so")
	must(b, err)
	if _, err := os.Stat(library); err != nil {
		b.Skip("ONNX Runtime is not there: make deps")
	}
	model, err := os.ReadFile("../serving/runtime/onnx/testdata/logistic.onnx")
	must(b, err)
	db, err := store.Open(b.Context(), store.Config{
		URL: "sqlite://" + filepath.Join(b.TempDir(), "falaj.db"), Migrations: append(policytest.Migrations(), keyssql.Migrations, servingsql.Migrations),
	})
	must(b, err)
	b.Cleanup(func() { _ = db.Close() })
	w := policytest.OpenOn(b, db)
	quiet := slog.New(slog.DiscardHandler)
	ring, err := keys.Open(b.Context(), keys.Config{DB: db, Store: keyssql.Store{}, Authorizer: w.Authority, MasterFile: b.TempDir() + "/master.key"})
	must(b, err)
	log, err := prediction.Open(prediction.Config{Dir: b.TempDir(), Keys: ring, Logger: quiet})
	must(b, err)
	b.Cleanup(func() { _ = log.Close() })
	models := onnx.New(library)
	services := serving.New(serving.Config{
		DB: db, Store: servingsql.Store{}, Authz: w.Authority, Models: oneModel(model), Journal: w.Journal, Guard: w.Guard, Runtime: models, Predictions: log, Log: quiet,
	})
	b.Cleanup(func() { _ = services.Loader.Close(context.Background()) })
	x := &inferenceWorld{server: New(Options{
		Auth: w.Accounts, Authz: w.Authority, DB: db, Log: quiet, Registry: prometheus.NewRegistry(),
		Ready: func() error { return nil }, Console: http.NotFoundHandler(),
	}, Domains{Projects: w.Tenancy, Accounts: w.Accounts, Zones: w.Border, Keys: ring, Serving: services})}
	w.Project(b, "bench")
	_, x.secret, err = w.Tenancy.Enrol(w.AsAdmin(b.Context()), tenancy.Enrolment{
		Token: account.TokenSpec{For: "service/app", Create: true, Label: "app", Project: "bench"}, In: "bench", Role: project.Engineer,
	})
	must(b, err)
	no := false
	for name, spec := range map[string]*serving.PredictionSpec{"plain": {Log: &no}, "logged": nil} {
		_, _, err := services.Deployments.Apply(w.AsAdmin(b.Context()), "bench", name, serving.Spec{Model: "logistic", Version: "1", Prediction: spec}, false)
		must(b, err)
	}
	x.alone, err = models.Load(b.Context(), model, runtime.Options{})
	must(b, err)
	b.Cleanup(func() { _ = x.alone.Close() })
	return x
}

// asking is a request of so many rows of two features: its body, and the length of the
// JSON before the bytes of tensors; 0: all of it is JSON.
func asking(rows int, raw bool) (body []byte, head int) {
	if !raw {
		body = fmt.Appendf(nil, `{"inputs":[{"name":"X","shape":[%d,2],"datatype":"FP32","data":[`, rows)
		for i := range 2 * rows {
			if i > 0 {
				body = append(body, ',')
			}
			body = strconv.AppendFloat(body, float64(i*31%101)/100, 'g', -1, 32)
		}
		return append(body, `]}],"outputs":[{"name":"probabilities"}]}`...), 0
	}
	body = fmt.Appendf(nil, `{"inputs":[{"name":"X","shape":[%d,2],"datatype":"FP32","parameters":{"binary_data_size":%d}}],`+
		`"outputs":[{"name":"probabilities","parameters":{"binary_data":true}}]}`, rows, 8*rows)
	head = len(body)
	for i := range 2 * rows {
		body = binary.LittleEndian.AppendUint32(body, math.Float32bits(float32(i*31%101)/100))
	}
	return body, head
}

// BenchmarkInference asks a model as a program does by the Open Inference Protocol, with
// all that stands before it: "handler" without a network, "loopback/N" over N
// connections that are kept open, the clients' part included, "echo/N" the same bytes given back by
// net/http, and "run" the model alone. A request costs its CPU over that of an echo and
// a run; all are of one process.
func BenchmarkInference(b *testing.B) {
	w := newInferenceWorld(b)
	ours := serve(b, w.server)
	echo := serve(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.Header().Set("Content-Length", strconv.Itoa(len(body))) // else a large one comes in chunks
		_, _ = w.Write(body)
	}))
	for _, rows := range []int{1, 32, 256} {
		data := make([]float32, 2*rows)
		b.Run(fmt.Sprintf("run/rows=%d", rows), func(b *testing.B) {
			x := []runtime.Tensor{{Name: "X", Datatype: runtime.FP32, Shape: []int64{int64(rows), 2}, Data: data}}
			spent(b, func() {
				for b.Loop() {
					if _, err := w.alone.Infer(context.Background(), x, []string{"probabilities"}); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
	for _, c := range []struct {
		form string
		raw  bool
		rows int
		of   string
	}{{"json", false, 1, "plain"}, {"raw", true, 1, "plain"}, {"json", false, 1, "logged"}, {"raw", true, 1, "logged"}, {"raw", true, 32, "plain"}, {"raw", true, 256, "plain"}} {
		body, head := asking(c.rows, c.raw)
		path := "/v2/models/" + c.of + "/infer"
		name := fmt.Sprintf("/%s/rows=%d/%s", c.form, c.rows, c.of)
		b.Run("handler"+name, func(b *testing.B) {
			spent(b, func() {
				for b.Loop() {
					r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, path, bytes.NewReader(body))
					r.Host = "127.0.0.1"
					r.Header.Set("Authorization", "Bearer "+w.secret)
					if head > 0 {
						r.Header.Set("Inference-Header-Content-Length", strconv.Itoa(head))
					}
					a := &unread{header: http.Header{}}
					if w.server.ServeHTTP(a, r); a.status > http.StatusOK || a.bytes < 8 {
						b.Fatal(a.status, a.bytes)
					}
				}
			})
		})
		text := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n", path, w.secret, len(body))
		if head > 0 {
			text = fmt.Appendf(text, "Inference-Header-Content-Length: %d\r\n", head)
		}
		text = append(append(text, "\r\n"...), body...)
		for _, clients := range []int{1, 8} {
			b.Run(fmt.Sprintf("loopback/%d%s", clients, name), func(b *testing.B) { flood(b, ours, clients, text) })
			if c.of == "plain" {
				b.Run(fmt.Sprintf("echo/%d%s", clients, name), func(b *testing.B) { flood(b, echo, clients, text) })
			}
		}
	}
}

// serve listens as the server does, and says where.
func serve(b *testing.B, h http.Handler) string {
	b.Helper()
	l, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
	must(b, err)
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 5 * time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	b.Cleanup(func() {
		_ = s.Close()
		<-done
	})
	return l.Addr().String()
}

// spent reports the CPU time of what is done for each of b.N.
func spent(b *testing.B, do func()) {
	b.Helper()
	b.ReportAllocs()
	before := cpu(b)
	do()
	b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/1e3/float64(b.N), "cpu-µs/op")
}

// flood sends a request again and again, from so many clients that wait for each answer.
func flood(b *testing.B, address string, clients int, request []byte) {
	b.Helper()
	conns := make([]net.Conn, clients)
	for i := range conns {
		var err error
		conns[i], err = new(net.Dialer).DialContext(b.Context(), "tcp", address)
		must(b, err)
		defer func() { _ = conns[i].Close() }()
	}
	b.ResetTimer()
	spent(b, func() {
		var left atomic.Int64
		left.Store(int64(b.N))
		var all sync.WaitGroup
		for _, conn := range conns {
			all.Go(func() {
				in := bufio.NewReader(conn)
				for left.Add(-1) >= 0 {
					if _, err := conn.Write(request); err != nil {
						b.Error(err)
						return
					}
					if err := answered200(in); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	})
}

// answered200 reads one answer, and makes no garbage.
func answered200(in *bufio.Reader) error {
	size := 0
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		line = bytes.TrimRight(line, "\r\n")
		if first && !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")) {
			return fmt.Errorf("answered %q", line)
		}
		if rest, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			for _, c := range rest {
				size = 10*size + int(c-'0')
			}
		}
		if len(line) == 0 {
			break
		}
	}
	if size == 0 {
		return io.ErrUnexpectedEOF
	}
	_, err := in.Discard(size)
	return err
}
