package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
)

func TestSmoke(t *testing.T) {
	ctx := context.Background()
	db, err := Open(ctx, Config{URL: "sqlite://" + filepath.Join(t.TempDir(), "a.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for j := range 50 {
				err := db.Update(ctx, fmt.Sprint(i%4), func(ctx context.Context, tx *Tx) error {
					if err := tx.Append(ctx, "s", "", "k", []byte("{}")); err != nil {
						return err
					}
					if j%10 == 9 {
						return errors.New("no")
					}
					return nil
				})
				if (err != nil) != (j%10 == 9) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	r, p, err := db.ReadStream(ctx, "s", Position{}, 10000)
	w, _ := db.Watermark(ctx)
	t.Log(len(r), p, w, err)
	if len(r) != 64*45 {
		t.Fail()
	}
}
