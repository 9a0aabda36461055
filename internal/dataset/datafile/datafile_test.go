package datafile_test

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/blob/fileblob"
	"github.com/falaj-ml/falaj/internal/dataset/datafile"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/fault"
)

// TestStores: the store of the server and that of tests keep the same promises.
func TestStores(t *testing.T) {
	t.Run("blobs", func(t *testing.T) {
		objects := &blobtest.Memory{}
		tables, err := fileblob.OpenNamed(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tables.Close() })
		conform(t, &datafile.Blobs{Blobs: blob.New(objects, blobtest.NewSealer()), Driver: objects, Tables: tables})
	})
	t.Run("files of tests", func(t *testing.T) { conform(t, &datasettest.Files{Dir: t.TempDir()}) })
}

func conform(t *testing.T, s datafile.Store) {
	t.Helper()
	ctx := t.Context()
	for name, form := range map[string]datafile.Form{"enveloped": datafile.Enveloped, "sealed": datafile.SelfSealed, "plain": datafile.Plain} {
		t.Run(name, func(t *testing.T) {
			const prefix = "projects/p/datasets/d/"
			content := bytes.Repeat([]byte(name), 10_000)
			f := datafile.File{Project: "p", Dataset: "d", Key: prefix + name + "/data", Form: form}
			gone := func(when string) {
				t.Helper()
				if _, err := s.Open(ctx, f); !fault.Is(err, fault.NotFound) {
					t.Errorf("%s: %v", when, err)
				}
			}
			gone("before it is made")
			for _, commit := range []bool{false, true} {
				w, err := s.Create(ctx, f)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := w.Write(content); err != nil {
					t.Fatal(err)
				}
				gone("before its commit")
				if !commit {
					w.Abort()
					gone("after an abort")
					continue
				}
				if err := w.Commit(); err != nil {
					t.Fatal(err)
				}
				w.Abort() // does nothing
			}
			r, err := s.Open(ctx, f)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(io.NewSectionReader(r, 5, r.Size()))
			if err != nil || r.Size() != int64(len(content)) || !bytes.Equal(got, content[5:]) {
				t.Errorf("%d of %d bytes are read: %v", len(got), r.Size(), err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			all := func(string) bool { return true }
			if n, err := s.Sweep(ctx, prefix, time.Now().Add(-time.Hour), all); n != 0 || err != nil {
				t.Errorf("%d young files are swept, %v", n, err)
			}
			if err := s.Remove(ctx, prefix+name+"/"); err != nil {
				t.Fatal(err)
			}
			gone("after its removal")
			if err := s.Remove(ctx, prefix+name+"/"); err != nil {
				t.Errorf("removed again: %v", err)
			}
		})
	}
}
