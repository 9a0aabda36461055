package audit

import (
	"fmt"
	"io"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// VerifyText proves an export offline and says in words what was proven.
func VerifyText(export io.Reader, key string, checkpoints io.Reader) (string, error) {
	options := VerifyOptions{PublicKey: key}
	if checkpoints != nil {
		var err error
		if options.Checkpoints, err = ReadCheckpoints(checkpoints); err != nil {
			return "", fault.Wrap(err, "checkpoints of the witness")
		}
	}
	r, err := Verify(export, options)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if r.Project != "" {
		fmt.Fprintf(&b, "%d entries of project %s verified, in a log of %d entries with the root %s\n", r.Entries, r.Project, r.Size, r.Root)
	} else {
		fmt.Fprintf(&b, "%d entries and %d checkpoints verified, root %s\n", r.Size, r.Checkpoints, r.Root)
	}
	if r.Erased > 0 {
		fmt.Fprintf(&b, "%d entries were erased; their commitments are intact:\n", r.Erased)
	}
	for _, e := range r.Erasures {
		what := "erased"
		if e.Lost {
			what = "accepted as lost, not erased,"
		}
		for _, one := range e.Entries {
			fmt.Fprintf(&b, "  entry %d %s by entry %d", one.Index, what, e.Index)
			if one.Action != "" {
				fmt.Fprintf(&b, ": %s of %s at %s", one.Action, one.Actor, one.Time)
			}
			fmt.Fprintf(&b, " (reason: %q)\n", e.Reason)
		}
	}
	if checkpoints != nil {
		fmt.Fprintf(&b, "%d checkpoints of the witness match, %d are newer than the export\n", r.Witnessed, r.Newer)
	}
	if !r.KeyGiven {
		fmt.Fprintf(&b, "signed by %s, according to the export: compare it with a trusted key, or set --key\n", r.PublicKey)
	}
	return b.String(), nil
}
