package ingestion

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
	"github.com/falaj-ml/falaj/internal/store"
)

// messageRows is how many messages are handed on at a time.
const messageRows = 1000

// reading names the log that the messages of a source are read from, NAME@DIGEST: a
// position under one name means nothing under another.
func (s Source) reading() string {
	log := []string{string(s.ID), s.Spec.From.Kind()}
	switch from := s.Spec.From; {
	case from.Kafka != nil:
		log = append(log, append(slices.Sorted(slices.Values(from.Kafka.Brokers)), from.Kafka.Topic)...)
	case from.NATS != nil:
		log = append(log, append(slices.Sorted(slices.Values(from.NATS.Servers)), from.NATS.Stream, from.NATS.Subject)...)
	}
	sum := sha256.Sum256([]byte(strings.Join(log, "\x00")))
	return s.Name + "@" + hex.EncodeToString(sum[:8])
}

// CheckMessages refuses a source whose messages cannot be followed as the events of a
// dataset, and names what they are read from. Needs source.read. Errors:
// fault.NotFound; fault.Invalid.
func (s *Service) CheckMessages(ctx context.Context, p project.Name, name, dataset string) (reading string, err error) {
	src, err := s.One(ctx, p, name)
	if err != nil {
		return "", err
	}
	bad := func(format string, args ...any) *fault.Error {
		return fault.New(fault.Invalid, "source %s cannot be followed: "+format, append([]any{src.Name}, args...)...)
	}
	switch {
	case src.Spec.From.Kafka == nil && src.Spec.From.NATS == nil:
		return "", bad("it is not a kafka or nats source")
	case src.Spec.Dataset != dataset:
		return "", bad("its dataset is %s, not %s", src.Spec.Dataset, dataset)
	case src.Spec.Mode != source.Incremental:
		return "", bad("its mode is %s", src.Spec.Mode).WithHint("Events are append-only: set mode: incremental.")
	case src.Spec.Schedule != "":
		return "", bad("it has a schedule, which would add its messages to the dataset a second time").WithHint("Remove the schedule, and stop ingesting the source.")
	case len(src.Spec.Residency) > 0:
		return "", bad("it sets its own residency").WithHint("Set the residency on the dataset instead.")
	}
	return src.reading(), nil
}

// Messages reads the messages behind a position, as they are, up to where their log
// stands: whoever asks says what they mean. reading is what CheckMessages gave, after
// a position under that name. What is passed over at the end, such as messages of
// other subjects and markers of transactions, is taken as no messages up to there.
// Errors: fault.Conflict when the source reads something else by now; fault.Gone.
func (s *Service) Messages(ctx context.Context, p project.Name, reading string, after source.Position, take func(messages [][]byte, at source.Position) error) error {
	name, _, _ := strings.Cut(reading, "@")
	var src Source
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		src, err = s.cfg.Store.Source(ctx, tx, p, name)
		return err
	})
	if err != nil {
		return err
	}
	if src.reading() != reading {
		return fault.New(fault.Conflict, "source %s was changed during the read", name).WithHint("Ask again.")
	}
	d, err := s.cfg.Datasets.Definitions.One(ctx, p, src.Spec.Dataset)
	if err != nil {
		return err
	}
	var secret map[string]secrets.Text
	if src.Spec.Secret != "" {
		if secret, err = s.cfg.Secrets.Open(ctx, string(p), src.Spec.Secret); err != nil {
			return err
		}
	}
	driver, err := s.driver(src.Spec)
	if err != nil {
		return err
	}
	req, err := s.request(ctx, src, d, Progress{After: after})
	if err != nil {
		return err
	}
	req.Secret, req.BatchRows, req.Parser = secret, messageRows, lines{}
	if err := driver.Check(req); err != nil {
		return err
	}
	guard := newWatchdog(ctx, s.cfg.Stall)
	defer guard.stop()
	in, err := driver.Open(guard.ctx, req)
	if err != nil {
		return begun(guard.explain(err), name)
	}
	defer func() { _ = in.Close() }()
	for {
		guard.reset()
		rec, at, err := in.Next(guard.ctx)
		if errors.Is(err, io.EOF) {
			if e, ok := in.(source.Emptied); ok && e.Empty() > 0 {
				s.cfg.Log.WarnContext(ctx, "skipped messages without a value", slog.String("source", name), slog.String("project", string(p)), slog.Int64("messages", e.Empty()))
			}
			// Else the position stays where the last message was, until the limits of the
			// log pass it: as if something had been lost.
			if until := in.Until(); !bytes.Equal(until, after) {
				return take(nil, until)
			}
			return nil
		}
		if err != nil {
			return begun(guard.explain(err), name)
		}
		guard.pause()
		column := rec.Column(0).(*array.Binary)
		messages := make([][]byte, column.Len())
		for i := range messages {
			messages[i] = append([]byte(nil), column.Value(i)...)
		}
		rec.Release()
		if err := take(messages, at); err != nil {
			return err
		}
		after = at
	}
}

// begun says how a log is read anew that is followed: drivers speak to who ingests.
func begun(err error, name string) error {
	var f *fault.Error
	if errors.As(err, &f) && (f.Kind == fault.Gone || f.Kind == fault.Conflict) {
		return f.WithHint("Keep messages longer than any outage of Falaj. To restart from the oldest message, delete the source %s and apply it again; messages that were read before are then counted again.", name)
	}
	return err
}

// lines is a parser that leaves messages as they are, a row each.
type lines struct{}

// Parse implements source.Parser.
func (lines) Parse(_ context.Context, body io.Reader, req parser.Request) (source.Rows, error) {
	r := &lineReader{in: bufio.NewReaderSize(body, 64<<10), most: max(1, req.Batch)}
	r.refs.Add(1)
	return r, nil
}

// maxMessage bounds the bytes of a message that are kept; the rest of it is passed
// over.
const maxMessage = 1 << 20

var lineSchema = arrow.NewSchema([]arrow.Field{{Name: "message", Type: arrow.BinaryTypes.Binary}}, nil)

type lineReader struct {
	in   *bufio.Reader
	most int
	rec  arrow.RecordBatch
	err  error
	refs atomic.Int64
}

func (r *lineReader) Retain() { r.refs.Add(1) }

func (r *lineReader) Release() {
	if r.refs.Add(-1) == 0 && r.rec != nil {
		r.rec.Release()
		r.rec = nil
	}
}

func (r *lineReader) Close() error {
	r.Release()
	return nil
}

// Summary implements source.Rows: what messages are, others find out.
func (r *lineReader) Summary() (parser.Summary, error) { return parser.Summary{}, r.Err() }

func (r *lineReader) Schema() *arrow.Schema          { return lineSchema }
func (r *lineReader) RecordBatch() arrow.RecordBatch { return r.rec }
func (r *lineReader) Record() arrow.RecordBatch      { return r.rec }

func (r *lineReader) Err() error {
	if errors.Is(r.err, io.EOF) {
		return nil
	}
	return r.err
}

// Next gives a batch of lines: a reading has an end, so there is no need to hurry.
func (r *lineReader) Next() bool {
	if r.rec != nil {
		r.rec.Release()
		r.rec = nil
	}
	b := array.NewBinaryBuilder(memory.DefaultAllocator, arrow.BinaryTypes.Binary)
	defer b.Release()
	size := 0
	for r.err == nil && b.Len() < r.most && size < source.BatchBytes {
		var line []byte
		if line, r.err = r.line(); r.err == nil {
			b.Append(line)
			size += len(line)
		}
	}
	if b.Len() == 0 {
		return false
	}
	column := b.NewArray()
	defer column.Release()
	r.rec = array.NewRecordBatch(lineSchema, []arrow.Array{column}, int64(column.Len()))
	return true
}

// line is the next line, cut at maxMessage.
func (r *lineReader) line() ([]byte, error) {
	var out []byte
	for {
		part, more, err := r.in.ReadLine()
		if err != nil {
			return nil, err
		}
		if len(out) < maxMessage {
			out = append(out, part...)
		}
		if !more {
			return out, nil
		}
	}
}
