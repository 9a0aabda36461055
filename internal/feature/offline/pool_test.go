package offline

import (
	"slices"
	"testing"
)

func TestPool(t *testing.T) {
	const mib = 1 << 20
	p := NewPool(1024 * mib)
	var got []int64
	var gives []func()
	for _, want := range []int64{512, 10, 512, 512, 512, 512, 512} {
		n, give := p.take(want * mib)
		got, gives = append(got, n/mib), append(gives, give)
	}
	if want := []int64{512, 10, 251, 125, 62, 32, 32}; !slices.Equal(got, want) {
		t.Errorf("shares of %v MiB, want %v", got, want)
	}
	for _, give := range append(gives, gives...) {
		give()
	}
	if p.left != 1024*mib {
		t.Errorf("%d bytes are left of all", p.left)
	}
	if n, give := (*Pool)(nil).take(7); n != 7 {
		t.Errorf("%d without a pool", n)
	} else {
		give()
	}
}
