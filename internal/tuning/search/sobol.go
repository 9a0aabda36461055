package search

import "math/bits"

// sobolPoint is coordinate dim of point n of Sobol's sequence, in (0, 1), scrambled
// after Owen: each is uniform, and together they are as even as Sobol's. The
// direction numbers are those of Joe and Kuo (joekuo.go); the scrambling is a hash of
// the bits above each (Laine and Karras 2011; Burley, "Practical Hash-based Owen
// Scrambling", Journal of Computer Graphics Techniques 9(4), 2020; the constants are of
// Vegdahl, "Building a Better LK Hash", 2021), so that a point is had without those
// before it.
func sobolPoint(n uint32, dim int, seed uint64) float64 {
	v := &directions[dim]
	var x uint32
	for i := 0; n != 0; i, n = i+1, n>>1 {
		if n&1 != 0 {
			x ^= v[i]
		}
	}
	h := mix(seed ^ mix(uint64(dim)+1)) //nolint:gosec // a dimension is not negative
	return (float64(owen(x, uint32(h>>32))) + 0.5) / (1 << 32)
}

// owen flips each bit by a hash of those above it: carries of the reversed number
// only go up.
func owen(x, seed uint32) uint32 {
	x = bits.Reverse32(x)
	x ^= x * 0x3d20adea
	x += seed
	x *= (seed >> 16) | 1
	x ^= x * 0x05526c56
	x ^= x * 0x53a22864
	return bits.Reverse32(x)
}

// mix is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// directions are 32 numbers for each dimension, by the recurrence of the dimension's
// primitive polynomial.
var directions = func() (out [len(joeKuo) + 1][32]uint32) {
	for i := range 32 {
		out[0][i] = 1 << (31 - i)
	}
	for d, j := range joeKuo {
		v := &out[d+1]
		s := len(j.m)
		for i := range 32 {
			if i < s {
				v[i] = j.m[i] << (31 - i)
				continue
			}
			v[i] = v[i-s] ^ v[i-s]>>s
			for k := 1; k < s; k++ {
				if j.a>>(s-1-k)&1 != 0 {
					v[i] ^= v[i-k]
				}
			}
		}
	}
	return out
}()
