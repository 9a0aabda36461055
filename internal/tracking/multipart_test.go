package tracking_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingtest"
)

func TestMultipart(t *testing.T) {
	w := open(t)
	ctx := as(t, "alice")
	r := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{}))(t)
	place := tracking.Place{Run: r.ID}
	before := len(trackingtest.Objects(t, w.dir, "projects"))
	u := must(w.Uploads.BeginUpload(ctx, proj, place, "model/big.bin", 3))(t)
	put := func(n int, body string) tracking.Parted {
		t.Helper()
		return tracking.Parted{Number: n, Digest: must(w.Uploads.PutPart(ctx, proj, u.ID, n, strings.NewReader(body)))(t)}
	}
	third, first := put(3, "ccc"), put(1, "wrong")
	wantKind(t, w.Uploads.FinishUpload(ctx, proj, place, "model/big.bin", u.ID, []tracking.Parted{first, third}), fault.Invalid, "2 of its 3 parts")
	second := put(2, "bbb")
	wrong := first
	first = put(1, "aaa") // the client tried again
	wantKind(t, w.Uploads.FinishUpload(ctx, proj, place, "model/big.bin", u.ID, []tracking.Parted{wrong, second, third}), fault.Invalid, "do not match upload")
	wantKind(t, w.Uploads.FinishUpload(ctx, proj, place, "model/other.bin", u.ID, []tracking.Parted{first, second, third}), fault.Invalid, "not of model/other.bin")
	third.Digest = `"` + third.Digest + `"` // as an ETag
	for range 3 {                           // a client that repeats itself
		if err := w.Uploads.FinishUpload(ctx, proj, place, "model/big.bin", u.ID, []tracking.Parted{third, first, second}); err != nil {
			t.Fatal(err)
		}
	}
	body, f, err := w.Artifacts.OpenArtifact(ctx, proj, place, "model/big.bin")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if b, err := io.ReadAll(body); string(b) != "aaabbbccc" || err != nil || f.Size != 9 {
		t.Errorf("%q %v %+v", b, err, f)
	}
	if left := len(trackingtest.Objects(t, w.dir, "projects")); left != before+1 {
		t.Errorf("%d objects are left, want the file's", left-before)
	}
	wantKind(t, errOf(w.Uploads.PutPart(ctx, proj, u.ID, 1, strings.NewReader("x"))), fault.Conflict, "already complete")

	for _, bad := range []int{0, -1, tracking.MaxParts + 1} {
		wantKind(t, errOf(w.Uploads.BeginUpload(ctx, proj, place, "x", bad)), fault.Invalid, "num_parts")
	}
	wantKind(t, errOf(w.Uploads.BeginUpload(ctx, proj, place, "../x", 1)), fault.Invalid, "Invalid path")
	wantKind(t, errOf(w.Uploads.BeginUpload(as(t, "vera"), proj, place, "x", 1)), fault.PermissionDenied, "")
	u = must(w.Uploads.BeginUpload(ctx, proj, place, "y", 2))(t)
	wantKind(t, errOf(w.Uploads.PutPart(ctx, proj, u.ID, 3, strings.NewReader("x"))), fault.Invalid, "parts 1 to 2")
	wantKind(t, errOf(w.Uploads.PutPart(ctx, "other", u.ID, 1, strings.NewReader("x"))), fault.NotFound, "no upload")
	wantKind(t, errOf(w.Uploads.PutPart(ctx, proj, u.ID, 1, bytes.NewReader(make([]byte, 2<<20)))), fault.TooLarge, "")
	cut := io.MultiReader(strings.NewReader("half"), failing{})
	if _, err := w.Uploads.PutPart(ctx, proj, u.ID, 1, cut); err == nil {
		t.Error("a part that was cut off was stored")
	}
	must(w.Uploads.PutPart(ctx, proj, u.ID, 1, strings.NewReader("one")))(t)
	for range 2 {
		if err := w.Uploads.AbortUpload(ctx, proj, u.ID); err != nil {
			t.Fatal(err)
		}
	}
	if left := len(trackingtest.Objects(t, w.dir, "projects")); left != before+1 {
		t.Errorf("%d objects are left after an upload was given up", left-before-1)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the connection is gone") }

// TestSweepUploads: what nobody finished goes after a day, and its parts not before.
func TestSweepUploads(t *testing.T) {
	w := open(t)
	ctx := as(t, "alice")
	r := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{}))(t)
	u := must(w.Uploads.BeginUpload(ctx, proj, tracking.Place{Run: r.ID}, "x", 1))(t)
	must(w.Uploads.PutPart(ctx, proj, u.ID, 1, strings.NewReader("one")))(t)
	parts := func() int { return len(trackingtest.Objects(t, w.dir, "projects")) }
	sweep := func(ctx context.Context) {
		t.Helper()
		if _, err := w.Maintenance.Sweep(ctx, proj, -time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	sweep(ctx)
	if parts() != 1 {
		t.Fatal("the part of an upload under way was swept")
	}
	w.clock = w.clock.Add(25 * time.Hour)
	sweep(ctx)
	if parts() != 0 {
		t.Error("an upload that nobody finished has parts left")
	}
}
