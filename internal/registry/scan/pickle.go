package scan

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// value is what the walk knows of a value on a pickle's stack. nil is one of which it
// needs to know nothing.
type value struct {
	kind kind
	text string   // of a string; of a global, and of what was made by calling one, "module.name"
	n    int64    // of a number
	list []*value // of a tuple; of a dict keys and values; of what was made, the arguments
	uses *found   // of a global
	also []string // of a string from a memo, what who loads the file otherwise finds there
}

type kind byte

const (
	aMark kind = iota
	aString
	aNumber
	aTuple
	aDict
	aGlobal
	made // by calling a global
)

// found is an import, and whether anything was done with it.
type found struct {
	module, name string
	level        Level
	used         bool
}

const (
	maxText = 256 // bytes of a string that may name something
	maxList = 64  // elements of tuples and dicts that are looked at
)

var mark = &value{kind: aMark}

// The ends of a walk that is no error of reading.
var (
	errNotPickle = errors.New("no opcode")                  // or one that cannot stand there
	errCut       = errors.New("it is truncated")            // in the middle of an opcode
	errLimit     = errors.New("it exceeds a limit")         // of ours
	errArray     = errors.New("an array of unknown length") // of joblib, which cannot be skipped
)

// walk goes through one pickle.
type walk struct {
	ctx      context.Context //nolint:containedctx // of one walk
	s        *scanner
	r        *bufio.Reader
	at       int64 // bytes of the stream that were read, for joblib's alignment
	stack    []*value
	memo     []*value // nil: absent. A value of no interest is nothing
	memoized int
	kept     int64
	protocol int   // -1: it did not say
	outer    *walk // of a pickle between the arrays of a joblib file, the one around it
	ops      int64
	imports  []*found
	byName   map[string]*found
	reasons  []string // beside the imports
}

var nothing = &value{kind: made}

// pickles looks at what may be pickles, one after another, from the reader's position on,
// which is at bytes from the stream's start.
func (s *scanner) pickles(ctx context.Context, path string, r *bufio.Reader, at int64) error {
	var all Content
	seen := map[string]bool{}
	for n := 0; ; n++ {
		head, err := r.Peek(2)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if len(head) == 0 {
			break
		}
		headed := len(head) == 2 && head[0] == 0x80 && head[1] <= 5
		w := &walk{ctx: ctx, s: s, r: r, at: at, protocol: -1}
		err = w.run(ctx)
		at = w.at
		if err != nil && !errors.Is(err, errNotPickle) && !errors.Is(err, errCut) && !errors.Is(err, errLimit) && !errors.Is(err, errArray) {
			return err
		}
		whole := err == nil
		limit := errors.Is(err, errLimit) || errors.Is(err, errArray)
		if !whole && !limit && (len(w.imports)+len(w.reasons) == 0 || !headed && !w.armed()) {
			break // bytes that are no pickle, or one that a loader does not get far with
		}
		if whole && !headed && len(w.imports)+len(w.reasons) == 0 && all.Format == "" {
			if n == 10_000 {
				break
			}
			continue // a number, or letters that happen to be one
		}
		all.Path, all.Format = path, "pickle"
		all.Level = higher(all.Level, Known)
		if all.Protocol == nil {
			p := max(w.protocol, 0)
			all.Protocol = &p
		}
		for _, f := range w.imports {
			full := f.module + "." + f.name
			all.Level = higher(all.Level, f.level)
			if seen[full] {
				continue
			}
			seen[full] = true
			if f.level == Danger || f.level == Code {
				all.Reasons = append(all.Reasons, reasonOf(f))
			}
			if len(all.Imports) < s.limits.Imports {
				all.Imports = append(all.Imports, full)
			}
		}
		for _, why := range w.reasons {
			all.Level = Danger
			all.Reasons = append(all.Reasons, why)
		}
		if !whole {
			all.Level = Danger
			all.Reasons = append(all.Reasons, fmt.Sprintf("cannot be scanned: %v after %d bytes", err, at))
			break
		}
		if n == 10_000 {
			all.Level = Danger
			all.Reasons = append(all.Reasons, "has more than 10000 consecutive pickles")
			break
		}
	}
	if all.Format == "" {
		return nil
	}
	const most = 20
	if len(all.Reasons) > most {
		all.Reasons = append(all.Reasons[:most], fmt.Sprintf("and %d more", len(all.Reasons)-most))
	}
	s.found(all)
	return nil
}

func higher(a, b Level) Level {
	if b.Over(a) {
		return b
	}
	return a
}

func reasonOf(f *found) string {
	if f.level == Code {
		return fmt.Sprintf("imports %s.%s, which creates functions from content of the pickle", f.module, f.name)
	}
	return fmt.Sprintf("imports %s.%s", f.module, f.name)
}

// armed is whether something that is not well known was called before the walk ended: a
// loader would have called it, too, whatever comes then.
func (w *walk) armed() bool {
	for _, f := range w.imports {
		if f.used && f.level.Over(Known) {
			return true
		}
	}
	return false
}

// run goes to the end of one pickle. The error says why it did not come there.
func (w *walk) run(ctx context.Context) error {
	for {
		if w.ops&0xfff == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if w.ops++; w.s.steps > w.s.limits.Steps {
			return errLimit
		}
		w.s.steps++
		op, err := w.r.ReadByte()
		if err != nil {
			return cut(err)
		}
		w.at++
		if op == '.' {
			if len(w.stack) == 0 || w.stack[len(w.stack)-1] == mark {
				return errNotPickle
			}
			return nil
		}
		if err := w.step(op); err != nil {
			return err
		}
		if len(w.stack) > w.s.limits.Stack || len(w.memo) > w.s.limits.Stack || w.kept > w.s.limits.Strings {
			return errLimit
		}
	}
}

func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errCut
	}
	return err
}

func (w *walk) push(v *value) error {
	w.stack = append(w.stack, v)
	return nil
}

// pop takes the top value, which is no mark.
func (w *walk) pop() (*value, error) {
	if len(w.stack) == 0 || w.stack[len(w.stack)-1] == mark {
		return nil, errNotPickle
	}
	v := w.stack[len(w.stack)-1]
	w.stack = w.stack[:len(w.stack)-1]
	return v, nil
}

// popMark takes all above the last mark, and it.
func (w *walk) popMark() ([]*value, error) {
	for i, v := range slices.Backward(w.stack) {
		if v == mark {
			out := w.stack[i+1:]
			w.stack = w.stack[:i]
			return out, nil
		}
	}
	return nil, errNotPickle
}

// skip passes over bytes.
func (w *walk) skip(n uint64) error {
	if n > math.MaxInt64/2 {
		return errNotPickle
	}
	for n > 0 {
		step := int(min(n, 1<<30))
		did, err := w.r.Discard(step)
		w.at += int64(did)
		if err != nil {
			return cut(err)
		}
		n -= uint64(step)
	}
	return nil
}

// number reads an unsigned little-endian number of so many bytes.
func (w *walk) number(bytes int) (uint64, error) {
	var b [8]byte
	n, err := io.ReadFull(w.r, b[:bytes])
	w.at += int64(n)
	return binary.LittleEndian.Uint64(b[:]), cut2(err)
}

func cut2(err error) error {
	if err == nil {
		return nil
	}
	return cut(err)
}

// line reads to the end of a line. What is longer than maxText counts as no text.
func (w *walk) line() (string, bool, error) {
	var b []byte
	for n := 0; ; n++ {
		c, err := w.r.ReadByte()
		if err != nil {
			return "", false, cut(err)
		}
		w.at++
		if c == '\n' {
			return strings.TrimSuffix(string(b), "\r"), n <= maxText, nil
		}
		if n < maxText {
			b = append(b, c)
		}
		if n == 1<<30 {
			return "", false, errLimit
		}
	}
}

// text pushes a string of so many bytes.
func (w *walk) text(n uint64) error {
	if n > maxText {
		if err := w.skip(n); err != nil {
			return err
		}
		return w.push(nothing)
	}
	b := make([]byte, n)
	did, err := io.ReadFull(w.r, b)
	w.at += int64(did)
	if err != nil {
		return cut(err)
	}
	w.kept += int64(n) + 48
	return w.push(&value{kind: aString, text: string(b)})
}

func (w *walk) sized(bytes int, take func(uint64) error) error {
	n, err := w.number(bytes)
	if err != nil {
		return err
	}
	return take(n)
}

func (w *walk) skipPush(n uint64) error {
	if err := w.skip(n); err != nil {
		return err
	}
	return w.push(nothing)
}

func (w *walk) number64(n uint64) error {
	if n > 1<<20 { // only lengths of arrays are asked for
		w.kept += 48
	}
	return w.push(&value{kind: aNumber, n: int64(n)}) //nolint:gosec // what it said is looked at where it is used
}

// step does one opcode.
func (w *walk) step(op byte) error { //nolint:gocyclo // one case for each opcode
	switch op {
	case 0x80: // PROTO
		n, err := w.number(1)
		if err == nil && n > 5 {
			return errNotPickle
		}
		w.protocol = max(w.protocol, int(n)) //nolint:gosec // one byte
		return err
	case 0x95: // FRAME
		return w.sized(8, func(uint64) error { return nil })
	case '(':
		return w.push(mark)
	case '0': // POP takes a mark, too
		if len(w.stack) == 0 {
			return errNotPickle
		}
		w.stack = w.stack[:len(w.stack)-1]
		return nil
	case '1':
		_, err := w.popMark()
		return err
	case '2':
		if len(w.stack) == 0 {
			return errNotPickle
		}
		return w.push(w.stack[len(w.stack)-1])
	case 'N', 0x88, 0x89, ']', 0x8f, 0x97:
		return w.push(nothing)
	case 0x98: // READONLY_BUFFER
		return w.repush()
	case '}':
		w.kept += 48
		return w.push(&value{kind: aDict})
	case ')':
		return w.push(&value{kind: aTuple})
	case 'K':
		return w.sized(1, w.number64)
	case 'M':
		return w.sized(2, w.number64)
	case 'J':
		return w.sized(4, w.number64)
	case 'G':
		return w.skipPush(8)
	case 'F', 'I', 'L', 'P':
		return w.numberLine(op)
	case 'S', 'V':
		return w.textLine(op)
	case 'U', 0x8c: // SHORT_BINSTRING, SHORT_BINUNICODE
		return w.sized(1, w.text)
	case 'T', 'X':
		return w.sized(4, w.text)
	case 0x8d:
		return w.sized(8, w.text)
	case 'C':
		return w.sized(1, w.skipPush)
	case 'B', 0x8b: // BINBYTES, LONG4
		return w.sized(4, w.skipPush)
	case 0x8e, 0x96:
		return w.sized(8, w.skipPush)
	case 0x8a: // LONG1
		return w.sized(1, w.long)
	case 'Q': // BINPERSID
		return w.repush()
	case 'a', 0x85, 0x86, 0x87, 't', 'l', 'd', 'e', 0x90, 0x91, 's', 'u':
		return w.collect(op)
	case 'c', 'i', 0x93, 0x82, 0x83, 0x84:
		return w.global(op)
	case 'R', 0x81, 0x92, 'o', 'b':
		return w.call(op)
	case 'p', 'q', 'r', 0x94, 'g', 'h', 'j':
		return w.remember(op)
	}
	return errNotPickle
}

// repush replaces the top value by one of which nothing is known.
func (w *walk) repush() error {
	if _, err := w.pop(); err != nil {
		return err
	}
	return w.push(nothing)
}

func (w *walk) long(n uint64) error {
	if n > 7 {
		return w.skipPush(n)
	}
	return w.sized(int(n), w.number64)
}

func (w *walk) numberLine(op byte) error {
	t, ok, err := w.line()
	if err != nil {
		return err
	}
	if op == 'P' {
		return w.push(nothing)
	}
	// What is no number ends a loader; to go on finds no less.
	n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(t), "L"), 10, 64)
	if !ok || err != nil || op == 'F' {
		return w.push(nothing)
	}
	w.kept += 48
	return w.push(&value{kind: aNumber, n: n})
}

func (w *walk) textLine(op byte) error {
	t, ok, err := w.line()
	if err != nil {
		return err
	}
	if op == 'S' {
		t = strings.TrimSpace(t)
		if ok && (len(t) < 2 || t[0] != t[len(t)-1] || t[0] != '\'' && t[0] != '"') {
			return errNotPickle
		}
		if ok {
			t = t[1 : len(t)-1]
		}
	}
	// A name that is written with escapes is one that is hidden; nobody else does that.
	if !ok || strings.Contains(t, `\`) {
		return w.push(nothing)
	}
	w.kept += int64(len(t)) + 48
	return w.push(&value{kind: aString, text: t})
}

// collect makes and fills tuples, lists, dicts and sets.
func (w *walk) collect(op byte) error {
	tuple := func(items []*value) error {
		items = append([]*value(nil), items[:min(len(items), maxList)]...)
		w.kept += int64(48 + 8*len(items))
		return w.push(&value{kind: aTuple, list: items})
	}
	switch op {
	case 0x85, 0x86, 0x87:
		n := int(op-0x85) + 1
		if len(w.stack) < n {
			return errNotPickle
		}
		items := w.stack[len(w.stack)-n:]
		w.stack = w.stack[:len(w.stack)-n]
		return tuple(items)
	case 'a':
		if _, err := w.pop(); err != nil {
			return err
		}
		return w.top()
	case 's':
		v, err := w.pop()
		if err != nil {
			return err
		}
		k, err := w.pop()
		if err != nil {
			return err
		}
		return w.fill([]*value{k, v})
	}
	items, err := w.popMark()
	if err != nil {
		return err
	}
	switch op {
	case 't':
		return tuple(items)
	case 'l', 0x91:
		return w.push(nothing)
	case 'd':
		if len(items)%2 != 0 {
			return errNotPickle
		}
		if err := w.push(&value{kind: aDict}); err != nil {
			return err
		}
		return w.fill(items)
	case 'u':
		if len(items)%2 != 0 {
			return errNotPickle
		}
		return w.fill(items)
	}
	return w.top() // APPENDS, ADDITEMS
}

// top wants something on the stack to add to.
func (w *walk) top() error {
	if len(w.stack) == 0 || w.stack[len(w.stack)-1] == mark {
		return errNotPickle
	}
	return nil
}

// fill adds keys and values to the dict on top.
func (w *walk) fill(pairs []*value) error {
	if err := w.top(); err != nil {
		return err
	}
	if d := w.stack[len(w.stack)-1]; d.kind == aDict && len(d.list) < maxList {
		pairs = pairs[:min(len(pairs), maxList)]
		d.list = append(d.list, pairs...)
		w.kept += int64(8 * len(pairs))
	}
	return nil
}

// global notes an import.
func (w *walk) global(op byte) error {
	var module, name string
	ok := true
	switch op {
	case 'c', 'i':
		for _, to := range []*string{&module, &name} {
			t, short, err := w.line()
			if err != nil {
				return err
			}
			*to, ok = t, ok && short
		}
		if w.protocol < 2 && (!identifier(module) || !identifier(name)) {
			return errNotPickle // text that begins with c or i
		}
	case 0x93:
		n, err := w.pop()
		if err != nil {
			return err
		}
		m, err := w.pop()
		if err != nil {
			return err
		}
		ok = m.kind == aString && n.kind == aString
		module, name = m.text, n.text
		for _, module := range append(m.also, m.text) {
			for _, name := range append(n.also, n.text) {
				if w.note(&found{module: clip(module), name: clip(name), level: levelOf(module, name)}) == nil {
					return errLimit
				}
			}
		}
	default: // EXT1, EXT2, EXT4: a number that the loader's process gave a name
		n, err := w.number(map[byte]int{0x82: 1, 0x83: 2, 0x84: 4}[op])
		if err != nil {
			return err
		}
		w.reasons = append(w.reasons, fmt.Sprintf("imports by the extension code %d, which has no name", n))
		return w.push(nothing)
	}
	f := &found{module: clip(module), name: clip(name), level: levelOf(module, name)}
	if !ok || module == "" || name == "" {
		f.level, f.module, f.name = Danger, "a module", "without a literal name in the pickle"
	}
	if f = w.note(f); f == nil {
		return errLimit
	}
	g := &value{kind: aGlobal, text: module + "." + name, uses: f}
	if op == 'i' {
		args, err := w.popMark()
		if err != nil {
			return err
		}
		return w.push(w.calls(g, args))
	}
	return w.push(g)
}

// note keeps an import once.
func (w *walk) note(f *found) *found {
	full := f.module + "." + f.name
	if o := w.byName[full]; o != nil {
		return o
	}
	if len(w.imports) > 10*w.s.limits.Imports {
		return nil
	}
	if w.byName == nil {
		w.byName = map[string]*found{}
	}
	w.byName[full] = f
	w.imports = append(w.imports, f)
	return f
}

// identifier is whether text is a dotted name.
func identifier(s string) bool {
	if s == "" {
		return false
	}
	for i, c := range s {
		switch {
		case c == '_', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c > 127:
		case i > 0 && (c == '.' || c >= '0' && c <= '9'):
		default:
			return false
		}
	}
	return true
}

// call notes that something was done with an import.
func (w *walk) call(op byte) error {
	if op == 'o' {
		args, err := w.popMark()
		if err != nil || len(args) == 0 {
			return errNotPickle
		}
		return w.push(w.calls(args[0], args[1:]))
	}
	if op == 0x92 { // NEWOBJ_EX has keywords, too
		if _, err := w.pop(); err != nil {
			return err
		}
	}
	args, err := w.pop()
	if err != nil {
		return err
	}
	of, err := w.pop()
	if err != nil {
		return err
	}
	if op == 'b' {
		if of.uses != nil {
			of.uses.used = true
		}
		if of.kind == made {
			switch of.text {
			case "numpy.dtype":
				if args.kind != aTuple || len(args.list) < 6 || args.list[5].kind != aNumber {
					return w.push(nothing)
				}
				of.n = args.list[5].n // bytes of an element
			case "joblib.numpy_pickle.NumpyArrayWrapper":
				if len(of.list) > 0 {
					return errArray // what it was made with is not in its state
				}
				if err := w.array(args); err != nil {
					return err
				}
				of = nothing
			}
		}
		return w.push(of)
	}
	return w.push(w.calls(of, args.list))
}

func (w *walk) calls(of *value, args []*value) *value {
	if of.uses != nil {
		of.uses.used = true
	}
	if of.kind != aGlobal {
		return nothing
	}
	args = append([]*value(nil), args[:min(len(args), maxList)]...) // they may lie on the stack
	w.kept += int64(64 + 8*len(args))
	return &value{kind: made, text: of.text, list: args}
}

// remember puts the top value into the memo, or gets one.
func (w *walk) remember(op byte) error {
	var n uint64
	var err error
	switch op {
	case 'p', 'g':
		var t string
		if t, _, err = w.line(); err == nil {
			if n, err = strconv.ParseUint(strings.ReplaceAll(strings.TrimPrefix(strings.TrimSpace(t), "+"), "_", ""), 10, 32); err != nil {
				return errNotPickle
			}
		}
	case 'q', 'h':
		n, err = w.number(1)
	case 'r', 'j':
		n, err = w.number(4)
	case 0x94:
		n = uint64(w.memoized) //nolint:gosec // not negative
	}
	if err != nil {
		return err
	}
	if op == 'g' || op == 'h' || op == 'j' {
		if n >= uint64(len(w.memo)) || w.memo[n] == nil {
			return errNotPickle
		}
		return w.push(w.ambiguous(n))
	}
	if err := w.top(); err != nil {
		return err
	}
	if n > uint64(w.s.limits.Stack) { //nolint:gosec // not negative
		return errLimit
	}
	for uint64(len(w.memo)) <= n {
		w.memo = append(w.memo, nil)
	}
	if w.memo[n] == nil {
		w.memoized++
	}
	w.memo[n] = w.stack[len(w.stack)-1]
	return nil
}

// ambiguous is what a memo has under a number. In a pickle that joblib put between arrays,
// who loads the file without joblib has the memo of the pickle around it, too.
func (w *walk) ambiguous(n uint64) *value {
	v := w.memo[n]
	if w.outer == nil || v.kind != aString {
		return v
	}
	out := &value{kind: aString, text: v.text}
	other := func(memo []*value, n uint64) {
		if n < uint64(len(memo)) && memo[n] != nil && memo[n].kind == aString && memo[n].text != v.text {
			out.also = append(out.also, memo[n].text)
		}
	}
	other(w.outer.memo, n)
	if before := uint64(w.outer.memoized); n >= before { //nolint:gosec // not negative
		other(w.memo, n-before)
	}
	return out
}

// array steps over the bytes of an array that joblib writes into a pickle, behind the
// state of its wrapper. Who loads the file without joblib takes these bytes for opcodes:
// they must begin with something that is none.
func (w *walk) array(state *value) error {
	if state.kind != aDict || len(state.list) >= maxList {
		return errArray
	}
	fields := map[string]*value{}
	for i := 0; i+1 < len(state.list); i += 2 {
		if k := state.list[i]; k.kind == aString {
			fields[k.text] = state.list[i+1]
		}
	}
	shape, dtype := fields["shape"], fields["dtype"]
	if shape == nil || shape.kind != aTuple || len(shape.list) >= maxList || dtype == nil || dtype.kind != made || dtype.text != "numpy.dtype" || len(dtype.list) == 0 || dtype.list[0].kind != aString {
		return errArray
	}
	code := dtype.list[0].text
	if strings.HasPrefix(code, "O") { // a pickle of its own
		inner := &walk{ctx: w.ctx, s: w.s, r: w.r, at: w.at, protocol: -1, outer: w}
		err := inner.run(w.ctx)
		w.at = inner.at
		w.imports, w.reasons = append(w.imports, inner.imports...), append(w.reasons, inner.reasons...)
		return err
	}
	size, err := strconv.ParseUint(strings.TrimLeft(code, "biufcmMSUV"), 10, 31)
	if err != nil || len(code) < 2 {
		return errArray
	}
	if code[0] == 'U' {
		size *= 4
	}
	const same = 1<<32 - 1 // -1: as the code says
	if dtype.n != int64(size) && dtype.n != same && dtype.n != 0 {
		return errArray
	}
	for _, d := range shape.list {
		if d.kind != aNumber || d.n < 0 || d.n > 0 && size > math.MaxInt64/4/uint64(d.n) {
			return errArray
		}
		size *= uint64(d.n)
	}
	if align, ok := fields["numpy_array_alignment_bytes"]; ok {
		if align.kind != aNumber || align.n > 16 {
			return errArray
		}
		padding, err := w.number(1)
		if err != nil {
			return err
		}
		if padding > 16 {
			return errArray
		}
		return w.skip(size + padding)
	}
	first, err := w.r.Peek(1)
	if size > 0 && (err != nil || first[0] >= '(') { // below, and only there, is no opcode
		return errArray
	}
	return w.skip(size)
}

// clip keeps the start of a name that is shown.
func clip(s string) string { return fault.Clip(s, 120) }
