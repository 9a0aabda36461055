package app

import (
	"context"
	"path/filepath"
	"time"

	"github.com/falaj-ml/falaj/internal/app/schema"
	"github.com/falaj-ml/falaj/internal/backup"
	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/quota"
	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasetsql"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/audit/auditsql"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/identity/identitysql"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/keys/keyssql"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/policy/authorizer"
	"github.com/falaj-ml/falaj/internal/governance/policy/policysql"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/projectsql"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/governance/request"
	"github.com/falaj-ml/falaj/internal/governance/request/requestsql"
	"github.com/falaj-ml/falaj/internal/governance/residency/border"
	"github.com/falaj-ml/falaj/internal/governance/residency/residencysql"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
	"github.com/falaj-ml/falaj/internal/governance/secrets/secretssql"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/usecase/cluster"
)

// openGovernance opens what every domain asks: the database, keys, objects, the
// audit log, and who may do what.
func (a *App) openGovernance(ctx context.Context) (err error) {
	password, err := a.secret("store.password_file", a.cfg.Store.PasswordFile)
	if err != nil {
		return err
	}
	if a.db, err = store.Open(ctx, store.Config{URL: a.cfg.StoreURL(), Password: password, Migrations: schema.Migrations, Upgrading: a.upgrading, Upgraded: a.upgraded, Log: a.log}); err != nil {
		return fault.Wrap(err, "open the database")
	}
	a.api.At("") // the upgrade is over
	a.onClose(a.db.Close)
	member, err := cluster.Join(ctx, cluster.Config{DB: a.db, Name: machineName() + ":" + a.cfg.Data + " (" + a.groupsOwner + ")", LocalObjects: a.cfg.Blob.S3.Endpoint == "", LocalFeatures: a.cfg.Online.URL == "", Log: a.log})
	if err != nil {
		return err
	}
	if member != nil {
		a.group.Add(member.Loop().Service())
		a.atLast(member.Leave)
	}
	journal, err := audit.OpenJournal(audit.JournalConfig{Dir: filepath.Join(a.cfg.Data, "journal")})
	if err != nil {
		return fault.Wrap(err, "open the audit journal")
	}
	a.onClose(journal.Close)
	summary := audit.NewSummary(journal, time.Now)
	a.journal, a.reads = summary, journal
	a.every(time.Minute, "summaries of refusals", summary.Flush)
	a.atLast(summary.Flush)

	a.roster = tenancy.NewRoster(a.db, projectsql.Store{})
	if a.authorizer, err = authorizer.New(authorizer.Config{DB: a.db, Store: policysql.Store{}, Roster: a.roster, Journal: a.journal, Class: a.classOfSource, Log: a.log}); err != nil {
		return err
	}
	if a.accounts, err = account.New(account.Config{
		DB: a.db, Store: identitysql.Store{}, Grants: projectsql.Store{}, Authorizer: a.authorizer, OnMembers: a.roster.Forget,
		MaxTokens: a.cfg.Limits.Tokens, MaxAccounts: a.cfg.Limits.Accounts, Journal: a.journal,
		KeepEnded: config.Kept(a.cfg.Retention.Tokens),
	}); err != nil {
		return err
	}
	age, _ := resource.ParseDuration(a.cfg.Approvals.RoleAge) // validated
	a.requests = request.New(request.Config{
		DB: a.db, Store: requestsql.Store{}, Grants: projectsql.Store{}, Accounts: identitysql.Store{}, Authorizer: a.authorizer, RoleAge: age, Log: a.log,
	})
	a.authorizer.TakeTwoPeople(a.requests)
	a.every(time.Minute, "approved requests", a.requests.Recover)
	a.zones = border.New(border.Config{DB: a.db, Store: residencysql.Store{}, Authorizer: a.authorizer, Second: a.requests.Second})
	a.guard = border.NewGuard(a.journal)
	a.projects = tenancy.New(tenancy.Config{
		DB: a.db, Store: projectsql.Store{}, Roster: a.roster, Authorizer: a.authorizer, Accounts: a.accounts, Zones: a.zones, TwoPeople: a.requests,
		Contents: []tenancy.Contents{a.authorizer, a.requests}, Provider: a.cfg.Identity.Has,
	})

	var passphrase []byte
	if f := a.cfg.Keys.PassphraseFile; f != "" {
		if passphrase, err = keys.ReadPassphrase(f); err != nil {
			return err
		}
	}
	if a.keys, err = keys.Open(ctx, keys.Config{
		DB: a.db, Store: keyssql.Store{}, Authorizer: a.authorizer, TwoPeople: a.requests, MasterFile: filepath.Join(a.cfg.Data, "master.key"), Passphrase: passphrase,
	}); err != nil {
		return err
	}
	if err := a.openSignIn(); err != nil {
		return err
	}
	a.secrets = secrets.New(secrets.Config{DB: a.db, Store: secretssql.Store{}, Authorizer: a.authorizer, Sealer: a.keys})
	objects, err := a.openObjects(ctx)
	if err != nil {
		return fault.Wrap(err, "open the object store")
	}
	a.stored = quota.New(func(ctx context.Context, name string) (quota.Limit, error) {
		q, err := a.projects.Quota(ctx, project.Name(name))
		return storageLimit(q), err
	})
	reached := a.every(0, "reached storage quotas", func(ctx context.Context) error { return a.stored.Tell(ctx, a.quotaReached) })
	a.stored.OnReached(reached.Wake)
	a.objects = backup.Hold(a.stored.Over(objects))
	a.blobs = blob.New(a.objects, a.keys)
	a.damage = &damageLog{journal: journal, log: a.log, told: map[blob.Key]time.Time{}}
	a.blobs.OnDamaged(a.damage.tell)

	second := a.cfg.Audit.Checkpoints
	if second == "" {
		second = filepath.Join(a.cfg.Data, "checkpoints")
	}
	sweep, _ := time.ParseDuration(a.cfg.Audit.Verify) // validated
	if a.sequencer, err = audit.Open(ctx, audit.Config{
		DB: a.db, Store: auditsql.Store{}, Sealer: a.keys, Objects: auditObjects{a.blobs}, JournalDir: filepath.Join(a.cfg.Data, "journal"),
		Witness: audit.NewCheckpointFile(second), Logger: a.log, Sweep: sweep, Finding: a.tampered(ctx, journal),
	}); err != nil {
		return fault.Wrap(err, "open the audit log")
	}
	a.group.Add(lifecycle.Service{Name: "audit sequencer", Start: a.sequencer.Start, Stop: func(context.Context) error {
		a.sequencer.Stop()
		return nil
	}})
	a.auditLog = audit.New(audit.ServiceConfig{DB: a.db, Log: a.sequencer, Journal: journal, Reads: a.journal, SecondPerson: a.secondEraser, Authorize: func(ctx context.Context, action, project string) error {
		return a.authorizer.Allow(ctx, policy.Action(action), policy.Object{Project: project, Kind: "audit"})
	}})
	a.every(time.Minute, "token upkeep", a.accounts.Flush)
	a.atLast(a.accounts.Flush) // what was used since the loop's last round
	return nil
}

// secondEraser decides who may approve the erasure of audit entries.
func (a *App) secondEraser(ctx context.Context, tx *store.Tx, requestedBy string, requestedAt time.Time) error {
	return a.requests.Second(ctx, tx, policy.Requested{By: []string{requestedBy}, At: requestedAt, Actions: []policy.Action{audit.ActionErase}, Object: policy.Object{Kind: "audit"}})
}

// classOfSource is the classification of a dataset version that something was made of.
func (a *App) classOfSource(ctx context.Context, in project.Name, kind, name string) (class project.Classification, err error) {
	if kind != "dataset" {
		return project.Restricted, nil
	}
	err = a.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		class, err = dataset.Labels{Store: datasetsql.Store{}}.Class(ctx, tx, in, name)
		return err
	})
	return class, err
}
