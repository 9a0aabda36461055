package audit

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
)

// maxRefusal bounds the text of a refusal, in bytes.
const maxRefusal = 1 << 10

// recordTime is how long a refusal may take to be on record.
const recordTime = 10 * time.Second

// refusal is an error by which a rule refuses an act.
type refusal struct {
	err      error
	entry    Entry
	recorded bool
}

func (r *refusal) Error() string { return r.err.Error() }

func (r *refusal) Unwrap() error { return r.err }

// Refuse marks an error as the refusal of an act by a rule, such as a promotion that
// nobody has approved. e says which act: its project, action and object; the zero Entry
// leaves that to Describe. RecordRefusal puts it on record. An error of the kind
// fault.PermissionDenied needs no mark.
func Refuse(err error, e Entry) error { return &refusal{err: err, entry: e} }

// Describe adds the refused act to a refusal without one. Other errors
// stay as they are.
func Describe(err error, e Entry) error {
	r, marked := errors.AsType[*refusal](err)
	if marked && (r.recorded || r.entry.Action != "") || !marked && !fault.Is(err, fault.PermissionDenied) {
		return err
	}
	return Refuse(err, e)
}

// OnRecord marks the error of a refusal that is on record.
func OnRecord(err error) error {
	if err == nil {
		return nil
	}
	return &refusal{err: err, recorded: true}
}

// RecordRefusal puts err on record, if it refuses an act and is not on record yet, and
// returns what the caller is to be told. Who ends a request calls it. A nil journal
// records nothing. Error: fault.Unavailable when the refusal could not be recorded.
func RecordRefusal(ctx context.Context, j Journal, err error) error {
	if err == nil || j == nil {
		return err
	}
	r, marked := errors.AsType[*refusal](err)
	if marked && r.recorded || !marked && !fault.Is(err, fault.PermissionDenied) {
		return err
	}
	call := identity.CallOf(ctx)
	e := Entry{Action: "request", Object: fault.Clip(call.Method+" "+call.Path, maxRefusal)}
	if marked && r.entry.Action != "" {
		e = r.entry
	}
	e.Project = cmp.Or(e.Project, string(identity.From(ctx).Project))
	e.Outcome, e.Reason = Refused, fault.Clip(err.Error(), maxRefusal)
	// The refused caller cannot escape the record by hanging up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	if jerr := j.Record(ctx, e); jerr != nil {
		return &fault.Error{Kind: fault.Unavailable, Message: "refused, and the refusal could not be recorded", Hint: "Check the server's log, and free disk space.", Err: jerr}
	}
	return OnRecord(err)
}
