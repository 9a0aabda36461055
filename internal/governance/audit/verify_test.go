package audit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
)

// manyEntries makes a log with several checkpoints and an erased entry.
func manyEntries(t *testing.T, p *place, log *audit.Sequencer) *audit.Service {
	t.Helper()
	svc := p.service(log)
	j := p.journal(t)
	for i := range 40 {
		p.change(t, audit.Entry{Project: "wind", Action: "dataset.import", Object: fmt.Sprintf("dataset d@%d", i), Detail: map[string]any{"digest": strings.Repeat("ab", 16), "rows": i}})
		if i%3 == 0 {
			if err := j.Record(alice(t.Context()), audit.Entry{Project: "wind", Action: "dataset.query", Outcome: audit.Refused, Reason: "<no> & \"never\""}); err != nil {
				t.Fatal(err)
			}
		}
		if i%7 == 0 {
			runOnce(t, log)
		}
	}
	eraseBoth(t, svc, []int64{5, 6}, "a subject's request")
	return svc
}

// 1,000 random changes of an export, of bytes, lines and meaning, are all found.
func TestVerifyFindsEveryMutation(t *testing.T) {
	p := newPlace(t)
	p.now = hourly() // so that there are several checkpoints
	log := p.log(t)
	whole := export(t, manyEntries(t, p, log))
	report, err := audit.Verify(bytes.NewReader(whole), audit.VerifyOptions{PublicKey: log.PublicKey()})
	if err != nil || report.Checkpoints < 6 || report.Erased != 2 || report.Size < 50 {
		t.Fatalf("%+v, %v", report, err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	tried := map[string]int{}
	for n := 0; n < 1000; {
		name, b := mutate(rnd, whole)
		if bytes.Equal(b, whole) {
			continue
		}
		n++
		tried[name]++
		key := log.PublicKey()
		if n%4 == 0 {
			key = "" // the one in the export, which the change may have hit
		}
		report, err := audit.Verify(bytes.NewReader(b), audit.VerifyOptions{PublicKey: key})
		if !fault.Is(err, fault.Invalid) || report.Problem == "" || report.BadLine == 0 {
			t.Fatalf("%s was not found: %+v, %v\n%s", name, report, err, diff(whole, b))
		}
	}
	t.Logf("tried %v", tried)
}

func lines(b []byte) [][]byte { return bytes.SplitAfter(b, []byte("\n")) }

// mutate changes an export in one random way.
func mutate(rnd *rand.Rand, whole []byte) (name string, b []byte) {
	b = bytes.Clone(whole)
	ls := lines(b)
	ls = ls[:len(ls)-1] // the last is empty
	i, k := rnd.IntN(len(ls)), rnd.IntN(len(ls))
	join := func(ls [][]byte) []byte { return bytes.Join(ls, nil) }
	at := rnd.IntN(len(b))
	switch rnd.IntN(17) {
	case 0:
		b[at] ^= 1 << rnd.IntN(8)
		return "a flipped bit", b
	case 1:
		b[at] = byte(rnd.Uint32())
		return "another byte", b
	case 2:
		return "a removed byte", slices.Delete(b, at, at+1)
	case 3:
		return "an added byte", slices.Insert(b, at, byte(rnd.Uint32()))
	case 4:
		return "the end cut off", b[:at]
	case 5:
		return "the last lines cut off", join(ls[:i])
	case 6:
		return "a removed line", join(slices.Delete(slices.Clone(ls), i, i+1))
	case 7:
		return "a line twice", join(slices.Insert(slices.Clone(ls), k, ls[i]))
	case 8:
		ls[i], ls[k] = ls[k], ls[i]
		return "swapped lines", join(ls)
	case 9:
		lo, hi := min(i, k), max(i, k)
		slices.Reverse(ls[lo : hi+1])
		return "reversed lines", join(ls)
	case 10:
		return "a space", slices.Insert(b, at, ' ')
	case 11:
		ls[i] = bytes.Replace(ls[i], []byte(","), []byte(", "), 1)
		return "a space that means nothing", join(ls)
	case 12:
		return "CRLF", bytes.ReplaceAll(b, []byte("\n"), []byte("\r\n"))
	case 13:
		return "something behind the end", append(b, []byte("\n{}\x00 \n\n")[rnd.IntN(8):]...)
	case 14: // a checkpoint line goes
		kept := slices.DeleteFunc(slices.Clone(ls), func(l []byte) bool {
			return bytes.HasPrefix(l, []byte(`{"checkpoint"`)) && rnd.IntN(2) == 0
		})
		return "removed checkpoints", join(kept)
	case 15: // a field of the header
		var h map[string]any
		if json.Unmarshal(ls[0], &h) != nil {
			panic("header")
		}
		names := []string{"falaj_audit_export", "origin", "key", "size", "created"}
		switch n := names[rnd.IntN(len(names))]; rnd.IntN(3) {
		case 0:
			delete(h, n)
		case 1:
			h[n] = rnd.IntN(100)
		default:
			h[n] = fmt.Sprint(h[n], "x")
		}
		l, err := json.Marshal(h)
		if err != nil {
			panic(err)
		}
		ls[0] = append(l, '\n')
		return "another header", join(ls)
	default: // a word of an entry, of the same length
		for _, w := range [][2]string{{"refused", "allowed"}, {"alice", "mallo"}, {"dataset.import", "dataset.delete"}, {"wind", "sand"}, {`"rows":1`, `"rows":7`}} {
			if bytes.Contains(ls[i], []byte(w[0])) {
				ls[i] = bytes.Replace(ls[i], []byte(w[0]), []byte(w[1]), 1)
				break
			}
		}
		return "another word", join(ls)
	}
}

func diff(a, b []byte) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("at byte %d of %d:\n%q\n%q", i, len(a), a[max(0, i-40):min(len(a), i+40)], b[max(0, i-40):min(len(b), i+40)])
		}
	}
	return fmt.Sprintf("%d and %d bytes", len(a), len(b))
}

// The first bad entry is named, whatever else is fine.
func TestVerifyNamesTheBadEntry(t *testing.T) {
	p := newPlace(t)
	log := p.log(t)
	whole := export(t, manyEntries(t, p, log))
	ls := lines(whole)
	for i, l := range ls {
		var e struct {
			Index  *int64          `json:"index"`
			Record json.RawMessage `json:"record"`
		}
		if json.Unmarshal(l, &e) != nil || e.Index == nil || e.Record == nil {
			continue
		}
		changed := slices.Clone(ls)
		changed[i] = bytes.Replace(l, []byte(`"action":"`), []byte(`"action":"x`), 1)
		report, err := audit.Verify(bytes.NewReader(bytes.Join(changed, nil)), audit.VerifyOptions{PublicKey: log.PublicKey()})
		wantFault(t, err, fault.Invalid, fmt.Sprintf("line %d (entry %d)", i+1, *e.Index))
		if report.BadEntry != *e.Index || report.BadLine != i+1 || report.Size > *e.Index {
			t.Fatalf("entry %d: %+v", *e.Index, report)
		}
	}
}

func TestVerifyWithAnotherKey(t *testing.T) {
	p, q := newPlace(t), newPlace(t)
	log, other := p.log(t), q.log(t)
	b := export(t, p.service(log))
	_, err := audit.Verify(bytes.NewReader(b), audit.VerifyOptions{PublicKey: other.PublicKey()})
	wantFault(t, err, fault.Invalid, "public key")
	report, err := audit.Verify(bytes.NewReader(b), audit.VerifyOptions{})
	if err != nil || report.KeyGiven {
		t.Errorf("%+v, %v", report, err)
	}
	_, err = audit.Verify(bytes.NewReader(b), audit.VerifyOptions{Checkpoints: witnessed(t, q, other)})
	wantFault(t, err, fault.Invalid, "not signed by this log")
}

func TestVerifyRefusesNonsense(t *testing.T) {
	for _, s := range []string{"", "\n", "{}", "{}\n", "null\n", strings.Repeat("x", 1<<20), `{"falaj_audit_export":1,"origin":"o","key":"o+00000000+AAAA","size":0,"created":""}` + "\n"} {
		report, err := audit.Verify(strings.NewReader(s), audit.VerifyOptions{})
		if !fault.Is(err, fault.Invalid) || report.BadLine != 1 {
			t.Errorf("%.20q: %+v, %v", s, report, err)
		}
	}
}

// witnessed folds an entry so that the witness has a checkpoint, and reads
// all that it has.
func witnessed(t *testing.T, p *place, log *audit.Sequencer) [][]byte {
	t.Helper()
	runOnce(t, log)
	f, err := os.Open(p.dir + "/witness/checkpoints.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := audit.ReadCheckpoints(f)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestVerifyAgainstTheWitness(t *testing.T) {
	p := newPlace(t)
	log := p.log(t)
	svc := manyEntries(t, p, log)
	early := export(t, svc)
	p.change(t, audit.Entry{Action: "later"})
	notes := witnessed(t, p, log)
	opts := audit.VerifyOptions{PublicKey: log.PublicKey(), Checkpoints: notes}
	report, err := audit.Verify(bytes.NewReader(export(t, svc)), opts)
	if err != nil || report.Witnessed != len(notes) || report.Newer != 0 {
		t.Errorf("%+v, %v", report, err)
	}
	// An export is no forgery because the log went on.
	report, err = audit.Verify(bytes.NewReader(early), opts)
	if err != nil || report.Witnessed != len(notes)-1 || report.Newer != 1 {
		t.Errorf("%+v, %v", report, err)
	}
}

func FuzzVerify(f *testing.F) {
	f.Add([]byte(`{"falaj_audit_export":1,"origin":"o","key":"o+57f9ec07+AX1nVwvSyf3iZ7vlnyGC5Cip0PKrXCoKDJvKbTAPkMhr","size":1,"created":"2027-01-02T03:04:05.000000Z"}` + "\n" + `{"index":0,"leaf":"AA=="}` + "\n"))
	f.Add([]byte(`{"falaj_audit_export":1}` + "\n" + `{"trailer":"x"}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		report, err := audit.Verify(bytes.NewReader(b), audit.VerifyOptions{PublicKey: "falaj/audit/log_1+0f1b2c3d+AX1nVwvSyf3iZ7vlnyGC5Cip0PKrXCoKDJvKbTAPkMhr"})
		if err == nil {
			t.Fatalf("verified under a key that signed nothing: %+v", report)
		}
	})
}
