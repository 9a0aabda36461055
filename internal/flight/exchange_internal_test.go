package flight

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
)

// sender writes gRPC's messages as a client does.
type sender struct {
	bytes.Buffer
	first *flight.FlightDescriptor
	more  []byte // metadata of the application, which is passed over
}

func (s *sender) Send(d *flight.FlightData) error {
	d = &flight.FlightData{DataHeader: d.DataHeader, DataBody: d.DataBody, FlightDescriptor: s.first, AppMetadata: s.more}
	s.first = nil
	b, err := proto.Marshal(d)
	s.Write(framed(b))
	return err
}

func framed(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

func commanded(c string) *flight.FlightDescriptor {
	return &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(c)}
}

// What comes out is the stream of IPC that was sent, whatever pieces it comes in.
func TestMessages(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "n", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "s", Type: arrow.BinaryTypes.String},
		{Name: "d", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}},
	}, nil)
	rapid.Check(t, func(rt *rapid.T) {
		s := &sender{first: commanded("c"), more: rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(rt, "metadata")}
		w := flight.NewRecordWriter(s, ipc.WithSchema(schema))
		var want, got strings.Builder
		for range rapid.IntRange(0, 3).Draw(rt, "batches") {
			b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
			for i := range rapid.IntRange(0, 50).Draw(rt, "rows") {
				b.Field(0).(*array.Int64Builder).Append(int64(i))
				b.Field(1).(*array.StringBuilder).Append(rapid.String().Draw(rt, "s"))
				_ = b.Field(2).(*array.BinaryDictionaryBuilder).AppendString(strconv.Itoa(i % 3))
			}
			rec := b.NewRecordBatch()
			fmt.Fprintln(&want, rec)
			if err := w.Write(rec); err != nil {
				rt.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			rt.Fatal(err)
		}
		var from io.Reader = bytes.NewReader(s.Bytes())
		if rapid.Bool().Draw(rt, "byte by byte") {
			from = iotest.OneByteReader(from)
		}
		m, err := openMessages(from)
		if err != nil || string(m.command) != "c" {
			rt.Fatal(m, err)
		}
		r, err := ipc.NewReader(m)
		if err != nil {
			rt.Fatal(err)
		}
		for r.Next() {
			fmt.Fprintln(&got, r.RecordBatch())
		}
		if rest, err := io.ReadAll(m); r.Err() != nil || err != nil || len(rest) > 0 || got.String() != want.String() || !r.Schema().Equal(schema) {
			rt.Fatalf("%v, %v, %d bytes left\n%s\n%s", r.Err(), err, len(rest), got.String(), want.String())
		}
	})
}

// What Arrow's libraries do not write is refused, and holds no memory that it only
// speaks of.
func TestStrangeMessages(t *testing.T) {
	field := func(n protowire.Number, b string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, n, protowire.BytesType), b)
	}
	descriptor, _ := proto.Marshal(commanded("c"))
	neither, _ := proto.Marshal(&flight.FlightDescriptor{Path: []string{"a"}})
	first := append(field(1, string(descriptor)), field(2, "head")...)
	for name, c := range map[string]struct {
		body []byte
		kind fault.Kind
	}{
		"nothing":              {nil, fault.Invalid},
		"no command":           {framed(field(2, "head")), fault.Invalid},
		"neither":              {framed(field(1, string(neither))), fault.Invalid},
		"no descriptor at all": {framed(field(1, "\xff\xff")), fault.Invalid},
		"compressed":           {append([]byte{1}, framed(first)[1:]...), fault.Unsupported},
		"cut off in the frame": {framed(first)[:3], fault.Invalid},
		"cut off":              {framed(first)[:12], fault.Invalid},
		"a body first":         {framed(append(field(1000, "body"), first...)), fault.Invalid},
		"after the body":       {framed(append(append(bytes.Clone(first), field(1000, "body")...), field(3, "x")...)), fault.Invalid},
		"a number":             {framed(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)), fault.Invalid},
		"field 0":              {framed([]byte{2, 0}), fault.Invalid},
		"longer than itself":   {framed(append(protowire.AppendTag(nil, 1, protowire.BytesType), 0x7f)), fault.Invalid},
		"an endless number":    {framed(bytes.Repeat([]byte{0xff}, 20)), fault.Invalid},
		"a huge frame":         {append([]byte{0, 0xff, 0xff, 0xff, 0xff}, protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.BytesType), 1<<31)...), fault.TooLarge},
		"a huge command":       {append([]byte{0, 0xff, 0xff, 0xff, 0xff}, protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.BytesType), 1<<20)...), fault.TooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := openMessages(bytes.NewReader(c.body))
			if err == nil {
				_, err = io.ReadAll(m)
			}
			if fault.KindOf(err) != c.kind || err == nil {
				t.Error(err)
			}
		})
	}
}

func FuzzMessages(f *testing.F) {
	s := &sender{first: commanded("c"), more: []byte("m")}
	_ = s.Send(&flight.FlightData{DataHeader: []byte("head"), DataBody: []byte("body")})
	_ = s.Send(&flight.FlightData{DataHeader: []byte("head")})
	f.Add(s.Bytes())
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := openMessages(bytes.NewReader(body))
		if err != nil {
			if k := fault.KindOf(err); k != fault.Invalid && k != fault.TooLarge && k != fault.Unsupported {
				t.Fatal(err)
			}
			return
		}
		out, err := io.ReadAll(m)
		if len(out) > 4*len(body)+64 {
			t.Fatalf("%d bytes of %d", len(out), len(body))
		}
		if err != nil && errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	})
}

// TestLongErrors: the headers of an error are no longer than clients take.
func TestLongErrors(t *testing.T) {
	w := httptest.NewRecorder()
	long := strings.Repeat("é", 1<<20)
	Refuse(w, http.StatusBadRequest, fault.New(fault.Invalid, "%s", long).WithHint("%s", long))
	size := 0
	for name, v := range w.Header() {
		size += len(name) + len(v[0])
	}
	if size > 16<<10 {
		t.Errorf("%d bytes of headers", size)
	}
}
