package account

import (
	"crypto/sha256"
	"hash/crc32"
	"math/big"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
)

func TestMintedSecretsParse(t *testing.T) {
	seen := map[string]bool{}
	for range 200 {
		for _, kind := range kinds {
			secret, want := mint(kind)
			if seen[secret] {
				t.Fatal("a secret came twice")
			}
			seen[secret] = true
			got, d, ok := parse(secret)
			if !ok || got != kind || d != want || d != sha256.Sum256([]byte(secret)) {
				t.Fatalf("%s does not parse as what it is: %v, %v", secret, got, ok)
			}
		}
	}
}

// TestRandomPart: all 256 bits are in the secret, the largest number included.
func TestRandomPart(t *testing.T) {
	most := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1))
	text := base62(new(big.Int).Set(most), randomLen)
	back := new(big.Int)
	for _, c := range text {
		back.Add(back.Mul(back, big.NewInt(62)), big.NewInt(int64(strings.IndexRune(alphabet62, c))))
	}
	if back.Cmp(most) != 0 {
		t.Errorf("%s is not 2^256 - 1", text)
	}
}

func TestMalformedSecrets(t *testing.T) {
	good, _ := mint(UserToken)
	flip := func(i int) string {
		b := []byte(good)
		if b[i] == 'A' {
			b[i] = 'B'
		} else {
			b[i] = 'A'
		}
		return string(b)
	}
	bad := []string{
		"", " ", good + " ", " " + good, good[:len(good)-1], good + "0", strings.ToUpper(good), strings.Repeat(".", 1<<20),
		strings.Repeat(".", secretLen), strings.Repeat("0", secretLen), "flj_usr_" + strings.Repeat("0", randomLen+sumLen),
		strings.Replace(good, "flj_usr_", "flj_adm_", 1), strings.Replace(good, "flj_usr_", "flj_xyz_", 1), strings.Replace(good, "flj_usr_", "ghp_usr_", 1),
		strings.Replace(good, "_", "-", 1), good[:20] + "\x00" + good[21:], good[:20] + "é" + good[22:],
	}
	for i := range good {
		bad = append(bad, flip(i))
	}
	for _, s := range bad {
		if _, _, ok := parse(s); ok {
			t.Errorf("%.80q parses", s)
		}
	}
	if n := testing.AllocsPerRun(100, func() { parse(strings.Repeat(".", 1<<20)[:1<<19]) }); n > 1 { // the Repeat
		t.Errorf("half a megabyte of dots makes parse allocate: %v", n)
	}
	if err := errBearer(); fault.KindOf(err) != fault.Unauthenticated {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	for _, kind := range kinds {
		secret, _ := mint(kind)
		f.Add(secret)
		f.Add(secret[1:])
	}
	f.Add("Bearer flj_usr_")
	f.Add(strings.Repeat(".", 4096))
	f.Fuzz(func(t *testing.T, s string) {
		kind, d, ok := parse(s)
		if !ok {
			if kind != "" || d != (digest{}) {
				t.Error("something came of a secret that does not parse")
			}
			return
		}
		if len(s) != secretLen || !strings.HasPrefix(s, prefix+string(kind)+"_") || d != sha256.Sum256([]byte(s)) {
			t.Errorf("%q parses", s)
		}
		head := s[:secretLen-sumLen]
		if s != head+checksum(head) || crc32.ChecksumIEEE([]byte(head)) == 0 && !strings.HasSuffix(s, "000000") {
			t.Errorf("%q parses with another checksum", s)
		}
	})
}
