package parser

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"
)

// TestHeld: a file in pieces is read as the bytes that it is, also with another end.
func TestHeld(t *testing.T) {
	file := make([]byte, 3*pieceBytes+17)
	random := rand.New(rand.NewPCG(3, 4))
	for i := range file {
		file[i] = byte(random.Uint32())
	}
	if _, whole, err := hold(bytes.NewReader(file), int64(len(file))-1); err != nil || whole {
		t.Errorf("a file over the limit: %v, %v", whole, err)
	}
	for _, at := range []int{0, 1, pieceBytes, 2*pieceBytes - 1, len(file) - 17, len(file)} {
		h, whole, err := hold(bytes.NewReader(file), int64(len(file)))
		if err != nil || !whole {
			t.Fatal(whole, err)
		}
		tail := file[:pieceBytes+5]
		if at < len(file) {
			h.replaceTail(int64(at), tail)
		} else {
			tail = nil
		}
		want := append(bytes.Clone(file[:at]), tail...)
		got, err := io.ReadAll(h.file())
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("tail at %d: %d bytes, %v, want %d", at, len(got), err, len(want))
		}
		if got, err = io.ReadAll(consumed{h}); err != nil || !bytes.Equal(got, want) {
			t.Errorf("consumed, tail at %d: %d bytes, %v, want %d", at, len(got), err, len(want))
		}
	}
}
