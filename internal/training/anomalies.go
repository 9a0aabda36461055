package training

import (
	"context"
	"log/slog"
	"slices"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/anomaly"
	"github.com/falaj-ml/falaj/internal/training/sizing"
)

// tellIdle publishes that a job began or ended to be idle, with the measurement in
// which that stands.
func (s *core) tellIdle(ctx context.Context, tx *store.Tx, j Job, m Measurement, change anomaly.Change) error {
	if change == anomaly.None {
		return nil
	}
	e := IdleAccelerator{Job: j.ID, Project: j.Project, Attempt: m.Attempt, Change: change, Pool: m.Pool, Device: m.Device, Since: m.Idle.Since}
	if m.Accelerators != nil {
		e.Busy = m.Accelerators.Busy
	}
	err := audit.Append(ctx, tx, audit.Entry{
		Actor: identity.Loop("training"), Project: string(j.Project), Action: "job.idle_accelerator", Object: "job " + string(j.ID),
		Detail: map[string]any{"attempt": m.Attempt, "change": change},
	})
	if err != nil {
		return err
	}
	return event.Publish(ctx, tx, string(j.Project), JobIdleAccelerator, e)
}

// comparedRuns is how many of the newest attempts in a pool a node is judged by.
const comparedRuns = 1000

// shortRun is one that is mostly its start-up, which says nothing of the node.
const shortRun = 10 // seconds

// compareNode compares the node of an ended attempt with the other nodes of its pool, and emits an
// event when the node becomes slow, or is no longer slow.
func (s *Execution) compareNode(ctx context.Context, m Measurement) {
	if err := s.compareNodeWithPeers(ctx, m); err != nil {
		s.log.WarnContext(ctx, "comparing a node with its peers failed", slog.String("pool", string(m.Pool)), slog.Any("error", err))
	}
}

func (s *Execution) compareNodeWithPeers(ctx context.Context, m Measurement) error {
	node, ok := m.Node()
	if !ok || m.Rate == 0 || m.Unit == sizing.Runs && m.Seconds < shortRun {
		return nil
	}
	look := func(ctx context.Context, tx *store.Tx) (e anomaly.Evidence, change anomaly.Change, err error) {
		was, _, err := s.measurementStore.SlowNode(ctx, tx, m.Pool, node)
		if err != nil {
			return e, change, err
		}
		all, err := s.measurementStore.Ran(ctx, tx, m.Pool, m.Device, comparedRuns)
		if err != nil {
			return e, change, err
		}
		var nodes []string
		for _, r := range all {
			nodes = append(nodes, r.Node)
		}
		slices.Sort(nodes)
		e = anomaly.Compare(node, all, was.Since) // what was told of counts no more
		slow := was.Change == anomaly.Began
		switch {
		case !slow && e.Slow(len(slices.Compact(nodes))):
			change = anomaly.Began
		case slow && e.Fast():
			change = anomaly.Ended
		}
		return e, change, nil
	}
	var change anomaly.Change
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		_, change, err = look(ctx, tx)
		return err
	})
	if err != nil || change == anomaly.None {
		return err
	}
	err = s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		e, change, err := look(ctx, tx)
		if err != nil || change == anomaly.None {
			return err
		}
		n := SlowNode{Pool: m.Pool, Node: node, Change: change, Since: m.Ended, Evidence: e}
		if err := s.measurementStore.SaveSlowNode(ctx, tx, n); err != nil {
			return err
		}
		err = audit.Append(ctx, tx, audit.Entry{
			Actor: identity.Loop("training"), Action: "node.slow", Object: "pool " + string(m.Pool),
			Detail: map[string]any{"node": node, "change": change, "pairs": e.Pairs, "slower": e.Slower, "median": e.Median, "p": e.P},
		})
		if err != nil {
			return err
		}
		return event.Publish(ctx, tx, "", NodeSlow, n)
	})
	return fault.Wrap(err, "recording the state of node %s", node)
}

// Node is the only one on which the attempt ran.
func (m *Measurement) Node() (string, bool) {
	nodes := slices.Clone(m.Nodes)
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	if len(nodes) != 1 || nodes[0] == "" {
		return "", false
	}
	return nodes[0], true
}

// keepEnd writes the measurement of an attempt that has ended, in the transaction
// of its end.
func (s *Execution) keepEnd(ctx context.Context, tx *store.Tx, j Job, m Measurement) error {
	change := m.Idle.End()
	if err := s.measurementStore.SaveMeasurement(ctx, tx, m); err != nil {
		return err
	}
	return s.tellIdle(ctx, tx, j, m, change)
}
