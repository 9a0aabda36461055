package training_test

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/blob/fileblob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/training"
)

// TestBlobSources: an archive is kept under its digest, and nothing else is.
func TestBlobSources(t *testing.T) {
	driver, err := fileblob.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = driver.Close() })
	s := training.BlobSources{Store: blob.New(driver, blobtest.NewSealer())}
	sum := sha256.Sum256([]byte("archive"))
	digest := "sha256:" + hex.EncodeToString(sum[:])
	if err := s.Save(t.Context(), nyc, digest, strings.NewReader("another")); !fault.Is(err, fault.Invalid) {
		t.Errorf("another archive under the digest: %v", err)
	}
	if _, err := s.Open(t.Context(), nyc, digest); !fault.Is(err, fault.NotFound) {
		t.Errorf("it was kept: %v", err)
	}
	if err := s.Save(t.Context(), nyc, digest, strings.NewReader("archive")); err != nil {
		t.Fatal(err)
	}
	r, err := s.Open(t.Context(), nyc, digest)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b, err := io.ReadAll(r); err != nil || string(b) != "archive" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := s.Open(t.Context(), "other", digest); !fault.Is(err, fault.NotFound) {
		t.Errorf("from another project: %v", err)
	}
}
