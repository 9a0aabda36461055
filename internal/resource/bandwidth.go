package resource

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Bandwidth is bytes a second.
type Bandwidth int64

// AnyBandwidth is more than any work may ask for: what a node has of which nobody
// knows how much it has.
const AnyBandwidth Bandwidth = 1 << 46

// String is exact, in GiB or else in GB where that is short: "64GiB/s", "20.5GB/s".
func (b Bandwidth) String() string {
	switch {
	case b == 0:
		return "0"
	case b%Bandwidth(GiB) == 0:
		return strconv.FormatInt(int64(b/Bandwidth(GiB)), 10) + "GiB/s"
	case b%1e6 == 0:
		return strconv.FormatFloat(float64(b/1e6)/1000, 'f', -1, 64) + "GB/s"
	}
	return strconv.FormatInt(int64(b), 10) + "B/s"
}

// ParseBandwidth reads "20GB/s", "20GiB/s" or a plain number of bytes a second.
func ParseBandwidth(s string) (Bandwidth, error) {
	b, err := ParseBytes(strings.TrimSuffix(s, "/s"))
	if err != nil || Bandwidth(b) > AnyBandwidth {
		return 0, fault.New(fault.Invalid, "bandwidth %.80q is not an amount such as 20GB/s, 64GiB/s or 2e10, of at most %s", s, AnyBandwidth)
	}
	return Bandwidth(b), nil
}

// MarshalJSON writes the String form.
func (b Bandwidth) MarshalJSON() ([]byte, error) { return json.Marshal(b.String()) }

// UnmarshalJSON reads a number of bytes a second or the String form.
func (b *Bandwidth) UnmarshalJSON(j []byte) (err error) {
	*b, err = ParseBandwidth(strings.Trim(string(j), `"`))
	return err
}
