package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/httpapi/rpc/onlinev1"
	"github.com/falaj-ml/falaj/internal/share"
)

type asked func(ctx context.Context, r feature.OnlineRequest) (feature.OnlineAnswer, error)

func (f asked) Online(ctx context.Context, r feature.OnlineRequest) (feature.OnlineAnswer, error) {
	return f(ctx, r)
}

func framed(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

func call(body []byte, change func(*http.Request), features Features) (*httptest.ResponseRecorder, error) {
	r := httptest.NewRequest(http.MethodPost, ReadPath, bytes.NewReader(body))
	r.ProtoMajor = 2
	r.Header.Set("Content-Type", "application/grpc")
	w := httptest.NewRecorder()
	if change != nil {
		change(r)
	}
	return w, Read(w, r, "nyc", features)
}

// What is not one plain message is refused before features are asked.
func TestFrames(t *testing.T) {
	good := framed(&onlinev1.ReadRequest{Service: "s"})
	never := asked(func(context.Context, feature.OnlineRequest) (feature.OnlineAnswer, error) {
		t.Error("features were asked")
		return feature.OnlineAnswer{}, nil
	})
	header := func(name, v string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, v) }
	}
	for what, c := range map[string]struct {
		body   []byte
		change func(*http.Request)
		kind   fault.Kind
	}{
		"nothing":          {nil, nil, fault.Invalid},
		"half a header":    {good[:3], nil, fault.Invalid},
		"half a message":   {good[:len(good)-1], nil, fault.Invalid},
		"two messages":     {append(bytes.Clone(good), good...), nil, fault.Invalid},
		"a compressed one": {append([]byte{1}, good[1:]...), nil, fault.Unsupported},
		"no protobuf":      {[]byte{0, 0, 0, 0, 2, 255, 255}, nil, fault.Invalid},
		"another type":     {good, header("Content-Type", "application/json"), fault.Invalid},
		"HTTP/1":           {good, func(r *http.Request) { r.ProtoMajor = 1 }, fault.Invalid},
		"no deadline":      {good, header("Grpc-Timeout", "soon"), fault.Invalid},
		"too long":         {good, func(r *http.Request) { r.Body = http.MaxBytesReader(nil, r.Body, 3) }, fault.TooLarge},
	} {
		if w, err := call(c.body, c.change, never); !fault.Is(err, c.kind) || w.Body.Len() > 0 {
			t.Errorf("%s: %v, and %d bytes of an answer", what, err, w.Body.Len())
		}
	}
}

// A deadline of the client's ends the work, and is told as such.
func TestDeadline(t *testing.T) {
	_, err := call(framed(&onlinev1.ReadRequest{Service: "s"}), func(r *http.Request) { r.Header.Set("Grpc-Timeout", "1m") }, asked(func(ctx context.Context, _ feature.OnlineRequest) (feature.OnlineAnswer, error) {
		if at, ok := ctx.Deadline(); !ok || time.Until(at) > time.Millisecond {
			t.Errorf("deadline %v %v", at, ok)
		}
		<-ctx.Done()
		return feature.OnlineAnswer{}, ctx.Err()
	}))
	if !fault.Is(err, fault.Timeout) {
		t.Error(err)
	}
	want := errors.New("broken")
	if _, err := call(framed(&onlinev1.ReadRequest{}), nil, asked(func(context.Context, feature.OnlineRequest) (feature.OnlineAnswer, error) {
		return feature.OnlineAnswer{}, want
	})); !errors.Is(err, want) {
		t.Error(err)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add(framed(&onlinev1.ReadRequest{Service: "s", Keys: []*onlinev1.Keys{{Name: "a", Values: &onlinev1.Keys_Ints{Ints: &onlinev1.Ints{Values: []int64{1}}}, Nulls: []uint32{0}}, {Name: strings.Repeat("b", 3)}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := call(b, nil, asked(func(_ context.Context, r feature.OnlineRequest) (feature.OnlineAnswer, error) {
			for _, c := range r.Columns {
				if len(c.Values) != len(r.Columns[0].Values) {
					t.Error("columns of different lengths")
				}
			}
			return feature.OnlineAnswer{}, nil
		}))
		if err != nil && fault.KindOf(err) == fault.Internal {
			t.Fatal(err)
		}
	})
}

// A status without a word of the protocol would be none.
func TestEachStatusHasAWord(t *testing.T) {
	for _, s := range []online.Status{online.Present, online.NullValue, online.NotFound, online.OutsideMaxAge, online.Invalid, online.Masked} {
		if statuses[s].String() != string(s) {
			t.Errorf("%s is %s", s, statuses[s])
		}
	}
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

// TestLargeAnswersTakeATurn: a large answer is encoded in turn, and a slow reader holds no
// processor; a small one takes none.
func TestLargeAnswersTakeATurn(t *testing.T) {
	work := func() (u share.Usage) {
		for _, m := range share.Measured() {
			if m.Name == "heavy_work" {
				u = m
			}
		}
		return u
	}
	ctx := share.WithTurn(t.Context(), share.NewTurn(share.Owner{Project: "p"}))
	for size, turns := range map[int]int64{100: 0, heavy: 1} {
		before, m := work(), wrapperspb.String(strings.Repeat("x", size))
		got := httptest.NewRecorder()
		err := Send(ctx, writing{got, func() {
			if n := work().Held; n != 0 {
				t.Errorf("%d processors are held while it is written", n)
			}
		}}, m)
		if after := work(); err != nil || after.Granted-before.Granted != turns || !bytes.Equal(got.Body.Bytes(), framed(m)) {
			t.Errorf("%d bytes: %d turns, want %d; %v", size, after.Granted-before.Granted, turns, err)
		}
	}
}
