package ingest

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver of the source that is a file
	"github.com/minio/minio-go/v7"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/falaj-ml/falaj/internal/dataset/source/sourcetest"
)

// more are the origins beside PostgreSQL.
func more(t *testing.T, files string) []origin {
	t.Helper()
	out := []origin{newTopic(t), newStream(t), newDirectory(files), newService(t), newLite(t, files)}
	if sourcetest.HasS3() || os.Getenv("CI") == "true" {
		out = append(out, newBucket(t))
	} else {
		t.Log("without S3; install its server with: make engines")
	}
	if port, db := mariadb(t); db != nil {
		out = append(out, &maria{db: db, port: port})
	}
	return out
}

// sent are the messages that were acknowledged.
type sent struct {
	mu   sync.Mutex
	next int64
	all  []string
}

// number is a message's that nobody has.
func (s *sent) number() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return s.next
}

func (s *sent) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all) == 0
}

func (s *sent) note(row string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, row)
}

func (s *sent) rows(*testing.T, string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.all)
	slices.Sort(all)
	return all
}

func (*sent) query(source string) string {
	return "SELECT id || '|' || coalesce(name, '') AS line FROM " + source
}

const twoColumns = "{expectations: [{check: unique, columns: [id]}], columns: [{name: id, type: int64}, {name: name, type: string}]}"

// topic is one of Kafka.
type topic struct {
	sent
	cluster *kfake.Cluster
	client  *kgo.Client
}

func newTopic(t *testing.T) *topic {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "orders"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.DefaultProduceTopic("orders"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return &topic{cluster: c, client: cl}
}

func (*topic) sources() []string { return []string{"topic"} }

func (o *topic) manifests() string {
	return fmt.Sprintf(`---
{api_version: falaj/v1, kind: Dataset, name: topic, project: shop, spec: %s}
---
{api_version: falaj/v1, kind: Source, name: topic, project: shop, spec: {dataset: topic, mode: incremental, rate: {rows_per_second: 2000},
  from: {kafka: {brokers: [%q], topic: orders, tls: "off"}}}}
`, twoColumns, o.cluster.ListenAddrs()[0])
}

func (o *topic) write(_ context.Context, r *rand.Rand) error {
	var batch []*kgo.Record
	var rows []string
	for range 1 + r.IntN(5) {
		n := o.number()
		name := strconv.Itoa(r.IntN(1000))
		rows = append(rows, fmt.Sprintf("%d|%s", n, name))
		batch = append(batch, &kgo.Record{Value: fmt.Appendf(nil, `{"id": %d, "name": %q}`, n, name)})
	}
	// It is written whole, or the test's own client has failed.
	if err := o.client.ProduceSync(context.Background(), batch...).FirstErr(); err != nil {
		return err
	}
	for _, row := range rows {
		o.note(row)
	}
	return nil
}

// stream is one of JetStream.
type stream struct {
	sent
	address string
	js      jetstream.JetStream
}

func newStream(t *testing.T) *stream {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), SyncAlways: true, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("NATS is not ready")
	}
	o := &stream{address: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Addr().(*net.TCPAddr).Port))}
	conn, err := nats.Connect(o.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if o.js, err = jetstream.New(conn); err != nil {
		t.Fatal(err)
	}
	if _, err := o.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	return o
}

func (*stream) sources() []string { return []string{"stream"} }

func (o *stream) manifests() string {
	return fmt.Sprintf(`---
{api_version: falaj/v1, kind: Dataset, name: stream, project: shop, spec: %s}
---
{api_version: falaj/v1, kind: Source, name: stream, project: shop, spec: {dataset: stream, mode: incremental, rate: {rows_per_second: 2000},
  from: {nats: {servers: [%q], stream: orders, tls: "off"}}}}
`, twoColumns, o.address)
}

func (o *stream) write(_ context.Context, r *rand.Rand) error {
	n, name := o.number(), strconv.Itoa(r.IntN(1000))
	if _, err := o.js.Publish(context.Background(), "orders.new", fmt.Appendf(nil, `{"id": %d, "name": %q}`, n, name)); err != nil {
		return err
	}
	o.note(fmt.Sprintf("%d|%s", n, name))
	return nil
}

// objects are files, which come whole.
type objects struct {
	sent
	name   string // of the source
	from   string // of the manifest, with the secret's name
	secret string // its values; empty for none
	put    func(name string, content []byte) error
}

func newDirectory(dir string) *objects {
	return &objects{name: "files", from: fmt.Sprintf("from: {files: {directory: %q}}", dir), put: func(name string, content []byte) error {
		hidden := filepath.Join(dir, "."+name)
		if err := os.WriteFile(hidden, content, 0o600); err != nil {
			return err
		}
		return os.Rename(hidden, filepath.Join(dir, name))
	}}
}

func newBucket(t *testing.T) *objects {
	t.Helper()
	at, ca := sourcetest.S3(t)
	c := sourcetest.S3Client(t, at, ca).Client
	if err := c.MakeBucket(t.Context(), "orders", minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	return &objects{
		name: "bucket", from: fmt.Sprintf("secret: bucket, from: {s3: {endpoint: %q, bucket: orders}}", at),
		secret: fmt.Sprintf("{access_key: {value: %s}, secret_key: {value: %s}, ca: {value: %q}}", sourcetest.S3User, sourcetest.S3Password, ca),
		put: func(name string, content []byte) error {
			_, err := c.PutObject(context.Background(), "orders", name, bytes.NewReader(content), int64(len(content)), minio.PutObjectOptions{})
			return err
		},
	}
}

func (o *objects) sources() []string { return []string{o.name} }

func (o *objects) manifests() string {
	secret := ""
	if o.secret != "" {
		secret = fmt.Sprintf("---\n{api_version: falaj/v1, kind: Secret, name: %s, project: shop, spec: {values: %s}}\n", o.name, o.secret)
	}
	return secret + fmt.Sprintf(`---
{api_version: falaj/v1, kind: Dataset, name: %[1]s, project: shop, spec: %[2]s}
---
{api_version: falaj/v1, kind: Source, name: %[1]s, project: shop, spec: {dataset: %[1]s, mode: incremental, rate: {rows_per_second: 2000}, %[3]s}}
`, o.name, twoColumns, o.from)
}

func (o *objects) write(_ context.Context, r *rand.Rand) error {
	if r.IntN(100) > 0 && !o.empty() {
		return nil
	}
	var b bytes.Buffer
	b.WriteString("id,name\n")
	var rows []string
	first := int64(0)
	for range 1 + r.IntN(300) {
		n := o.number()
		if first == 0 {
			first = n
		}
		name := "n" + strconv.Itoa(r.IntN(1000))
		fmt.Fprintf(&b, "%d,%s\n", n, name)
		rows = append(rows, fmt.Sprintf("%d|%s", n, name))
	}
	for _, row := range rows {
		o.note(row)
	}
	return o.put(fmt.Sprintf("%02d-%d.csv", r.IntN(100), first), b.Bytes()) // not in the order of time
}

// service gives its rows by HTTP, some at a time, in the order of their keys.
type service struct {
	address string

	mu   sync.Mutex
	seq  int64
	kept map[int64]kept
}

type kept struct {
	seq     int64
	name    string
	changed time.Time
}

func newService(t *testing.T) *service {
	t.Helper()
	o := &service{kept: map[int64]kept{}}
	s := httptest.NewServer(o)
	t.Cleanup(s.Close)
	o.address = s.URL
	return o
}

// ServeHTTP gives a page.
func (o *service) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	after, _ := strconv.ParseInt(q.FormValue("after"), 10, 64)
	since, _ := time.Parse(time.RFC3339, q.FormValue("since"))
	type row struct {
		ID   int64  `json:"id"`
		Seq  int64  `json:"seq"`
		Name string `json:"name"`
	}
	page := struct {
		Items []row `json:"items"`
		Next  int64 `json:"next,omitempty"`
	}{Items: []row{}}
	o.mu.Lock()
	for id, k := range o.kept {
		if id > after && !k.changed.Before(since) {
			page.Items = append(page.Items, row{id, k.seq, k.name})
		}
	}
	o.mu.Unlock()
	slices.SortFunc(page.Items, func(a, b row) int { return cmp.Compare(a.ID, b.ID) })
	if most := 200; len(page.Items) > most {
		page.Items = page.Items[:most]
		page.Next = page.Items[most-1].ID
	}
	_ = json.NewEncoder(w).Encode(page)
}

func (*service) sources() []string { return []string{"service"} }

func (o *service) manifests() string {
	return fmt.Sprintf(`---
{api_version: falaj/v1, kind: Dataset, name: service, project: shop, spec: {expectations: [{check: unique, columns: [id]}],
  columns: [{name: id, type: int64}, {name: seq, type: int64}, {name: name, type: string}]}}
---
{api_version: falaj/v1, kind: Source, name: service, project: shop, spec: {dataset: service, mode: incremental, key: [id], overlap: 1s, rate: {rows_per_second: 2000},
  from: {http: {url: %q, records: items, next: next, parameter: after, since: since, tls: "off"}}}}
`, o.address)
}

func (o *service) write(_ context.Context, r *rand.Rand) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seq++
	o.kept[1+r.Int64N(3000)] = kept{o.seq, "name " + strconv.Itoa(r.IntN(1000)), time.Now()}
	return nil
}

func (o *service) rows(*testing.T, string) (rows []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, k := range o.kept {
		rows = append(rows, fmt.Sprintf("%d|%d|%s", id, k.seq, k.name))
	}
	slices.Sort(rows)
	return rows
}

func (*service) query(source string) string {
	return "SELECT id || '|' || seq || '|' || name AS line FROM " + source
}

// lite is a database of SQLite whose copies are renamed into their place.
type lite struct {
	mu   sync.Mutex // one transaction at a time
	db   *sql.DB
	file string
	seq  int64
}

func newLite(t *testing.T, files string) *lite {
	t.Helper()
	db, err := sql.Open("sqlite3", filepath.Join(t.TempDir(), "live.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE lite (id INTEGER PRIMARY KEY, seq INTEGER NOT NULL, name VARCHAR(40))"); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(files, "lite")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return &lite{db: db, file: filepath.Join(dir, "copy.db")}
}

func (*lite) sources() []string { return []string{"lite"} }

func (o *lite) manifests() string {
	return fmt.Sprintf(`---
{api_version: falaj/v1, kind: Dataset, name: lite, project: shop, spec: {expectations: [{check: unique, columns: [id]}]}}
---
{api_version: falaj/v1, kind: Source, name: lite, project: shop, spec: {dataset: lite, mode: incremental, cursor: seq, key: [id], rate: {rows_per_second: 2000}, from: {sqlite: {file: %q, table: lite}}}}
`, o.file)
}

func (o *lite) write(ctx context.Context, r *rand.Rand) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	ctx = context.WithoutCancel(ctx) // what is committed has its copy
	tx, err := o.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for range 1 + r.IntN(30) {
		o.seq++
		if _, err := tx.ExecContext(ctx, "REPLACE INTO lite VALUES (?, ?, ?)", 1+r.IntN(3000), o.seq, fmt.Sprintf("name %d", r.IntN(1000))); err != nil {
			return err
		}
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if _, err := o.db.ExecContext(ctx, "VACUUM INTO ?", o.file+".new"); err != nil {
		return err
	}
	return os.Rename(o.file+".new", o.file)
}

func (o *lite) rows(t *testing.T, source string) []string {
	t.Helper()
	in, err := o.db.QueryContext(t.Context(), "SELECT id || '|' || seq || '|' || name FROM "+source)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	return scan(t, in)
}

func (*lite) query(source string) string {
	return "SELECT id || '|' || seq || '|' || name AS line FROM " + source
}

// maria is a table of MariaDB.
type maria struct {
	db   *sql.DB
	port int
}

// mariadb is nil where there is none.
func mariadb(t *testing.T) (port int, db *sql.DB) {
	t.Helper()
	if !sourcetest.HasMariaDB() && os.Getenv("CI") != "true" {
		t.Log("without MariaDB; install it with: make engines")
		return 0, nil
	}
	port, db = sourcetest.MariaDB(t)
	for _, s := range []string{
		"CREATE TABLE maria (id bigint PRIMARY KEY, seq bigint NOT NULL, name varchar(40), INDEX (seq))",
		"CREATE TABLE seq (n bigint NOT NULL AUTO_INCREMENT PRIMARY KEY)",
	} {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	return port, db
}

func (*maria) sources() []string { return []string{"maria"} }

func (o *maria) manifests() string {
	return fmt.Sprintf(`---
{api_version: falaj/v1, kind: Secret, name: maria, project: shop, spec: {values: {username: {value: %s}, password: {value: %s}}}}
---
{api_version: falaj/v1, kind: Dataset, name: maria, project: shop, spec: {expectations: [{check: unique, columns: [id]}]}}
---
{api_version: falaj/v1, kind: Source, name: maria, project: shop, spec: {dataset: maria, secret: maria, mode: incremental, cursor: seq, key: [id], rate: {rows_per_second: 2000},
  from: {mariadb: {host: 127.0.0.1, port: %d, database: shop, table: maria, tls: "off"}}}}
`, sourcetest.MariaDBUser, sourcetest.MariaDBPassword, o.port)
}

func (o *maria) write(ctx context.Context, r *rand.Rand) error {
	tx, err := o.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for range 1 + r.IntN(3) {
		res, err := tx.ExecContext(ctx, "INSERT INTO seq VALUES ()")
		if err != nil {
			return err
		}
		seq, err := res.LastInsertId()
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "REPLACE INTO maria VALUES (?, ?, ?)", 1+r.IntN(3000), seq, fmt.Sprintf("name %d", r.IntN(1000))); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (o *maria) rows(t *testing.T, source string) []string {
	t.Helper()
	in, err := o.db.QueryContext(t.Context(), "SELECT concat(id, '|', seq, '|', name) FROM "+source)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	return scan(t, in)
}

func (*maria) query(source string) string {
	return "SELECT id || '|' || seq || '|' || name AS line FROM " + source
}
