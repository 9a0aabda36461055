package table

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
)

func zone(tb testing.TB, name string) *time.Location {
	tb.Helper()
	z, err := ParseZone(name)
	if err != nil {
		tb.Fatal(err)
	}
	return z
}

// What PostgreSQL says of `timestamp … AT TIME ZONE zone` for the later, and Java's
// ZonedDateTime.ofLocal for the earlier.
func TestInstant(t *testing.T) {
	for _, c := range []struct{ zone, local, late, early string }{
		{"UTC", "2013-03-10T02:30:00", "2013-03-10T02:30:00Z", ""},
		{"America/New_York", "2013-01-01T05:00:00", "2013-01-01T10:00:00Z", ""},
		{"America/New_York", "2013-03-10T01:59:59.999999", "2013-03-10T06:59:59.999999Z", ""},
		{"America/New_York", "2013-03-10T02:00:00", "2013-03-10T07:00:00Z", ""}, // skipped
		{"America/New_York", "2013-03-10T02:30:00", "2013-03-10T07:30:00Z", ""},
		{"America/New_York", "2013-03-10T03:00:00", "2013-03-10T07:00:00Z", ""},
		{"America/New_York", "2013-11-03T00:59:59", "2013-11-03T04:59:59Z", ""},
		{"America/New_York", "2013-11-03T01:00:00", "2013-11-03T06:00:00Z", "2013-11-03T05:00:00Z"}, // twice
		{"America/New_York", "2013-11-03T01:59:59", "2013-11-03T06:59:59Z", "2013-11-03T05:59:59Z"},
		{"America/New_York", "2013-11-03T02:00:00", "2013-11-03T07:00:00Z", ""},
		{"Australia/Lord_Howe", "2013-04-07T01:45:00", "2013-04-06T15:15:00Z", "2013-04-06T14:45:00Z"}, // half an hour
		{"Pacific/Apia", "2011-12-30T12:00:00", "2011-12-30T22:00:00Z", ""},                            // a day that was not
		{"Asia/Kathmandu", "2024-06-01T00:00:00", "2024-05-31T18:15:00Z", ""},
		{"Africa/Monrovia", "1900-01-01T00:00:00", "1900-01-01T00:43:08Z", ""},  // before there was one
		{"Europe/Berlin", "2099-07-01T00:00:00", "2099-06-30T22:00:00Z", ""},    // beyond the table
		{"America/New_York", "2040-12-31T12:00:00", "2040-12-31T17:00:00Z", ""}, // where Go's year has 365 days
		{"Australia/Lord_Howe", "2041-01-01T05:00:00", "2040-12-31T18:00:00Z", ""},
		{"Europe/London", "2116-12-31T23:59:59.999999", "2116-12-31T23:59:59.999999Z", ""},
	} {
		local, err := time.Parse("2006-01-02T15:04:05.999999999", c.local)
		if err != nil {
			t.Fatal(err)
		}
		if c.early == "" {
			c.early = c.late
		}
		for early, want := range map[bool]string{false: c.late, true: c.early} {
			got := time.UnixMicro(Local{zone(t, c.zone), early}.Instant(local.UnixMicro())).UTC().Format(time.RFC3339Nano)
			if got != want {
				t.Errorf("%s in %s (early %t) is %s, want %s", c.local, c.zone, early, got, want)
			}
		}
	}
	for _, name := range []string{"", "Local", "Mars/Olympus", "../etc/passwd", "/etc/localtime", "EST5EDT4"} {
		if _, err := ParseZone(name); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
			t.Errorf("zone %q: %v", name, err)
		}
	}
}

// Clocks show an instant at the time that is given, unless they skip that; what is
// remembered changes no answer.
func TestInstants(t *testing.T) {
	zones := []string{"UTC", "America/New_York", "Europe/London", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Casablanca", "Asia/Tehran", "America/Caracas", "Antarctica/Troll"}
	rapid.Check(t, func(rt *rapid.T) {
		l := Local{zone(t, rapid.SampledFrom(zones).Draw(rt, "zone")), rapid.Bool().Draw(rt, "early")}
		many := l.instants()
		near := rapid.OneOf(rapid.Int64Range(-3e15, 5e15), rapid.Map(rapid.IntRange(2036, 2140), func(year int) int64 { // and new year's eves
			return time.Date(year, 12, 31, 12, 0, 0, 0, time.UTC).UnixMicro()
		})).Draw(rt, "near")
		for range 20 {
			local := near + rapid.Int64Range(-4e12, 4e12).Draw(rt, "away")
			at := l.Instant(local)
			if got := many(local); got != at {
				rt.Fatalf("%d is %d, and among others %d", local, at, got)
			}
			_, offset := time.UnixMicro(at).In(l.Zone).Zone()
			shows := at + int64(offset)*1e6
			other := l
			other.Early = !l.Early
			if shows != local && (shows < local || shows > local+24*3600*1e6 || at != other.Instant(local)) {
				rt.Fatalf("at %d clocks show %d and not %d", at, shows, local)
			}
			if l.Early != (at <= other.Instant(local)) && at != other.Instant(local) {
				rt.Fatalf("%d: %d is not the early one", local, at)
			}
		}
	})
}

// Infinity is the same in every zone, and changes nothing of what comes after it.
func TestInstantsOfInfinity(t *testing.T) {
	day := time.Date(2013, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	for _, name := range []string{"America/New_York", "America/Bogota", "Europe/Berlin", "Pacific/Kiritimati"} {
		l := Local{Zone: zone(t, name)}
		for _, far := range []int64{math.MaxInt64, math.MaxInt64 - 3600e6, -math.MaxInt64, math.MinInt64, math.MinInt64 + 3600e6} {
			many := l.instants()
			first, at, next := many(day), many(far), many(day)
			if first != l.Instant(day) || next != first || at != far || l.Instant(far) != far {
				t.Errorf("%s: %d among %d is %d among %d and %d", name, far, day, at, first, next)
			}
		}
		for _, far := range []int64{math.MaxInt64 - 1000*3600e6, math.MinInt64 + 1000*3600e6} { // which clocks show
			if at := l.instants()(far); max(at-far, far-at) > farthest.Microseconds() {
				t.Errorf("%s: %d is %d", name, far, at)
			}
		}
	}
}

func TestNormalizeLocal(t *testing.T) {
	local := &arrow.TimestampType{Unit: arrow.Millisecond}
	instants := array.NewTimestampBuilder(memory.DefaultAllocator, &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "America/New_York"})
	instants.AppendTime(time.Date(2013, 1, 1, 5, 0, 0, 0, time.UTC))
	for _, c := range []struct {
		array arrow.Array
		want  string
	}{
		{arrayOf(t, local, `["2013-01-01 05:00:00", null]`), "2013-01-01T10:00:00Z (null)"},
		{instants.NewArray(), "2013-01-01T05:00:00Z"},
		{arrayOf(t, arrow.ListOf(local), `[["2013-07-01 05:00:00"]]`), `["2013-07-01T09:00:00Z"]`},
	} {
		a := c.array
		raw := arrow.NewSchema([]arrow.Field{{Name: "c", Type: a.DataType(), Nullable: true}}, nil)
		s, err := NormalSchema(raw)
		if err != nil {
			t.Fatal(err)
		}
		rec := array.NewRecordBatch(raw, []arrow.Array{a}, int64(a.Len()))
		norm, err := NormalizeIn(rec, s, 1, Local{Zone: zone(t, "America/New_York")})
		if err != nil {
			t.Fatal(err)
		}
		got := make([]string, a.Len())
		for i := range got {
			got[i] = norm.Column(0).ValueStr(i)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", a.DataType(), strings.Join(got, " "), c.want)
		}
	}
}
