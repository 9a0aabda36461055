package attack

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/falaj-ml/falaj/test/live"
)

// TestInferenceEdge: whoever may ask a model, and asks in bad faith, keeps nobody else
// from being answered, and does not fill the server's memory.
func TestInferenceEdge(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "edge")
	p.Register("logistic", p.Logistic())
	p.Apply("{api_version: falaj/v1, kind: Deployment, name: d, project: PROJECT, spec: {model: logistic}}")
	w := &edge{Project: p, address: strings.TrimPrefix(s.URL, "http://")}
	w.answers(t)
	for _, attack := range []struct {
		name string
		most int64 // bytes that the server may take for it
		run  func(*testing.T)
	}{
		{"10,000 idle connections", 512 << 20, w.idle},
		{"headers that never end", 128 << 20, w.slowHeaders},
		{"bodies that never end", 256 << 20, w.slowBodies},
		{"rapid reset", 128 << 20, w.rapidReset},
		{"33 million tensors in 64 KiB", 768 << 20, func(t *testing.T) { t.Helper(); w.bomb(t, "", "\x2a\x00", "8") }},
		// 64 MiB less 64 bytes, of fields whose length says so.
		{"a shape of 64 million dimensions in 64 KiB", 768 << 20, func(t *testing.T) { t.Helper(); w.bomb(t, "\x2a\xc5\xff\xff\x1f\x1a\xc0\xff\xff\x1f", "\x00\x00", "3") }},
		{"64 million numbers in 64 KiB", 768 << 20, func(t *testing.T) {
			t.Helper()
			w.bomb(t, "\x2a\xca\xff\xff\x1f\x2a\xc5\xff\xff\x1f\x1a\xc0\xff\xff\x1f", "\x00\x00", "8")
		}},
		{"a stream that nobody reads", 512 << 20, w.unread},
	} {
		t.Run(attack.name, func(t *testing.T) {
			before := w.memory(t, "VmRSS")
			_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.PID()), []byte("5"), 0) // the peak is that of now
			began := time.Now()
			attack.run(t)
			w.answers(t)
			peak := w.memory(t, "VmHWM") - before
			t.Logf("%s in %s: the server took %d MiB", attack.name, time.Since(began).Round(time.Millisecond), peak>>20)
			if peak > attack.most {
				t.Errorf("it took %d MiB", peak>>20)
			}
		})
	}
}

type edge struct {
	*live.Project
	address string
}

// answers fails when an honest request is not answered.
func (w *edge) answers(t *testing.T) {
	t.Helper()
	if _, err := w.Infer(w.C, "d", nil, live.Tensor("X", "FP32", []float64{1, 2}, 1, 2)); err != nil {
		t.Errorf("an honest request: %v", err)
	}
}

// memory is a number of the server's, in bytes.
func (w *edge) memory(t *testing.T, name string) int64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(w.PID()), "status"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), name+":")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// connect opens connections, each with what it sends.
func (w *edge) connect(t *testing.T, n int, send string) []net.Conn {
	t.Helper()
	out := make([]net.Conn, n)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			for j := i; j < n; j += 50 {
				c, err := (&net.Dialer{Timeout: live.Wait}).DialContext(t.Context(), "tcp", w.address)
				if err == nil {
					_, err = io.WriteString(c, send)
				}
				if err != nil {
					t.Error(err)
					return
				}
				out[j] = c
			}
		})
	}
	all.Wait()
	t.Cleanup(func() {
		for _, c := range out {
			if c != nil {
				_ = c.Close()
			}
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	return out
}

func (w *edge) idle(t *testing.T) {
	t.Helper()
	before := w.memory(t, "VmRSS")
	const n = 10_000
	for _, c := range w.connect(t, n, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") {
		if _, err := c.Read(make([]byte, 1024)); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d KiB a connection", (w.memory(t, "VmRSS")-before)/n>>10)
	w.answers(t)
}

func (w *edge) slowHeaders(t *testing.T) {
	t.Helper()
	all := w.connect(t, 1000, "POST /v2/models/d/infer HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
	w.answers(t)
	for _, c := range all { // the server closes them
		_ = c.SetReadDeadline(time.Now().Add(live.Wait))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("a connection without a header stays open")
		}
	}
}

func (w *edge) slowBodies(t *testing.T) {
	t.Helper()
	w.connect(t, 1000, "POST /v2/models/d/infer HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+w.Token+"\r\nFalaj-Project: "+w.Name+"\r\nContent-Length: 67000000\r\n\r\n{")
	w.answers(t)
}

// call is a connection of HTTP/2 with raw frames.
type call struct {
	net.Conn
	*http2.Framer
	head []byte
}

func (w *edge) call(t *testing.T, method string, more ...string) *call {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", w.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	f := http2.NewFramer(c, c)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	var head bytes.Buffer
	encoder := hpack.NewEncoder(&head)
	fields := append([]string{
		":method", http.MethodPost, ":scheme", "http", ":authority", "localhost", ":path", "/inference.GRPCInferenceService/" + method,
		"content-type", "application/grpc", "te", "trailers", "authorization", "Bearer " + w.Token, "falaj-project", w.Name,
	}, more...)
	for i := 0; i < len(fields); i += 2 {
		if err := encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1], Sensitive: true}); err != nil { // of no table
			t.Fatal(err)
		}
	}
	return &call{c, f, head.Bytes()}
}

func (w *edge) rapidReset(t *testing.T) {
	t.Helper()
	const n = 25_000 // of which each may leave 5 KiB
	c := w.call(t, "ModelInfer")
	go func() { _, _ = io.Copy(io.Discard, c.Conn) }()
	sent := 0
	for id := uint32(1); sent < n; id += 2 {
		err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.head, EndHeaders: true})
		if err == nil {
			err = c.WriteRSTStream(id, http2.ErrCodeCancel)
		}
		if err != nil {
			break // the server closed the connection
		}
		sent++
		if sent%2500 == 0 {
			w.answers(t)
		}
	}
	t.Logf("%d of %d requests were reset before the connection was closed", sent, n)
}

// bomb sends a message of 64 MiB that takes many times that in memory: what begins it, and
// two bytes again and again. status is what refuses it.
func (w *edge) bomb(t *testing.T, begin, piece, status string) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	plain := append([]byte(begin), bytes.Repeat([]byte(piece), 1<<25-32)...)
	if _, err := z.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	c := w.call(t, "ModelInfer", "grpc-encoding", "gzip")
	message := append(binary.BigEndian.AppendUint32([]byte{1}, uint32(b.Len())), b.Bytes()...)
	if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.head, EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	for len(message) > 0 {
		n := min(len(message), 16<<10)
		if err := c.WriteData(1, n == len(message), message[:n]); err != nil {
			t.Fatal(err)
		}
		message = message[n:]
	}
	_ = c.SetReadDeadline(time.Now().Add(live.Wait))
	decoder := hpack.NewDecoder(4096, nil)
	for {
		f, err := c.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		h, ok := f.(*http2.HeadersFrame)
		if !ok {
			continue
		}
		fields, err := decoder.DecodeFull(h.HeaderBlockFragment())
		if err != nil {
			t.Fatal(err)
		}
		if !h.StreamEnded() {
			continue
		}
		for _, f := range fields {
			if f.Name == "grpc-status" && f.Value != status {
				t.Errorf("%v", fields)
			}
		}
		return
	}
}

// unread sends on and on, and takes no answer.
func (w *edge) unread(t *testing.T) {
	t.Helper()
	c := w.call(t, "ModelStreamInfer")
	if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.head, EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	window, more := int64(65535), make(chan int64, 1000)
	go func() {
		defer close(more)
		for {
			f, err := c.ReadFrame()
			if err != nil {
				return
			}
			if u, ok := f.(*http2.WindowUpdateFrame); ok && u.StreamID == 1 {
				more <- int64(u.Increment)
			}
		}
	}()
	piece := binary.BigEndian.AppendUint32([]byte{0}, 16<<20)
	piece = append(piece, make([]byte, 16<<10-len(piece))...)
	sent := int64(0)
	for sent < 1<<30 {
		for window < int64(len(piece)) {
			select {
			case n, open := <-more:
				if !open {
					t.Logf("%d MiB were sent before the server closed", sent>>20)
					return
				}
				window += n
			case <-time.After(2 * time.Second):
				t.Logf("%d MiB were sent before the server stopped reading", sent>>20)
				return
			}
		}
		if err := c.WriteData(1, false, piece); err != nil {
			return
		}
		sent, window = sent+int64(len(piece)), window-int64(len(piece))
		piece = make([]byte, 16<<10)
	}
	t.Errorf("the server read %d MiB of a stream whose answers nobody reads", sent>>20)
}
