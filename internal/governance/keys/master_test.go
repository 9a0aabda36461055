package keys

import (
	"bytes"
	"testing"
)

// A file that parses holds a key, or a seal whose cost is bounded.
func FuzzParseMaster(f *testing.F) {
	bare, err := encodeMaster(bytes.Repeat([]byte{7}, keySize), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(bare)
	f.Add([]byte(`{"falaj_master_key":1,"kdf":{"name":"argon2id","salt":"AAAAAAAAAAAAAAAAAAAAAA==","time":4294967295,"memory_kib":4294967295,"threads":1},"sealed":"AAAA"}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMaster(b)
		if err != nil {
			return
		}
		if m.KDF == nil && len(m.Key) != keySize {
			t.Fatalf("accepted a key of %d bytes", len(m.Key))
		}
		if m.KDF != nil && (m.KDF.MemoryKiB > argonMaxMemoryKiB || m.KDF.Time > argonMaxTime) {
			t.Fatalf("accepted a cost of %+v", m.KDF)
		}
	})
}
