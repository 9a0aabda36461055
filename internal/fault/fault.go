// Package fault is the one error type of Falaj: an error with a kind.
//
// A kind says what the caller can do about it; the message says what happened;
// the hint says what to do next. Code wraps with what it was doing and returns;
// the edge that answers translates the kind once (HTTP status, gRPC code, exit
// code). Code logs an error or returns it, never both.
//
// The zero Kind is Internal: an error nobody classified is our fault, and its
// text is not shown to callers.
//
// A message names a row and a column, never what is in it: messages are logged and
// recorded. What the data was is beside it, for the eyes of who sent it (WithData,
// Told).
package fault

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Kind classifies an error by what its receiver can do about it.
type Kind uint8

// The kinds, with the HTTP status and the CLI exit code each becomes.
const (
	Internal         Kind = iota // 500, exit 1: a defect or an unexpected failure below us
	Invalid                      // 400, exit 2: the request is wrong; changing it helps
	Unauthenticated              // 401, exit 3: no or bad credentials
	PermissionDenied             // 403, exit 3: known, but not allowed
	NotFound                     // 404, exit 4: no such object, or none the caller may know of
	Conflict                     // 409, exit 5: the object's state or a second writer forbids it
	Gone                         // 410, exit 4: it existed and was removed or expired
	TooLarge                     // 413, exit 2: over a size limit
	Exhausted                    // 429, exit 1: quota, budget, rate or queue is used up; 507 for a store, see Full
	Unsupported                  // 501, exit 1: understood, not offered
	Unavailable                  // 503, exit 6: try again later
	Timeout                      // 504, exit 1: did not finish in time
)

var kindNames = [...]string{
	"internal", "invalid", "unauthenticated", "permission_denied", "not_found", "conflict",
	"gone", "too_large", "exhausted", "unsupported", "unavailable", "timeout",
}

// String is the snake_case name, used in problem documents and logs.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "internal"
}

// ParseKind is the inverse of String; an unknown name is Internal.
func ParseKind(name string) Kind {
	for k, n := range kindNames {
		if n == name {
			return Kind(k)
		}
	}
	return Internal
}

// Error is an error with a kind. Build it with New or Wrap.
type Error struct {
	Kind    Kind
	Message string        // what happened, lower case, no full stop
	Hint    string        // what to do next, a sentence; may be empty
	Data    string        // what of the data is wrong; Told shows it, and nothing keeps it; may be empty
	Err     error         // the cause, shown in logs, not to callers of other kinds than Invalid; may be nil
	Retry   time.Duration // asking again sooner is in vain; 0: nothing is known
}

// New makes an error of a kind. A %w verb records the cause.
func New(kind Kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Message: err.Error(), Err: errors.Unwrap(err)}
}

// WithHint returns a copy that also says what to do next.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// WithData returns a copy that also says what of the data is wrong, such as a value
// of a row.
func (e *Error) WithData(format string, args ...any) *Error {
	c := *e
	c.Data = fmt.Sprintf(format, args...)
	return &c
}

// WithCause returns a copy that also has a cause, which the text does not show.
func (e *Error) WithCause(err error) *Error {
	c := *e
	c.Err = errors.Join(e.Err, err)
	return &c
}

// WithRetry returns a copy that also says after how long it is worth asking again.
func (e *Error) WithRetry(after time.Duration) *Error {
	c := *e
	c.Retry = after
	return &c
}

func (e *Error) Error() string { return e.Message }

// Unwrap gives the cause to errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.Err }

// Wrap says what was being done when err happened; kind and hint stay.
// Wrap(nil, …) is nil.
func Wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &Error{
		Kind:    KindOf(err),
		Message: fmt.Sprintf(format, args...) + ": " + err.Error(),
		Hint:    HintOf(err),
		Err:     err,
	}
}

// KindOf is the kind of the first Error in err's chain. Without one it is Exhausted when a
// disk had no room for bytes or files, and Internal otherwise.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	if NoSpace(err) {
		return Exhausted
	}
	return Internal
}

// NoSpace reports that a disk had no room, for bytes or for files.
func NoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// ErrFull marks an Exhausted error of a disk, a bucket or a database that has no room: that
// passes when somebody makes some, and not by waiting.
var ErrFull = errors.New("there is no room")

// Full reports that a store had no room: an error that ErrFull marks, or NoSpace. At the
// edge it is 507.
func Full(err error) bool {
	return KindOf(err) == Exhausted && (errors.Is(err, ErrFull) || NoSpace(err))
}

// HintOf is the first hint in err's chain.
func HintOf(err error) string {
	if hint := first(err, func(e *Error) string { return e.Hint }); hint != "" || !NoSpace(err) {
		return hint
	}
	return "Free space, or files, on the disk of the data directory, then try again."
}

// DataOf is the first data in err's chain.
func DataOf(err error) string { return first(err, func(e *Error) string { return e.Data }) }

// RetryOf is after how long it is worth asking again, by the first in err's chain
// that says so; 0 when none does.
func RetryOf(err error) time.Duration {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return 0
		}
		if e.Retry > 0 {
			return e.Retry
		}
		err = e.Err
	}
	return 0
}

// RetryAfter is RetryOf as the header of that name has it, in whole seconds; empty when
// nothing is known.
func RetryAfter(err error) string {
	after := RetryOf(err)
	if after <= 0 {
		return ""
	}
	return strconv.Itoa(max(1, int(math.Ceil(after.Seconds()))))
}

// Told is what the one hears who sent the data: the message and the data. It is not
// to be logged or kept, but where the data may be.
func Told(err error) string {
	if data := DataOf(err); data != "" {
		return err.Error() + ": " + data
	}
	return err.Error()
}

// maxTold and maxHint bound, in bytes, what a caller hears of an error: of gRPC it is in
// headers, twice, and a client that has no room for them loses its connection.
const maxTold, maxHint = 2 << 10, 1 << 10

// Brief is what a caller hears of an error, Told and HintOf, no longer than answers have
// room for.
func Brief(err error) (told, hint string) {
	return Clip(Told(err), maxTold), Clip(HintOf(err), maxHint)
}

// Clip is the first bytes of a text, in whole characters, with "…" where it was cut. Bytes that
// are not UTF-8 become U+FFFD: databases and JSON take no others.
func Clip(s string, most int) string {
	if s = strings.ToValidUTF8(s, "\uFFFD"); len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

func first(err error, part func(e *Error) string) string {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return ""
		}
		if s := part(e); s != "" {
			return s
		}
		err = e.Err
	}
	return ""
}

// Is reports whether err is of the kind; a nil err is of none.
func Is(err error, kind Kind) bool { return err != nil && KindOf(err) == kind }
