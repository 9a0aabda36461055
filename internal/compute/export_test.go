package compute

import (
	"context"
	"testing"
	"time"
)

// SetOverdue changes how long compute leaves an overdue workload to its engine.
func (s *Scheduling) SetOverdue(d time.Duration) { s.overdue = d }

// Refresh asks the engines for their nodes, and Sweep for what nobody wants.
func (s *Scheduling) Refresh(ctx context.Context) error { return s.refresh(ctx) }

// WarnOfSupport tells of hardware that is soon out of support.
func (s *Scheduling) WarnOfSupport(ctx context.Context) error { return s.warnOfSupport(ctx) }

// Sweep looks for orphans.
func (s *Scheduling) Sweep(ctx context.Context) error { return s.sweep(ctx, true) }

// Forget removes the traces of what ended long ago.
func (s *Scheduling) Forget(ctx context.Context) error { return s.forget(ctx) }

// SetForgetBatch makes batches small enough for a test, until it ends.
func SetForgetBatch(tb testing.TB, n int) {
	tb.Helper()
	was := forgetBatch
	forgetBatch = n
	tb.Cleanup(func() { forgetBatch = was })
}

// Anew makes the next cycle read everything.
func (s *Scheduling) Anew() { s.anew() }

// Watchers counts the workloads that somebody waits for.
func (s *Scheduling) Watchers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watchers)
}

// SetLease shortens the time until another process takes over.
func (s *Scheduling) SetLease(d time.Duration) { s.leaseTime = d }

// Told counts what owners told of workloads and is not kept.
func (s *Scheduling) Told() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.idle) + len(s.paces)
}

// ForgetRecords removes the records of builds, queries and replicas that are due.
func (s *Scheduling) ForgetRecords(ctx context.Context) error { return s.forgetRecords(ctx) }

// SetRecordsBatch makes batches small and few enough for a test, until it ends.
func SetRecordsBatch(tb testing.TB, records, batches int) {
	tb.Helper()
	was, were := recordsBatch, recordsBatches
	recordsBatch, recordsBatches = records, batches
	tb.Cleanup(func() { recordsBatch, recordsBatches = was, were })
}
