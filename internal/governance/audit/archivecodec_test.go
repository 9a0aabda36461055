package audit

import (
	"fmt"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/falaj-ml/falaj/internal/store"
)

func someLeaves(tb testing.TB, n int) []Leaf {
	tb.Helper()
	leaves := make([]Leaf, n)
	for i := range leaves {
		l, err := newLeaf(pending{at: store.Time(1_700_000_000_000_000 + i), source: fmt.Sprintf("rows %d-1", i), entry: []byte(`{"actor":{"kind":"user","id":"usr_1","name":"alice"},"project":"wind","action":"dataset.query","object":"dataset ä@1","outcome":"done"}`)})
		if err != nil {
			tb.Fatal(err)
		}
		if l.Index = 512 + int64(i); i%5 == 4 {
			l = l.blank(Erased{Action: "dataset.query", Outcome: Done, Project: "wind"})
		}
		leaves[i] = l
	}
	return leaves
}

// TestFewTiles: parts have all indexes, in order, and few tiles each.
func TestFewTiles(t *testing.T) {
	t.Parallel()
	var indexes []int64
	for i := range int64(1000) {
		indexes = append(indexes, i*i/7)
	}
	for _, n := range []int{0, 1, 50, 1000} {
		var all []int64
		for part := range fewTiles(indexes[:n]) {
			tiles := map[int64]bool{}
			for _, i := range part {
				tiles[i/tileLeaves] = true
			}
			if len(tiles) > searchSegments || len(part) == 0 {
				t.Errorf("%d indexes of %d tiles", len(part), len(tiles))
			}
			all = append(all, part...)
		}
		if !slices.Equal(all, indexes[:n]) {
			t.Errorf("%d indexes of %d", len(all), n)
		}
	}
}

func TestArchivedLeavesAreTheSame(t *testing.T) {
	for _, n := range []int{1, 256, MaxSegmentLeaves} {
		leaves := someLeaves(t, n)
		b, err := encodeLeaves(leaves)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeLeaves(b)
		if err != nil || !slices.EqualFunc(got, leaves, equalLeaves) {
			t.Errorf("%d leaves: %v", n, err)
		}
		if want := describe(leaves); want.First != 512 || want.Upto != 512+int64(n) || want.Since > want.Until {
			t.Errorf("%+v", want)
		}
	}
}

// TestSegmentsAreBounded: what unpacks to too much is refused before it is unpacked.
func TestSegmentsAreBounded(t *testing.T) {
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	bomb := z.EncodeAll(make([]byte, maxSegmentObject+1), nil)
	if _, err := decodeLeaves(bomb); err == nil {
		t.Error("it was unpacked")
	}
	if _, err := decodeLeaves(z.EncodeAll(fmt.Appendf(nil, "%s\xff\xff\xff\xff\x0f", archiveMagic), nil)); err == nil {
		t.Error("so many leaves")
	}
}

func FuzzDecodeLeaves(f *testing.F) {
	z, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	u, err := zstd.NewReader(nil)
	if err != nil {
		f.Fatal(err)
	}
	whole, err := encodeLeaves(someLeaves(f, 6))
	if err != nil {
		f.Fatal(err)
	}
	plain, err := u.DecodeAll(whole, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(plain)
	f.Add([]byte(archiveMagic))
	f.Fuzz(func(t *testing.T, plain []byte) {
		leaves, err := decodeLeaves(z.EncodeAll(plain, nil))
		if err != nil {
			return
		}
		b, err := encodeLeaves(leaves)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeLeaves(b)
		if err != nil || !slices.EqualFunc(again, leaves, equalLeaves) {
			t.Errorf("read again it is something else: %v", err)
		}
	})
}
