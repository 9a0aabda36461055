package app

import (
	"fmt"
	"io"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
)

// VerifyAudit proves an export offline and says in words what was proven.
func VerifyAudit(export io.Reader, key string, checkpoints io.Reader) (string, error) {
	options := audit.VerifyOptions{PublicKey: key}
	if checkpoints != nil {
		var err error
		if options.Checkpoints, err = audit.ReadCheckpoints(checkpoints); err != nil {
			return "", fault.Wrap(err, "checkpoints of the second place")
		}
	}
	r, err := audit.Verify(export, options)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d entries and %d checkpoints verified, root %s\n", r.Size, r.Checkpoints, r.Root)
	if r.Erased > 0 {
		fmt.Fprintf(&b, "%d entries were erased; their commitments are intact\n", r.Erased)
	}
	if checkpoints != nil {
		fmt.Fprintf(&b, "%d checkpoints of the second place agree, %d are newer than the export\n", r.Witnessed, r.Newer)
	}
	if !r.KeyGiven {
		fmt.Fprintf(&b, "signed by %s, which the export itself names: compare it with one you trust, or give --key\n", r.PublicKey)
	}
	return b.String(), nil
}
