// Package deletion decides whether something that others name may be deleted.
//
// What cites an object is found in one place for all kinds (internal/app/citations.go);
// the domains hand it here before they delete, in the same transaction where they can.
//
//   - Nothing cites it: it may go.
//   - Something cites it: the caller must confirm that they have read what (Yes).
//   - A deployment in use depends on it: it takes Force and a reason, which is audited.
package deletion

import (
	"fmt"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Citation is something that names what is to be deleted.
type Citation struct {
	By    string // "model delay@3", "run 01J…"
	Of    string // what it names, "orders@3"
	InUse bool   // it is a deployment that answers with it
}

// Request describes a requested deletion. The zero Request deletes only what nothing
// cites.
type Request struct {
	Yes    bool   // what cites it may name something that is gone
	Force  bool   // so may deployments in use
	Reason string // why Force; audited
}

const (
	maxReason = 2000
	shown     = 10 // citations that an error names
)

// Allow refuses to delete what is cited, unless the request says that it may go. Errors:
// fault.Conflict naming what cites it; fault.Invalid for Force without a reason.
func (r Request) Allow(what string, cited []Citation) error {
	if len(r.Reason) > maxReason {
		return fault.New(fault.Invalid, "the reason has %d bytes, over the limit of %d", len(r.Reason), maxReason)
	}
	if r.Force && strings.TrimSpace(r.Reason) == "" {
		return fault.New(fault.Invalid, "deleting %s by force needs a reason", what).WithHint("Give a reason with --reason: it is recorded in the audit log.")
	}
	used := slices.DeleteFunc(slices.Clone(cited), func(c Citation) bool { return !c.InUse })
	switch {
	case len(used) > 0 && !r.Force:
		return fault.New(fault.Conflict, "%s is in use by %s", what, Names(used)).
			WithHint("First change these to use another object; or delete it with --force and --reason, which the audit log records. By HTTP: ?force=true&reason=….")
	case len(cited) > 0 && !r.Yes && !r.Force:
		return fault.New(fault.Conflict, "%s is cited by %s", what, Names(cited)).
			WithHint("These would refer to a deleted object. To delete it anyway, use --yes. By HTTP: ?yes=true.")
	}
	return nil
}

// Names are who cites, each once, for an error or an audit entry.
func Names(cited []Citation) string {
	var all []string
	for _, c := range cited {
		if !slices.Contains(all, c.By) {
			all = append(all, c.By)
		}
	}
	slices.Sort(all)
	if n := len(all) - shown; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:shown], ", "), n)
	}
	return strings.Join(all, ", ")
}

// Detail adds what an audit entry says of the request to detail.
func (r Request) Detail(detail map[string]any, cited []Citation) map[string]any {
	if len(cited) > 0 {
		detail["cited_by"] = Names(cited)
	}
	if r.Force {
		detail["force"] = true
	}
	return detail
}
