package s3_test

import (
	"bytes"
	"strconv"
	"sync/atomic"
	"testing"

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
