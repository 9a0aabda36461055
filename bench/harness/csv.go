package harness

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// EachRow reads a CSV file with a header, gzipped if its name says so, to its end or
// until visit gives fs.SkipAll.
func EachRow(path string, visit func(cell func(name string) string) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var from io.Reader = bufio.NewReader(f)
	if strings.HasSuffix(path, ".gz") {
		if from, err = gzip.NewReader(from); err != nil {
			return err
		}
	}
	rows := csv.NewReader(from)
	rows.ReuseRecord = true
	header, err := rows.Read()
	if err != nil {
		return err
	}
	place := map[string]int{}
	for i, name := range header {
		place[name] = i
	}
	for {
		record, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		err = visit(func(name string) string { return record[place[name]] })
		if errors.Is(err, fs.SkipAll) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(path), err)
		}
	}
}
