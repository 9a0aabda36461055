package account

import (
	"crypto/rand"
	"crypto/sha256"
	"hash/crc32"
	"math/big"
	"slices"
	"strings"
	"unsafe"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Kind of token; it stands in the secret, so that a leaked one tells scanners
// and people what it is.
type Kind string

// The kinds of token.
const (
	FirstRun     Kind = "adm" // made with the installation
	UserToken    Kind = "usr"
	ServiceToken Kind = "svc"
	AttemptToken Kind = "att"
	SessionToken Kind = "ses" // of a sign-in at an identity provider
)

var kinds = []Kind{FirstRun, UserToken, ServiceToken, AttemptToken, SessionToken}

// A secret is "flj_", the kind, "_", 43 base62 digits of 256 random bits and 6
// of the CRC-32 of all that comes before. The checksum keeps typing mistakes
// and guesses away from the database, and false alarms away from scanners.
const (
	prefix     = "flj_"
	kindLen    = 3
	randomLen  = 43
	sumLen     = 6
	headLen    = len(prefix) + kindLen + 1
	secretLen  = headLen + randomLen + sumLen
	alphabet62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// digest is how a secret is known to us.
type digest [sha256.Size]byte

// mint makes a secret and its digest. There is no error: crypto/rand ends the
// process when the kernel gives no randomness.
func mint(kind Kind) (secret string, d digest) {
	var random [32]byte
	rand.Read(random[:])
	var n big.Int
	head := prefix + string(kind) + "_" + base62(n.SetBytes(random[:]), randomLen)
	secret = head + checksum(head)
	return secret, sha256.Sum256([]byte(secret))
}

// errBearer is the one answer to every token that does not work.
func errBearer() error {
	return fault.New(fault.Unauthenticated, "the token is missing, malformed, expired, revoked or unknown").
		WithHint("Send a valid token as \"Authorization: Bearer flj_…\"; \"falaj login\" stores one, \"falaj token create\" creates one.")
}

// parse checks a secret's form. Its cost has a bound that does not depend on the
// length of the input.
func parse(s string) (Kind, digest, bool) {
	if len(s) != secretLen || !strings.HasPrefix(s, prefix) || s[headLen-1] != '_' {
		return "", digest{}, false
	}
	kind := Kind(s[len(prefix) : headLen-1])
	if !slices.Contains(kinds, kind) {
		return "", digest{}, false
	}
	raw := unsafe.Slice(unsafe.StringData(s), secretLen) //nolint:gosec // only read: a copy would be garbage with a secret in it
	for _, c := range raw[headLen:] {
		if c < '0' || c > '9' && c < 'A' || c > 'Z' && c < 'a' || c > 'z' {
			return "", digest{}, false
		}
	}
	if sum62(crc32.ChecksumIEEE(raw[:secretLen-sumLen])) != [sumLen]byte(raw[secretLen-sumLen:]) {
		return "", digest{}, false
	}
	return kind, sha256.Sum256(raw), true
}

func checksum(head string) string {
	d := sum62(crc32.ChecksumIEEE([]byte(head)))
	return string(d[:])
}

func sum62(sum uint32) (digits [sumLen]byte) {
	for i := sumLen - 1; i >= 0; i-- {
		digits[i] = alphabet62[sum%62]
		sum /= 62
	}
	return digits
}

func base62(n *big.Int, digits int) string {
	out := make([]byte, digits)
	base, rest := big.NewInt(62), new(big.Int)
	for i := digits - 1; i >= 0; i-- {
		n.DivMod(n, base, rest)
		out[i] = alphabet62[rest.Int64()]
	}
	return string(out)
}
