//go:build proof

package dcp

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/blob/fileblob"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/checkpoint"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
	"github.com/falaj-ml/falaj/test/live"
)

const job = "job_dcp"

func TestReshard(t *testing.T) {
	python, err := filepath.Abs("../../../.tmp/venv/dcp/bin/python")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(python); err != nil {
		t.Fatalf("torch 2 is not installed: scripts/engines/dcp.sh (%v)", err)
	}
	dir := t.TempDir()
	k := keeper(t, dir)
	checkpoints := filepath.Join(dir, "checkpoints", job)
	for i, size := range []int{4, 2, 3, 4} {
		// Each attempt begins on a machine that has nothing.
		if err := os.RemoveAll(checkpoints); err != nil {
			t.Fatal(err)
		}
		notes, err := k.Restore(t.Context(), job)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(checkpoints, 0o700); err != nil {
			t.Fatal(err)
		}
		out := ranks(t, python, checkpoints, size)
		t.Logf("%d ranks %q:\n%s", size, notes, out)
		for rank := range min(size, size*i) { // the first attempt has nothing to go on from
			if want := fmt.Sprintf("rank %d of %d: 9 tensors of step %d are equal", rank, size, i); !strings.Contains(out, want) {
				t.Errorf("missing: %s", want)
			}
		}
		if err := k.Settle(t.Context(), job); err != nil {
			t.Fatal(err)
		}
	}
}

// ranks runs all ranks of one attempt to their end.
func ranks(t *testing.T, python, checkpoints string, size int) string {
	t.Helper()
	_, port := live.Address(t)
	outs := make([]bytes.Buffer, size)
	g, ctx := errgroup.WithContext(t.Context())
	for rank := range size {
		g.Go(func() error {
			cmd := exec.CommandContext(ctx, python, "reshard.py")
			cmd.Env = []string{
				"PATH=/usr/bin:/bin", "OMP_NUM_THREADS=1", "FALAJ_CHECKPOINT_DIR=" + checkpoints, "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port,
				fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("WORLD_SIZE=%d", size), "GLOO_SOCKET_IFNAME=lo",
			}
			cmd.Stdout, cmd.Stderr = &outs[rank], &outs[rank]
			return cmd.Run()
		})
	}
	err := g.Wait()
	var all strings.Builder
	for i := range outs {
		all.Write(outs[i].Bytes())
	}
	if err != nil {
		t.Fatalf("%d ranks: %v\n%s", size, err, all.String())
	}
	return all.String()
}

// keeper is the service over a real database and directory of objects.
func keeper(t *testing.T, dir string) *checkpoint.Service {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{URL: "sqlite://" + filepath.Join(dir, "falaj.db"), Migrations: []store.Migrations{trainingsql.Migrations}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	driver, err := fileblob.Open(filepath.Join(dir, "objects"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { driver.Close() })
	err = db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		return trainingsql.Store{}.InsertJob(ctx, tx, training.Job{ID: job, Project: "nyc", Name: "dcp", State: training.Running, Revision: 1})
	})
	if err != nil {
		t.Fatal(err)
	}
	return checkpoint.New(checkpoint.Config{
		DB: db, Store: trainingsql.Checkpoints{}, Blobs: blob.New(driver, blobtest.NewSealer()), Dir: filepath.Join(dir, "checkpoints"),
	})
}
