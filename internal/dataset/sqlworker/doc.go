// Package sqlworker runs one SQL query in DuckDB, in a process of its own that
// has the needed columns of the needed tables and nothing else.
//
// # Map
//
//   - Main is the child: it talks over stdin and stdout as package child says.
//   - analyse.go walks DuckDB's own parse of the query for the tables and columns
//     that it names, before any data is handed over.
//   - columns.go walks DuckDB's bound plan of the query for what each column of the
//     result is made of.
//   - run.go opens DuckDB locked down, takes the tables, runs the query.
//
// # Guarantees
//
// The query is one SELECT. It cannot read files, the network, the environment or
// settings that matter, load extensions or attach databases: external access is
// off, the configuration locked, and table functions are an allow-list; the
// sandbox around the process holds where DuckDB does not. Memory, rows and
// threads are bounded. Errors carry DuckDB's words.
//
// This is the only package that imports DuckDB, and only app imports it. Built
// without the tag duckdb_arrow it refuses every query.
package sqlworker
