// Package projectsql stores projects and grants in SQLite or PostgreSQL.
package projectsql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema.
var Migrations = store.Embedded("project", files)

// Store implements tenancy.Store and account.Grants. The zero Store is ready.
type Store struct{}

var (
	_ tenancy.Store  = Store{}
	_ account.Grants = Store{}
)

type projectRow struct {
	bun.BaseModel `bun:"table:project_project,alias:p"`

	Name           string `bun:",pk"`
	DisplayName    string
	Description    string
	Residency      string // JSON
	Classification string
	QuotaBytes     int64
	QuotaObjects   int64
	QuotaKinds     string // JSON
	CreatedAt      store.Time
	CreatedBy      string
	UpdatedAt      store.Time
	Revision       int64
}

func newRow(p project.Project) (*projectRow, error) {
	zones, err := json.Marshal(p.Residency)
	kinds, kindsErr := json.Marshal(p.Quota.Kinds)
	return &projectRow{
		Name: string(p.Name), DisplayName: p.DisplayName, Description: p.Description, Residency: string(zones),
		Classification: string(p.Classification), QuotaBytes: int64(p.Quota.Bytes), QuotaObjects: p.Quota.Objects, QuotaKinds: string(kinds), CreatedAt: store.At(p.CreatedAt), CreatedBy: p.CreatedBy,
		UpdatedAt: store.At(p.UpdatedAt), Revision: p.Revision,
	}, errors.Join(err, kindsErr)
}

func (r projectRow) project() (project.Project, error) {
	p := project.Project{
		Name: project.Name(r.Name), DisplayName: r.DisplayName, Description: r.Description,
		Classification: project.Classification(r.Classification), Quota: project.Quota{Bytes: resource.Bytes(r.QuotaBytes), Objects: r.QuotaObjects}, CreatedAt: r.CreatedAt.Time(), CreatedBy: r.CreatedBy,
		UpdatedAt: r.UpdatedAt.Time(), Revision: r.Revision,
	}
	return p, errors.Join(json.Unmarshal([]byte(r.Residency), &p.Residency), json.Unmarshal([]byte(r.QuotaKinds), &p.Quota.Kinds))
}

type buriedRow struct {
	bun.BaseModel `bun:"table:project_buried"`

	Name      string `bun:",pk"`
	DeletedAt store.Time
	DeletedBy string
}

type grantRow struct {
	bun.BaseModel `bun:"table:project_grant,alias:g"`

	Project   string `bun:",pk"`
	Name      string `bun:",pk"`
	Principal string
	Role      string
	Object    string
	CreatedAt store.Time
	CreatedBy string
}

func (r grantRow) grant() project.Grant {
	return project.Grant{
		Project: project.Name(r.Project), Name: r.Name, Principal: r.Principal, Role: project.Role(r.Role),
		Object: r.Object, CreatedAt: r.CreatedAt.Time(), CreatedBy: r.CreatedBy,
	}
}

// Insert implements tenancy.Store.
func (Store) Insert(ctx context.Context, tx *store.Tx, p project.Project) error {
	r, err := newRow(p)
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(r).Exec(ctx)
	return err
}

// Update implements tenancy.Store.
func (Store) Update(ctx context.Context, tx *store.Tx, p project.Project) error {
	r, err := newRow(p)
	if err != nil {
		return err
	}
	res, err := tx.NewUpdate().Model(r).WherePK().Exec(ctx)
	return touched(res, err, "project", string(p.Name))
}

// Delete implements tenancy.Store.
func (Store) Delete(ctx context.Context, tx *store.Tx, name project.Name, at time.Time, by string) error {
	if _, err := tx.NewDelete().Model((*grantRow)(nil)).Where("project = ?", name).Exec(ctx); err != nil {
		return err
	}
	res, err := tx.NewDelete().Model((*projectRow)(nil)).Where("name = ?", name).Exec(ctx)
	if err := touched(res, err, "project", string(name)); err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(&buriedRow{Name: string(name), DeletedAt: store.At(at), DeletedBy: by}).Exec(ctx)
	return err
}

// Buried implements tenancy.Store.
func (Store) Buried(ctx context.Context, tx *store.Tx, name project.Name) (time.Time, error) {
	var r buriedRow
	err := tx.NewSelect().Model(&r).Where("name = ?", name).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, nil
	}
	return r.DeletedAt.Time(), err
}

// One implements tenancy.Store.
func (Store) One(ctx context.Context, tx *store.Tx, name project.Name) (project.Project, error) {
	var r projectRow
	if err := tx.NewSelect().Model(&r).Where("name = ?", name).Scan(ctx); err != nil {
		return project.Project{}, found(err, "project", string(name))
	}
	return r.project()
}

// List implements tenancy.Store.
func (Store) List(ctx context.Context, tx *store.Tx, v tenancy.Visible, after project.Name, limit int) ([]project.Project, error) {
	var rows []projectRow
	q := tx.NewSelect().Model(&rows).Where("p.name > ?", after).Order("p.name").Limit(limit)
	if v.Member != "" {
		q.Where(`EXISTS (SELECT 1 FROM project_grant g WHERE (g.principal = ? OR g.principal IN (SELECT member_of FROM project_group_member WHERE principal = ?)) AND
			(g.object = '' AND g.project IN (p.name, '') OR g.project = p.name AND g.object = 'project/' || p.name))`, v.Member, v.Member)
	}
	if v.Only != "" {
		q.Where("p.name = ?", v.Only)
	}
	if v.Names != nil {
		q.Where("p.name IN (?)", bun.List(v.Names))
	}
	if err := q.Scan(ctx); err != nil {
		return nil, err
	}
	projects := make([]project.Project, len(rows))
	for i, r := range rows {
		var err error
		if projects[i], err = r.project(); err != nil {
			return nil, err
		}
	}
	return projects, nil
}

// Put implements tenancy.Store and account.Grants.
func (Store) Put(ctx context.Context, tx *store.Tx, g project.Grant) error {
	err := remember(ctx, tx, "project = ? AND name = ? AND (principal <> ? OR role <> ? OR object <> ?)", string(g.Project), g.Name, g.Principal, string(g.Role), g.Object)
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(&grantRow{
		Project: string(g.Project), Name: g.Name, Principal: g.Principal, Role: string(g.Role), Object: g.Object,
		CreatedAt: store.At(g.CreatedAt), CreatedBy: g.CreatedBy,
	}).On("CONFLICT (project, name) DO UPDATE").
		Set("principal = EXCLUDED.principal, role = EXCLUDED.role, object = EXCLUDED.object, created_at = EXCLUDED.created_at, created_by = EXCLUDED.created_by").
		Exec(ctx)
	return err
}

// formerKept is how long grants that are no more are remembered.
const formerKept = 30 * 24 * time.Hour

// remember keeps grants that are about to end, for Former.
func remember(ctx context.Context, tx *store.Tx, where string, args ...any) error {
	now := time.Now()
	if _, err := tx.NewRaw("DELETE FROM project_former WHERE ended_at < ?", store.At(now.Add(-formerKept))).Exec(ctx); err != nil {
		return err
	}
	_, err := tx.NewRaw("INSERT INTO project_former (project, principal, role, object, ended_at) SELECT project, principal, role, object, ? FROM project_grant WHERE "+where,
		append([]any{store.At(now)}, args...)...).Exec(ctx)
	return err
}

// Former lists the grants of a project, or of the installation, that ended since.
func (Store) Former(ctx context.Context, tx *store.Tx, in project.Name, since time.Time) ([]project.Grant, error) {
	var rows []grantRow
	err := tx.NewRaw("SELECT project, principal, role, object FROM project_former WHERE project = ? AND ended_at >= ?", string(in), store.At(since)).Scan(ctx, &rows)
	return grants(rows), err
}

// Grant implements tenancy.Store.
func (Store) Grant(ctx context.Context, tx *store.Tx, in project.Name, name string) (project.Grant, error) {
	var r grantRow
	err := tx.NewSelect().Model(&r).Where("project = ? AND name = ?", in, name).Scan(ctx)
	return r.grant(), found(err, "grant", name)
}

// Remove implements tenancy.Store.
func (Store) Remove(ctx context.Context, tx *store.Tx, in project.Name, name string) error {
	if err := remember(ctx, tx, "project = ? AND name = ?", string(in), name); err != nil {
		return err
	}
	res, err := tx.NewDelete().Model((*grantRow)(nil)).Where("project = ? AND name = ?", in, name).Exec(ctx)
	return touched(res, err, "grant", name)
}

// Members implements tenancy.Store.
func (Store) Members(ctx context.Context, tx *store.Tx, in project.Name, after string, limit int) ([]project.Grant, error) {
	var rows []grantRow
	err := tx.NewSelect().Model(&rows).Where("project = ? AND name > ?", in, after).Order("name").Limit(limit).Scan(ctx)
	return grants(rows), err
}

// CountMembers implements tenancy.Store.
func (Store) CountMembers(ctx context.Context, tx *store.Tx, in project.Name) (int, error) {
	return tx.NewSelect().Model((*grantRow)(nil)).Where("project = ?", in).Count(ctx)
}

// Admins implements account.Grants. Groups are none: who is in them is the provider's business.
func (Store) Admins(ctx context.Context, tx *store.Tx) (principals []string, err error) {
	err = tx.NewSelect().Model((*grantRow)(nil)).ColumnExpr("DISTINCT principal").
		Where("project = '' AND role = ? AND principal NOT LIKE 'group/%'", project.Admin).Scan(ctx, &principals)
	return principals, err
}

// GrantsOf implements tenancy.Store: those of the principal and of its groups. One of a
// group counts from when the principal was in it.
func (Store) GrantsOf(ctx context.Context, tx *store.Tx, principal string) ([]project.Grant, error) {
	var rows []struct {
		grantRow `bun:",extend"`

		Since store.Time `bun:",scanonly"`
	}
	err := tx.NewRaw(`SELECT g.*, 0 AS since FROM project_grant g WHERE g.principal = ?
		UNION ALL SELECT g.*, m.since FROM project_group_member m JOIN project_grant g ON g.principal = m.member_of WHERE m.principal = ?
		ORDER BY project, name`, principal, principal).Scan(ctx, &rows)
	if err != nil {
		return nil, err
	}
	list := make([]project.Grant, len(rows))
	for i, r := range rows {
		r.CreatedAt = max(r.CreatedAt, r.Since)
		list[i] = r.grant()
	}
	return list, nil
}

// granted lists the grants to the principal itself.
func granted(ctx context.Context, tx *store.Tx, principal string) ([]project.Grant, error) {
	var rows []grantRow
	err := tx.NewSelect().Model(&rows).Where("principal = ?", principal).Order("project", "name").Scan(ctx)
	return grants(rows), err
}

// SetGroups implements account.Grants.
func (s Store) SetGroups(ctx context.Context, tx *store.Tx, principal, provider string, names []string, at time.Time) (came, went []string, err error) {
	was, err := s.GroupsOf(ctx, tx, principal) // also of a former name of the provider
	if err != nil {
		return nil, nil, err
	}
	had := make(map[string]bool, len(was))
	for _, g := range was {
		had[g] = true
	}
	var rows []groupMemberRow
	for _, name := range names {
		g := project.Group(provider, name)
		if _, known := had[g]; !known {
			came = append(came, g)
			rows = append(rows, groupMemberRow{Principal: principal, MemberOf: g, Since: store.At(at)})
		}
		had[g] = false // stays
	}
	for g, gone := range had {
		if gone {
			went = append(went, g)
		}
	}
	slices.Sort(went)
	for part := range slices.Chunk(went, 500) {
		if err := rememberGroups(ctx, tx, "m.principal = ? AND m.member_of IN (?)", principal, bun.List(part)); err != nil {
			return nil, nil, err
		}
		if _, err := tx.NewDelete().Model((*groupMemberRow)(nil)).Where("principal = ? AND member_of IN (?)", principal, bun.List(part)).Exec(ctx); err != nil {
			return nil, nil, err
		}
	}
	for part := range slices.Chunk(rows, 500) {
		if _, err := tx.NewInsert().Model(&part).On("CONFLICT (principal, member_of) DO NOTHING").Exec(ctx); err != nil {
			return nil, nil, err
		}
	}
	return came, went, nil
}

// GroupsOf implements account.Grants.
func (Store) GroupsOf(ctx context.Context, tx *store.Tx, principal string) (groups []string, err error) {
	err = tx.NewRaw("SELECT member_of FROM project_group_member WHERE principal = ? ORDER BY member_of", principal).Scan(ctx, &groups)
	return groups, err
}

type groupMemberRow struct {
	bun.BaseModel `bun:"table:project_group_member,alias:m"`

	Principal string `bun:",pk"`
	MemberOf  string `bun:",pk"`
	Since     store.Time
}

// rememberGroups keeps the grants that a person loses with a group, for Former.
func rememberGroups(ctx context.Context, tx *store.Tx, where string, args ...any) error {
	_, err := tx.NewRaw(`INSERT INTO project_former (project, principal, role, object, ended_at)
		SELECT g.project, m.principal, g.role, g.object, ? FROM project_group_member m JOIN project_grant g ON g.principal = m.member_of WHERE `+where,
		append([]any{store.At(time.Now())}, args...)...).Exec(ctx)
	return err
}

// Drop implements account.Grants.
func (s Store) Drop(ctx context.Context, tx *store.Tx, principal string) ([]project.Grant, error) {
	dropped, err := granted(ctx, tx, principal)
	if err != nil {
		return nil, err
	}
	if err := remember(ctx, tx, "principal = ?", principal); err != nil {
		return nil, err
	}
	if _, err := tx.NewDelete().Model((*grantRow)(nil)).Where("principal = ?", principal).Exec(ctx); err != nil {
		return nil, err
	}
	if err := rememberGroups(ctx, tx, "m.principal = ?", principal); err != nil {
		return nil, err
	}
	if _, err := tx.NewDelete().Model((*groupMemberRow)(nil)).Where("principal = ?", principal).Exec(ctx); err != nil {
		return nil, err
	}
	return dropped, nil
}

func grants(rows []grantRow) []project.Grant {
	list := make([]project.Grant, len(rows))
	for i, r := range rows {
		list[i] = r.grant()
	}
	return list
}

func found(err error, what, name string) error {
	if errors.Is(err, sql.ErrNoRows) {
		return absent(what, name)
	}
	return err
}

func absent(what, name string) error {
	if what == "project" {
		return project.Unknown(name)
	}
	return fault.New(fault.NotFound, "%s %s does not exist", what, name).WithHint("`falaj get members` lists the existing ones.")
}

func touched(res sql.Result, err error, what, name string) error {
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, absent(what, name))
	}
	return nil
}
