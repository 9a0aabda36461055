package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/dataset/table"
)

// The shape is that of New York's yellow taxis as point-in-time joins of others
// were measured on them: some 2.5 million rides a month, 259 zones, and per zone
// the statistics of windows of 15 and 30 minutes, known when the window has ended.
// The values are drawn, not the city's.
const (
	zones         = 259
	ridesPerMonth = 2_500_000
	month         = 30 * 24 * time.Hour
	perWindow     = 4 // features of a view
	firstRide     = 1_546_300_800_000_000
)

// windows are the views by name, the two of the comparison first.
var windows = []struct {
	name string
	size time.Duration
}{
	{"w15", 15 * time.Minute},
	{"w30", 30 * time.Minute},
	{"w60", time.Hour},
	{"w10", 10 * time.Minute},
	{"w120", 2 * time.Hour},
}

// Orders of the rows of all files.
const (
	clustered = "clustered" // rides by time, windows by zone and time
	shuffled  = "shuffled"
)

var rideSchema = table.Schema{
	{ID: 1, Name: "ride", Type: table.Int64},
	{ID: 2, Name: "pickup", Type: table.Timestamp},
	{ID: 3, Name: "zone", Type: table.Int64},
	{ID: 4, Name: "distance", Type: table.Float64},
	{ID: 5, Name: "fare", Type: table.Float64},
	{ID: 6, Name: "passengers", Type: table.Float64},
}

func windowSchema(name string) table.Schema {
	s := table.Schema{{ID: 1, Name: "zone", Type: table.Int64}, {ID: 2, Name: "until", Type: table.Timestamp}}
	for i, f := range featuresOf(name) {
		s = append(s, table.Field{ID: 3 + i, Name: f, Type: table.Float64})
	}
	return s
}

func featuresOf(window string) []string {
	return []string{window + "_rides", window + "_fare", window + "_distance", window + "_share"}
}

// seal is that of a file: ours are encrypted, as datasets are by default; peers
// read the same rows in the clear.
func seal(path string) table.Seal {
	return table.Seal{Key: []byte("0123456789abcdef0123456789abcdef"), Name: filepath.Base(path)}
}

// makeTaxi writes rides and windows, sealed and plain, in both orders.
func makeTaxi(dir string, rides int, names []string) error {
	span := time.Duration(float64(month) * float64(rides) / ridesPerMonth)
	for _, order := range []string{clustered, shuffled} {
		rnd := rand.New(rand.NewPCG(7, 7)) //nolint:gosec // drawn again the same
		at := permutation(rnd, rides, order)
		err := write(both(dir, "rides-"+order), rideSchema, rides, func(b *array.RecordBuilder, row int) {
			i := at(row)
			values(b, int64(i), firstRide+int64(float64(i)/float64(rides)*float64(span.Microseconds())), int64(noise(i)*zones), noise(i+1)*20, noise(i+2)*80, math.Floor(noise(i+3)*5))
		})
		if err != nil {
			return err
		}
		for _, w := range windows {
			if !slices.Contains(names, w.name) {
				continue
			}
			per := int(span/w.size) + 1
			at := permutation(rnd, per*zones, order)
			err := write(both(dir, w.name+"-"+order), windowSchema(w.name), per*zones, func(b *array.RecordBuilder, row int) {
				i := at(row)
				values(b, int64(i/per), firstRide+int64(i%per)*w.size.Microseconds(), math.Floor(noise(i)*200), noise(i+1)*80, noise(i+2)*20, noise(i+3))
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// noise is a number in [0, 1) that only depends on i.
func noise(i int) float64 {
	x := uint64(i)*0x9E3779B97F4A7C15 + 0x1234567 //nolint:gosec // bits are meant
	x ^= x >> 30
	x *= 0xBF58476D1CE4E5B9
	x ^= x >> 27
	x *= 0x94D049BB133111EB
	x ^= x >> 31
	return float64(x>>11) / (1 << 53)
}

func permutation(rnd *rand.Rand, n int, order string) func(int) int {
	if order == clustered {
		return func(i int) int { return i }
	}
	p := rnd.Perm(n)
	return func(i int) int { return p[i] }
}

func values(b *array.RecordBuilder, row ...any) {
	for i, v := range row {
		switch v := v.(type) {
		case int64:
			if at, ok := b.Field(i).(*array.TimestampBuilder); ok {
				at.Append(arrow.Timestamp(v))
				continue
			}
			b.Field(i).(*array.Int64Builder).Append(v)
		case float64:
			b.Field(i).(*array.Float64Builder).Append(v)
		}
	}
}

// both are the files DIR/NAME.sealed and DIR/NAME.parquet.
func both(dir, name string) []string {
	return []string{filepath.Join(dir, name+".sealed"), filepath.Join(dir, name+".parquet")}
}

// write writes the same rows to files.
func write(paths []string, s table.Schema, rows int, add func(*array.RecordBuilder, int)) (err error) {
	var outs []*output
	for _, path := range paths {
		o, err := create(path, s)
		if err != nil {
			return err
		}
		outs = append(outs, o)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, s.Arrow())
	defer b.Release()
	for from := 0; from < rows; from += batchRows {
		for row := from; row < min(from+batchRows, rows); row++ {
			add(b, row)
		}
		batch := b.NewRecordBatch()
		for _, o := range outs {
			err = errors.Join(err, o.Write(batch))
		}
		batch.Release()
		if err != nil {
			return err
		}
	}
	for _, o := range outs {
		err = errors.Join(err, o.finish())
	}
	return err
}

const batchRows = 32 << 10

// output is a data file being written.
type output struct {
	*table.FileWriter
	file *os.File
}

func create(path string, s table.Schema) (*output, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	by := table.Seal{}
	if filepath.Ext(path) == ".sealed" {
		by = seal(path)
	}
	w, err := table.NewFileWriter(f, s, by)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &output{w, f}, nil
}

func (o *output) finish() error {
	err := o.Close()
	if closed := o.file.Close(); !errors.Is(closed, os.ErrClosed) { // the writer may have closed it
		err = errors.Join(err, closed)
	}
	return err
}

// input is an opened data file.
type input struct {
	array.RecordReader
	file io.Closer
}

func (i input) Release() {
	i.RecordReader.Release()
	_ = i.file.Close() // only read
}

// open opens a sealed file.
func open(ctx context.Context, path string, s table.Schema) (array.RecordReader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r, err := table.OpenFile(ctx, f, info.Size(), s, nil, seal(path))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", filepath.Base(path), err), f.Close())
	}
	return input{r, f}, nil
}
