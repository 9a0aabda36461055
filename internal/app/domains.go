package app

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/backup"
	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/fileblob"
	"github.com/falaj-ml/falaj/internal/blob/quota"
	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/computesql"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/local"
	"github.com/falaj-ml/falaj/internal/compute/inspect"
	"github.com/falaj-ml/falaj/internal/compute/provisioner"
	"github.com/falaj-ml/falaj/internal/compute/provisioner/simulated"
	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datafile"
	"github.com/falaj-ml/falaj/internal/dataset/datasetsql"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage"
	"github.com/falaj-ml/falaj/internal/dataset/source/files"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/environment/environmentsql"
	"github.com/falaj-ml/falaj/internal/environment/image"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/featuresql"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/online/pebble"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/identity/signin"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/policy/authorizer"
	"github.com/falaj-ml/falaj/internal/governance/privacy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/projectsql"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/governance/request"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/governance/residency/border"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
	"github.com/falaj-ml/falaj/internal/httpapi"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/monitoring/alert"
	"github.com/falaj-ml/falaj/internal/monitoring/label"
	"github.com/falaj-ml/falaj/internal/monitoring/verification"
	"github.com/falaj-ml/falaj/internal/monitoring/webhook"
	"github.com/falaj-ml/falaj/internal/oci"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/registry/registrysql"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	model "github.com/falaj-ml/falaj/internal/serving/runtime/child"
	"github.com/falaj-ml/falaj/internal/serving/runtime/remote"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/checkpoint"
	"github.com/falaj-ml/falaj/internal/training/optimize"
	"github.com/falaj-ml/falaj/internal/training/score"
	"github.com/falaj-ml/falaj/internal/training/source"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
	"github.com/falaj-ml/falaj/internal/tuning"
	"github.com/falaj-ml/falaj/internal/tuning/sweep"
	"github.com/falaj-ml/falaj/internal/tuning/tuningsql"
	"github.com/falaj-ml/falaj/internal/usecase/backups"
	"github.com/falaj-ml/falaj/internal/usecase/deletions"
	"github.com/falaj-ml/falaj/internal/usecase/deployments"
	"github.com/falaj-ml/falaj/internal/usecase/erasure"
	"github.com/falaj-ml/falaj/internal/usecase/featuredata"
	"github.com/falaj-ml/falaj/internal/usecase/gauges"
	"github.com/falaj-ml/falaj/internal/usecase/jobs"
)

// parts are the services, in the order in which they are opened.
type parts struct {
	api httpapi.Starting // also the API for jobs, which need it before the edge exists

	db         *store.DB
	journal    audit.Journal
	reads      *audit.FileJournal // the same
	roster     *tenancy.Roster
	authorizer *authorizer.Service
	accounts   *account.Service
	signIn     *signin.Service
	zones      *border.Service
	requests   *request.Service
	guard      *border.Guard
	projects   *tenancy.Service
	keys       *keys.Service
	secrets    *secrets.Service
	erasures   *privacy.Service
	erasure    *erasure.Service
	deletions  deletions.Service
	stored     *quota.Accounts
	reached    gauges.ReachedQuotas
	objects    *backup.Held
	tables     *backup.Held // files of open datasets
	backups    *backups.Service
	blobs      *blob.Store
	sequencer  *audit.Sequencer
	damage     *damageLog
	auditLog   *audit.Service

	images        *oci.Store
	compute       compute.Services
	environments  *environment.Service
	files         *datafile.Blobs // of datasets
	datasets      dataset.Services
	ingestion     *ingestion.Service
	lineage       *openlineage.Service
	features      feature.Services
	pebble        *pebble.DB // nil where the online features are elsewhere
	tracking      tracking.Services
	training      training.Services
	optimize      *optimize.Service
	scores        *score.Service
	checkpoints   *checkpoint.Service
	sweeps        *sweep.Service
	tuning        *tuning.Service
	registry      registry.Services
	serving       serving.Services
	gateways      *gateway.Service
	remotes       *remote.Runtime
	apart         *model.Runtime   // of processes of models, here and elsewhere
	replicas      httpapi.Replicas // nil: replicas have no places
	predictions   *prediction.Log
	labels        *label.Service
	verifications *verification.Service
	alerts        *alert.Sender
	webhooks      *webhook.Service
	monitoring    *monitoring.Service
}

// workloads are the services of compute that the owners of workloads use.
type workloads struct {
	*compute.Workloads
	*compute.Programs
	inspect.Inspector
	*compute.Queues
	*compute.Pools
}

func (p *parts) workloads() workloads {
	return workloads{p.compute.Workloads, p.compute.Programs, inspect.Inspector{Programs: p.compute.Programs}, p.compute.Queues, p.compute.Pools}
}

func (p *parts) domains() httpapi.Domains {
	return httpapi.Domains{
		Projects: p.projects, Stored: p.stored, Policies: p.authorizer, Accounts: p.accounts, SignIn: p.signIn, Zones: p.zones, Requests: p.requests, Keys: p.keys, Secrets: p.secrets, Erasures: p.erasures, Deletions: p.deletions, Backups: p.backups, Audit: p.auditLog, Compute: p.compute, Environments: p.environments,
		Datasets: p.datasets, Ingestion: p.ingestion, Lineage: p.lineage, Features: p.features, Tracking: p.tracking, Registry: p.registry, Training: p.training, Optimize: p.optimize, Scores: p.scores, Checkpoints: p.checkpoints, Tuning: p.tuning, Sweeps: p.sweeps, Serving: p.serving, Gateways: p.gateways, Labels: p.labels, Verifications: p.verifications,
		Monitoring: p.monitoring, Alerts: p.alerts, Replicas: p.replicas, Webhooks: p.webhooks,
	}
}

// openDomains opens the domains in the order in which data flows.
func (a *App) openDomains(ctx context.Context) error {
	for _, open := range []func(context.Context) error{
		a.openCompute, a.openDatasets, a.openIngestion, a.openFeatures, a.openTracking, a.openTraining, a.openSweeps, a.openPredictions, a.openServing, a.openLabels, a.openAlerts, a.openMonitoring, a.openErasures, a.openGateways, a.openAutomation, a.openLineage, a.openBackups,
	} {
		if err := open(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (a *App) openCompute(ctx context.Context) error {
	level, err := sandbox.ParseLevel(a.cfg.Isolation)
	if err != nil {
		return err
	}
	if err := sandbox.Check(ctx, a.cfg.WorkerPath(), level); err != nil {
		return fault.Wrap(err, "isolation")
	}
	facts, accelerators := a.machine(ctx)
	amount, err := facts.Allocatable()
	if err != nil {
		return err
	}
	if err := a.openImages(); err != nil {
		return err
	}
	driver, err := local.New(local.Config{
		Dir: filepath.Join(a.cfg.Data, "workloads"), Worker: a.cfg.WorkerPath(), Level: level, API: &a.api,
		Guard: []string{a.cfg.Data}, Facts: facts, Accelerators: accelerators, Images: a.images, Log: a.log, Connections: a.conns,
		LogLimit: config.Bytes(a.cfg.Jobs.Disk.Logs), Disk: jobsDisk(a.cfg),
	})
	if err != nil {
		return fault.Wrap(err, "local engine")
	}
	a.onClose(driver.Close)
	engines, err := a.openEngines()
	if err != nil {
		return err
	}
	cloud, err := simulated.New(filepath.Join(a.cfg.Data, "simulated-cloud"), nil)
	if err != nil {
		return err
	}
	engines["local"] = compute.Engine{
		Provisioners: map[string]provisioner.Provisioner{"simulated": cloud},
		Kind:         "local", Driver: driver, Isolation: scheduler.Isolation(level.String()), Machine: amount, Labels: facts.Labels(), Check: driver.Check,
	}
	a.compute = compute.New(compute.Config{
		DB: a.db, Store: computesql.Store{}, Authorizer: a.authorizer, Guard: a.guard, Journal: a.journal, Engines: engines, Log: a.log,
		Zone: a.cfg.Zone(), Machine: machineName(),
		Policy: scheduler.Policy(a.cfg.Scheduler.Policy), Holder: a.cfg.Data, Currency: a.cfg.Cost.Currency,
		Retention: config.Kept(a.cfg.Retention.Outputs), Records: config.Kept(a.cfg.Retention.Jobs),
		Project: func(ctx context.Context, tx *store.Tx, p project.Name) error {
			_, err := projectsql.Store{}.One(ctx, tx, p)
			return err
		},
	})
	if _, err := a.compute.Pools.EnsureHome(ctx, "local"); err != nil {
		return fault.Wrap(err, "home pool")
	}
	index, err := config.PackageIndexOf(a.cfg)
	if err != nil {
		return err
	}
	if index.None() {
		a.log.WarnContext(ctx, "there is no package index", slog.String("hint", config.NoPackageIndex))
	}
	timeout, _ := time.ParseDuration(a.cfg.Environments.Timeout)    // validated
	indexes, _ := config.PackageIndexes(a.cfg.Environments.Indexes) // validated
	kinds := map[string]string{}
	for name, e := range engines {
		kinds[name] = e.Kind
	}
	a.environments = environment.New(environment.Config{
		DB: a.db, Store: environmentsql.Store{}, Authorizer: a.authorizer, Compute: a.workloads(),
		Dir: filepath.Join(a.cfg.Data, "environments"), Cache: filepath.Join(a.cfg.Data, "cache", "uv"), Path: a.world.Path,
		UV: a.cfg.UVPath(), Index: index.Index, Indexes: indexes, Hosts: index.Hosts, CA: a.cfg.Environments.CA, Python: a.cfg.Environments.Interpreters,
		Builds: compute.Request{Isolation: scheduler.Isolation(a.cfg.Isolation), Timeout: timeout}, Images: a.images, Containers: image.Runs, Kinds: kinds, Log: a.log,
	})
	a.onClose(a.environments.Close)
	return nil
}

func (a *App) openDatasets(ctx context.Context) error {
	sqlTime, _ := time.ParseDuration(a.cfg.Limits.SQLTime) // validated
	if err := a.openFiles(); err != nil {
		return err
	}
	a.datasets = dataset.New(dataset.Config{
		DB: a.db, Store: datasetsql.Store{}, Files: a.files, Keys: a.keys,
		Authorizer: a.authorizer, Guard: a.guard, Zones: a.zones, Zone: a.cfg.Zone(), Journal: a.journal, Launcher: a.launcher(), Log: a.log,
		Citations: citations, Pseudonyms: a.erasure.Pseudonyms(),
		Answers: func(ctx context.Context, tx *store.Tx, p project.Name, by string) ([]string, error) {
			return deployments.AnswersWith(ctx, a.serving.Deployments, tx, p, by)
		},
		Readers: func(ctx context.Context, tx *store.Tx, p project.Name, name string) (by []string, err error) {
			views, err := a.features.Definitions.Readers(ctx, tx, p, name)
			for _, v := range views {
				by = append(by, "feature view "+v)
			}
			return by, err
		},
		Confined: func(ctx context.Context, attempt string) (residency.Label, error) {
			return jobs.Attempts{Training: a.training.Records}.Residency(ctx, attempt)
		},
		JobInputs: func(ctx context.Context, attempt string) ([]dataset.JobInputs, error) {
			return jobs.Attempts{Training: a.training.Records}.Inputs(ctx, attempt)
		},
		Steps: lateSteps{a},
		Deleted: func(ctx context.Context, tx *store.Tx, p project.Name, name string) error {
			if a.features.Streams == nil {
				return nil // it is being opened
			}
			return a.features.Streams.DropEvents(ctx, tx, dataset.ActionDelete, p, name)
		},
		Scratch: filepath.Join(a.cfg.Data, "tmp", "sql"), EncryptedDisk: a.cfg.EncryptedDisk,
		Defaults: func(ctx context.Context, p project.Name) (dataset.Defaults, error) {
			// Whoever may import need not be allowed to read the project.
			pr, err := a.projects.One(identity.With(ctx, identity.Loop("dataset defaults")), p)
			return dataset.Defaults{Residency: pr.Residency, Classification: pr.Classification}, err
		},
		Limits: dataset.Limits{
			Upload: resource.Bytes(config.Bytes(a.cfg.Limits.Upload)), QueryMemory: resource.Bytes(config.Bytes(a.cfg.Limits.SQLMemory)),
			QueryDisk: resource.Bytes(config.Bytes(a.cfg.Limits.SQLDisk)), QueryTime: sqlTime, Answer: resource.Bytes(config.Bytes(a.cfg.Limits.Answer)),
			Queries: a.cfg.Limits.Statements, Imports: a.cfg.Limits.Imports,
		},
	})
	a.zones.Register("project", tenancy.Labels{Store: projectsql.Store{}})
	a.zones.Register("dataset", dataset.Labels{Store: datasetsql.Store{}})
	if err := a.datasets.Maintenance.Recover(ctx); err != nil {
		return fault.Wrap(err, "datasets")
	}
	return fault.Wrap(a.sameTables(ctx), "telling where open tables are")
}

// sameTables compares the directory of open tables with that of the last start: other
// engines follow the absolute paths in their Iceberg files.
func (a *App) sameTables(ctx context.Context) error {
	path, dir := filepath.Join(a.cfg.Data, "tables.at"), a.cfg.TablesDir()
	before, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(before)) == dir {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ctx = identity.With(ctx, identity.Loop("open tables"))
	if err := eachProject(ctx, a.projects.List, a.datasets.Maintenance.Relocate); err != nil {
		return err
	}
	// Last: whoever is interrupted before does it again.
	if err := os.WriteFile(path+".new", []byte(dir+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// openFiles keeps sealed files among the objects, and open ones in a directory
// where other engines find them.
func (a *App) openFiles() error {
	dir := a.cfg.TablesDir()
	tables, err := fileblob.OpenNamed(dir)
	if err != nil {
		return fault.Wrap(err, "tables.dir")
	}
	a.onClose(tables.Close)
	a.tables = backup.Hold(a.stored.Over(tables))
	locate := func(k blob.Key) string { return "file://" + filepath.Join(dir, string(k)) }
	a.files = &datafile.Blobs{Blobs: a.blobs, Driver: a.objects, Tables: a.tables, Locate: locate}
	return nil
}

func (a *App) openFeatures(ctx context.Context) error {
	db, which, err := a.openOnline(ctx)
	if err != nil {
		return fault.Wrap(err, "online store")
	}
	tmp := filepath.Join(a.cfg.Data, "tmp")
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return fault.Wrap(err, "temporary directory")
	}
	every, _ := time.ParseDuration(a.cfg.Online.Verify)        // validated
	rotate, _ := resource.ParseDuration(a.cfg.Online.Rotate)   // validated
	history, _ := resource.ParseDuration(a.cfg.Online.History) // validated
	a.features = feature.New(feature.Config{
		DB: a.db, Store: featuresql.Store{}, Data: featuredata.Data{Datasets: a.datasets}, Online: online.New(db, a.keys, online.Options{}), Keys: a.keys, Sources: featuredata.Sources{Ingestion: a.ingestion},
		Authorizer: a.authorizer, Permits: a.authorizer, Guard: a.guard, Zone: a.cfg.Zone(), Journal: a.journal,
		Join: offline.Options{Dir: tmp, Pool: offline.NewPool(1 << 30)}, Log: a.log,
		Watch:      feature.Watch{Every: every, Rows: a.cfg.Online.VerifyRows},
		Compaction: feature.Compaction{Rotate: rotate, History: history},
	})
	if a.cfg.Online.URL != "" { // whatever the layout is: what was copied before goes
		a.group.Add(a.features.OnlineRows.Copying())
		a.group.Add(event.Subscribe(a.db, event.Config{Name: "feature copies", Names: []string{keys.KeyDestroyed}, Logger: a.log, Handle: a.dropCopies}).Service())
	}
	a.group.Add(a.features.Materialisation.Background())
	if every > 0 {
		a.group.Add(a.features.Verification.Watching())
	}
	a.group.Add(a.features.Streams.Processing())
	a.group.Add(a.features.OnlineRows.Compacting())
	a.group.Add(a.features.Streams.Feeds())
	_, err = a.sameOnline(ctx, which)
	return err
}

func (a *App) openTracking(context.Context) error {
	a.tracking = tracking.New(tracking.Config{DB: a.db, Store: trackingsql.Store{}, Authz: a.authorizer, Journal: a.journal, Objects: a.blobs, Cited: func(ctx context.Context, tx *store.Tx, p project.Name, run string) (bool, error) {
		return registrysql.Store{}.FromRun(ctx, tx, p, run)
	}})
	a.tuning = tuning.New(tuning.Config{DB: a.db, Store: tuningsql.Store{}, Authz: a.authorizer, Journal: a.journal, Origins: a.tracking.Origins, Driven: driven})
	a.registry = registry.New(registry.Config{
		DB: a.db, Store: registrysql.Store{}, Authz: a.authorizer, Journal: a.journal, Runs: a.tracking.Runs, LoggedModels: a.tracking.LoggedModels, Artifacts: a.tracking.Artifacts, Origins: a.tracking.Origins, Objects: a.blobs, Sealer: a.keys,
		Users: func(ctx context.Context, tx *store.Tx, p project.Name, model string, number int) (string, error) {
			return a.serving.Deployments.UserOf(ctx, tx, string(p), model, int64(number))
		},
		Authors: func(ctx context.Context, tx *store.Tx, v registry.Version) ([]string, error) {
			by, err := a.training.Records.Submitter(ctx, tx, training.JobID(v.Job))
			return []string{by}, err
		},
		May: a.authorizer.Permits, Second: a.requests.Second, TwoPeople: a.requests, Erased: a.erasure.Touching, Told: func(ctx context.Context, tx *store.Tx, c registry.Change) error { return a.webhooks.Told(ctx, tx, c) }, // they are open before anybody asks
	})
	return nil
}

func (a *App) openTraining(ctx context.Context) error {
	if err := a.registry.Maintenance.Recover(ctx); err != nil {
		return fault.Wrap(err, "registry")
	}
	dir := filepath.Join(a.cfg.Data, "training")
	a.checkpoints = checkpoint.New(checkpoint.Config{
		DB: a.db, Store: trainingsql.Checkpoints{}, Authorizer: a.authorizer, Journal: a.journal, Blobs: a.blobs,
		Dir: filepath.Join(dir, "checkpoints"), MaxBytes: config.Bytes(a.cfg.Limits.Checkpoint), Room: a.storeRoom(), Log: a.log,
		Saved: func(ctx context.Context, tx *store.Tx, attempt string, at time.Time) error {
			return a.compute.Workloads.Saved(ctx, tx, compute.WorkloadID(attempt), at)
		},
	})
	a.group.Add(lifecycle.Service{Name: "checkpoints", Start: a.checkpoints.Start, Stop: stopper(a.checkpoints.Stop)})
	growAfter, _ := time.ParseDuration(a.cfg.Jobs.GrowAfter) // validated
	data := jobs.Data{Datasets: a.datasets, Registry: a.registry.Files, Authorizer: a.authorizer, Guard: a.guard}
	a.training = training.New(training.Config{
		DB: a.db, Store: trainingsql.Store{}, Authorizer: a.authorizer, Journal: a.journal, Compute: a.workloads(),
		Environments: a.environments, Data: data, Tables: jobs.Tables{Data: data, Dir: a.cfg.TablesDir()}, Runs: jobs.Runs{Tracking: a.tracking, Features: a.features.OfflineReads, Registry: a.registry.Versions},
		Models: jobs.Models{Tracking: a.tracking, Registry: a.registry}, Rows: jobs.Rows{Datasets: a.datasets, Files: files.Driver{}}, Tokens: jobs.Tokens{Accounts: a.accounts}, Secrets: a.secrets, Sources: source.Blobs{Store: a.blobs}, Checkpoints: a.checkpoints, LogFiles: jobs.LogFiles{Artifacts: a.tracking.Artifacts},
		Dir: dir, Network: a.cfg.Jobs.Network, MaxAlive: a.cfg.Limits.QueuedJobs, GrowAfter: growAfter, Sizes: scheduler.Policy(a.cfg.Scheduler.Policy) == scheduler.Goodput, Isolation: scheduler.Isolation(a.cfg.Isolation), Log: a.log,
		Worker: a.cfg.WorkerPath(), Measure: a.measure, MaxOutput: config.Bytes(a.cfg.Jobs.Disk.Output), Room: a.storeRoom(),
		Keep: config.Kept(a.cfg.Retention.Jobs), Traces: jobTraces{a.tracking.Retention, a.compute.Records},
		MostDisk: resource.Bytes(config.Bytes(a.cfg.Jobs.Disk.Project)), MostFiles: a.cfg.Jobs.Disk.ProjectFiles,
	})
	a.optimize = optimize.New(optimize.Config{Submission: a.training.Submission, Jobs: a.training.Jobs, Environments: a.environments, Models: deployments.RunnableModels{Models: a.registry.Models, Files: a.registry.Files}, Artifacts: jobs.Artifacts{Artifacts: a.tracking.Artifacts}})
	a.scores = score.New(score.Config{Jobs: a.training.Submission, Environments: a.environments, Deployments: lateStable{a}, Models: deployments.RunnableModels{Models: a.registry.Models, Files: a.registry.Files}})
	a.secrets.Register(a.training.Records.SecretUsers)
	a.compute.Scheduling.RegisterOwner(compute.JobAttempt, a.training.Execution)
	a.compute.Scheduling.RegisterOwner(compute.Build, a.environments)
	a.environments.Hold(a.heldEnvironments)
	a.every(time.Hour, "environments", a.environments.Sweep)
	a.group.Add(lifecycle.Service{Name: "training", Start: a.training.Execution.Start, Stop: stopper(a.training.Execution.Stop)})
	a.group.Add(lifecycle.Service{Name: "compute", Start: func(ctx context.Context) error {
		a.compute.Scheduling.Start(context.WithoutCancel(ctx))
		return nil
	}, Stop: stopper(a.compute.Scheduling.Stop)})
	return nil
}

// storeRoom refuses what the disk of the objects has no room for; nil where they are in a
// bucket.
func (a *App) storeRoom() func(bytes, files int64) error {
	if a.cfg.Blob.S3.Endpoint != "" {
		return nil
	}
	return a.cfg.SpaceFor
}

func stopper(stop func()) func(context.Context) error {
	return func(context.Context) error {
		stop()
		return nil
	}
}

func (a *App) openServing(ctx context.Context) error {
	if err := a.startServing(serving.Config{
		Models: deployments.Models{Registry: a.registry, Training: a.training.Jobs}, Environments: deployments.Environments{Environments: a.environments}, Features: deployments.Features{Features: a.features.OnlineReads}, Capacity: a.openReplicas(),
	}); err != nil {
		return err
	}
	for _, c := range contents {
		a.projects.Register(c)
	}
	a.projects.Register(projectKeys{a.keys})
	return a.housekeeping(ctx)
}

// startServing opens what answers, with models that somebody gives.
func (a *App) startServing(c serving.Config) error {
	runtimes, err := a.runtimes()
	if err != nil {
		return err
	}
	a.remotes, a.apart = runtimes.remote, runtimes.apart
	c.DB, c.Store, c.Authz, c.Journal, c.Guard, c.Predictions, c.Log = a.db, servingsql.Store{}, a.authorizer, a.journal, a.guard, a.predictions, a.log
	c.Zone, c.Machine = a.cfg.Zone(), machineName()
	c.Runtime, c.Remotes, c.InProcess = runtimes, a.cfg.ServingRemotes(), a.cfg.InProcess()
	c.LoadTime, _ = time.ParseDuration(a.cfg.Serving.LoadTime) // validated
	a.serving = serving.New(c)
	a.group.Add(lifecycle.Service{Name: "serving", Stop: func(ctx context.Context) error {
		defer runtimes.apart.Close() // also those that still run: nothing of them is left
		return a.serving.Loader.Close(ctx)
	}})
	loader := a.every(30*time.Second, "model loader", a.serving.Loader.RunOnce)
	if a.environments != nil {
		a.environments.Hold(deployments.HeldEnvironments(a.serving.Loader, a.registry.Versions, a.environments, runtimes.python.Environments))
		// What waits for an environment is loaded when it is there.
		a.group.Add(event.Subscribe(a.db, event.Config{
			Name: "models of environments", Names: []string{environment.EnvironmentReady}, Logger: a.log,
			Handle: func(context.Context, event.Event) error {
				loader.Wake()
				return nil
			},
		}).Service())
	}
	a.every(time.Second, "scaling of deployments", a.serving.Loader.ScaleOnce)
	a.every(2*time.Second, "usage of quotas", a.serving.Quotas.Record)
	return nil
}

// jobsDisk is what jobs may keep on this machine's disk.
func jobsDisk(c config.Config) local.Disk {
	d := c.Jobs.Disk
	return local.Disk{
		Default: engine.Disk{
			Scratch: resource.Bytes(config.Bytes(d.Scratch)), Output: resource.Bytes(config.Bytes(d.Output)), Checkpoints: resource.Bytes(config.Bytes(d.Checkpoints)), Files: d.Files,
		},
		Project: local.Room{Bytes: resource.Bytes(config.Bytes(d.Project)), Files: d.ProjectFiles},
		Reserve: local.Room{Bytes: resource.Bytes(config.Bytes(c.Limits.Free)), Files: c.Limits.FreeFiles},
	}
}
