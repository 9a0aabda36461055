// Package s3blob keeps objects in a bucket of S3, or of what speaks its protocol.
//
// # Map
//
//   - s3blob.go: Config, Open, Check, Claim, List, Delete.
//   - put.go: writing, whole or in parts. object.go: reading.
//
// # Life of a put
//
// An object of one part is sent by one request. A larger one is an upload in parts:
// nobody sees it before the request that completes it. Each request carries the
// SHA-256 of its body, so that the server refuses what changed on the way. When the
// answer to the last request is lost, the object says by a mark of this put in its
// metadata whether it is there. A killed process leaves at most an upload that was
// not completed, which nobody reads; the next Open gives it up.
//
// # Layout
//
// An object "a/b" is "PREFIX/a/b!": servers that keep objects as files cannot have
// an object where they have a directory, and '!' is less than every byte of a key,
// so that their order stays. ",installation" says whose the prefix is.
//
// # Guarantees
//
// Those of blob.Driver, as far as the server keeps what it has acknowledged and a
// read sees the last write, which S3 promises. An object that is replaced while it is
// read is not mixed: reading fails. Every request has a time limit, and is tried
// again when the server is busy or the network fails. A bucket that keeps older
// versions is refused: what is deleted must be gone.
package s3blob

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
)

const (
	suffix       = "!"             // of the names of objects; in no key, and before every byte of one
	installation = ",installation" // in no key either
	maxPrefixes  = 1000            // right below ours that are asked whose they are
	maxName      = 1024            // bytes of a name in a bucket
	tries        = 5
)

// Config says where the bucket is. Endpoint, Bucket and the keys are needed.
type Config struct {
	Endpoint  string // https://host[:port]; http:// to this machine only
	Bucket    string
	Prefix    string // of all names; a key, or empty
	Region    string // empty is what the endpoint's name says, else us-east-1
	AccessKey string
	SecretKey string
	CA        []byte // PEM that is trusted instead of the system's authorities
	// Keys and Roots say what the keys and the authorities are now, for each request and
	// each connection, instead of AccessKey, SecretKey and CA; nil is as these say.
	Keys     func() (access, secret string)
	Roots    func() *x509.CertPool
	PartSize int64 // of the first parts of large objects; 0 is 16 MiB
}

// Driver is a blob.Driver on a bucket. Safe for concurrent use; Close it.
type Driver struct {
	c         minio.Core
	transport *http.Transport
	cfg       Config
	prefix    string // empty or ends in '/'
}

var _ blob.Driver = (*Driver)(nil)

// Open looks at the bucket as Check does, and gives up the uploads that a killed
// process left unfinished. So one process at a time may have the prefix. Error:
// fault.Conflict when another installation's prefix is within this one, or this one
// within that: each would take the other's objects for its own.
func Open(ctx context.Context, cfg Config) (*Driver, error) {
	d, err := dial(ctx, cfg)
	if err != nil {
		return nil, err
	}
	err = d.alone(ctx)
	if err == nil {
		err = d.clean(ctx)
	}
	if err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

// Look opens the bucket and leaves the uploads in it alone, which may be another's.
func Look(ctx context.Context, cfg Config) (*Driver, error) { return dial(ctx, cfg) }

// Check asks for the bucket and changes nothing. Errors: fault.Invalid for wrong
// settings, or a bucket that keeps older versions; fault.Unavailable.
func Check(ctx context.Context, cfg Config) error {
	d, err := dial(ctx, cfg)
	if err != nil {
		return err
	}
	return d.Close()
}

// CheckConfig says what is wrong with the settings, without asking anybody.
func CheckConfig(cfg Config) error {
	u, err := url.Parse(cfg.Endpoint)
	switch {
	case err != nil || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http":
		return fault.New(fault.Invalid, "endpoint: %q is not https://host or https://host:port", cfg.Endpoint)
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return fault.New(fault.Invalid, "endpoint: %s is a remote host, which requires TLS", u.Host).WithHint("Use https://, and set ca to the certificate of a private authority.")
	}
	if err := s3utils.CheckValidBucketNameStrict(cfg.Bucket); err != nil {
		return fault.New(fault.Invalid, "bucket: %v", err)
	}
	if p := strings.Trim(cfg.Prefix, "/"); p != "" {
		if err := blob.CheckKey(blob.Key(p)); err != nil {
			return fault.Wrap(err, "prefix")
		}
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func dial(ctx context.Context, cfg Config) (*Driver, error) {
	if err := CheckConfig(cfg); err != nil {
		return nil, err
	}
	u, _ := url.Parse(cfg.Endpoint) // checked
	if cfg.Region == "" {
		if cfg.Region = s3utils.GetRegionFromURL(url.URL{Host: u.Host}); cfg.Region == "" {
			cfg.Region = "us-east-1"
		}
	}
	if cfg.PartSize == 0 {
		cfg.PartSize = 16 << 20
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(cfg.CA) > 0 {
		secure.RootCAs = x509.NewCertPool()
		if !secure.RootCAs.AppendCertsFromPEM(cfg.CA) {
			return nil, fault.New(fault.Invalid, "ca: the file contains no PEM certificate")
		}
	}
	if cfg.Keys == nil {
		cfg.Keys = func() (access, secret string) { return cfg.AccessKey, cfg.SecretKey }
	}
	d := &Driver{cfg: cfg, transport: &http.Transport{
		DialContext: connect, TLSClientConfig: secure, TLSHandshakeTimeout: 10 * time.Second,
		ResponseHeaderTimeout: 2 * time.Minute, // the completion of a large upload takes a while
		MaxIdleConnsPerHost:   32, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 1 << 20,
		DisableCompression: true,
	}}
	if cfg.Roots != nil {
		d.transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			return connectTLS(ctx, network, address, secure, cfg.Roots())
		}
	}
	if p := strings.Trim(cfg.Prefix, "/"); p != "" {
		d.prefix = p + "/"
	}
	c, err := minio.NewCore(u.Host, &minio.Options{
		Creds: credentials.New(&keys{now: cfg.Keys}), Secure: u.Scheme == "https", Region: cfg.Region, Transport: d.transport,
		MaxRetries: tries, BucketLookup: minio.BucketLookupPath, // one host for every bucket
	})
	if err != nil {
		return nil, fault.New(fault.Invalid, "endpoint: %v", err)
	}
	c.SetS3EnableDualstack(false) // the same: minio-go would ask another host of Amazon's
	d.c = *c
	if err := d.look(ctx); err != nil {
		_ = d.Close()
		return nil, d.located(err)
	}
	return d, nil
}

// keys gives minio-go the keys that are in force.
type keys struct {
	now  func() (access, secret string)
	mu   sync.Mutex
	used [2]string
}

// Retrieve implements credentials.Provider.
func (k *keys) Retrieve() (credentials.Value, error) {
	access, secret := k.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.used = [2]string{access, secret}
	return credentials.Value{AccessKeyID: access, SecretAccessKey: secret, SignerType: credentials.SignatureV4}, nil
}

// RetrieveWithCredContext implements credentials.Provider.
func (k *keys) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	return k.Retrieve()
}

// IsExpired implements credentials.Provider.
func (k *keys) IsExpired() bool {
	access, secret := k.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.used != [2]string{access, secret}
}

// patient is a connection on which nothing may stand still for long.
type patient struct{ net.Conn }

const stall = 5 * time.Minute

func connect(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return patient{c}, nil
}

// connectTLS connects to a server that one of the roots vouches for.
func connectTLS(ctx context.Context, network, address string, secure *tls.Config, roots *x509.CertPool) (net.Conn, error) {
	conn, err := connect(ctx, network, address)
	if err != nil {
		return nil, err
	}
	secure = secure.Clone()
	secure.RootCAs = roots
	if secure.ServerName, _, err = net.SplitHostPort(address); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client := tls.Client(conn, secure)
	if err := client.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return client, nil
}

// Read implements net.Conn.
func (c patient) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(stall)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// Write implements net.Conn.
func (c patient) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(stall)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// look refuses a bucket that is not there or keeps older versions.
func (d *Driver) look(ctx context.Context) error {
	ctx, cancel := limit(ctx, 0)
	defer cancel()
	kept, err := d.c.GetBucketVersioning(ctx, d.cfg.Bucket)
	if code := minio.ToErrorResponse(err).StatusCode; code == http.StatusNotImplemented || code == http.StatusMethodNotAllowed { // it knows no versions
		var there bool
		if there, err = d.c.BucketExists(ctx, d.cfg.Bucket); err == nil && !there {
			return fault.New(fault.Unavailable, "check the bucket: bucket %s does not exist", d.cfg.Bucket).WithHint("Create the bucket, or correct blob.s3 in the configuration.")
		}
	}
	if err != nil {
		return d.explain(ctx, err, "check the bucket")
	}
	if kept.Enabled() {
		return fault.New(fault.Invalid, "bucket %s has versioning enabled, which would keep deleted objects, including those of erased persons", d.cfg.Bucket).
			WithHint("Suspend versioning and remove old versions, or use another bucket.")
	}
	return nil
}

// Ask asks for the bucket once, and for no longer than ctx. Error: fault.Unavailable.
func (d *Driver) Ask(ctx context.Context) error { return d.look(ctx) }

// Close ends the connections.
func (d *Driver) Close() error {
	d.transport.CloseIdleConnections()
	return nil
}

// clean gives up the uploads of objects that were never completed; those of other
// programs, which have other names, stay.
func (d *Driver) clean(ctx context.Context) error {
	key, upload := "", ""
	for {
		page, err := d.uploads(ctx, key, upload)
		if err != nil {
			return d.explain(ctx, err, "list unfinished uploads")
		}
		for _, u := range page.Uploads {
			key, ours := strings.CutSuffix(strings.TrimPrefix(u.Key, d.prefix), suffix)
			if !ours || blob.CheckKey(blob.Key(key)) != nil {
				continue
			}
			if err := d.giveUp(ctx, u.Key, u.UploadID); err != nil {
				return d.explain(ctx, err, "abort an unfinished upload")
			}
		}
		if !page.IsTruncated || page.NextKeyMarker == key && page.NextUploadIDMarker == upload {
			return nil
		}
		key, upload = page.NextKeyMarker, page.NextUploadIDMarker
	}
}

func (d *Driver) uploads(ctx context.Context, key, upload string) (minio.ListMultipartUploadsResult, error) {
	ctx, cancel := limit(ctx, 0)
	defer cancel()
	return d.c.ListMultipartUploads(ctx, d.cfg.Bucket, d.prefix, key, upload, "", 1000)
}

func (d *Driver) giveUp(ctx context.Context, name, upload string) error {
	ctx, cancel := limit(ctx, 0)
	defer cancel()
	if err := d.c.AbortMultipartUpload(ctx, d.cfg.Bucket, name, upload); !absent(err) {
		return err
	}
	return nil
}

// alone refuses a prefix above or below which somebody has claimed one.
func (d *Driver) alone(ctx context.Context) error {
	var others []string
	for at, rest, more := "", strings.TrimSuffix(d.prefix, "/"), d.prefix != ""; more; {
		others = append(others, at)
		var part string
		part, rest, more = strings.Cut(rest, "/")
		at += part + "/"
	}
	ended, stop := context.WithCancel(ctx)
	defer stop()
	for info := range d.c.ListObjectsIter(ended, d.cfg.Bucket, minio.ListObjectsOptions{Prefix: d.prefix}) {
		if info.Err != nil {
			return d.explain(ctx, info.Err, "search for other installations")
		}
		if strings.HasSuffix(info.Key, "/") && len(others) < maxPrefixes {
			others = append(others, info.Key)
		}
	}
	for _, other := range others {
		_, _, err := d.fetch(ctx, other+installation, func(*minio.GetObjectOptions) {}, 200)
		switch {
		case absent(err):
		case err != nil:
			return d.explain(ctx, err, "search for other installations")
		default:
			return fault.New(fault.Conflict, "%s in bucket %s and that of another installation, %q, overlap", d.where(), d.cfg.Bucket, other).
				WithHint("Choose a prefix such that neither is a prefix of the other.")
		}
	}
	return nil
}

// Owner is who has claimed the prefix, empty when nobody has.
func (d *Driver) Owner(ctx context.Context) (string, error) {
	b, _, err := d.fetch(ctx, d.prefix+installation, func(*minio.GetObjectOptions) {}, 200)
	if absent(err) {
		return "", nil
	}
	if err != nil {
		return "", d.explain(ctx, err, "read the owner of the bucket")
	}
	return strings.TrimSpace(string(b)), nil
}

// Claim makes the prefix the owner's. Error: fault.Conflict when it is another's.
func (d *Driver) Claim(ctx context.Context, owner string) error {
	// Not every server knows the condition below.
	switch now, err := d.Owner(ctx); {
	case err != nil:
		return err
	case now != "" && now != owner:
		return d.another()
	}
	body := []byte(owner + "\n")
	opts := minio.PutObjectOptions{}
	opts.SetMatchETagExcept("*") // not over another one that claims at the same time
	err := d.send(ctx, d.prefix+installation, body, opts)
	if err != nil && minio.ToErrorResponse(err).StatusCode != http.StatusPreconditionFailed {
		return d.explain(ctx, err, "claim the bucket")
	}
	switch now, err := d.Owner(ctx); {
	case err != nil:
		return err
	case now != owner:
		return d.another()
	}
	return nil
}

func (d *Driver) another() error {
	return fault.New(fault.Conflict, "%s in bucket %s belongs to another installation", d.where(), d.cfg.Bucket).
		WithHint("Choose another prefix for this installation.")
}

// Take makes the prefix the owner's, whoever had it.
func (d *Driver) Take(ctx context.Context, owner string) error {
	if err := d.send(ctx, d.prefix+installation, []byte(owner+"\n"), minio.PutObjectOptions{}); err != nil {
		return d.explain(ctx, err, "take over the bucket")
	}
	return nil
}

func (d *Driver) where() string {
	if d.prefix == "" {
		return "the empty prefix"
	}
	return "the prefix " + d.prefix
}

// Delete removes an object. See blob.Driver.
func (d *Driver) Delete(ctx context.Context, key blob.Key) error {
	ctx, cancel := limit(ctx, 0)
	defer cancel()
	err := again(ctx, func() error { return d.c.RemoveObject(ctx, d.cfg.Bucket, d.name(key), minio.RemoveObjectOptions{}) })
	if err != nil && !absent(err) {
		return d.explain(ctx, err, "delete")
	}
	return nil
}

// Size implements blob.Sized.
func (d *Driver) Size(ctx context.Context, key blob.Key) (size int64, err error) {
	ctx, cancel := limit(ctx, 0)
	defer cancel()
	err = again(ctx, func() error {
		info, err := d.c.StatObject(ctx, d.cfg.Bucket, d.name(key), minio.StatObjectOptions{})
		size = info.Size
		return err
	})
	if absent(err) {
		return 0, fault.New(fault.NotFound, "object %s not found", key)
	}
	if err != nil {
		return 0, d.explain(ctx, err, "read the size")
	}
	return size, nil
}

// List yields keys in byte order. See blob.Driver.
func (d *Driver) List(ctx context.Context, prefix blob.Key, yield func(blob.Key) error) error {
	return d.Sizes(ctx, prefix, func(key blob.Key, _ int64) error { return yield(key) })
}

// Sizes implements blob.Sized.
func (d *Driver) Sizes(ctx context.Context, prefix blob.Key, yield func(blob.Key, int64) error) error {
	ended, stop := context.WithCancel(ctx) // ends the listing when it is not read to its end
	defer stop()
	for info := range d.c.ListObjectsIter(ended, d.cfg.Bucket, minio.ListObjectsOptions{Prefix: d.prefix + string(prefix), Recursive: true}) {
		if info.Err != nil {
			return d.explain(ctx, info.Err, "list")
		}
		key, ours := strings.CutSuffix(strings.TrimPrefix(info.Key, d.prefix), suffix)
		if !ours || blob.CheckKey(blob.Key(key)) != nil {
			continue
		}
		if err := yield(blob.Key(key), info.Size); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return stopped(ctx)
	}
	return nil
}

func (d *Driver) name(key blob.Key) string { return d.prefix + string(key) + suffix }

// limit bounds a request that moves so many bytes, with its repetitions: five
// minutes, and what a slow line takes.
func limit(ctx context.Context, bytes int64) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, tries*time.Minute+time.Duration(bytes>>18)*time.Second) // 256 KiB/s
}

func stopped(ctx context.Context) error {
	return fault.New(fault.Timeout, "waiting for the object store was stopped: %w", context.Cause(ctx))
}

// absent reports what S3 says when something is not there.
func absent(err error) bool {
	switch minio.ToErrorResponse(err).Code {
	case "NoSuchKey", "NoSuchUpload", "NotFound":
		return true
	}
	return false
}

// explain gives errors of the server and the network their kind.
func (d *Driver) explain(ctx context.Context, err error, doing string) error {
	if known, ok := errors.AsType[*fault.Error](err); ok {
		return fault.Wrap(known, "%s", doing)
	}
	if ctx.Err() != nil {
		return fault.Wrap(stopped(ctx), "%s", doing)
	}
	if said, ok := errors.AsType[minio.ErrorResponse](err); ok {
		switch {
		case said.Code == "NoSuchBucket":
			return fault.New(fault.Unavailable, "%s: bucket %s does not exist", doing, d.cfg.Bucket).WithHint("Create the bucket, or correct blob.s3 in the configuration.")
		case said.StatusCode == http.StatusInsufficientStorage, said.Code == "QuotaExceeded", said.Code == "XMinioStorageFull", said.Code == "InsufficientCapacity":
			return fault.New(fault.Exhausted, "%s: the bucket %s is full: %s", doing, d.cfg.Bucket, said.Message).WithHint("Free space or raise its quota, then try again; nothing was stored.").WithCause(fault.ErrFull)
		case said.Code == "AuthorizationHeaderMalformed", said.StatusCode == http.StatusMovedPermanently:
			return fault.New(fault.Unavailable, "%s: the bucket %s is in another region than %s", doing, d.cfg.Bucket, d.cfg.Region).WithHint("Set blob.s3.region, and that region's endpoint.")
		case said.StatusCode == http.StatusForbidden:
			return fault.New(fault.Unavailable, "%s: the object store denied the request: %s", doing, said.Message).WithHint("Check the keys in blob.s3.credentials, their permissions, and this machine's clock.")
		}
		return fault.New(fault.Unavailable, "%s: the object store returned an error: %s", doing, said.Message)
	}
	if cert, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fault.New(fault.Unavailable, "%s: the certificate of the object store is not trusted: %v", doing, cert.Err).WithHint("Set blob.s3.ca to the authority's certificate.")
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fault.New(fault.Unavailable, "%s: the endpoint of the object store refused the connection", doing).WithHint("Check that the object store runs, and that the port is correct.")
	}
	// The cause names an address, which callers are not told.
	return &fault.Error{Kind: fault.Unavailable, Message: doing + ": the object store is unavailable", Hint: "Try again when it is available; the server's log has details.", Err: err}
}

// located says where the object store is, to whoever starts the server or looks at it.
func (d *Driver) located(err error) error {
	if !fault.Is(err, fault.Unavailable) {
		return err
	}
	text := err.Error() + " (" + d.cfg.Endpoint + ")"
	if cause := errors.Unwrap(err); cause != nil && !strings.Contains(text, cause.Error()) {
		text += ": " + cause.Error()
	}
	return &fault.Error{Kind: fault.Unavailable, Message: text, Hint: fault.HintOf(err), Err: err}
}

// send puts a small thing.
func (d *Driver) send(ctx context.Context, name string, body []byte, opts minio.PutObjectOptions) error {
	ctx, cancel := limit(ctx, int64(len(body)))
	defer cancel()
	return again(ctx, func() error {
		_, err := d.c.PutObject(ctx, d.cfg.Bucket, name, bytes.NewReader(body), int64(len(body)), "", sum(body), opts)
		return err
	})
}

// again tries what another request was in the way of (409), which minio-go does not.
func again(ctx context.Context, try func() error) error {
	for n := range tries {
		err := try()
		if n == tries-1 || minio.ToErrorResponse(err).StatusCode != http.StatusConflict {
			return err
		}
		wait := time.NewTimer(50 * time.Millisecond << n)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return err
		}
	}
	return nil
}
