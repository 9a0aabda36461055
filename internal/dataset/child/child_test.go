package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
)

// A conversation of any headers and streams arrives as it was sent.
func TestConversation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pipe bytes.Buffer
		w := NewWriter(&pipe)
		type part struct {
			header string
			stream []byte
		}
		var sent []part
		for range rapid.IntRange(0, 5).Draw(t, "parts") {
			p := part{header: rapid.String().Draw(t, "header"), stream: rapid.SliceOfN(rapid.Byte(), 0, 3000).Draw(t, "stream")}
			sent = append(sent, p)
			if err := w.Header(p.header); err != nil {
				t.Fatal(err)
			}
			s := w.Stream()
			for chunk := p.stream; len(chunk) > 0; {
				n := rapid.IntRange(1, len(chunk)).Draw(t, "chunk")
				if _, err := s.Write(chunk[:n]); err != nil {
					t.Fatal(err)
				}
				chunk = chunk[n:]
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		r := NewReader(&pipe)
		for _, p := range sent {
			var header string
			if err := r.Header(&header); err != nil || header != strings.ToValidUTF8(p.header, "\ufffd") {
				t.Fatalf("header %q, %v, want %q", header, err, p.header)
			}
			got, err := io.ReadAll(r.Stream())
			if err != nil || !bytes.Equal(got, p.stream) {
				t.Fatalf("stream of %d bytes, %v, want %d", len(got), err, len(p.stream))
			}
		}
		if err := r.Header(new(string)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("after the end: %v", err)
		}
	})
}

func TestLargeHeader(t *testing.T) {
	var pipe bytes.Buffer
	long := strings.Repeat("x", 3*maxFrame)
	if err := NewWriter(&pipe).Header(long); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := NewReader(&pipe).Header(&got); err != nil || got != long {
		t.Fatal(len(got), err)
	}
	if err := NewWriter(&pipe).Header(strings.Repeat("x", maxHeader)); err != nil {
		t.Fatal(err)
	}
	if err := NewReader(&pipe).Header(&got); !fault.Is(err, fault.TooLarge) {
		t.Errorf("a header over the limit: %v", err)
	}
}

// A child may blame the file or the query, and nothing else.
func TestFaultKinds(t *testing.T) {
	for kind, want := range map[fault.Kind]fault.Kind{
		fault.Invalid: fault.Invalid, fault.TooLarge: fault.TooLarge, fault.Exhausted: fault.Exhausted, fault.Timeout: fault.Timeout,
		fault.PermissionDenied: fault.Internal, fault.Unauthenticated: fault.Internal, fault.NotFound: fault.NotFound, fault.Conflict: fault.Internal,
	} {
		var pipe bytes.Buffer
		_ = NewWriter(&pipe).Fault(fault.New(kind, "what").WithHint("do"))
		err := NewReader(&pipe).Header(new(string))
		if fault.KindOf(err) != want || err.Error() != "what" || fault.HintOf(err) != "do" {
			t.Errorf("%v: %v (%v)", kind, err, fault.KindOf(err))
		}
	}
}

// TestFullDisk: a child's disk without room is one here; what a quota does not allow is not.
func TestFullDisk(t *testing.T) {
	for _, c := range []struct {
		err  error
		full bool
	}{
		{fault.New(fault.Exhausted, "the disk").WithCause(fault.ErrFull), true},
		{fmt.Errorf("write part.parquet: %w", syscall.ENOSPC), true},
		{fault.Wrap(syscall.EDQUOT, "write"), true},
		{fault.New(fault.Exhausted, "limits.sql_disk"), false},
		{fault.New(fault.Invalid, "no such column").WithCause(fault.ErrFull), false},
	} {
		var pipe bytes.Buffer
		_ = NewWriter(&pipe).Fault(c.err)
		if err := NewReader(&pipe).Header(new(string)); fault.Full(err) != c.full || err.Error() != c.err.Error() {
			t.Errorf("%v: %v", c.err, err)
		}
	}
}

func TestFaultInTheMiddleOfRecords(t *testing.T) {
	var pipe bytes.Buffer
	w := NewWriter(&pipe)
	schema := arrow.NewSchema([]arrow.Field{{Name: "i", Type: arrow.PrimitiveTypes.Int64}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	b.Field(0).(*array.Int64Builder).Append(7)
	out := w.Records(schema)
	if err := out.Write(b.NewRecordBatch()); err != nil {
		t.Fatal(err)
	}
	_ = w.Fault(fault.New(fault.Invalid, "row 2 is bad"))
	rows, err := NewReader(&pipe).Records()
	if err != nil || !rows.Next() {
		t.Fatal("the batch before the fault is lost", err)
	}
	if rows.Next() || !fault.Is(rows.Err(), fault.Invalid) || rows.Err().Error() != "row 2 is bad" {
		t.Errorf("got %v", rows.Err())
	}
}

// Whatever a taken-over child sends, reading it ends with an error or bounded
// records, never with a panic.
func FuzzReader(f *testing.F) {
	var pipe bytes.Buffer
	w := NewWriter(&pipe)
	_ = w.Header(map[string]int{"a": 1})
	schema := arrow.NewSchema([]arrow.Field{{Name: "s", Type: arrow.BinaryTypes.String}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	b.Field(0).(*array.StringBuilder).Append("x")
	out := w.Records(schema)
	_ = out.Write(b.NewRecordBatch())
	_ = out.Close()
	f.Add(pipe.Bytes())
	f.Add([]byte("F\x00\x00\x00\x02{}"))
	f.Add([]byte("H\xff\xff\xff\xff"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		r := NewReader(bytes.NewReader(data))
		var v any
		_ = r.Header(&v)
		rows, err := r.Records()
		if err != nil {
			return
		}
		defer rows.Release()
		touch(rows)
	})
}

// touch reads every cell.
func touch(rows array.RecordReader) (cells int) {
	for i := 0; i < 100 && rows.Next(); i++ {
		rec := rows.RecordBatch()
		for _, c := range rec.Columns() {
			for j := range min(c.Len(), 10_000) {
				cells += len(c.ValueStr(j))
			}
		}
	}
	_ = rows.Err()
	return cells
}

// No single changed byte of a stream of batches makes reading its cells panic.
func TestBentRecords(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "i", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "b", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
		{Name: "n", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		{Name: "w", Type: arrow.ListOf(arrow.BinaryTypes.String), Nullable: true},
		{Name: "v", Type: arrow.ListOf(arrow.PrimitiveTypes.Float32), Nullable: true},
	}, nil)
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, strings.NewReader(`[{"s":"abc","i":1,"b":true,"n":7,"w":["a","bc"],"v":[1,0.5]},
		{"s":null,"i":null,"b":null,"n":null,"w":null,"v":null},{"s":"","i":3,"b":false,"n":-1,"w":[],"v":[2]}]`))
	if err != nil {
		t.Fatal(err)
	}
	var pipe bytes.Buffer
	out := NewWriter(&pipe).Records(schema)
	if err := errors.Join(out.Write(rec), out.Close()); err != nil {
		t.Fatal(err)
	}
	whole, refused := pipe.Bytes(), 0
	for i := range whole {
		for _, mask := range []byte{0x01, 0x40, 0x80, 0xff} {
			bent := bytes.Clone(whole)
			bent[i] ^= mask
			rows, err := NewReader(bytes.NewReader(bent)).Records()
			if err != nil {
				refused++
				continue
			}
			touch(rows)
			if rows.Err() != nil {
				refused++
			}
		}
	}
	rows, err := NewReader(bytes.NewReader(whole)).Records()
	if err != nil || touch(rows) == 0 || rows.Err() != nil || refused == 0 {
		t.Fatal(err, refused)
	}
}

// script is a launcher of a shell script.
type script string

func (s script) Launch(ctx context.Context, _ string, _ LaunchOptions) (Process, error) {
	return Plain{exec.CommandContext(ctx, "/bin/sh", "-c", string(s))}, nil
}

func TestDeathsAreExplained(t *testing.T) {
	for _, c := range []struct {
		script string
		kind   fault.Kind
		want   string
	}{
		{"exit 0", fault.Internal, "ended early"},
		{"echo went wrong >&2; exit 3", fault.Internal, "went wrong"},
		{"kill -KILL $$", fault.Exhausted, "exceeded its limits"},
		{"kill -XCPU $$", fault.Exhausted, "exceeded its limits"},
		{"echo fatal error: runtime: out of memory >&2; exit 2", fault.Exhausted, "ran out of memory"},
		{"echo terminate called after throwing an instance of std::bad_alloc >&2; kill -ABRT $$", fault.Exhausted, "ran out of memory"},
		{"kill -SEGV $$", fault.Invalid, "crashed"},
		{"exit 134", fault.Invalid, "crashed"},
		{"echo SIGSEGV: segmentation violation >&2; exit 2", fault.Invalid, "crashed"},
		{"echo panic: index out of range >&2; exit 2", fault.Invalid, "crashed"},
		{"echo this is not the protocol at all", fault.Invalid, "an invalid message"},
	} {
		s, err := Start(t.Context(), script(c.script), "test", LaunchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		err = s.Explain(t.Context(), s.Out.Header(new(string)))
		if !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v (%v), want %q", c.script, err, fault.KindOf(err), c.want)
		}
		s.Close()
		s.Close()
	}
}

func TestCloseKills(t *testing.T) {
	s, err := Start(t.Context(), script("echo started >&2; exec sleep 1000"), "test", LaunchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if p := s.proc.Command().ProcessState; p == nil || p.Success() {
		t.Errorf("the child ended by itself: %v", p)
	}
}

func TestTimeOut(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	s, err := Start(ctx, script("exec sleep 1000"), "test", LaunchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = s.Explain(ctx, s.Out.Header(new(string)))
	if !fault.Is(err, fault.Timeout) {
		t.Errorf("got %v", err)
	}
}

func TestLaunchFails(t *testing.T) {
	if _, err := Start(t.Context(), broken{}, "test", LaunchOptions{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

type broken struct{}

func (broken) Launch(ctx context.Context, _ string, _ LaunchOptions) (Process, error) {
	return Plain{exec.CommandContext(ctx, "/does/not/exist")}, nil
}

// unstartable is a process that cannot be confined.
type unstartable struct{ Plain }

func (unstartable) Start() error { return errors.New("no namespaces") }

type launchUnstartable struct{}

func (launchUnstartable) Launch(ctx context.Context, _ string, _ LaunchOptions) (Process, error) {
	return unstartable{Plain{exec.CommandContext(ctx, "/bin/true")}}, nil
}

// TestAProcessThatDoesNotStartLeavesNothingOpen counts the pipes, which nobody collects
// meanwhile. Earlier tests may close theirs meanwhile.
func TestAProcessThatDoesNotStartLeavesNothingOpen(t *testing.T) { //nolint:paralleltest // It counts the descriptors of all tests.
	pipes := func() (n int) {
		t.Helper()
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "pipe:") {
				n++
			}
		}
		return n
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection closes files that nobody has
	before := pipes()
	for range 20 {
		if _, err := Start(t.Context(), launchUnstartable{}, "parser", LaunchOptions{}); err == nil {
			t.Fatal("it started")
		}
	}
	if after := pipes(); after > before {
		t.Errorf("%d pipes are open, %d were before", after, before)
	}
}
