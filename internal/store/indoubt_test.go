package store

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// TestInDoubt: a commit that may have taken place is told from one that did not, and is
// never run again.
func TestInDoubt(t *testing.T) {
	refusal := func(code string) error { return fmt.Errorf("commit: %w", &pgconn.PgError{Code: code}) }
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"committed":                {nil, false},
		"rolled back":              {pgx.ErrTxCommitRollback, false},
		"a conflict":               {refusal("40001"), false},
		"a constraint":             {refusal("23505"), false},
		"a full disk":              {refusal("53100"), false},
		"the server, of a pooler":  {refusal("08P01"), true},
		"terminated":               {refusal("57P01"), true},
		"completion unknown":       {refusal("40003"), true},
		"the connection broke":     {io.ErrUnexpectedEOF, true},
		"what nobody knows before": {errors.New("commit"), true},
	} {
		if got := inDoubt(c.err); got != c.want {
			t.Errorf("%s: %t", name, got)
		} else if got && lostConnection(inDoubtError{c.err}) {
			t.Errorf("%s: it would run again", name)
		}
	}
}
