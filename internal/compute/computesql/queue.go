package computesql

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

type queueRow struct {
	bun.BaseModel `bun:"table:compute_queue"`

	Name      string     `bun:"name,pk"`
	Spec      string     `bun:"spec"`
	CreatedAt store.Time `bun:"created_at"`
	UpdatedAt store.Time `bun:"updated_at"`
	Revision  int64      `bun:"revision"`
}

func (r queueRow) queue() (compute.Queue, error) {
	q := compute.Queue{Name: r.Name, CreatedAt: r.CreatedAt.Time(), UpdatedAt: r.UpdatedAt.Time(), Revision: r.Revision}
	err := json.Unmarshal([]byte(r.Spec), &q.QueueSpec)
	return q, fault.Wrap(err, "reading queue %s", r.Name)
}

// defaultRow says which queue is the default of a project, or of all.
type defaultRow struct {
	bun.BaseModel `bun:"table:compute_queue_default"`

	Project string `bun:"project,pk"`
	Queue   string `bun:"queue"`
}

type pastRow struct {
	bun.BaseModel `bun:"table:compute_queue_past"`

	Queue string `bun:"queue,pk"`
	Past  string `bun:"past"`
}

// Queues lists all queues by name.
func (QueueStore) Queues(ctx context.Context, tx *store.Tx) ([]compute.Queue, error) {
	var rows []queueRow
	if err := tx.NewSelect().Model(&rows).OrderExpr("name").Scan(ctx); err != nil {
		return nil, err
	}
	queues := make([]compute.Queue, len(rows))
	for i, r := range rows {
		var err error
		if queues[i], err = r.queue(); err != nil {
			return nil, err
		}
	}
	return queues, nil
}

// Queue finds one queue.
func (QueueStore) Queue(ctx context.Context, tx *store.Tx, name string) (compute.Queue, error) {
	var r queueRow
	err := tx.NewSelect().Model(&r).Where("name = ?", name).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return compute.Queue{}, fault.New(fault.NotFound, "there is no queue %.64q", name)
	}
	if err != nil {
		return compute.Queue{}, err
	}
	return r.queue()
}

// DefaultQueue names the queue of a project's jobs that name none.
func (QueueStore) DefaultQueue(ctx context.Context, tx *store.Tx, p project.Name) (string, error) {
	var rows []defaultRow
	if err := tx.NewSelect().Model(&rows).Where("project IN (?, '')", string(p)).Scan(ctx); err != nil {
		return "", err
	}
	name := ""
	for _, r := range rows {
		if name == "" || r.Project != "" {
			name = r.Queue
		}
	}
	return name, nil
}

// SaveQueue inserts or replaces a queue, and the projects that it is the default of.
func (QueueStore) SaveQueue(ctx context.Context, tx *store.Tx, q compute.Queue) error {
	spec, err := json.Marshal(q.QueueSpec)
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(&queueRow{
		Name: q.Name, Spec: string(spec), CreatedAt: store.At(q.CreatedAt), UpdatedAt: store.At(q.UpdatedAt), Revision: q.Revision,
	}).On("CONFLICT (name) DO UPDATE").Set("spec = EXCLUDED.spec").Set("updated_at = EXCLUDED.updated_at").Set("revision = EXCLUDED.revision").Exec(ctx)
	if err != nil {
		return err
	}
	if _, err := tx.NewDelete().Model((*defaultRow)(nil)).Where("queue = ?", q.Name).Exec(ctx); err != nil || !q.Default {
		return err
	}
	of := q.Projects
	if len(of) == 0 {
		of = []project.Name{""}
	}
	for _, p := range of {
		var taken defaultRow
		err := tx.NewSelect().Model(&taken).Where("project = ?", string(p)).Scan(ctx)
		if err == nil {
			return fault.New(fault.Conflict, "queue %s is already the default of %s", taken.Queue, compute.DefaultOf(p)).
				WithHint("First apply that queue without default.")
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if _, err := tx.NewInsert().Model(&defaultRow{Project: string(p), Queue: q.Name}).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// DeleteQueue removes a queue.
func (QueueStore) DeleteQueue(ctx context.Context, tx *store.Tx, name string) error {
	if _, err := tx.NewDelete().Model((*defaultRow)(nil)).Where("queue = ?", name).Exec(ctx); err != nil {
		return err
	}
	_, err := tx.NewDelete().Model((*queueRow)(nil)).Where("name = ?", name).Exec(ctx)
	return err
}

// SavePast replaces what is remembered of the queues' use.
func (QueueStore) SavePast(ctx context.Context, tx *store.Tx, past map[string]scheduler.Used) error {
	if _, err := tx.NewDelete().Model((*pastRow)(nil)).Where("1 = 1").Exec(ctx); err != nil {
		return err
	}
	for name, u := range past {
		b, err := json.Marshal(u)
		if err != nil {
			return err
		}
		if _, err := tx.NewInsert().Model(&pastRow{Queue: name, Past: string(b)}).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Past gives what is remembered of the queues' use.
func (QueueStore) Past(ctx context.Context, tx *store.Tx) (map[string]scheduler.Used, error) {
	var rows []pastRow
	if err := tx.NewSelect().Model(&rows).Scan(ctx); err != nil {
		return nil, err
	}
	past := make(map[string]scheduler.Used, len(rows))
	for _, r := range rows {
		var u scheduler.Used
		if err := json.Unmarshal([]byte(r.Past), &u); err != nil {
			return nil, fault.Wrap(err, "reading the past use of queue %s", r.Queue)
		}
		past[r.Queue] = u
	}
	return past, nil
}
