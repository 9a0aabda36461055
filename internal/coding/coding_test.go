package coding_test

import (
	"errors"
	"strings"
	"testing"

	. "github.com/falaj-ml/falaj/internal/coding"
	"github.com/falaj-ml/falaj/internal/fault"
)

func TestOf(t *testing.T) {
	for header, want := range map[string]string{
		"": "", "identity": "", "Identity": "", "gzip": "gzip", "GZIP": "gzip", "Gzip": "gzip", "x-gzip": "gzip", "X-GZip": "gzip", " gzip ": "gzip",
		"deflate": "deflate", "DEFLATE": "deflate", "identity, gzip": "gzip", "gzip,": "gzip", " , ": "",
	} {
		if got, err := Of(header, Gzip, Deflate); err != nil || got != want {
			t.Errorf("%q: %q, %v", header, got, err)
		}
	}
	for _, header := range []string{"br", "zstd", "gzip, gzip", "gzip, br", "gzip;q=1", "x-deflate", "compress", "*", strings.Repeat("é", 1000)} {
		_, err := Of(header, Gzip, Deflate)
		if !fault.Is(err, fault.Unsupported) || !errors.Is(err, ErrUnknown) || !strings.Contains(fault.HintOf(err), "gzip or deflate") || len(err.Error()) > 200 {
			t.Errorf("%q: %v", header, err)
		}
	}
	if _, err := Of("gzip"); !errors.Is(err, ErrUnknown) || !strings.Contains(fault.HintOf(err), "as it is") {
		t.Errorf("where none is known: %v", err)
	}
}

func TestAccepted(t *testing.T) {
	for header, want := range map[string]string{
		"": "", "gzip": "gzip", "GZIP": "gzip", "x-gzip": "gzip", "deflate, gzip": "gzip", "deflate": "deflate", "gzip;q=0, deflate": "deflate",
		"identity": "", "gzip; q=0": "", "gzip;q=0.000": "", "gzip;q=0.00, identity": "", "gzip ; Q=0.0": "", "gzip;q=0.001": "gzip",
		"*": "gzip", "*;q=0": "", "gzip;q=0, *": "deflate", "gzip;q=0.5, deflate;q=0.8": "deflate", "br, gzip;q=0.5": "gzip",
		"identity, gzip": "gzip", "identity;q=1, gzip;q=0.5": "", "identity;q=0.5, gzip": "gzip", "identity;q=0": "", "identity;q=0, gzip": "gzip",
		"gzip;q=no": "", "gzip;q=NaN": "", "gzip;q=-1": "", "gzip;q=2": "", "gzip;q=": "", "gzip;level=9;q=0": "", ",,;q=1,": "", "gzipped": "",
	} {
		if got := Accepted(header, Gzip, Deflate); got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
	}
	if got := Accepted("gzip, deflate, br", Brotli, Gzip); got != "br" {
		t.Error(got)
	}
}

// FuzzNames: whatever a client sends, what is chosen is one of what is there.
func FuzzNames(f *testing.F) {
	f.Add("gzip;q=0.5, *;q=0")
	f.Fuzz(func(t *testing.T, header string) {
		if got := Accepted(header, Gzip, Deflate); got != Identity && got != Gzip && got != Deflate {
			t.Error(got)
		}
		if got, err := Of(header, Gzip); err == nil && got != Identity && got != Gzip {
			t.Error(got)
		}
	})
}

func BenchmarkAccepted(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Accepted("gzip, deflate, br, zstd", Gzip, Deflate)
	}
}
