package parser

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// INT96 is how Spark before 3.0, Hive, Impala and SQL Server write instants: nanoseconds of a
// day and a Julian day. The library makes nanoseconds since 1970 of them, which end in 2262,
// and refuses a file with a later one, such as the usual 9999-12-31, without saying where. So
// such columns are read as the 12 bytes that they are.

// int96Columns are the top columns that are INT96, by number.
type int96Columns []int

// Of Parquet's Thrift definition: a type, and the number of bytes of INT96.
const (
	fixedLenByteArray = 7
	int96Bytes        = 12
)

// int96AsBytes opens the file with its columns of INT96 as ones of 12 bytes, which Parquet
// stores alike. It changes data.
func int96AsBytes(pf *file.Reader, data *held) (*file.Reader, int96Columns, error) {
	meta := pf.MetaData()
	if meta.IsSetEncryptionAlgorithm() { // its footer is signed
		return pf, nil, nil
	}
	var old int96Columns
	leaf := map[int]bool{} // by the number of the column
	for i := range meta.Schema.NumColumns() {
		c := meta.Schema.Column(i)
		if c.PhysicalType() == parquet.Types.Int96 && len(c.ColumnPath()) == 1 && c.MaxRepetitionLevel() == 0 {
			old = append(old, meta.Schema.Root().FieldIndexByField(c.SchemaNode()))
			leaf[i] = true
		}
	}
	if len(old) == 0 {
		return pf, nil, nil
	}
	column := 0
	for _, e := range meta.FileMetaData.Schema {
		if e.GetNumChildren() > 0 || e.Type == nil {
			continue
		}
		if leaf[column] {
			*e.Type, e.TypeLength = fixedLenByteArray, new(int32(int96Bytes))
		}
		column++
	}
	for _, group := range meta.RowGroups {
		for i, c := range group.Columns {
			if leaf[i] && c.MetaData != nil {
				c.MetaData.Type, c.MetaData.Statistics = fixedLenByteArray, nil
			}
		}
	}
	var footer bytes.Buffer
	size, err := meta.WriteTo(&footer, nil)
	if err != nil {
		return nil, nil, err
	}
	const tail = 8 // the length of the footer, and "PAR1"
	var end [tail]byte
	if _, err := data.ReadAt(end[:], data.size-tail); err != nil {
		return nil, nil, err
	}
	body := data.size - tail - int64(binary.LittleEndian.Uint32(end[:]))
	if body < 0 || size > math.MaxUint32 {
		return nil, nil, fault.New(fault.Invalid, "the Parquet file's footer has a wrong length")
	}
	data.replaceTail(body, append(binary.LittleEndian.AppendUint32(footer.Bytes(), uint32(size)), "PAR1"...)) //nolint:gosec // it fits
	again, err := openParquet(data)
	return again, old, err
}

// schema is the file's with instants.
func (c int96Columns) schema(s *arrow.Schema) *arrow.Schema {
	if len(c) == 0 {
		return s
	}
	fields := slices.Clone(s.Fields())
	for _, i := range c {
		fields[i].Type = arrow.FixedWidthTypes.Timestamp_us
	}
	meta := s.Metadata()
	return arrow.NewSchema(fields, &meta)
}

// instants is a batch with them, which begins with a row of the file. Release it.
func (c int96Columns) instants(rec arrow.RecordBatch, row int64) (arrow.RecordBatch, error) {
	if len(c) == 0 {
		rec.Retain()
		return rec, nil
	}
	columns := slices.Clone(rec.Columns())
	for _, i := range c {
		made, err := instantsOf(rec.Column(i), rec.ColumnName(i), row)
		if err != nil {
			return nil, err
		}
		defer made.Release()
		columns[i] = made
	}
	return array.NewRecordBatch(c.schema(rec.Schema()), columns, rec.NumRows()), nil
}

func instantsOf(a arrow.Array, name string, row int64) (arrow.Array, error) {
	const (
		epoch     = 2_440_588 // the Julian day of 1970-01-01
		dayMicros = 86_400_000_000
	)
	in, ok := a.(*array.FixedSizeBinary)
	if !ok {
		return nil, fault.New(fault.Invalid, "column %q cannot be read as INT96", name)
	}
	b := array.NewTimestampBuilder(memory.DefaultAllocator, arrow.FixedWidthTypes.Timestamp_us.(*arrow.TimestampType))
	defer b.Release()
	b.Reserve(in.Len())
	for i := range in.Len() {
		if in.IsNull(i) {
			b.AppendNull()
			continue
		}
		v := in.Value(i)
		nanos, day := binary.LittleEndian.Uint64(v), int64(binary.LittleEndian.Uint32(v[8:]))-epoch
		var why string
		switch {
		case nanos >= 1000*dayMicros:
			why = "the INT96 timestamp is corrupt: its time of day exceeds 24 hours"
		case nanos%1000 != 0:
			why = "the time is not a whole number of microseconds in range"
		case day < table.MinDay || day > table.MaxDay:
			why = table.WrongYear
		}
		if why != "" {
			return nil, fault.New(fault.Invalid, "row %d, column %q: %s", row+int64(i), name, why)
		}
		b.Append(arrow.Timestamp(day*dayMicros + int64(nanos/1000))) //nolint:gosec // less than a day
	}
	return b.NewArray(), nil
}
