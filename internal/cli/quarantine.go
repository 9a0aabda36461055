package cli

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// asideTable is rows in quarantine, as the server answers.
type asideTable struct {
	Version string   `json:"version"`
	Columns []string `json:"columns"`
	Rows    []struct {
		Row     json.Number `json:"row"`
		Reasons []string    `json:"reasons"`
		Values  []any       `json:"values"`
	} `json:"rows"`
	Total int64 `json:"total"`
}

// asidePage is how many rows an answer has at most.
const asidePage = 1000

func (a *app) datasetQuarantine() *cobra.Command {
	var file string
	var from, n int64
	cmd := &cobra.Command{
		Use:   "quarantine NAME[@VERSION]",
		Short: "Show the quarantined rows of a version and the expectations they violate",
		Long: "Prints the source position, the violated expectations and the values of each row. --file writes all of them, as CSV\n" +
			"or, if the name ends in .jsonl, as JSON lines. Reads of classified data are journaled.",
		Example: "  falaj dataset quarantine orders@3 -p shop\n  falaj dataset quarantine orders@3 --file broken.csv -p shop",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if file != "" {
				return a.exportQuarantine(cmd.Context(), args[0], file)
			}
			t, err := a.quarantined(cmd.Context(), args[0], from, n)
			if err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(t)
			}
			cells := make([][]string, len(t.Rows))
			for i, r := range t.Rows {
				cells[i] = []string{r.Row.String(), plain(strings.Join(r.Reasons, "; "))}
				for _, v := range r.Values {
					cells[i] = append(cells[i], shown(v))
				}
			}
			if err := a.tabulate(append([]string{"ROW", "REASONS"}, t.Columns...), cells); err != nil {
				return err
			}
			if shown := int64(len(t.Rows)); shown < t.Total {
				a.note("%d of %d rows; all of them: falaj dataset quarantine %s --file FILE", shown, t.Total, t.Version)
			}
			return nil
		},
	}
	cmd.Flags().Int64Var(&from, "from", 0, "number of rows to skip")
	cmd.Flags().Int64Var(&n, "rows", 20, "number of rows to print, at most 1000")
	cmd.Flags().StringVar(&file, "file", "", "write all rows to this new file instead of printing them")
	return cmd
}

func (a *app) quarantined(ctx context.Context, ref string, from, n int64) (t asideTable, err error) {
	path, err := a.inProjectPath("datasets", ref, "quarantine")
	if err != nil {
		return t, err
	}
	c, err := a.connect()
	if err != nil {
		return t, err
	}
	q := url.Values{"from": {strconv.FormatInt(from, 10)}, "rows": {strconv.FormatInt(n, 10)}}
	return t, c.Do(ctx, http.MethodGet, path+"?"+q.Encode(), nil, &t)
}

// exportQuarantine writes all rows into a new file, or none.
func (a *app) exportQuarantine(ctx context.Context, ref, file string) (err error) {
	t, err := a.quarantined(ctx, ref, 0, asidePage)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return usage("%v", err)
	}
	out := bufio.NewWriter(f)
	defer func() {
		if err == nil {
			err = out.Flush()
		}
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			_ = os.Remove(file)
		}
	}()
	write := asCSV(out, t.Columns)
	if filepath.Ext(file) == ".jsonl" {
		write = asLines(out, t.Columns)
	}
	done := int64(0)
	for {
		if err := write(t); err != nil {
			return err
		}
		done += int64(len(t.Rows))
		if done >= t.Total || len(t.Rows) == 0 {
			break
		}
		if t, err = a.quarantined(ctx, t.Version, done, asidePage); err != nil {
			return err
		}
	}
	a.note("wrote %d rows to %s", done, file)
	return nil
}

func asCSV(out io.Writer, columns []string) func(asideTable) error {
	w := csv.NewWriter(out)
	head := append([]string{"quarantine_row", "quarantine_reasons"}, columns...)
	return func(t asideTable) error {
		if head != nil {
			_ = w.Write(head) // Error has it
			head = nil
		}
		for _, r := range t.Rows {
			cells := []string{r.Row.String(), strings.Join(r.Reasons, "; ")}
			for i := range r.Values {
				cells = append(cells, textOf(r.Values[i]))
			}
			_ = w.Write(cells)
		}
		w.Flush()
		return w.Error()
	}
}

func asLines(out io.Writer, columns []string) func(asideTable) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	return func(t asideTable) error {
		for _, r := range t.Rows {
			values := map[string]any{}
			for i, c := range columns {
				values[c] = r.Values[i]
			}
			if err := e.Encode(map[string]any{"row": r.Row, "reasons": r.Reasons, "values": values}); err != nil {
				return err
			}
		}
		return nil
	}
}
