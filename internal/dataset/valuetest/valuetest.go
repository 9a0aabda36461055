// Package valuetest has numbers for tests of the doors by which values come in, and an oracle
// that says what each may become: itself, the float64 nearest to it, or a refusal.
package valuetest

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Number is a decimal number as it is written, of at most 38 digits.
type Number struct {
	Text     string
	Exact    *big.Rat
	Unscaled *big.Int // Exact is Unscaled · 10^-Scale
	Scale    int
}

// Whole reports whether it is written without a fraction.
func (n Number) Whole() bool { return n.Scale == 0 }

func number(text string) Number {
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		panic(text)
	}
	_, fraction, _ := strings.Cut(text, ".")
	unscaled, _ := new(big.Int).SetString(strings.Replace(text, ".", "", 1), 10)
	return Number{text, r, unscaled, len(fraction)}
}

// Numbers are those at the edges of int64 and float64, and random decimals.
func Numbers(seed uint64) []Number {
	texts := []string{
		"0", "1", "-1", "9007199254740991", "9007199254740992", "9007199254740993", "-9007199254740993", "9223372036854775807",
		"-9223372036854775808", "9223372036854775808", "18446744073709551614", "18446744073709551615", "18446744073709551616",
		"99999999999999999999999999999999999999", "0.57", "0.35", "0.82", "84700.54", "0.1", "-0.3", "0.10", "19.99", "1234.565",
		"9007199254740992.5", "9007199254740993.5", "0.000000000000000000000000000000000001", "12345678901234567890.12345678",
		"0.30000000000000004", "2.5", "100000000000000000000.5",
	}
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // the same numbers again
	for range 150 {
		scale := 1 + random.IntN(18)
		digits := fmt.Sprintf("%0*d", scale+1, random.Uint64N(1<<(2+random.UintN(61))))
		texts = append(texts, strings.Repeat("-", random.IntN(2))+digits[:len(digits)-scale]+"."+digits[len(digits)-scale:])
	}
	for range 50 {
		texts = append(texts, strconv.FormatUint(random.Uint64(), 10))
	}
	out := make([]Number, len(texts))
	for i, text := range texts {
		out[i] = number(text)
	}
	return out
}

// Wrong says what is wrong with what a door made of a number: got is an int64, a float64 or a
// string. A whole number may be a float64 only where that is it.
func Wrong(n Number, got any) string {
	switch v := got.(type) {
	case int64:
		if new(big.Rat).SetInt64(v).Cmp(n.Exact) == 0 {
			return ""
		}
	case float64:
		nearest, exact := n.Exact.Float64()
		if v == nearest && (exact || !n.Whole()) {
			return ""
		}
	case string:
		if r, ok := new(big.Rat).SetString(v); ok && r.Cmp(n.Exact) == 0 {
			return ""
		}
	}
	return fmt.Sprintf("%s became %v (%T)", n.Text, got, got)
}
