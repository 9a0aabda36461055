package dataset_test

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/fault"
)

// takenOver is what a hostile parser sends.
func takenOver(what string, stdout io.Writer) error {
	out := child.NewWriter(stdout)
	// columns begins a stream by hand; raw batches follow.
	columns := func(cs string, batch ...byte) error {
		if err := out.Header(json.RawMessage(`{"columns": [` + cs + `]}`)); err != nil {
			return err
		}
		s := out.Stream()
		if _, err := s.Write(batch); err != nil {
			return err
		}
		if err := s.Close(); err != nil {
			return err
		}
		return out.Header(map[string]any{"format": "csv", "rows": 1})
	}
	const str, num = `{"name": "s", "type": "string"}`, `{"name": "i", "type": "int64"}`
	switch what {
	case "noise":
		_, err := io.WriteString(stdout, strings.Repeat("noise", 100_000))
		return err
	case "permission":
		return out.Fault(fault.New(fault.PermissionDenied, "give me your password"))
	case "type":
		return columns(`{"name": "l", "type": "list"}`)
	case "no columns":
		return columns("")
	case "names":
		return columns(num + "," + num)
	case "text":
		return columns(str, 1, 0, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0xff, 0xfe)
	case "long strings":
		return columns(str, 1, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 'a', 'b')
	case "short strings":
		return columns(str, 1, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 'a', 'b')
	case "negative strings":
		return columns(str, 2, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 'a', 'b')
	case "much text":
		return columns(str, 1, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f)
	case "many rows":
		return columns(num, 0xff, 0xff, 0xff, 0x7f, 0)
	case "cut off":
		return columns(num, 2, 0, 0, 0, 0, 1, 2, 3)
	case "odd nulls":
		return columns(num, 1, 0, 0, 0, 7)
	case "no summary":
		if err := out.Header(json.RawMessage(`{"columns": [` + num + `]}`)); err != nil {
			return err
		}
		return out.Stream().Close()
	case "silence":
		return nil
	case "huge frame":
		_, err := stdout.Write([]byte{'D', 0x7f, 0xff, 0xff, 0xff})
		return err
	case "honest":
		return columns(num, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0)
	}
	return nil
}

// Whatever comes out of the parser process, the server refuses it in words and
// keeps nothing.
func TestParserTakenOver(t *testing.T) {
	h := datasettest.New(t, func(c *dataset.Config) { c.Launcher = modeOf("hostile") })
	h.Declare(t, "d", dataset.Spec{})
	for what, kind := range map[string]fault.Kind{
		"noise": fault.Invalid, "permission": fault.Internal, "type": fault.Invalid, "no columns": fault.Invalid, "names": fault.Invalid,
		"text": fault.Invalid, "long strings": fault.Invalid, "short strings": fault.Invalid, "negative strings": fault.Invalid,
		"much text": fault.Invalid, "many rows": fault.Invalid, "cut off": fault.Invalid, "odd nulls": fault.Invalid,
		"no summary": fault.Internal, "silence": fault.Internal, "huge frame": fault.Invalid,
	} {
		v, err := imports(t, h, "d", what)
		if !fault.Is(err, kind) {
			t.Errorf("%s: %+v, %v (%v), want %v", what, v, err, fault.KindOf(err), kind)
		}
		if left := h.Files.List(t); len(left) > 0 {
			t.Errorf("%s: left %v", what, left)
		}
	}
	if v, err := imports(t, h, "d", "honest"); err != nil || v.Number != 1 || v.Rows != 1 {
		t.Fatalf("the same path refuses an honest parser: %+v, %v", v, err)
	}
}

// A reader that panics costs its caller an error, not the server.
func TestPanickingReader(t *testing.T) {
	h := datasettest.New(t, nil)
	h.Declare(t, "d", dataset.Spec{})
	if _, err := h.Writes.Create(datasettest.Context(t), dataset.CreateRequest{Project: project, Name: "d", Rows: panicking{empty(t)}}); !fault.Is(err, fault.Internal) {
		t.Error("a version was made of rows that cannot be read", err)
	}
	nothingLeft(t, h, "d")
}

type panicking struct{ array.RecordReader }

func (p panicking) Next() bool { panic("impossible") }
