package monitoring

import (
	"strconv"
	"testing"
)

// FuzzToken: page tokens and window ids come from outside. What is read is written
// back as a token that reads the same.
func FuzzToken(f *testing.F) {
	for _, seed := range []string{"", "_", "1_2-3", "1370217600000000_1-1370131200000000r", "x_1-2", "1_1--5", "99999999999999999999_1-1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		k, to, err := parseToken(token)
		if err != nil {
			return
		}
		again, to2, err := parseToken(strconv.FormatInt(to.UnixMicro(), 10) + "_" + k.String())
		if err != nil || again != k || !to2.Equal(to) {
			t.Errorf("%q is %s at %s, and then %s at %s, %v", token, k, to, again, to2, err)
		}
	})
}
