package parser

import (
	"errors"
	"io"

	"github.com/apache/arrow-go/v18/arrow/ipc"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// maxArrowHead bounds what describes a message of a stream, in bytes.
const maxArrowHead = 8 << 20

// parseArrow reads a stream of Arrow's IPC. It is held in memory before the first
// batch goes out: whoever uploads reads nothing until all of it was taken.
func parseArrow(in io.Reader, req Request, sink Sink) (int64, error) {
	limit := req.Limits.Parquet
	data, whole, err := hold(in, limit)
	if err != nil {
		return 0, err
	}
	if !whole {
		return 0, fault.New(fault.TooLarge, "the rows are over the limit of %d bytes", limit).WithHint("Send fewer rows per request.")
	}
	rows, err := readArrow(data, req, sink)
	if _, ok := errors.AsType[*fault.Error](err); err != nil && !ok {
		return 0, fault.New(fault.Invalid, "the Arrow stream cannot be read: %v", err)
	}
	return rows, err
}

func readArrow(data *held, req Request, sink Sink) (_ int64, err error) {
	mem := newBudget(req.Limits.Parquet) // of a batch, which may be compressed
	defer func() {
		if p := recover(); p != nil && !mem.over {
			panic(p)
		}
		if mem.over {
			err = fault.New(fault.TooLarge, "a record batch needs more than %s of memory", resource.Bytes(mem.most)).WithHint("Send fewer rows per record batch.")
		}
	}()
	r, err := ipc.NewReader(consumed{data}, ipc.WithAllocator(mem), ipc.WithMetadataSizeLimit(maxArrowHead), ipc.WithBodySizeLimit(data.size))
	if err != nil {
		return 0, err
	}
	defer r.Release()
	if n := r.Schema().NumFields(); n > table.MaxColumns {
		return 0, fault.New(fault.Invalid, "%d columns are over the limit of %d", n, table.MaxColumns)
	}
	schema, err := table.NormalSchema(r.Schema())
	if err != nil {
		return 0, err
	}
	if _, err := declaredMatch(schema, textual(r.Schema()), req); err != nil {
		return 0, err
	}
	if err := sink.Begin(schema.Arrow()); err != nil {
		return 0, err
	}
	rows := int64(0)
	for mem.renew(); r.Next(); mem.renew() {
		rec := r.RecordBatch()
		if rows+rec.NumRows() > req.Limits.Rows {
			return 0, fault.New(fault.TooLarge, "there are more than %d rows", req.Limits.Rows)
		}
		size := uint64(0)
		for _, c := range rec.Columns() {
			size += c.Data().SizeInBytes()
		}
		most := int64(batchRows)
		if size > batchBytes { // as if all rows were alike
			most = min(most, 1+rec.NumRows()*batchBytes/int64(size))
		}
		for from := int64(0); from < rec.NumRows(); from += most {
			part := rec.NewSlice(from, min(from+most, rec.NumRows()))
			err := pass(part, schema, rows+from, sink)
			part.Release()
			if err != nil {
				return 0, err
			}
		}
		rows += rec.NumRows()
	}
	if err := r.Err(); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	return rows, nil
}
