package source

import (
	"path"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// From is `spec.from` of a Source manifest: one of its fields is set.
type From struct {
	Postgres *Database `json:"postgres,omitempty" doc:"PostgreSQL table"`
	MariaDB  *Database `json:"mariadb,omitempty" doc:"MariaDB or MySQL table"`
	SQLite   *SQLite   `json:"sqlite,omitempty" doc:"Table of an SQLite file on the server"`
	Files    *Files    `json:"files,omitempty" doc:"Files of a directory on the server"`
	S3       *S3       `json:"s3,omitempty" doc:"Objects of an S3 bucket"`
	HDFS     *HDFS     `json:"hdfs,omitempty" doc:"Files of an HDFS directory, by WebHDFS"`
	HTTP     *HTTP     `json:"http,omitempty" doc:"Paged list of JSON objects of an HTTP service"`
	Kafka    *Kafka    `json:"kafka,omitempty" doc:"Kafka topic"`
	NATS     *NATS     `json:"nats,omitempty" doc:"NATS JetStream stream"`
}

// Database is a table of a database server. The secret has username and
// password, and where the server asks for them ca, cert and key (PEM).
type Database struct {
	Host     string   `json:"host" doc:"Host name; sources.hosts of the configuration must contain it"`
	Port     int      `json:"port,omitempty" doc:"Port, if it is not the default one"`
	Database string   `json:"database" doc:"Name of the database"`
	Table    string   `json:"table,omitempty" doc:"Table or view; schema.table if it is not in the default schema"`
	Query    string   `json:"query,omitempty" doc:"One SELECT instead of a table, for casts and joins"`
	Columns  []string `json:"columns,omitempty" doc:"Columns to read; default: all"`
	TLS      TLSMode  `json:"tls,omitempty" doc:"verify (the default), insecure (encrypted, the server is not authenticated) or off" enum:"verify,insecure,off"`
}

// SQLite is a table of a file of SQLite's.
type SQLite struct {
	File    string   `json:"file" doc:"Absolute path; sources.files of the configuration must contain it or a parent directory. No program may write to it"`
	Table   string   `json:"table,omitempty" doc:"Table or view"`
	Query   string   `json:"query,omitempty" doc:"One SELECT instead of a table, for casts and joins"`
	Columns []string `json:"columns,omitempty" doc:"Columns to read; default: all"`
}

// Format of files.
type Format string

// Files are those of a directory.
type Files struct {
	Directory string `json:"directory" doc:"Absolute path; sources.files of the configuration must contain it or a parent directory"`
	Match     string `json:"match,omitempty" doc:"Pattern of the names below the directory, such as *.csv.gz or 2024/*/*.jsonl; default: all files of the directory"`
	Format    Format `json:"format,omitempty" doc:"csv, tsv, jsonl, parquet or avro; default: detected from the content, except tsv; gz and zst are unpacked" enum:"csv,tsv,jsonl,parquet,avro"`
}

// S3 are objects of a bucket. The secret has access_key and secret_key; without one, only public
// objects are read.
type S3 struct {
	Endpoint string  `json:"endpoint" doc:"host or host:port; for Amazon S3 that of the region; sources.hosts of the configuration must contain it"`
	Region   string  `json:"region,omitempty" doc:"Region for which requests are signed; default: detected for Amazon's endpoints, otherwise us-east-1"`
	Bucket   string  `json:"bucket" doc:"Bucket"`
	Prefix   string  `json:"prefix,omitempty" doc:"Prefix of the object names, such as orders/"`
	Match    string  `json:"match,omitempty" doc:"Pattern of the rest of the names, such as *.csv.gz or 2024/*/*.jsonl; default: all without a further slash"`
	Format   Format  `json:"format,omitempty" doc:"csv, tsv, jsonl, parquet or avro; default: detected from the content, except tsv; gz and zst are unpacked" enum:"csv,tsv,jsonl,parquet,avro"`
	TLS      TLSMode `json:"tls,omitempty" doc:"verify (the default), insecure (encrypted, the server is not authenticated) or off" enum:"verify,insecure,off"`
}

// HDFS are files of a directory of HDFS, by WebHDFS. The secret has token, a delegation token,
// or username; without one, only public objects are read.
type HDFS struct {
	NameNodes []string `json:"namenodes" doc:"host or host:port of the name nodes' web servers, or of HttpFS; sources.hosts of the configuration must contain these and the data nodes to which they redirect"`
	Directory string   `json:"directory" doc:"Absolute path in HDFS, such as /data/orders"`
	Match     string   `json:"match,omitempty" doc:"Pattern of the names below the directory, such as *.csv.gz or 2024/*/*.jsonl; default: all files of the directory"`
	Format    Format   `json:"format,omitempty" doc:"csv, tsv, jsonl, parquet or avro; default: detected from the content, except tsv; gz and zst are unpacked" enum:"csv,tsv,jsonl,parquet,avro"`
	TLS       TLSMode  `json:"tls,omitempty" doc:"verify (the default), insecure (encrypted, the server is not authenticated) or off" enum:"verify,insecure,off"`
}

// HTTP is a list of JSON objects that a service gives, page by page. The secret
// has token, or username and password.
type HTTP struct {
	URL       string  `json:"url" doc:"URL of the first page, without credentials; sources.hosts of the configuration must contain its host"`
	Records   string  `json:"records,omitempty" doc:"Path of the list in the document, such as data.items; default: the document itself"`
	Next      string  `json:"next,omitempty" doc:"Path of the next page's address in the document, or of a token if parameter is set; default: the response's Link header"`
	Parameter string  `json:"parameter,omitempty" doc:"Query parameter for the token; without next it counts pages until one has no rows"`
	Since     string  `json:"since,omitempty" doc:"Mode incremental: query parameter that selects rows changed since a time (RFC 3339)"`
	Header    string  `json:"header,omitempty" doc:"Header that receives the secret's token unchanged; default: Authorization, as a bearer token"`
	TLS       TLSMode `json:"tls,omitempty" doc:"verify (the default), insecure (encrypted, the server is not authenticated) or off for http URLs" enum:"verify,insecure,off"`
}

// Kafka is a topic whose messages are JSON objects. The secret has username and
// password where the brokers ask for them.
type Kafka struct {
	Brokers []string `json:"brokers" doc:"host:port of the brokers; sources.hosts of the configuration must contain these and those that they advertise"`
	Topic   string   `json:"topic" doc:"Topic"`
	SASL    string   `json:"sasl,omitempty" doc:"plain, scram-sha-256 or scram-sha-512; default: none" enum:"plain,scram-sha-256,scram-sha-512"`
	TLS     TLSMode  `json:"tls,omitempty" doc:"verify (the default), insecure (encrypted, the server is not authenticated) or off" enum:"verify,insecure,off"`
}

// NATS is a stream of JetStream whose messages are JSON objects. The secret has
// username and password, token, or creds.
type NATS struct {
	Servers []string `json:"servers" doc:"host:port of the servers; sources.hosts of the configuration must contain them"`
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
