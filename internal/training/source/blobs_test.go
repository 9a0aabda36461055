package source_test

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/blob/fileblob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/training/source"
)

// TestBlobs: an archive is kept under its digest, and nothing else is.
func TestBlobs(t *testing.T) {
	driver, err := fileblob.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = driver.Close() })
	s := source.Blobs{Store: blob.New(driver, blobtest.NewSealer())}
	sum := sha256.Sum256([]byte("archive"))
	for _, object := range []string{"", id.New("sar")} {
		a := source.Stored{Digest: "sha256:" + hex.EncodeToString(sum[:]), Object: object}
		testSource(t, s, a)
		var listed []source.Stored
		err := s.List(t.Context(), "nyc", func(a source.Stored) error {
			listed = append(listed, a)
			return nil
		})
		if err != nil || !slices.Equal(listed, []source.Stored{a}) {
			t.Errorf("listed are %v, %v", listed, err)
		}
		if err := s.Delete(t.Context(), "nyc", a); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Open(t.Context(), "nyc", a); !fault.Is(err, fault.NotFound) {
			t.Errorf("after its deletion: %v", err)
		}
	}
}

func testSource(t *testing.T, s source.Blobs, a source.Stored) {
	t.Helper()
	if err := s.Save(t.Context(), "nyc", a, strings.NewReader("another")); !fault.Is(err, fault.Invalid) {
		t.Errorf("another archive under the digest: %v", err)
	}
	if _, err := s.Open(t.Context(), "nyc", a); !fault.Is(err, fault.NotFound) {
		t.Errorf("it was kept: %v", err)
	}
	if err := s.Save(t.Context(), "nyc", a, strings.NewReader("archive")); err != nil {
		t.Fatal(err)
	}
	r, err := s.Open(t.Context(), "nyc", a)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b, err := io.ReadAll(r); err != nil || string(b) != "archive" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := s.Open(t.Context(), "other", a); !fault.Is(err, fault.NotFound) {
		t.Errorf("from another project: %v", err)
	}
}
