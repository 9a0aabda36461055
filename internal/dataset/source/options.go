package source

import (
	"path"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// From is `spec.from` of a Source manifest: one of its fields is set.
type From struct {
	Postgres *Database `json:"postgres,omitempty" doc:"A table of PostgreSQL"`
	MariaDB  *Database `json:"mariadb,omitempty" doc:"A table of MariaDB or MySQL"`
	SQLite   *SQLite   `json:"sqlite,omitempty" doc:"A table of a file of SQLite's, of the server's"`
	Files    *Files    `json:"files,omitempty" doc:"Files of a directory of the server's"`
	S3       *S3       `json:"s3,omitempty" doc:"Objects of a bucket of S3"`
	HDFS     *HDFS     `json:"hdfs,omitempty" doc:"Files of a directory of HDFS, by WebHDFS"`
	HTTP     *HTTP     `json:"http,omitempty" doc:"A list of JSON objects that a service gives, page by page"`
	Kafka    *Kafka    `json:"kafka,omitempty" doc:"A topic of Kafka"`
	NATS     *NATS     `json:"nats,omitempty" doc:"A stream of NATS JetStream"`
}

// Database is a table of a database server. The secret has username and
// password, and where the server asks for them ca, cert and key (PEM).
type Database struct {
	Host     string   `json:"host" doc:"Host name; the configuration's sources.hosts must have it"`
	Port     int      `json:"port,omitempty" doc:"Port, when it is not the usual one"`
	Database string   `json:"database" doc:"Name of the database"`
	Table    string   `json:"table,omitempty" doc:"Table or view, schema.table where it is not in the default schema"`
	Query    string   `json:"query,omitempty" doc:"One SELECT instead of a table, to cast and to join"`
	Columns  []string `json:"columns,omitempty" doc:"Columns that are read; default all"`
	TLS      TLSMode  `json:"tls,omitempty" doc:"verify (the default), insecure (encrypted, the server is not authenticated) or off" enum:"verify,insecure,off"`
}

// SQLite is a table of a file of SQLite's.
type SQLite struct {
	File    string   `json:"file" doc:"Absolute path; the configuration's sources.files must have it, or a directory above. No program may be writing to it"`
	Table   string   `json:"table,omitempty" doc:"Table or view"`
	Query   string   `json:"query,omitempty" doc:"One SELECT instead of a table, to cast and to join"`
	Columns []string `json:"columns,omitempty" doc:"Columns that are read; default all"`
}

// Format of files.
type Format string

// Files are those of a directory.
type Files struct {
	Directory string `json:"directory" doc:"Absolute path; the configuration's sources.files must have it, or a directory above"`
	Match     string `json:"match,omitempty" doc:"Pattern of the names below the directory, such as *.csv.gz or 2024/*/*.jsonl; default all of the directory"`
	Format    Format `json:"format,omitempty" doc:"csv, tsv, jsonl, parquet or avro; default: detected from the content, except tsv; gz and zst are unpacked" enum:"csv,tsv,jsonl,parquet,avro"`
}

// S3 are objects of a bucket. The secret has access_key and secret_key; without one, only public
// objects are read.
type S3 struct {
	Endpoint string  `json:"endpoint" doc:"host or host:port, of Amazon's the one of the region; the configuration's sources.hosts must have it"`
	Region   string  `json:"region,omitempty" doc:"Region that requests are signed for; default: detected for Amazon's endpoints, otherwise us-east-1"`
	Bucket   string  `json:"bucket" doc:"Bucket"`
	Prefix   string  `json:"prefix,omitempty" doc:"What the names of the objects begin with, such as orders/"`
	Match    string  `json:"match,omitempty" doc:"Pattern of the rest of the names, such as *.csv.gz or 2024/*/*.jsonl; default all without a further slash"`
	Format   Format  `json:"format,omitempty" doc:"csv, tsv, jsonl, parquet or avro; default: detected from the content, except tsv; gz and zst are unpacked" enum:"csv,tsv,jsonl,parquet,avro"`
	TLS      TLSMode `json:"tls,omitempty" doc:"verify (the default), insecure (encrypted, the server is not authenticated) or off" enum:"verify,insecure,off"`
}

// HDFS are files of a directory of HDFS, by WebHDFS. The secret has token, a delegation token,
// or username; without one, only public objects are read.
type HDFS struct {
	NameNodes []string `json:"namenodes" doc:"host or host:port of the web servers of the name nodes, or of HttpFS; the configuration's sources.hosts must have these, and the data nodes that they redirect to"`
	Directory string   `json:"directory" doc:"Absolute path in HDFS, such as /data/orders"`
	Match     string   `json:"match,omitempty" doc:"Pattern of the names below the directory, such as *.csv.gz or 2024/*/*.jsonl; default all of the directory"`
	Format    Format   `json:"format,omitempty" doc:"csv, tsv, jsonl, parquet or avro; default: detected from the content, except tsv; gz and zst are unpacked" enum:"csv,tsv,jsonl,parquet,avro"`
	TLS       TLSMode  `json:"tls,omitempty" doc:"verify (the default), insecure (encrypted, the server is not authenticated) or off" enum:"verify,insecure,off"`
}

// HTTP is a list of JSON objects that a service gives, page by page. The secret
// has token, or username and password.
type HTTP struct {
	URL       string  `json:"url" doc:"Address of the first page, without credentials; the configuration's sources.hosts must have its host"`
	Records   string  `json:"records,omitempty" doc:"Where the list is in the document, as names apart by dots, such as data.items; default the document itself"`
	Next      string  `json:"next,omitempty" doc:"Path of the next page's address in the document, or of a token if parameter is set; default: the response's Link header"`
	Parameter string  `json:"parameter,omitempty" doc:"Parameter of the query that takes the token; without next it counts the pages, up to one without rows"`
	Since     string  `json:"since,omitempty" doc:"Mode incremental: the parameter of the query that asks for rows changed since a time (RFC 3339)"`
	Header    string  `json:"header,omitempty" doc:"Header that takes the secret's token as it is; default Authorization, as a bearer's"`
	TLS       TLSMode `json:"tls,omitempty" doc:"verify (the default), insecure (encrypted, the server is not authenticated) or off, for addresses of http" enum:"verify,insecure,off"`
}

// Kafka is a topic whose messages are JSON objects. The secret has username and
// password where the brokers ask for them.
type Kafka struct {
	Brokers []string `json:"brokers" doc:"host:port of the brokers; the configuration's sources.hosts must have these and those that they name"`
	Topic   string   `json:"topic" doc:"Topic"`
	SASL    string   `json:"sasl,omitempty" doc:"plain, scram-sha-256 or scram-sha-512; default none" enum:"plain,scram-sha-256,scram-sha-512"`
	TLS     TLSMode  `json:"tls,omitempty" doc:"verify (the default), insecure (encrypted, the server is not authenticated) or off" enum:"verify,insecure,off"`
}

// NATS is a stream of JetStream whose messages are JSON objects. The secret has
// username and password, token, or creds.
type NATS struct {
	Servers []string `json:"servers" doc:"host:port of the servers; the configuration's sources.hosts must have them"`
	Stream  string   `json:"stream" doc:"Stream"`
	Subject string   `json:"subject,omitempty" doc:"Only messages of these subjects, such as orders.*; default all"`
	TLS     TLSMode  `json:"tls,omitempty" doc:"verify (the default), insecure (encrypted, the server is not authenticated) or off" enum:"verify,insecure,off"`
}

// Kind is the name of the field that is set; empty for none.
func (f From) Kind() string {
	switch {
	case f.Postgres != nil:
		return "postgres"
	case f.MariaDB != nil:
		return "mariadb"
	case f.SQLite != nil:
		return "sqlite"
	case f.Files != nil:
		return "files"
	case f.S3 != nil:
		return "s3"
	case f.HDFS != nil:
		return "hdfs"
	case f.HTTP != nil:
		return "http"
	case f.Kafka != nil:
		return "kafka"
	case f.NATS != nil:
		return "nats"
	}
	return ""
}

// Keyed reports whether a full reading gives each key once by itself: tables are
// read in the order of their keys.
func (f From) Keyed() bool { return f.Postgres != nil || f.MariaDB != nil || f.SQLite != nil }

// What names the source for people, without anything secret: "postgres
// shop.orders at db.example.com".
func (f From) What() string {
	switch {
	case f.Postgres != nil:
		return "postgres " + f.Postgres.what()
	case f.MariaDB != nil:
		return "mariadb " + f.MariaDB.what()
	case f.SQLite != nil:
		return "sqlite " + Database{Host: f.SQLite.File, Database: f.SQLite.File, Table: f.SQLite.Table}.what()
	case f.Files != nil:
		return "files " + strings.TrimRight(f.Files.Directory, "/") + "/" + f.Files.Match
	case f.S3 != nil:
		return "s3 " + f.S3.Bucket + "/" + f.S3.Prefix + f.S3.Match + " at " + f.S3.Endpoint
	case f.HDFS != nil:
		return "hdfs " + path.Join(f.HDFS.Directory, f.HDFS.Match) + " at " + strings.Join(f.HDFS.NameNodes, ", ")
	case f.HTTP != nil:
		address, _, _ := strings.Cut(f.HTTP.URL, "?")
		return "http " + address
	case f.Kafka != nil:
		return "kafka " + f.Kafka.Topic + " at " + strings.Join(f.Kafka.Brokers, ", ")
	case f.NATS != nil:
		return "nats " + f.NATS.Stream + " at " + strings.Join(f.NATS.Servers, ", ")
	}
	return "nothing"
}

func (d Database) what() string {
	t := d.Table
	if t == "" {
		t = "a query of " + d.Database
	}
	return t + " at " + d.Host
}

// Validate checks everything that does not need the driver. Error: fault.Invalid.
func (f From) Validate() error {
	n := 0
	for _, set := range []bool{f.Postgres != nil, f.MariaDB != nil, f.SQLite != nil, f.Files != nil, f.S3 != nil, f.HDFS != nil, f.HTTP != nil, f.Kafka != nil, f.NATS != nil} {
		if set {
			n++
		}
	}
	if n != 1 {
		return fault.New(fault.Invalid, "spec.from: exactly one kind of source is required, and %d are given", n).WithHint("Kinds: %s.", strings.Join(Kinds, ", "))
	}
	return nil
}

// Kinds are the kinds of sources, in the order of the documentation.
var Kinds = []string{"postgres", "mariadb", "sqlite", "files", "s3", "hdfs", "http", "kafka", "nats"}

// TLSMode is the TLS mode of a connection.
type TLSMode string

// The modes.
const (
	TLSVerify   TLSMode = "verify"
	TLSInsecure TLSMode = "insecure"
	TLSOff      TLSMode = "off"
)
