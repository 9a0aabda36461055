package main

import (
	"bufio"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/bench/harness"
)

// table is rows in memory, in batches.
type table struct {
	schema  *arrow.Schema
	batches []arrow.RecordBatch
	rows    int
	builder *array.RecordBuilder
}

const batchRows = 32 << 10

func newTable(fields ...arrow.Field) *table {
	schema := arrow.NewSchema(fields, nil)
	return &table{schema: schema, builder: array.NewRecordBuilder(memory.DefaultAllocator, schema)}
}

func text(name string) arrow.Field {
	return arrow.Field{Name: name, Type: arrow.BinaryTypes.String, Nullable: true}
}

func number(name string) arrow.Field {
	return arrow.Field{Name: name, Type: arrow.PrimitiveTypes.Float64, Nullable: true}
}

func instant(name string) arrow.Field {
	return arrow.Field{Name: name, Type: &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}, Nullable: true}
}

// add appends a row of cells as text; "NA" and "" are NULL. Instants are given
// as microseconds.
func (t *table) add(cells ...string) error {
	for i, cell := range cells {
		if cell == "NA" || cell == "" {
			t.builder.Field(i).AppendNull()
			continue
		}
		switch field := t.builder.Field(i).(type) {
		case *array.StringBuilder:
			field.Append(cell)
		case *array.Float64Builder:
			v, err := strconv.ParseFloat(cell, 64)
			if err != nil {
				return err
			}
			field.Append(v)
		case *array.TimestampBuilder:
			v, err := strconv.ParseInt(cell, 10, 64)
			if err != nil {
				return err
			}
			field.Append(arrow.Timestamp(v))
		}
	}
	t.rows++
	if t.rows%batchRows == 0 {
		t.batches = append(t.batches, t.builder.NewRecordBatch())
	}
	return nil
}

func (t *table) done() *table {
	t.batches = append(t.batches, t.builder.NewRecordBatch())
	return t
}

func (t *table) reader() (array.RecordReader, error) {
	return array.NewRecordReader(t.schema, t.batches)
}

// write writes an Arrow IPC file, which the peer reads.
func (t *table) write(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w, err := ipc.NewFileWriter(f, ipc.WithSchema(t.schema))
	if err != nil {
		return err
	}
	for _, batch := range t.batches {
		if err := w.Write(batch); err != nil {
			return err
		}
	}
	return w.Close()
}

// demo is the data of examples/nycflights as its SQL prepares it: every flight
// of the year with its keys and departure, and the three views.
type demo struct{ flights, weather, plane, carrier *table }

func readDemo(dir string) (demo, error) {
	d := demo{
		flights: newTable(text("origin"), text("tailnum"), text("carrier"), instant("departs")),
		weather: newTable(text("origin"), instant("observed_at"), number("temp"), number("wind_speed"), number("precip"), number("visib"), number("humid")),
		plane:   newTable(text("tailnum"), instant("known_at"), number("built"), number("seats"), number("engines")),
		carrier: newTable(text("carrier"), instant("landed_at"), number("mean_delay"), number("landings")),
	}
	landings := map[string][]landing{}
	err := harness.EachRow(filepath.Join(dir, "flights.csv.gz"), func(cell func(string) string) error {
		hour, err := time.Parse(time.RFC3339, cell("time_hour"))
		if err != nil {
			return err
		}
		delay, err := strconv.ParseFloat(cell("arr_delay"), 64)
		if err != nil {
			return nil //nolint:nilerr // NA: cancelled or diverted
		}
		departs := hour.Add(minutes(cell("minute")))
		if cell("tailnum") != "NA" && cell("tailnum") != "" {
			if err := d.flights.add(cell("origin"), cell("tailnum"), cell("carrier"), micros(departs)); err != nil {
				return err
			}
		}
		if cell("air_time") != "NA" && cell("dep_delay") != "NA" {
			landed := departs.Add(minutes(cell("dep_delay")) + minutes(cell("air_time")))
			landings[cell("carrier")] = append(landings[cell("carrier")], landing{landed, delay})
		}
		return nil
	})
	if err != nil {
		return d, err
	}
	for carrier, of := range landings {
		if err := meansOfAWeek(d.carrier, carrier, of); err != nil {
			return d, err
		}
	}
	err = harness.EachRow(filepath.Join(dir, "weather.csv"), func(cell func(string) string) error {
		at, err := time.Parse(time.RFC3339, cell("time_hour"))
		if err != nil {
			return err
		}
		return d.weather.add(cell("origin"), micros(at), cell("temp"), cell("wind_speed"), cell("precip"), cell("visib"), cell("humid"))
	})
	if err != nil {
		return d, err
	}
	known := micros(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	err = harness.EachRow(filepath.Join(dir, "planes.csv"), func(cell func(string) string) error {
		return d.plane.add(cell("tailnum"), known, cell("year"), cell("seats"), cell("engines"))
	})
	for _, t := range []*table{d.flights, d.weather, d.plane, d.carrier} {
		t.done()
	}
	return d, err
}

type landing struct {
	at    time.Time
	delay float64
}

// meansOfAWeek adds, for each instant at which a flight of the carrier landed,
// the mean delay of those that landed in the seven days up to it.
func meansOfAWeek(to *table, carrier string, of []landing) error {
	slices.SortFunc(of, func(a, b landing) int { return a.at.Compare(b.at) })
	first, sum := 0, 0.0
	for i, l := range of {
		sum += l.delay
		if i+1 < len(of) && of[i+1].at.Equal(l.at) {
			continue
		}
		for of[first].at.Before(l.at.Add(-7 * 24 * time.Hour)) {
			sum -= of[first].delay
			first++
		}
		count := float64(i - first + 1)
		err := to.add(carrier, micros(l.at), strconv.FormatFloat(sum/count, 'g', -1, 64), strconv.FormatFloat(count, 'g', -1, 64))
		if err != nil {
			return err
		}
	}
	return nil
}

func minutes(cell string) time.Duration {
	n, _ := strconv.Atoi(cell)
	return time.Duration(n) * time.Minute
}

func micros(t time.Time) string { return strconv.FormatInt(t.UnixMicro(), 10) }

// head copies the header and the first rows of a gzipped file, as plain text.
func head(path string, rows int) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	lines := bufio.NewScanner(z)
	for range rows + 1 {
		if !lines.Scan() {
			break
		}
		b.WriteString(lines.Text() + "\n")
	}
	return b.String(), lines.Err()
}
