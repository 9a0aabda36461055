package audit

import (
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"
)

// The small tree gives the same roots as tlog with all its stored hashes.
func TestTreeIsTlog(t *testing.T) {
	var stored []tlog.Hash
	r := tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(indexes))
		for i, x := range indexes {
			out[i] = stored[x]
		}
		return out, nil
	})
	var small tree
	for n := range int64(300) {
		leaf := commit([]byte{byte(n), byte(n >> 8)}, []byte("entry"))
		hashes, err := tlog.StoredHashes(n, leaf, r)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, hashes...)
		small.add(leaf)
		want, err := tlog.TreeHash(n+1, r)
		if err != nil {
			t.Fatal(err)
		}
		if small.root() != want || small.size != n+1 {
			t.Fatalf("another root at %d", n+1)
		}
	}
}

func TestCheckpointText(t *testing.T) {
	at := time.Date(2027, 1, 2, 3, 4, 5, 678_000, time.UTC)
	for _, c := range []Checkpoint{
		{Origin: "falaj/audit/log_1", Size: 7, Root: tlog.RecordHash([]byte("x")), Time: at},
		{Origin: "o", Size: 1, Time: at, Supersedes: &tlog.Tree{N: 9, Hash: tlog.RecordHash(nil)}},
	} {
		got, err := parseCheckpoint(c.text())
		if err != nil || got.text() != c.text() || !got.Time.Equal(at) {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

func FuzzParseCheckpoint(f *testing.F) {
	f.Add(Checkpoint{Origin: "o", Size: 7, Time: time.Unix(1, 0)}.text())
	f.Add(Checkpoint{Origin: "o", Size: 7, Supersedes: &tlog.Tree{N: 9}}.text())
	f.Add("o\n07\n\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseCheckpoint(text)
		if err == nil && c.text() != text {
			t.Fatalf("%q and %q are one checkpoint", text, c.text())
		}
	})
}

func FuzzParseTrailer(f *testing.F) {
	f.Add(trailer{origin: "o", size: 3, root: "-", created: "c", lines: 4, digest: "00"}.text())
	f.Fuzz(func(t *testing.T, text string) {
		tr, err := parseTrailer(text)
		if err == nil && tr.text() != text {
			t.Fatalf("%q and %q are one trailer", text, tr.text())
		}
	})
}

func FuzzPageToken(f *testing.F) {
	f.Add(pageTokenOf(42))
	f.Add("YmVmb3JlIDAwMQ")
	f.Fuzz(func(t *testing.T, token string) {
		n, err := parsePageToken(token)
		if err == nil && token != "" && (n < 0 || pageTokenOf(n) != token) {
			t.Fatalf("%q gives %d", token, n)
		}
	})
}
