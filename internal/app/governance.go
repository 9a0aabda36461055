package app

import (
	"context"
	"path/filepath"
	"time"

	"github.com/falaj-ml/falaj/internal/backup"
	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/compute/computesql"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasetsql"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion/ingestionsql"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage/openlineagesql"
	"github.com/falaj-ml/falaj/internal/environment/environmentsql"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/featuresql"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/audit/auditsql"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/identity/identitysql"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/keys/keyssql"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/policy/authority"
	"github.com/falaj-ml/falaj/internal/governance/policy/policysql"
	"github.com/falaj-ml/falaj/internal/governance/privacy/privacysql"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/projectsql"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/governance/residency/border"
	"github.com/falaj-ml/falaj/internal/governance/residency/residencysql"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
	"github.com/falaj-ml/falaj/internal/governance/secrets/secretssql"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/monitoring/alert/alertsql"
	"github.com/falaj-ml/falaj/internal/monitoring/label/labelsql"
	"github.com/falaj-ml/falaj/internal/monitoring/monitoringsql"
	"github.com/falaj-ml/falaj/internal/monitoring/webhook/webhooksql"
	"github.com/falaj-ml/falaj/internal/registry/registrysql"
	"github.com/falaj-ml/falaj/internal/serving/gateway/gatewaysql"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
	"github.com/falaj-ml/falaj/internal/tuning/tuningsql"
)

// migrations is the whole schema, in the order in which data flows.
var migrations = []store.Migrations{
	identitysql.Migrations, projectsql.Migrations, policysql.Migrations, residencysql.Migrations, keyssql.Migrations, secretssql.Migrations, privacysql.Migrations, auditsql.Migrations,
	computesql.Migrations, environmentsql.Migrations, datasetsql.Migrations, ingestionsql.Migrations, openlineagesql.Migrations, featuresql.Migrations,
	trackingsql.Migrations, trainingsql.Migrations, tuningsql.Migrations, registrysql.Migrations, servingsql.Migrations, gatewaysql.Migrations, labelsql.Migrations, monitoringsql.Migrations, alertsql.Migrations, webhooksql.Migrations,
}

// openGovernance opens what every domain asks: the database, keys, objects, the
// audit log, and who may do what.
func (a *App) openGovernance(ctx context.Context) (err error) {
	if a.db, err = store.Open(ctx, store.Config{URL: a.cfg.storeURL(), Migrations: migrations}); err != nil {
		return fault.Wrap(err, "open the database")
	}
	a.onClose(a.db.Close)
	journal, err := audit.OpenJournal(audit.JournalConfig{Dir: filepath.Join(a.cfg.Data, "journal")})
	if err != nil {
		return fault.Wrap(err, "open the audit journal")
	}
	a.journal, a.reads = journal, journal
	a.onClose(journal.Close)

	a.roster = tenancy.NewRoster(a.db, projectsql.Store{})
	if a.authority, err = authority.New(authority.Config{DB: a.db, Store: policysql.Store{}, Roster: a.roster, Journal: journal, Class: a.classOfSource, Log: a.log}); err != nil {
		return err
	}
	if a.accounts, err = account.New(account.Config{
		DB: a.db, Store: identitysql.Store{}, Grants: projectsql.Store{}, Authorizer: a.authority, OnMembers: a.roster.Forget,
		MaxTokens: a.cfg.Limits.Tokens, MaxAccounts: a.cfg.Limits.Accounts, Journal: journal,
	}); err != nil {
		return err
	}
	a.zones = border.New(border.Config{DB: a.db, Store: residencysql.Store{}, Authorizer: a.authority})
	a.guard = border.NewGuard(journal)
	a.projects = tenancy.New(tenancy.Config{
		DB: a.db, Store: projectsql.Store{}, Roster: a.roster, Authorizer: a.authority, Accounts: a.accounts, Zones: a.zones,
		Contents: []tenancy.Contents{a.authority},
	})

	var passphrase []byte
	if f := a.cfg.Keys.PassphraseFile; f != "" {
		if passphrase, err = keys.ReadPassphrase(f); err != nil {
			return err
		}
	}
	if a.keys, err = keys.Open(ctx, keys.Config{
		DB: a.db, Store: keyssql.Store{}, Authorizer: a.authority, MasterFile: filepath.Join(a.cfg.Data, "master.key"), Passphrase: passphrase,
	}); err != nil {
		return err
	}
	a.secrets = secrets.New(secrets.Config{DB: a.db, Store: secretssql.Store{}, Authorizer: a.authority, Sealer: a.keys})
	objects, err := a.openObjects(ctx)
	if err != nil {
		return fault.Wrap(err, "open the object store")
	}
	a.objects = backup.Hold(objects)
	a.blobs = blob.New(a.objects, a.keys)
	a.damage = &damageLog{journal: journal, log: a.log, told: map[blob.Key]time.Time{}}
	a.blobs.OnDamaged(a.damage.tell)

	second := a.cfg.Audit.Checkpoints
	if second == "" {
		second = filepath.Join(a.cfg.Data, "checkpoints")
	}
	sweep, _ := time.ParseDuration(a.cfg.Audit.Verify) // validated
	if a.sequencer, err = audit.Open(ctx, audit.Config{
		DB: a.db, Store: auditsql.Store{}, Sealer: a.keys, JournalDir: filepath.Join(a.cfg.Data, "journal"),
		Witness: audit.NewCheckpointFile(second), Logger: a.log, Sweep: sweep, Finding: a.tampered(ctx, journal),
	}); err != nil {
		return fault.Wrap(err, "open the audit log")
	}
	a.group.Add(lifecycle.Service{Name: "audit sequencer", Start: a.sequencer.Start, Stop: func(context.Context) error {
		a.sequencer.Stop()
		return nil
	}})
	a.auditLog = audit.New(audit.ServiceConfig{DB: a.db, Store: auditsql.Store{}, Log: a.sequencer, Journal: journal, Authorize: func(ctx context.Context, action, project string) error {
		return a.authority.Allow(ctx, policy.Action(action), policy.Object{Project: project, Kind: "audit"})
	}})
	upkeep := &lifecycle.Loop{Name: "token upkeep", Every: time.Minute, Run: a.accounts.Flush, Logger: a.log}
	a.group.Add(upkeep.Service())
	a.onClose(func() error { // what was used since the loop's last round
		last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return a.accounts.Flush(last)
	})
	return nil
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
