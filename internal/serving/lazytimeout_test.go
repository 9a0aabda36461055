package serving

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestWithin holds a context of ours to what one of the standard library does, whatever
// is asked of it first.
func TestWithin(t *testing.T) {
	type contextKey struct{}
	const limit = time.Second
	for name, tt := range map[string]struct {
		before func(ctx context.Context, parent context.CancelFunc, cancel func())
		after  time.Duration
		want   error
	}{
		"before its end":             {func(context.Context, context.CancelFunc, func()) {}, limit - 1, nil},
		"at its end":                 {func(context.Context, context.CancelFunc, func()) {}, limit, context.DeadlineExceeded},
		"at its end, waited for":     {func(ctx context.Context, _ context.CancelFunc, _ func()) { ctx.Done() }, limit, context.DeadlineExceeded},
		"its parent ended":           {func(_ context.Context, parent context.CancelFunc, _ func()) { parent() }, 0, context.Canceled},
		"waited for, and its parent": {func(ctx context.Context, parent context.CancelFunc, _ func()) { ctx.Done(); parent() }, 0, context.Canceled},
		"cancelled":                  {func(_ context.Context, _ context.CancelFunc, cancel func()) { cancel(); cancel() }, 0, context.Canceled},
		"waited for, and cancelled":  {func(ctx context.Context, _ context.CancelFunc, cancel func()) { ctx.Done(); cancel() }, 0, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parent, end := context.WithCancel(context.WithValue(t.Context(), contextKey{}, "value"))
				defer end()
				ctx := withLazyTimeout(parent, time.Now(), limit)
				defer ctx.cancel()
				if at, ok := ctx.Deadline(); !ok || !at.Equal(time.Now().Add(limit)) {
					t.Errorf("it ends at %s, %t", at, ok)
				}
				tt.before(ctx, end, ctx.cancel)
				time.Sleep(tt.after) //nolint:forbidigo // of a bubble
				synctest.Wait()
				child, stop := context.WithCancel(ctx)
				defer stop()
				for _, c := range []context.Context{ctx, child} {
					if err := c.Err(); !errors.Is(err, tt.want) {
						t.Errorf("%v, want %v", err, tt.want)
					}
					select {
					case <-c.Done():
						if tt.want == nil {
							t.Error("it is done")
						}
					default:
						if tt.want != nil {
							t.Error("it is not done")
						}
					}
					if v := c.Value(contextKey{}); v != "value" {
						t.Errorf("its value is %v", v)
					}
				}
				if cause := context.Cause(ctx); !errors.Is(cause, tt.want) {
					t.Errorf("the cause is %v, want %v", cause, tt.want)
				}
			})
		})
	}
	sooner, cancel := context.WithDeadline(t.Context(), time.Now().Add(limit/2))
	defer cancel()
	want, _ := sooner.Deadline()
	if at, _ := withLazyTimeout(sooner, time.Now(), limit).Deadline(); !at.Equal(want) {
		t.Errorf("it ends at %s, and what it is within at %s", at, want)
	}
}
