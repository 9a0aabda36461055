package audit

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"

	"golang.org/x/mod/sumdb/tlog"
)

const saltBytes = 32

// commit is what a leaf of the tree holds: it hides the entry from who does not
// know the salt, and binds the log to it.
func commit(salt, entry []byte) []byte {
	m := hmac.New(sha256.New, salt)
	m.Write(entry)
	return m.Sum(nil)
}

func newSalt() []byte {
	b := make([]byte, saltBytes)
	_, _ = rand.Read(b) // crypto/rand never fails: it ends the program
	return b
}

// tree is the right edge of an RFC 6962 tree: enough to extend it and to know
// its root, in space that grows with the logarithm.
type tree struct {
	size int64
	edge []tlog.Hash // roots of the full subtrees, largest first
}

func (t *tree) add(commitment []byte) { t.addHash(tlog.RecordHash(commitment)) }

func (t *tree) addHash(h tlog.Hash) {
	for n := t.size; n&1 == 1; n >>= 1 {
		h = tlog.NodeHash(t.edge[len(t.edge)-1], h)
		t.edge = t.edge[:len(t.edge)-1]
	}
	t.edge = append(t.edge, h)
	t.size++
}

// root is the root of a tree that is not empty.
func (t *tree) root() tlog.Hash { return foldEdge(t.edge) }

// foldEdge is the root over the roots of full subtrees, the largest first; the zero
// hash for none.
func foldEdge(edge []tlog.Hash) tlog.Hash {
	if len(edge) == 0 {
		return tlog.Hash{}
	}
	h := edge[len(edge)-1]
	for i := len(edge) - 2; i >= 0; i-- {
		h = tlog.NodeHash(edge[i], h)
	}
	return h
}
