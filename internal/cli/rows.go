package cli

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/falaj-ml/falaj/client"
)

// rows is a table as the API sends it.
type rows struct {
	Columns   []string            `json:"columns"`
	Rows      [][]json.RawMessage `json:"rows"`
	Truncated bool                `json:"truncated"`
}

// maxQueryRows is the most rows that the server answers a query with.
const maxQueryRows = 10_000

// printRows writes rows of datasets in the chosen format. Names of columns are written as
// they are, because SQL and feature views distinguish case.
func (a *app) printRows(r rows) error {
	values := make([][]any, len(r.Rows))
	for i, row := range r.Rows {
		if len(row) != len(r.Columns) {
			return fmt.Errorf("row %d has %d values for %d columns", i+1, len(row), len(r.Columns))
		}
		values[i] = make([]any, len(row))
		for j, v := range row {
			d := json.NewDecoder(bytes.NewReader(v))
			d.UseNumber() // of DECIMAL and int64 every digit
			if err := d.Decode(&values[i][j]); err != nil {
				return err
			}
		}
	}
	switch a.output {
	case "table":
		cells := make([][]string, len(values))
		for i, row := range values {
			for _, v := range row {
				cells[i] = append(cells[i], clipped(shown(v)))
			}
		}
		return a.tabulate(r.Columns, cells)
	case "csv":
		return a.printCSV(r.Columns, values)
	}
	objects := make([]client.Object, len(values))
	for i, row := range values {
		objects[i] = client.Object{}
		for j, v := range row {
			objects[i][r.Columns[j]] = v
		}
	}
	return a.print(objects, nil)
}

// tabulate writes cells below the names of their columns.
func (a *app) tabulate(names []string, cells [][]string) error {
	w := tabwriter.NewWriter(a.Stdout, 0, 4, 2, ' ', 0)
	heads := make([]string, len(names))
	for i, name := range names {
		heads[i] = plain(name)
	}
	fmt.Fprintln(w, strings.Join(heads, "\t"))
	for _, row := range cells {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// printCSV writes a file that `falaj dataset import` reads. Null is an empty cell.
func (a *app) printCSV(names []string, values [][]any) error {
	w := csv.NewWriter(a.raw())
	if err := w.Write(names); err != nil {
		return err
	}
	for _, row := range values {
		cells := make([]string, len(row))
		for i, v := range row {
			cells[i] = textOf(v)
		}
		if err := w.Write(cells); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}

// shown is a value of a dataset in a table: every digit, times with their zone, - for null.
func shown(v any) string {
	if v == nil {
		return "-"
	}
	return plain(textOf(v))
}

// textOf is a value of a dataset as text: lists and structures as JSON, nothing for null.
func textOf(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case json.Number:
		return v.String()
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // it came from JSON
	return strings.TrimSuffix(b.String(), "\n")
}
