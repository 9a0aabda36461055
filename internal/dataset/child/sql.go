package child

// The conversation with the SQL worker, after its stdin and stdout are wrapped:
//
//	server → SQLRequest
//	worker → SQLAnalysis       which tables and columns the query needs
//	server → SQLHandOver, then for each table SQLTable and a stream of records
//	worker → SQLColumns        what the columns of the result are made of
//	worker → a stream of records, then SQLSummary

// SQLRequest asks for a query.
type SQLRequest struct {
	SQL     string `json:"sql"`
	Memory  int64  `json:"memory"` // bytes that DuckDB may use
	Rows    int64  `json:"rows"`   // most rows of the result; one more is a fault
	Threads int    `json:"threads"`
	// TimeZone is that of the result's times that have none, UTC when it is empty, and
	// Early which of two instants one is; see table.Local.
	TimeZone string `json:"time_zone,omitempty"`
	Early    bool   `json:"early,omitempty"`
}

// SQLAnalysis is what a query reads.
type SQLAnalysis struct {
	Tables []SQLUse `json:"tables"`
	// Identifiers are the names, in lower case, that may be columns of any table.
	Identifiers []string `json:"identifiers"`
}

// SQLUse is a table that a query names.
type SQLUse struct {
	Name string `json:"name"` // in lower case
	All  bool   `json:"all"`  // every column is needed, not the identifiers only
}

// SQLHandOver is the number of tables that follow, and the spill directory with its limit of
// Disk bytes. Without Scratch nothing is spilled.
type SQLHandOver struct {
	Tables  int    `json:"tables"`
	Scratch string `json:"scratch,omitempty"`
	Disk    int64  `json:"disk,omitempty"`
}

// SQLTable heads a table's records.
type SQLTable struct {
	Name string `json:"name"`
}

// SQLColumns is the column lineage of a result, if known.
type SQLColumns struct {
	Known   bool        `json:"known"`
	Columns []SQLColumn `json:"columns,omitempty"`
	// Rows are the columns that decide which rows there are, by filters, joins and
	// groups, and in which order.
	Rows []SQLSource `json:"rows,omitempty"`
	// Local are the columns whose times have no zone of their own; always known.
	Local []string `json:"local,omitempty"`
}

// SQLColumn is a column of the result.
type SQLColumn struct {
	Name string      `json:"name"`
	From []SQLSource `json:"from,omitempty"`
}

// SQLSource is a column of a table.
type SQLSource struct {
	Table  string `json:"table"`
	Column string `json:"column"`
	How    string `json:"how"`
}

// SQLSummary ends the result.
type SQLSummary struct {
	Rows int64 `json:"rows"`
}
