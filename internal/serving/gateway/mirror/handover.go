package mirror

import (
	"context"
	"errors"
	"log/slog"
	"strconv"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/store"
)

// batchSize is about how many bytes of predictions are handed over at a time. A single
// record may be larger.
const batchSize = 256 << 10

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
				failed = append(failed, fault.Wrap(err, "delivering the predictions of %s", p.Deployment))
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

// standing is how far the log of a deployment was handed over, and what that log is
// called.
type standing struct {
	id       string // of the deployment; empty when it was never here
	position string
	at       prediction.Cursor
	era      int
}

func (m *Mirror) standing(ctx context.Context, deployment string) (st standing, err error) {
	if st.id, err = m.fact(ctx, factKnown+deployment); err != nil || st.id == "" {
		return st, err
	}
	if st.position, err = m.fact(ctx, factHanded+st.id); err != nil {
		return st, err
	}
	if st.at, err = prediction.ParseCursor(st.position); err != nil {
		return st, err
	}
	text, err := m.fact(ctx, factEra+st.id)
	if err == nil && text != "" {
		st.era, err = strconv.Atoi(text)
	}
	if err != nil {
		return st, err
	}
	end, err := m.Log.End(ctx, m.Upstream.Project, deployment)
	if err != nil || end.Segment == 0 || end.Segment >= st.at.Segment {
		return st, err
	}
	// All that was handed over is gone, and the clock went back since: what is here is
	// behind no position of before.
	st.position, st.at = "", prediction.Cursor{}
	st.era++
	return st, m.DB.Update(ctx, m.Upstream.Project, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(m.Store.PutFact(ctx, tx, factHanded+st.id, ""), m.Store.PutFact(ctx, tx, factEra+st.id, strconv.Itoa(st.era)))
	})
}

// handOne hands a batch of a deployment over. more says that there may be another.
func (m *Mirror) handOne(ctx context.Context, instance string, p prediction.Place) (more bool, err error) {
	st, err := m.standing(ctx, p.Deployment)
	if err != nil || st.id == "" {
		return false, err
	}
	b := gateway.Batch{
		Deployment: p.Deployment, DeploymentID: serving.ID(st.id), Instance: instance + "." + strconv.Itoa(st.era), From: st.position, To: st.position, Clock: m.Now(),
	}
	owner := prediction.OwnerOf(st.id)
	err = m.Log.Read(ctx, p.Project, p.Deployment, st.at, func(at prediction.Cursor, r *prediction.Record) error {
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
	if fault.Is(err, fault.Gone) { // the deployment: nobody wants them any more
		m.Logger.WarnContext(ctx, "predictions of a deleted deployment are dropped", slog.String("deployment", p.Deployment))
		position, err = b.To, nil
	}
	if err != nil {
		return false, err
	}
	reached, err := prediction.ParseCursor(position)
	if err != nil {
		return false, err
	}
	if err := m.note(ctx, factHanded+st.id, position); err != nil {
		return false, err
	}
	if position != b.To { // the other server knows better, after a restore on either side
		return position != b.From, nil
	}
	return more, m.Log.Forget(ctx, p.Project, p.Deployment, reached)
}

// waiting is about how many bytes of predictions are not handed over.
func (m *Mirror) waiting(ctx context.Context) (n int64, err error) {
	places, err := m.Log.Places()
	if err != nil {
		return 0, err
	}
	for _, p := range places {
		if p.Project != m.Upstream.Project {
			continue
		}
		st, err := m.standing(ctx, p.Deployment)
		if err != nil {
			return 0, err
		}
		if st.id == "" {
			continue
		}
		err = m.Log.Read(ctx, p.Project, p.Deployment, st.at, func(prediction.Cursor, *prediction.Record) error { return errEnough })
		if err == nil {
			continue // there is no other record
		}
		if !errors.Is(err, errEnough) {
			return 0, err
		}
		bytes, err := m.Log.Behind(ctx, p.Project, p.Deployment, st.at)
		if err != nil {
			return 0, err
		}
		n += bytes
	}
	return n, nil
}
