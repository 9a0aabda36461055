// Package s3 reads objects of S3 and what speaks its protocol.
package s3

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/objects"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Driver implements source.Driver.
type Driver struct{}

var _ source.Driver = Driver{}

// Check implements source.Driver.
func (Driver) Check(r source.Request) error {
	o := *r.From.S3
	if o.Endpoint == "" || o.Bucket == "" || strings.ContainsAny(o.Endpoint, "/ @") {
		return fault.New(fault.Invalid, "spec.from.s3: endpoint (host or host:port) and bucket are required")
	}
	if err := s3utils.CheckValidBucketNameStrict(o.Bucket); err != nil {
		return fault.New(fault.Invalid, "spec.from.s3.bucket: %v", err)
	}
	if err := source.CheckTLS("spec.from.s3.tls", o.TLS); err != nil {
		return err
	}
	if err := objects.Check("s3", o.Match, o.Format, r); err != nil {
		return err
	}
	return r.Access.Allowed(address(o))
}

func address(o source.S3) string {
	switch {
	case strings.Contains(o.Endpoint, ":"):
		return o.Endpoint
	case o.TLS == source.TLSOff:
		return o.Endpoint + ":80"
	}
	return o.Endpoint + ":443"
}

// Open implements source.Driver.
func (Driver) Open(ctx context.Context, r source.Request) (source.Reader, error) {
	o := *r.From.S3
	host, _, err := net.SplitHostPort(address(o))
	if err != nil {
		return nil, fault.New(fault.Invalid, "spec.from.s3.endpoint: %q is not host:port", o.Endpoint)
	}
	secure, err := source.TLS(o.TLS, host, r.Secret)
	if err != nil {
		return nil, err
	}
	transport := r.Access.Transport(secure)
	c, err := minio.NewCore(o.Endpoint, &minio.Options{
		Creds:  credentials.NewStaticV4(r.Secret["access_key"].Reveal(), r.Secret["secret_key"].Reveal(), ""), // nobody's without them
		Secure: secure != nil, Region: region(o), Transport: transport, MaxRetries: 3,
		BucketLookup: minio.BucketLookupPath, // one host, which is allowed, instead of one for each bucket
	})
	if err != nil {
		return nil, fault.New(fault.Invalid, "spec.from.s3: %v", err)
	}
	c.SetS3EnableDualstack(false) // the same: minio-go would ask another host of Amazon's
	return objects.Open(ctx, &bucket{c: c, o: o, transport: transport}, o.Format, r)
}

// region is the one that requests are signed for: of the manifest, of an address
// of Amazon's, or what other servers take.
func region(o source.S3) string {
	if o.Region != "" {
		return o.Region
	}
	if named := s3utils.GetRegionFromURL(url.URL{Host: o.Endpoint}); named != "" {
		return named
	}
	return "us-east-1"
}

type bucket struct {
	c         *minio.Core
	o         source.S3
	transport *http.Transport
}

// List implements objects.Bucket.
func (b *bucket) List(ctx context.Context) (objects.Listing, error) {
	ctx, cancel := context.WithCancel(ctx) // ends the listing when it is not read to its end
	defer cancel()
	out := objects.Listing{}
	for info := range b.c.Client.ListObjects(ctx, b.o.Bucket, minio.ListObjectsOptions{Prefix: b.o.Prefix, Recursive: strings.Contains(b.o.Match, "/")}) {
		if info.Err != nil {
			return nil, b.explain(b.o.Bucket, info.Err)
		}
		if !objects.Match(b.o.Match, strings.TrimPrefix(info.Key, b.o.Prefix)) {
			continue
		}
		if out[info.Key] = info.ETag; len(out) > objects.MaxFiles {
			return nil, fault.New(fault.TooLarge, "there are more than %d objects", objects.MaxFiles).WithHint("Narrow spec.from.s3.prefix or match.")
		}
	}
	return out, ctx.Err()
}

// Open implements objects.Bucket.
func (b *bucket) Open(ctx context.Context, name string) (io.ReadCloser, string, error) {
	body, info, _, err := b.c.GetObject(ctx, b.o.Bucket, name, minio.GetObjectOptions{})
	if err != nil {
		return nil, "", b.explain(name, err)
	}
	return &object{body, func(err error) error { return b.explain(name, err) }}, info.ETag, nil
}

// object is a body whose errors are in words: a connection may break in its middle.
type object struct {
	io.ReadCloser
	explain func(error) error
}

func (o *object) Read(p []byte) (int, error) {
	n, err := o.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = o.explain(err)
	}
	return n, err
}

// Close implements objects.Bucket.
func (b *bucket) Close() error {
	b.transport.CloseIdleConnections()
	return nil
}

func (b *bucket) explain(name string, err error) error {
	if known, ok := errors.AsType[*fault.Error](err); ok {
		return known
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	if said, ok := errors.AsType[minio.ErrorResponse](err); ok {
		switch code := said.StatusCode; {
		case said.Code == "NoSuchBucket", said.Code == "NoSuchKey":
			return fault.New(fault.NotFound, "there is no %s in bucket %s at %s", name, b.o.Bucket, b.o.Endpoint)
		case code == http.StatusMovedPermanently, said.Code == "AuthorizationHeaderMalformed":
			return fault.New(fault.Invalid, "%s: the bucket %s is in another region than %s", b.o.Endpoint, b.o.Bucket, region(b.o)).
				WithHint("Set spec.from.s3.region, and the endpoint of that region.")
		case code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests:
			return fault.New(fault.Invalid, "%s rejected the request: %s", b.o.Endpoint, said.Message).
				WithHint("Check access_key and secret_key in the secret, and their read permissions.")
		}
	}
	if said := source.Unreachable(b.o.Endpoint, err); said != nil {
		return said
	}
	return fault.New(fault.Unavailable, "%s: %w", b.o.Endpoint, err)
}
