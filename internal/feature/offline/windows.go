package offline

import (
	"bytes"
	"context"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// windows answers with aggregations. Rows come by key and by the time from which
// they are seen, asks by key and time: what is seen goes into a tree of the key,
// in which a late row gets its place, and leaves it when it is older than the
// longest window.
func (e *external) windows(ctx context.Context, rows, asks records, ttl int64, _ *Stats) error {
	var (
		plan    = e.view.Windows.Plan
		longest = plan.Longest()
		limit   = max(e.budget, minSorter)
		tree    = plan.NewTree()
		key     []byte // of the asks being answered
		newest  int64  // event seen with that key
		seen    bool
		packed  []byte // the last answer
		last    int64  // its time
		valid   bool   // it still holds
		tick    every
	)
	more := rows.next()
	for asks.next() {
		if err := tick.check(ctx); err != nil {
			return err
		}
		ask, _ := asks.record()
		askKey, number := ask[:len(ask)-16], ask[len(ask)-8:]
		t := timeAt(ask[len(ask)-16:])
		if !bytes.Equal(askKey, key) {
			key, seen, valid = append(key[:0], askKey...), false, false
			tree.Reset()
		}
		oldest := saturatingSub(t, longest)
		for ; more; more = rows.next() {
			if err := tick.check(ctx); err != nil {
				return err
			}
			row, payload := rows.record()
			if bytes.Compare(row, ask[:len(ask)-8]) > 0 {
				break
			}
			if !bytes.Equal(row[:len(row)-8], key) {
				continue
			}
			valid = false
			event := timeAt(payload)
			if !seen || event > newest {
				newest, seen = event, true
			}
			if event <= oldest {
				continue
			}
			if err := tree.Insert(event, timeAt(payload[8:]), payload[16:]); err != nil {
				return err
			}
			if tree.Bytes() > limit {
				// What is too old now was not when it was put in.
				if tree.Forget(oldest); tree.Bytes() > limit {
					return fault.New(fault.Exhausted, "the windows of one entity of view %s contain more than %d bytes of events", e.view.Name, limit).
						WithHint("Raise the memory limit of joins in the configuration, shorten the longest window, or aggregate events in the view's SQL first.")
				}
			}
		}
		if !seen || ttl != 0 && newest < saturatingSub(t, ttl) {
			continue
		}
		if !valid || t != last {
			tree.Forget(oldest)
			if err := tree.At(t, e.answer); err != nil {
				return err
			}
			var err error
			if packed, err = value.AppendRow(packed[:0], e.answer); err != nil {
				return err
			}
			valid, last = true, t
		}
		if err := e.answers.add(number, packed); err != nil {
			return err
		}
	}
	return nil
}
