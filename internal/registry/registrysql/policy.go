package registrysql

import (
	"context"
	"encoding/json"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/registry/scan"
	"github.com/falaj-ml/falaj/internal/store"
)

// PutContent implements registry.Store.
func (VersionStore) PutContent(ctx context.Context, tx *store.Tx, id registry.ModelID, number int, r scan.Report) error {
	_, err := tx.NewRaw("UPDATE registry_version SET content = ? WHERE model = ? AND number = ?", toJSON(r), string(id), number).Exec(ctx)
	return err
}

type policyRow struct {
	bun.BaseModel `bun:"table:registry_policy,alias:t"`
	Project       string `bun:",pk"`
	Name          string `bun:",pk"`
	Spec          string
	Revision      int64
	Updated       store.Time
	UpdatedBy     string
}

func (r policyRow) policy() (registry.ModelPolicy, error) {
	p := registry.ModelPolicy{Project: project.Name(r.Project), Name: r.Name, Revision: r.Revision, UpdatedAt: r.Updated.Time(), UpdatedBy: r.UpdatedBy}
	return p, json.Unmarshal([]byte(r.Spec), &p.Spec)
}

// PutPolicy implements registry.Store.
func (ApprovalStore) PutPolicy(ctx context.Context, tx *store.Tx, p registry.ModelPolicy) error {
	row := policyRow{Project: string(p.Project), Name: p.Name, Spec: toJSON(p.Spec), Revision: p.Revision, Updated: store.At(p.UpdatedAt), UpdatedBy: p.UpdatedBy}
	_, err := tx.NewInsert().Model(&row).On("CONFLICT (project, name) DO UPDATE").Set("spec = EXCLUDED.spec").
		Set("revision = EXCLUDED.revision").Set("updated = EXCLUDED.updated").Set("updated_by = EXCLUDED.updated_by").Exec(ctx)
	return err
}

// Policy implements registry.Store.
func (ApprovalStore) Policy(ctx context.Context, tx *store.Tx, p project.Name, name string) (registry.ModelPolicy, error) {
	var row policyRow
	if err := tx.NewSelect().Model(&row).Where("t.project = ? AND t.name = ?", string(p), name).Scan(ctx); err != nil {
		return registry.ModelPolicy{}, store.NotFound(err, "there is no model policy %q", name)
	}
	return row.policy()
}

// Policies implements registry.Store.
func (ApprovalStore) Policies(ctx context.Context, tx *store.Tx, p project.Name) ([]registry.ModelPolicy, error) {
	var rows []policyRow
	if err := tx.NewSelect().Model(&rows).Where("t.project = ?", string(p)).OrderExpr("t.name").Scan(ctx); err != nil {
		return nil, err
	}
	out := make([]registry.ModelPolicy, len(rows))
	for i, r := range rows {
		var err error
		if out[i], err = r.policy(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// DeletePolicy implements registry.Store.
func (ApprovalStore) DeletePolicy(ctx context.Context, tx *store.Tx, p project.Name, name string) error {
	_, err := tx.NewRaw("DELETE FROM registry_policy WHERE project = ? AND name = ?", string(p), name).Exec(ctx)
	return err
}

type approvalRow struct {
	bun.BaseModel `bun:"table:registry_approval,alias:t"`
	ID            string `bun:",pk"`
	Model         string
	Number        int
	Principal     string
	Name          string
	Verdict       string
	Digest        string
	Comment       string
	At            store.Time
	Measured      string
}

// InsertApproval implements registry.Store.
func (ApprovalStore) InsertApproval(ctx context.Context, tx *store.Tx, id registry.ModelID, number int, a registry.Approval) error {
	_, err := tx.NewInsert().Model(&approvalRow{
		ID: a.ID, Model: string(id), Number: number, Principal: a.Principal, Name: a.Name, Verdict: string(a.Verdict), Digest: a.Digest, Comment: a.Comment, At: store.At(a.At), Measured: toJSON(a.Measured),
	}).Exec(ctx)
	return err
}

// Approvals implements registry.Store.
func (ApprovalStore) Approvals(ctx context.Context, tx *store.Tx, id registry.ModelID, number int) ([]registry.Approval, error) {
	var rows []approvalRow
	if err := tx.NewSelect().Model(&rows).Where("t.model = ? AND t.number = ?", string(id), number).OrderExpr("t.at, t.id").Scan(ctx); err != nil {
		return nil, err
	}
	out := make([]registry.Approval, len(rows))
	for i, r := range rows {
		out[i] = registry.Approval{ID: r.ID, Principal: r.Principal, Name: r.Name, Verdict: registry.Verdict(r.Verdict), Digest: r.Digest, Comment: r.Comment, At: r.At.Time()}
		if err := json.Unmarshal([]byte(r.Measured), &out[i].Measured); err != nil {
			return nil, fault.Wrap(err, "approval %s", r.ID)
		}
	}
	return out, nil
}
