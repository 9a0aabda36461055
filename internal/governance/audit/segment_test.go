package audit

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// segmentOf writes batches of texts as the journal does, and gives their places.
func segmentOf(batches [][]string) (b []byte, offsets []int64) {
	b = append(b, segmentMagic+"\x00\x00\x00\x00\x00\x00\x00\x00"...)
	for _, texts := range batches {
		var payload []byte
		for i, s := range texts {
			payload = appendEntry(payload, int64(i+1), []byte(s))
		}
		offsets = append(offsets, int64(len(b)))
		b = append(b, encodeBatch(int64(len(b)), payload, len(texts))...)
		b = append(b, make([]byte, align(int64(len(b)))-int64(len(b)))...)
	}
	return b, offsets
}

func texts(entries []segmentEntry) []string {
	var all []string
	for _, e := range entries {
		all = append(all, string(e.json))
	}
	return all
}

func TestScan(t *testing.T) {
	whole, at := segmentOf([][]string{{"a", "b"}, {"c"}, {"d", "e", "f"}})
	zeros := make([]byte, 4096)
	change := func(offset int64) func([]byte) []byte {
		return func(b []byte) []byte { b[offset] ^= 1; return b }
	}
	tests := []struct {
		name    string
		do      func([]byte) []byte
		final   bool
		want    string
		end     bool
		torn    bool
		damaged []int64
	}{
		{"whole", func(b []byte) []byte { return b }, true, "[a b c d e f]", true, false, nil},
		{"zeros behind", func(b []byte) []byte { return append(b, zeros...) }, true, "[a b c d e f]", true, false, nil},
		{"being written", change(at[2] + 20), false, "[a b c]", true, false, nil},
		{"torn in the last payload", change(at[2] + 20), true, "[a b c]", true, true, nil},
		{"torn in the last header", change(at[2] + 13), true, "[a b c]", true, true, nil},
		{"cut in the last header", func(b []byte) []byte { return b[:at[2]+7] }, true, "[a b c]", true, true, nil},
		{"cut in the last payload", func(b []byte) []byte { return b[:at[2]+20] }, true, "[a b c]", true, true, nil},
		{"cut at a batch", func(b []byte) []byte { return b[:at[2]] }, true, "[a b c]", true, false, nil},
		{"damaged first", change(at[0] + 20), true, "[c d e f]", true, false, []int64{at[0]}},
		{"damaged middle", change(at[1] + 1), true, "[a b d e f]", true, false, []int64{at[1]}},
		{"damaged length", change(at[1] + 6), true, "[a b d e f]", true, false, []int64{at[1]}},
		{"damaged twice", func(b []byte) []byte { return change(at[0])(change(at[1])(b)) }, true, "[d e f]", true, false, []int64{at[0]}},
		{"nothing but a header", func(b []byte) []byte { return b[:headerBytes] }, true, "[]", true, false, nil},
		{"not even a header", func(b []byte) []byte { return b[:3] }, true, "[]", true, false, nil},
		{"batches swapped", func(b []byte) []byte { // a batch is valid at its own offset only
			return append(append(bytes.Clone(b[:at[1]]), b[at[2]:]...), b[at[1]:at[2]]...)
		}, true, "[a b]", true, true, nil},
	}
	for _, tt := range tests {
		b := tt.do(bytes.Clone(whole))
		s, err := scan(bytes.NewReader(b), int64(len(b)), 0, 1000, tt.final)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(texts(s.entries)); got != tt.want || s.end != tt.end || s.torn != tt.torn || !slices.Equal(s.damaged, tt.damaged) {
			t.Errorf("%s: %s end %v torn %v damaged %v", tt.name, got, s.end, s.torn, s.damaged)
		}
	}
}

// Reading in small steps gives the same as reading at once, with each entry at
// the same place.
func TestScanInSteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		batches := rapid.SliceOfN(rapid.SliceOfN(rapid.StringN(0, 40, -1), 1, 5), 0, 20).Draw(t, "batches")
		b, _ := segmentOf(batches)
		b = append(b, make([]byte, rapid.IntRange(0, 100).Draw(t, "zeros"))...)
		once, err := scan(bytes.NewReader(b), int64(len(b)), 0, 1000, true)
		if err != nil || !once.end || once.torn {
			t.Fatal(once, err)
		}
		var steps []segmentEntry
		for at := int64(0); ; {
			s, err := scan(bytes.NewReader(b), int64(len(b)), at, 1, rapid.Bool().Draw(t, "final"))
			if err != nil {
				t.Fatal(err)
			}
			steps = append(steps, s.entries...)
			at = s.next
			if s.end {
				break
			}
		}
		var want []string
		for _, x := range batches {
			want = append(want, x...)
		}
		if !slices.Equal(texts(once.entries), want) || !slices.Equal(texts(steps), want) {
			t.Fatalf("%q, %q, want %q", texts(once.entries), texts(steps), want)
		}
		for i := range steps {
			if steps[i].offset != once.entries[i].offset || steps[i].number != once.entries[i].number {
				t.Fatalf("entry %d has two places", i)
			}
		}
	})
}

func FuzzDecodeBatch(f *testing.F) {
	b, at := segmentOf([][]string{{"a", "bc"}, {"d"}})
	f.Add(b[at[0]:], at[0])
	f.Add(b[at[1]:], at[1])
	f.Add([]byte{0x31, 0x42, 0x4a, 0x46, 255, 255, 255, 255, 0, 0, 0, 0, 255, 255, 255, 255}, int64(16))
	f.Fuzz(func(t *testing.T, b []byte, offset int64) {
		entries, size, ok := decodeBatch(b, offset)
		if !ok {
			return
		}
		var payload []byte
		for _, e := range entries {
			payload = appendEntry(payload, e.at, e.json)
		}
		if again := encodeBatch(offset, payload, len(entries)); !bytes.Equal(again, b[:size]) {
			t.Fatal("what was read is not what was written")
		}
	})
}
