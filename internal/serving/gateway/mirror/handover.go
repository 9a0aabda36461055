package mirror

import (
	"context"
	"errors"
	"log/slog"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
)

// batchSize is about how many bytes of predictions are handed over at a time. A single
// record may be larger.
const batchSize = 1 << 20

// HandOver gives the predictions that were made here to the other server, and removes
// what it has. Error: why some could not be handed over; they wait.
func (m *Mirror) HandOver(ctx context.Context) error {
	ctx = identity.With(ctx, identity.Loop("gateway"))
	instance, err := m.instance(ctx)
	if err != nil {
		return err
	}
	places, err := m.Log.Places()
	if err != nil {
		return err
	}
	var failed []error
	for _, p := range places {
		if p.Project != m.Upstream.Project {
			continue
		}
		for {
			more, err := m.handOne(ctx, instance, p)
			if err != nil {
				failed = append(failed, fault.Wrap(err, "handing the predictions of %s over", p.Deployment))
			}
			if err != nil || !more {
				break
			}
		}
	}
	return errors.Join(failed...)
}

// errEnough ends a batch.
var errEnough = errors.New("enough")

// handOne hands a batch of a deployment over. more says that there may be another.
func (m *Mirror) handOne(ctx context.Context, instance string, p prediction.Place) (more bool, err error) {
	known, err := m.fact(ctx, factKnown+p.Deployment)
	if err != nil || known == "" {
		return false, err
	}
	text, err := m.fact(ctx, factHanded+known)
	if err != nil {
		return false, err
	}
	from, err := prediction.ParseCursor(text)
	if err != nil {
		return false, err
	}
	b := gateway.Batch{Deployment: p.Deployment, DeploymentID: serving.ID(known), Instance: instance, From: text, To: text}
	owner := prediction.OwnerOf(known)
	err = m.Log.Read(ctx, p.Project, p.Deployment, from, func(at prediction.Cursor, r *prediction.Record) error {
		if len(b.Records) >= batchSize {
			more = true
			return errEnough
		}
		b.To = at.String()
		if !r.By(owner) {
			return nil // of an earlier deployment of the name, which is gone
		}
		b.Records, err = prediction.AppendRecords(b.Records, r)
		return err
	})
	if err != nil && !errors.Is(err, errEnough) || b.To == b.From {
		return false, err
	}
	position, err := m.up.accept(ctx, b)
	if fault.Is(err, fault.Gone) { // nobody wants them any more
		m.Logger.WarnContext(ctx, "predictions of a deployment that was deleted are dropped", slog.String("deployment", p.Deployment))
		position, err = b.To, nil
	}
	if err != nil {
		return false, err
	}
	reached, err := prediction.ParseCursor(position)
	if err != nil {
		return false, err
	}
	if err := m.note(ctx, factHanded+known, position); err != nil {
		return false, err
	}
	if position != b.To { // the other server knows better, after a restore on either side
		return position != b.From, nil
	}
	return more, m.Log.Forget(p.Project, p.Deployment, reached)
}

// waiting is about how many bytes of predictions are not handed over.
func (m *Mirror) waiting(ctx context.Context) (n int64, err error) {
	places, err := m.Log.Places()
	if err != nil {
		return 0, err
	}
	for _, p := range places {
		known, err := m.fact(ctx, factKnown+p.Deployment)
		if err != nil {
			return 0, err
		}
		if known == "" || p.Project != m.Upstream.Project {
			continue
		}
		text, err := m.fact(ctx, factHanded+known)
		if err != nil {
			return 0, err
		}
		at, err := prediction.ParseCursor(text)
		if err != nil {
			return 0, err
		}
		err = m.Log.Read(ctx, p.Project, p.Deployment, at, func(prediction.Cursor, *prediction.Record) error { return errEnough })
		if err == nil {
			continue // there is no other record
		}
		if !errors.Is(err, errEnough) {
			return 0, err
		}
		bytes, err := m.Log.Behind(ctx, p.Project, p.Deployment, at)
		if err != nil {
			return 0, err
		}
		n += bytes
	}
	return n, nil
}
