package s3_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/minio/minio-go/v7"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/s3"
	"github.com/falaj-ml/falaj/internal/dataset/source/sourcetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
)

func TestS3(t *testing.T) {
	at, ca := sourcetest.S3(t)
	c := sourcetest.S3Client(t, at, ca).Client
	request := func(bucket string) source.Request {
		return source.Request{
			From:   source.From{S3: &source.S3{Endpoint: at, Bucket: bucket}},
			Secret: map[string]secrets.Text{"access_key": secrets.NewText(sourcetest.S3User), "secret_key": secrets.NewText(sourcetest.S3Password), "ca": secrets.NewText(string(ca))},
			Access: source.Access{Hosts: []string{at}},
		}
	}
	var n atomic.Int64
	sourcetest.Objects(t, func(t *testing.T) sourcetest.Bucket {
		t.Helper()
		name := "rows-" + strconv.FormatInt(n.Add(1), 10)
		if err := c.MakeBucket(t.Context(), name, minio.MakeBucketOptions{}); err != nil {
			t.Fatal(err)
		}
		put := func(t *testing.T, key string, content []byte) {
			t.Helper()
			if _, err := c.PutObject(t.Context(), name, key, bytes.NewReader(content), int64(len(content)), minio.PutObjectOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		put(t, "elsewhere.csv", []byte("id,name\n96,no\n"))
		return sourcetest.Bucket{
			Driver: s3.Driver{},
			Request: func(match string, f source.Format) source.Request {
				r := request(name)
				r.From.S3.Prefix, r.From.S3.Match, r.From.S3.Format = "in/", match, f
				return r
			},
			Put: func(t *testing.T, key string, content []byte) {
				t.Helper()
				put(t, "in/"+key, content)
			},
			Remove: func(t *testing.T, key string) {
				t.Helper()
				if err := c.RemoveObject(t.Context(), name, "in/"+key, minio.RemoveObjectOptions{}); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
	for name, w := range map[string]struct {
		kind   fault.Kind
		change func(r *source.Request)
	}{
		"a bucket that is not there": {fault.NotFound, func(r *source.Request) { r.From.S3.Bucket = "nix" }},
		"no bucket's name":           {fault.Invalid, func(r *source.Request) { r.From.S3.Bucket = "No Name" }},
		"a wrong key":                {fault.Invalid, func(r *source.Request) { r.Secret["secret_key"] = secrets.NewText("wrong") }},
		"an unknown user":            {fault.Invalid, func(r *source.Request) { r.Secret["access_key"] = secrets.NewText("nobody") }},
		"no key":                     {fault.Invalid, func(r *source.Request) { r.Secret = nil }},
		"a host that is not allowed": {fault.PermissionDenied, func(r *source.Request) { r.From.S3.Endpoint = "elsewhere:1" }},
		"an endpoint with a path":    {fault.Invalid, func(r *source.Request) { r.From.S3.Endpoint += "/in" }},
		"nobody listens":             {fault.Unavailable, func(r *source.Request) { r.From.S3.Endpoint, r.Access.Hosts = "127.0.0.1:1", []string{"127.0.0.1"} }},
		"an authority not trusted":   {fault.Invalid, func(r *source.Request) { delete(r.Secret, "ca") }},
		"an unknown way of TLS":      {fault.Invalid, func(r *source.Request) { r.From.S3.TLS = "maybe" }},
	} {
		t.Run(name, func(t *testing.T) {
			r := request("rows-1")
			r.Mode, r.Parser = source.Full, sourcetest.Parser{}
			w.change(&r)
			sourcetest.Refused(t, s3.Driver{}, r, w.kind)
		})
	}
}

// A connection that breaks in the middle of an object passes, and the empty objects
// that consoles show as directories are no files.
func TestAConnectionThatBreaks(t *testing.T) {
	var cut atomic.Bool
	content := "id\n" + strings.Repeat("1\n", 100_000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("list-type") {
			_, _ = io.WriteString(w, `<?xml version="1.0"?><ListBucketResult><Name>rows</Name><Prefix>in/</Prefix><IsTruncated>false</IsTruncated>`+
				`<Contents><Key>in/</Key><ETag>"0"</ETag><Size>0</Size></Contents><Contents><Key>in/2024/</Key><ETag>"0"</ETag><Size>0</Size></Contents>`+
				`<Contents><Key>in/a.csv</Key><ETag>"1"</ETag><Size>1</Size></Contents></ListBucketResult>`)
			return
		}
		if r.URL.Path != "/rows/in/a.csv" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.Header().Set("ETag", `"1"`)
		w.Header().Set("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		if cut.Load() {
			_, _ = io.WriteString(w, content[:len(content)/2])
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, content)
	}))
	defer server.Close()
	at := server.Listener.Addr().String()
	r := source.Request{
		From:   source.From{S3: &source.S3{Endpoint: at, Bucket: "rows", Prefix: "in/", TLS: source.TLSOff}},
		Access: source.Access{Hosts: []string{at}}, Mode: source.Full, BatchRows: 1000, Parser: sourcetest.Parser{},
	}
	for _, match := range []string{"", "*"} {
		r.From.S3.Match = match
		if rows, _, _, _ := sourcetest.ReadAll(t, s3.Driver{}, r); len(rows) != 100_000 {
			t.Errorf("match %q: read %d rows", match, len(rows))
		}
	}
	cut.Store(true)
	in, err := s3.Driver{}.Open(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for err == nil {
		var rec arrow.RecordBatch
		if rec, _, err = in.Next(t.Context()); rec != nil {
			rec.Release()
		}
	}
	if !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v (%v)", err, fault.KindOf(err))
	}
}
