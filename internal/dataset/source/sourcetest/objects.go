package sourcetest

import (
	"bytes"
	"compress/gzip"
	"path"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/twmb/avro"
	"github.com/twmb/avro/ocf"

	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Bucket is an empty place for files with a driver for it.
type Bucket struct {
	Driver source.Driver
	// Request reads the files that match; the suite sets the mode and the rest.
	Request func(match string, f source.Format) source.Request
	Put     func(t *testing.T, name string, content []byte)
	Remove  func(t *testing.T, name string)
}

// Pack is content as a file of that name has it.
func Pack(t *testing.T, name, content string) []byte {
	t.Helper()
	switch path.Ext(name) {
	case ".gz":
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, _ = w.Write([]byte(content))
		_ = w.Close()
		return out.Bytes()
	case ".zst":
		w, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		return w.EncodeAll([]byte(content), nil)
	}
	return []byte(content)
}

// container is an Avro file of rows with id and name, packed by deflate.
func container(t *testing.T, rows ...map[string]any) []byte {
	t.Helper()
	schema := avro.MustParse(`{"type": "record", "name": "row", "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}]}`)
	var out bytes.Buffer
	w, err := ocf.NewWriter(&out, schema, ocf.WithCodec(ocf.DeflateCodec(-1)))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if err := w.Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// Objects is the suite for drivers of files. Each call of open makes a place.
func Objects(t *testing.T, open func(t *testing.T) Bucket) {
	t.Helper()
	request := func(b Bucket, mode source.Mode, match string, f source.Format) source.Request {
		r := b.Request(match, f)
		r.Mode, r.BatchRows, r.Parser, r.Parsing = mode, 2, Parser{}, source.Parsing{Nulls: []string{""}}
		return r
	}
	put := func(t *testing.T, b Bucket, name, content string) {
		t.Helper()
		b.Put(t, name, Pack(t, name, content))
	}
	rows := func(t *testing.T, b Bucket, r source.Request, want ...Row) source.Position {
		t.Helper()
		got, until, _, schema := ReadAll(t, b.Driver, r)
		if !slices.Equal(got, want) || (schema == nil) != (len(want) == 0) {
			t.Fatalf("read %v, want %v (%v)", got, want, schema)
		}
		return until
	}
	t.Run("all forms", func(t *testing.T) {
		b := open(t)
		put(t, b, "a.csv", "id,name\n1,x\n2,y\n")
		put(t, b, "b.csv.gz", "id,name\n3,z\n")
		put(t, b, "c.csv.zst", "id,name\n4,u\n5,v\n6,w\n")
		put(t, b, "d.jsonl", "{\"id\": 7, \"name\": \"k\"}\n\n{\"id\": 8}\n")
		put(t, b, "e.jsonl.gz", "{\"id\": 9, \"name\": \"l\"}\n")
		b.Put(t, "f.avro", container(t, map[string]any{"id": int64(10), "name": "m"}, map[string]any{"id": int64(11), "name": nil}))
		put(t, b, ".hidden.csv", "id,name\n99,no\n")
		put(t, b, "sub/f.csv", "id,name\n98,no\n")
		put(t, b, "sub/.hidden.csv", "id,name\n97,no\n")
		put(t, b, "tab/g.tsv", "id\tname\n1\ta,b\n")
		want := []Row{"1|x", "2|y", "3|z", "4|u", "5|v", "6|w", "7|k", "8|null", "9|l", "10|m", "11|null"}
		r := request(b, source.Full, "", "")
		rows(t, b, r, want...)
		r.BatchRows = 1
		_, until, after, _ := ReadAll(t, b.Driver, r)
		for i, at := range after {
			again := r
			again.Resume, again.Until, again.Begun = at, until, true
			if rest, _, _, _ := ReadAll(t, b.Driver, again); !slices.Equal(rest, want[i+1:]) {
				t.Errorf("after row %d: %v", i, rest)
			}
		}
		rows(t, b, request(b, source.Full, "sub/*.csv", ""), "98|no")
		rows(t, b, request(b, source.Full, "*/*.tsv", "tsv"), "1|a,b")
	})
	t.Run("types and layout of all files", func(t *testing.T) {
		b := open(t)
		put(t, b, "1.csv", "a title\nid;name;price\n1;x;1,5\n")
		put(t, b, "2.csv", "a title\nid;name;price\n;y;\n") // null throughout
		put(t, b, "3.csv", "a title\nid;name;price\n3;z;1.000,25\n")
		r := request(b, source.Full, "", "")
		r.Parsing = source.Parsing{Nulls: []string{""}, Delimiter: ";", CSV: &parser.Layout{SkipLines: 1, Decimal: ",", Thousands: "."}}
		rows(t, b, r, "1|x|1.5", "null|y|null", "3|z|1000.25")
		r.Parsing.LeaveOut = []string{"price"}
		rows(t, b, r, "1|x", "null|y", "3|z")
		put(t, b, "4.csv", "a title\nid;name;price\n007;z;1\n")
		_ = wantLast(t, b.Driver, r, "4.csv", "id")
		b.Remove(t, "4.csv")
		put(t, b, "4.csv", "a title\nid;name;price;late\n4;u;1;2,5\n")
		_ = wantLast(t, b.Driver, r, "4.csv", "columns")
		r.Declared, r.Parsing.Optional = []source.Column{{Name: "late", Type: table.Float64}}, []string{"late"}
		rows(t, b, r, "1|x|null", "null|y|null", "3|z|null", "4|u|2.5")
	})
	t.Run("new files only", func(t *testing.T) {
		b := open(t)
		r := request(b, source.Incremental, "", "")
		r.After = rows(t, b, r)
		put(t, b, "2.csv", "id\n2\n")
		r.After = rows(t, b, r, "2")
		r.After = rows(t, b, r)
		put(t, b, "1.csv", "id\n1\n")
		put(t, b, "3.csv", "id\n3\n")
		r.After = rows(t, b, r, "1", "3")
		b.Remove(t, "1.csv")
		r.After = rows(t, b, r)
		put(t, b, "2.csv", "id\n2\n22\n")
		Refused(t, b.Driver, r, fault.Conflict, "2.csv", "--anew")
		r.Key = []string{"id"}
		rows(t, b, r, "2", "22")
	})
	t.Run("a file that changes meanwhile", func(t *testing.T) {
		b := open(t)
		put(t, b, "1.csv", "id\n1\n")
		put(t, b, "2.csv", "id\n2\n")
		r := request(b, source.Full, "", "")
		_, until, after, _ := ReadAll(t, b.Driver, r)
		put(t, b, "2.csv", "id\n3\n4\n")
		r.Resume, r.Until, r.Begun = after[0], until, true
		in, err := b.Driver.Open(t.Context(), r)
		if err == nil {
			_, _, err = in.Next(t.Context())
			_ = in.Close()
		}
		if !fault.Is(err, fault.Conflict) {
			t.Errorf("%v", err)
		}
	})
	t.Run("what is wrong is said", func(t *testing.T) {
		b := open(t)
		Refused(t, b.Driver, request(b, source.Full, "", ""), fault.NotFound, "no file")
		Refused(t, b.Driver, request(b, source.Full, "[", ""), fault.Invalid, "pattern")
		Refused(t, b.Driver, request(b, source.Full, "", "xls"), fault.Invalid, "xls")
		r := request(b, source.Full, "", "")
		r.Cursor = "id"
		Refused(t, b.Driver, r, fault.Invalid, "cursor")
		put(t, b, "1.csv", "id,name\n1,x\n")
		put(t, b, "2.csv", "id\n1\n")
		_ = wantLast(t, b.Driver, request(b, source.Full, "", ""), "2.csv", `no column "name"`)
	})
}
