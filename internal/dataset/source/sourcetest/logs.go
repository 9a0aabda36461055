package sourcetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Log is a log of messages with a driver for it.
type Log struct {
	Driver source.Driver
	// Request reads an empty log of that name, which it makes.
	Request func(t *testing.T, name string) source.Request
	Send    func(t *testing.T, name string, values ...string)
	// Trim removes the oldest messages, so that only the last n are there.
	Trim func(t *testing.T, name string, n int)
}

// Logs is the suite for drivers of logs.
func Logs(t *testing.T, l Log) {
	t.Helper()
	request := func(t *testing.T, name string) source.Request {
		t.Helper()
		r := l.Request(t, name)
		r.Mode, r.BatchRows, r.Parser = source.Incremental, 3, Parser{}
		r.Declared = []source.Column{{Name: "id", Type: table.Int64}, {Name: "name", Type: table.String}, {Name: "at", Type: table.Timestamp}}
		return r
	}
	send := func(t *testing.T, name string, from, to int) {
		t.Helper()
		var values []string
		for i := from; i < to; i++ {
			values = append(values, fmt.Sprintf("{\"id\": %d,\n \"name\": \"n%d\", \"more\": {\"x\": [1]}, \"at\": \"2024-01-01T00:00:00Z\"}", i, i))
		}
		l.Send(t, name, values...)
	}
	want := func(from, to int) (rows []Row) {
		for i := from; i < to; i++ {
			rows = append(rows, fmt.Sprintf("%d|n%d|2024-01-01T00:00:00Z", i, i))
		}
		slices.Sort(rows)
		return rows
	}
	equal := func(t *testing.T, got, want []Row) {
		t.Helper()
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("read\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	t.Run("each message once", func(t *testing.T) {
		r := request(t, "once")
		send(t, "once", 0, 20)
		r.BatchRows = 1
		rows, until, after, _ := ReadAll(t, l.Driver, r)
		given := slices.Clone(rows)
		equal(t, rows, want(0, 20))
		// What comes meanwhile is not of this reading, wherever it is taken up.
		send(t, "once", 20, 30)
		for i, at := range after {
			again := r
			again.Resume, again.Until, again.Begun = at, until, true
			rest, ends, _, _ := ReadAll(t, l.Driver, again)
			left := slices.Clone(given[i+1:])
			slices.Sort(left)
			equal(t, rest, left)
			if string(ends) != string(until) {
				t.Errorf("it ends at %s, and began to end at %s", ends, until)
			}
		}
		next := r
		next.After = until
		rows, until, _, _ = ReadAll(t, l.Driver, next)
		equal(t, rows, want(20, 30))
		next.After = until
		if rows, _, _, schema := ReadAll(t, l.Driver, next); len(rows) != 0 || schema != nil {
			t.Errorf("nothing is new, and read %v", rows)
		}
	})
	t.Run("an empty log", func(t *testing.T) {
		r := request(t, "empty")
		rows, until, _, schema := ReadAll(t, l.Driver, r)
		if len(rows) != 0 || schema != nil {
			t.Errorf("%v %v", rows, schema)
		}
		send(t, "empty", 0, 5)
		r.After = until
		rows, _, _, _ = ReadAll(t, l.Driver, r)
		equal(t, rows, want(0, 5))
	})
	t.Run("messages that are no rows", func(t *testing.T) {
		r := request(t, "poison")
		send(t, "poison", 0, 3)
		l.Send(t, "poison", `{"id": "canary"}`)
		hides(t, wantLast(t, l.Driver, r, "partition", "offset", `column "id"`))
		r = request(t, "odd")
		l.Send(t, "odd", "no canary of JSON")
		hides(t, wantLast(t, l.Driver, r, "partition", "offset"))
	})
	t.Run("messages that are gone", func(t *testing.T) {
		r := request(t, "gone")
		send(t, "gone", 0, 5)
		_, until, _, _ := ReadAll(t, l.Driver, r)
		send(t, "gone", 5, 10)
		l.Trim(t, "gone", 2)
		next := r
		next.After = until
		Refused(t, l.Driver, next, fault.Gone, "were deleted before they were read", "--anew")
		rows, _, _, _ := ReadAll(t, l.Driver, r)
		equal(t, rows, want(8, 10))
	})
	t.Run("what is wrong is said", func(t *testing.T) {
		r := request(t, "wrong")
		r.Declared = nil
		Refused(t, l.Driver, r, fault.Invalid, "declares no columns")
		r = request(t, "wrong2")
		r.Mode = source.Full
		Refused(t, l.Driver, r, fault.Invalid, "incremental")
		r = request(t, "wrong3")
		r.Access.Hosts = []string{"elsewhere"}
		Refused(t, l.Driver, r, fault.PermissionDenied, "sources may not connect to")
	})
}

// hides finds the canary in the data of an error, and nowhere else.
func hides(t *testing.T, err error) {
	t.Helper()
	if strings.Contains(err.Error()+fault.HintOf(err), "canary") || !strings.Contains(fault.DataOf(err), "canary") {
		t.Errorf("%v has the value, or %q does not", err, fault.DataOf(err))
	}
}

// wantLast reads until the reading fails, with these words.
func wantLast(t *testing.T, d source.Driver, r source.Request, words ...string) error {
	t.Helper()
	in, err := d.Open(t.Context(), r)
	for err == nil {
		rec, _, nerr := in.Next(t.Context())
		if rec != nil {
			rec.Release()
		}
		err = nerr
	}
	if in != nil {
		_ = in.Close()
	}
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("%v (%v)", err, fault.KindOf(err))
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q is not in %v", w, err)
		}
	}
	return err
}
