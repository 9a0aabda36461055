package source

import (
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// From is `spec.from` of a Source manifest: one of its fields is set.
type From struct {
	Postgres *Database `json:"postgres,omitempty" doc:"A table of PostgreSQL"`
	MariaDB  *Database `json:"mariadb,omitempty" doc:"A table of MariaDB or MySQL"`
}

// Database is a table of a database server. The secret has username and
// password, and where the server asks for them ca, cert and key (PEM).
type Database struct {
	Host     string   `json:"host" doc:"Host name; the configuration's sources.hosts must have it"`
	Port     int      `json:"port,omitempty" doc:"Port, when it is not the usual one"`
	Database string   `json:"database" doc:"Name of the database"`
	Table    string   `json:"table,omitempty" doc:"Table or view, schema.table where it is not in the default schema"`
	Query    string   `json:"query,omitempty" doc:"One SELECT instead of a table, to cast and to join"`
	Columns  []string `json:"columns,omitempty" doc:"Columns that are read; all when left out"`
	Op       string   `json:"op,omitempty" doc:"Mode changes: the column that says what happened, I U D or insert update delete"`
	TLS      TLSMode  `json:"tls,omitempty" doc:"verify (the default), insecure (encrypted, whoever answers) or off" enum:"verify,insecure,off"`
}

// Kind is the name of the field that is set; empty for none.
func (f From) Kind() string {
	switch {
	case f.Postgres != nil:
		return "postgres"
	case f.MariaDB != nil:
		return "mariadb"
	}
	return ""
}

// Op is the column of a table of changes that says what happened.
func (f From) Op() string {
	switch {
	case f.Postgres != nil:
		return f.Postgres.Op
	case f.MariaDB != nil:
		return f.MariaDB.Op
	}
	return ""
}

// What names the source for people, without anything secret: "postgres
// shop.orders at db.example.com".
func (f From) What() string {
	switch {
	case f.Postgres != nil:
		return "postgres " + f.Postgres.what()
	case f.MariaDB != nil:
		return "mariadb " + f.MariaDB.what()
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

// Validate looks at what does not need the driver. Error: fault.Invalid.
func (f From) Validate() error {
	n := 0
	for _, set := range []bool{f.Postgres != nil, f.MariaDB != nil} {
		if set {
			n++
		}
	}
	if n != 1 {
		return fault.New(fault.Invalid, "spec.from: one kind of source is needed, here are %d", n).WithHint("Kinds: %s.", strings.Join(Kinds, ", "))
	}
	return nil
}

// Kinds are the kinds of sources, in the order of the documentation.
var Kinds = []string{"postgres", "mariadb"}

// TLSMode says how a connection is protected.
type TLSMode string

// The modes.
const (
	TLSVerify   TLSMode = "verify"
	TLSInsecure TLSMode = "insecure"
	TLSOff      TLSMode = "off"
)
