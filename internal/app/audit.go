package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

// auditLag is how long the log may not be extended until the server says that it
// is not ready. What is done meanwhile is on record, but not yet signed.
const auditLag = time.Minute

// auditReady is nil while the audit log can be relied on. Its text is for
// everybody.
func auditReady(s audit.Status, now time.Time) error {
	switch {
	case audit.Contradicted(s.Err):
		return fault.New(fault.Unavailable, "changes are rejected: the audit log does not match its signatures")
	case s.Err != nil && now.Sub(s.Folded) > auditLag:
		return fault.New(fault.Unavailable, "the audit log has not been extended since %s", s.Folded.UTC().Format(time.RFC3339))
	}
	return nil
}

// auditObjects keeps archived audit entries, sealed by a key of the installation. It
// implements audit.Objects.
type auditObjects struct{ blobs *blob.Store }

func (auditObjects) ref(key string) blob.Ref {
	return blob.Ref{Owner: "audit-archive", Key: blob.Key(key)}
}

func (o auditObjects) Put(ctx context.Context, key string, b []byte) error {
	_, err := o.blobs.Put(ctx, o.ref(key), strings.NewReader(string(b)))
	return err
}

func (o auditObjects) Get(ctx context.Context, key string, limit int64) (b []byte, err error) {
	r, err := o.blobs.Open(ctx, o.ref(key))
	if err == nil {
		defer func() { _ = r.Close() }()
		if r.Info().Size > limit {
			return nil, fault.New(fault.Invalid, "object %s has %d bytes: %w", key, r.Info().Size, audit.ErrObjectDamaged)
		}
		b, err = io.ReadAll(r)
	}
	if errors.Is(err, blob.ErrDamaged) {
		err = fmt.Errorf("%w: %w", audit.ErrObjectDamaged, err)
	}
	return b, err
}

func (o auditObjects) Delete(ctx context.Context, key string) error {
	return o.blobs.Delete(ctx, o.ref(key))
}

// AuditTampered is published when the audit log is not what was signed.
const AuditTampered = "audit.tampered"

// tampered tells of a finding of the audit log: an event, an entry in the journal, which
// still takes entries, and a CloudEvent to the URL that the configuration names. The
// closing App waits for the first try of each.
func (a *App) tampered(ctx context.Context, journal audit.Journal) func(error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	a.onClose(func() error {
		first := make(chan struct{})
		go func() { running.Wait(); close(first) }()
		select {
		case <-first:
		case <-time.After(alertTimeout):
		}
		cancel()
		return nil
	})
	return func(finding error) {
		running.Add(1)
		go a.tellTampered(ctx, journal, finding, sync.OnceFunc(running.Done))
	}
}

// tellTampered tells of a finding until the context ends; tried is called after the first
// try.
func (a *App) tellTampered(ctx context.Context, journal audit.Journal, finding error, tried func()) {
	defer tried()
	what := map[string]any{"finding": finding.Error(), "hint": fault.HintOf(finding)}
	err := a.db.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error { return event.Publish(ctx, tx, "", AuditTampered, what) })
	err = errors.Join(err, journal.Record(ctx, audit.Entry{
		Actor: identity.Loop("audit"), Action: AuditTampered, Object: "audit log", Reason: finding.Error(),
	}))
	if err != nil {
		a.log.ErrorContext(ctx, "the finding of the audit log could not be recorded", slog.Any("error", err))
	}
	for a.cfg.Audit.Alert != "" && ctx.Err() == nil {
		err := postAlert(ctx, a.cfg.Audit.Alert, AuditTampered, what)
		if err == nil {
			return
		}
		a.log.ErrorContext(ctx, "the alert about the audit log was not delivered", slog.Any("error", err))
		tried()
		select {
		case <-ctx.Done():
		case <-time.After(time.Minute):
		}
	}
}

// alertTimeout bounds one delivery of an alert about the audit log.
const alertTimeout = 10 * time.Second

// postAlert sends an event of the installation as a CloudEvent.
func postAlert(ctx context.Context, to, name string, what map[string]any) error {
	ctx, cancel := context.WithTimeout(ctx, alertTimeout)
	defer cancel()
	body, err := json.Marshal(map[string]any{
		"specversion": "1.0", "id": id.New("evt"), "source": "falaj", "type": "falaj." + name, "time": time.Now().UTC().Format(time.RFC3339),
		"datacontenttype": "application/json", "data": what,
	})
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, strings.NewReader(string(body)))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/cloudevents+json")
	answer, err := (&http.Client{Timeout: alertTimeout}).Do(r)
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	if answer.StatusCode >= 300 {
		return fault.New(fault.Unavailable, "the receiver returned %s", answer.Status)
	}
	return nil
}
