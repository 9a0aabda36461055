package sqltable

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/fault"
)

// TestEndedReading: a reading that its caller ended says so, whatever database/sql said of
// the transaction.
func TestEndedReading(t *testing.T) {
	t.Parallel()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, stop := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer stop()
	s := &reader{o: source.Database{Host: "db.example"}}
	after := fmt.Errorf("read: %w", sql.ErrTxDone)
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want string
		is   error
		kind fault.Kind
	}{
		{cancelled, after, "reading from db.example was cancelled: context canceled", context.Canceled, fault.KindOf(context.Canceled)},
		{cancelled, context.Canceled, "reading from db.example was cancelled: context canceled", context.Canceled, fault.KindOf(context.Canceled)},
		{late, after, "reading from db.example timed out: context deadline exceeded", context.DeadlineExceeded, fault.Timeout},
		{late, late.Err(), "reading from db.example timed out: context deadline exceeded", context.DeadlineExceeded, fault.Timeout},
		// What the reading refuses is not hidden by the end of its caller.
		{cancelled, fault.New(fault.Invalid, "no column"), "no column", nil, fault.Invalid},
	} {
		err := s.explain(c.ctx, c.err)
		if err.Error() != c.want || c.is != nil && !errors.Is(err, c.is) || fault.KindOf(err) != c.kind || strings.Contains(err.Error(), "sql:") {
			t.Errorf("%v: %v of kind %s, want %q", c.err, err, fault.KindOf(err), c.want)
		}
	}
}
