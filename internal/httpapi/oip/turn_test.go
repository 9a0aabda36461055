package oip

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"

	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/inference"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	turns "github.com/falaj-ml/falaj/internal/share"
)

// answering answers every request with one output.
type answering struct {
	oneModel
	output runtime.Tensor
}

func (a answering) Infer(context.Context, serving.Request) (serving.Answer, error) {
	return serving.Answer{ID: "7", Version: 3, Outputs: []runtime.Tensor{a.output}}, nil
}

// writing looks before anything is written.
type writing struct {
	http.ResponseWriter
	before func()
}

func (w writing) Write(b []byte) (int, error) {
	w.before()
	return w.ResponseWriter.Write(b)
}

func (w writing) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// TestLargeAnswersTakeTurns: a large answer is encoded in turn by every protocol, also of a
// small request, and the processor is given back before the first byte is written; a small
// one takes none.
func TestLargeAnswersTakeTurns(t *testing.T) {
	floats := make([]float32, heavy/perElement)
	large := runtime.Tensor{Name: "label", Datatype: runtime.FP32, Shape: []int64{int64(len(floats))}, Data: floats}
	few := runtime.Tensor{Name: "label", Datatype: runtime.FP32, Shape: []int64{2}, Data: floats[:2]}
	text := runtime.Tensor{Name: "label", Datatype: runtime.Bytes, Shape: []int64{1}, Data: []string{strings.Repeat("x", heavy)}}
	call := func(path string, options ...grpc.CallOption) func(t *testing.T, conn *grpc.ClientConn, _ http.Handler) error {
		return func(t *testing.T, conn *grpc.ClientConn, _ http.Handler) error {
			if path == "ModelInfer" {
				return conn.Invoke(t.Context(), CallPrefix+path, asking([]byte(twoLabels)), &inference.ModelInferResponse{}, options...)
			}
			stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, CallPrefix+path, options...)
			if err != nil {
				return err
			}
			if err := stream.SendMsg(asking([]byte(twoLabels))); err != nil {
				return err
			}
			got := &inference.ModelStreamInferResponse{}
			if err := stream.RecvMsg(got); err != nil {
				return err
			}
			if len(got.GetInferResponse().GetRawOutputContents()) != 1 {
				t.Errorf("the answer is %.200v", got)
			}
			return stream.CloseSend()
		}
	}
	post := func(path, body string) func(t *testing.T, _ *grpc.ClientConn, h http.Handler) error {
		return func(t *testing.T, _ *grpc.ClientConn, h http.Handler) error {
			got := httptest.NewRecorder()
			h.ServeHTTP(got, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body)))
			if got.Code != http.StatusOK {
				t.Errorf("%d %.200s", got.Code, got.Body)
			}
			return nil
		}
	}
	const ask = `{"inputs":[{"name":"X","datatype":"FP32","shape":[1,2],"data":[4,3]}]}`
	for name, send := range map[string]func(*testing.T, *grpc.ClientConn, http.Handler) error{
		"gRPC":                   call("ModelInfer"),
		"gRPC, compressed":       call("ModelInfer", grpc.UseCompressor(gzip.Name)),
		"gRPC stream":            call("ModelStreamInfer"),
		"gRPC stream compressed": call("ModelStreamInfer", grpc.UseCompressor(gzip.Name)),
		"JSON":                   post("/v2/models/delay/infer", ask),
		"scoring":                post("/v1/models/delay:predict", `{"instances":[[4,3]]}`),
	} {
		for size, output := range map[string]runtime.Tensor{"large": large, "a large text": text, "small": few} {
			t.Run(name+", "+size, func(t *testing.T) {
				api := edge(t)
				api.Serving = answering{api.Serving.(oneModel), output}
				within := func(h http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						h.ServeHTTP(writing{w, func() {
							if n := heavyWork().Held; n != 0 {
								t.Errorf("%d processors are held while it is written", n)
							}
						}}, r)
					})
				}
				mux := http.NewServeMux()
				api.Register(func(method, path, _, _ string, h http.HandlerFunc) { mux.Handle(method+" "+path, h) })
				before := heavyWork()
				if err := send(t, dialTo(t, api, within), within(mux)); err != nil {
					t.Fatal(err)
				}
				want := before.Granted
				if size != "small" {
					want++
				}
				if after := heavyWork(); after.Granted != want || after.Held != 0 {
					t.Errorf("%d turns were taken, want %d; %d are held", after.Granted-before.Granted, want-before.Granted, after.Held)
				}
			})
		}
	}
}

// TestNoProcessorForASlowReader: while a client reads the answer to one message of a stream
// slowly, the next answer is encoded, and then holds no processor.
func TestNoProcessorForASlowReader(t *testing.T) {
	floats := make([]float32, heavy)
	api := edge(t)
	api.Serving = answering{api.Serving.(oneModel), runtime.Tensor{Name: "label", Datatype: runtime.FP32, Shape: []int64{heavy}, Data: floats}}
	reads := make(chan struct{})
	var answers atomic.Int64
	conn := dialTo(t, api, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(writing{w, func() {
				answers.Add(1)
				<-reads
			}}, r.WithContext(turns.WithTurn(r.Context(), turns.NewTurn(turns.Owner{Project: "p"}))))
		})
	})
	before := heavyWork()
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, CallPrefix+"ModelStreamInfer")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := stream.SendMsg(asking([]byte(twoLabels))); err != nil {
			t.Fatal(err)
		}
	}
	deadline, tick := time.NewTimer(time.Minute), time.NewTicker(time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for now := heavyWork(); answers.Load() != 1 || now.Granted != before.Granted+2 || now.Held != 0; now = heavyWork() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%d turns were taken, %d are held, %d answers are written", now.Granted-before.Granted, now.Held, answers.Load())
		}
	}
	close(reads)
	for range 3 {
		if err := stream.RecvMsg(&inference.ModelStreamInferResponse{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
}
