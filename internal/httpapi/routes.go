package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"path"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/flight"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/httpapi/feast"
	"github.com/falaj-ml/falaj/internal/httpapi/oip"
	"github.com/falaj-ml/falaj/internal/membudget"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
)

// APIVersion is that of the API, not of the build: v1 only grows.
const APIVersion = "v1"

// Options is what New needs beside the domains.
type Options struct {
	Config
	Auth     Authenticator
	Authz    Authorizer
	DB       *store.DB     // keeps answers for those who repeat a request; has the events
	Journal  audit.Journal // refusals; nil records none
	Log      *slog.Logger
	Registry *prometheus.Registry
	Ready    func() error      // nil when the server can work
	Room     func() error      // nil when there is space for new things; may be nil
	Memory   *membudget.Budget // what requests may take of the memory; nil bounds nothing
	Console  http.Handler      // the console's static files
	// Follows is the server whose gateway this one is: then it has the routes of
	// gateway.go, and no others. Empty: it is none.
	Follows string
}

// New makes the edge: this function is the whole API.
func New(o Options, d Domains) *Server {
	if o.MaxBody == 0 {
		o.MaxBody = 4 << 20
	}
	if o.Upload == 0 {
		o.Upload = 64 << 30
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = 15 * time.Second
	}
	if o.WriteTime == 0 {
		o.WriteTime = writeTime
	}
	if o.LeastRate == 0 {
		o.LeastRate = leastRate
	}
	useProblems()
	mux := &mux{ServeMux: http.NewServeMux(), follower: o.Follows != ""}
	config := huma.DefaultConfig("Falaj", APIVersion)
	config.OpenAPIPath, config.DocsPath, config.SchemasPath = "", "", ""
	config.CreateHooks = nil // no $schema links in answers
	config.Formats = map[string]huma.Format{"application/json": bodies, "json": bodies}
	config.Info.Description = "The API of Falaj. Foreign clients (MLflow, Open Inference Protocol, Feast) have their own paths."
	config.Components.Schemas = schemas()
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}}
	s := &Server{
		Domains: d, cfg: o.Config, auth: o.Auth, authz: o.Authz, journal: o.Journal, log: o.Log,
		db: o.DB, central: o.Follows, metrics: newMetrics(o.Registry), mux: mux, api: humago.New(mux, config), declared: map[string]Route{}, room: o.Room, memory: o.Memory,
		watches: newStreams("event_streams", "streams of events"), follows: newStreams("log_streams", "logs that are followed"), uploading: newUploads(),
	}
	if s.room != nil {
		mux.roomy = s.roomy
	}

	// Open to everybody.
	s.open("/healthz", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok\n") })
	s.open("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := o.Ready(); err != nil {
			plain(w, http.StatusServiceUnavailable, err.Error()+"\n")
			return
		}
		plain(w, http.StatusOK, "ready\n")
	})
	s.open("/{$}", o.Console.ServeHTTP)
	s.open("/console/", o.Console.ServeHTTP)

	// The installation.
	s.raw("GET", "/metrics", "system.read", "Prometheus metrics", media{gives: "text/plain"}, promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{}).ServeHTTP)
	s.raw("GET", "/api/openapi.json", "", "This document", media{gives: "application/json"}, s.openAPI)
	s.raw("POST", "/api/v1/apply", "", "Apply manifests; each object's permission is asked", media{takes: "application/yaml", gives: "application/json"}, s.apply,
		query("project", "Project of the manifests that name none"), query("dry_run", "true: check, say what would be created or updated, and change nothing"),
		&huma.Param{Name: "If-Match", In: "header", Schema: text, Description: "ETag of the project or dataset in the one manifest; if it has changed since, the answer is 409 and nothing happens"})
	route(s, "GET", "/api/v1/manifests/{kind}/{name}", "", "The manifest of an object, which changes nothing when it is applied; the permission to read it is asked", s.oneManifest)
	route(s, "GET", "/api/v1/whoami", "", "Who the token says you are", s.whoami)
	route(s, "GET", "/api/v1/projects", "", "List the projects you may read", s.listProjects)
	route(s, "GET", "/api/v1/tokens", "", "List tokens: your own, or a project's", s.listTokens)
	route(s, "POST", "/api/v1/tokens", "", "Make a token; its secret is shown once", s.createToken)
	route(s, "DELETE", "/api/v1/tokens/{id}", "", "Revoke a token", s.revokeToken)
	route(s, "GET", "/api/v1/zones", "zone.read", "List zones", s.listZones)
	route(s, "POST", "/api/v1/zones/{zone}/widenings", "zone.apply", "Change the law of a zone: at once where that widens nothing, else when a second person approves", s.changeLaw)
	route(s, "GET", "/api/v1/widenings", "zone.apply", "List requested zone changes, newest first", s.listZoneWidenings)
	route(s, "POST", "/api/v1/widenings/{id}/approve", "zone.apply", "Approve the law of a zone that another person asked for", s.approveZoneWidening)
	route(s, "POST", "/api/v1/widenings/{id}/reject", "zone.apply", "Reject a zone change, or withdraw your own", s.rejectZoneWidening)
	route(s, "GET", "/api/v1/pools", "pool.read", "List pools and their use", s.listPools)
	route(s, "GET", "/api/v1/pools/{name}", "pool.read", "A pool", s.onePool)
	route(s, "GET", "/api/v1/queues", "queue.read", "List queues, what they use and who waits", s.listQueues)
	route(s, "GET", "/api/v1/scheduler", "queue.read", "What the scheduler knows: pools, queues, who runs and waits and how long still", s.snapshot)
	route(s, "GET", "/api/v1/queues/{name}", "queue.read", "A queue", s.oneQueue)
	route(s, "DELETE", "/api/v1/queues/{name}", "queue.delete", "Delete an empty queue", s.deleteQueue)
	route(s, "GET", "/api/v1/cost/report", "", "What was used and what it cost: of a project, or of the installation", s.costReport)
	route(s, "GET", "/api/v1/cost/forecast", "", "Where the month ends: of a project, or of the installation", s.costForecast)
	route(s, "GET", "/api/v1/cost/compare", "", "Own nodes against rented ones, for what was measured", s.costCompare)
	route(s, "GET", "/api/v1/budgets", "", "List budgets and what was spent of them", s.listBudgets)
	route(s, "GET", "/api/v1/budgets/{project}", "cost.read", "The budget of a project", s.oneBudget)
	route(s, "DELETE", "/api/v1/budgets/{project}", "budget.delete", "Delete a project's budget", s.deleteBudget)
	route(s, "POST", "/api/v1/pools/{name}/nodes/{node}/release", "pool.apply", "Lift the quarantine of a node", s.releaseNode)
	route(s, "GET", "/api/v1/requests", "", "List acts that wait for a second person, or did, newest first", s.listRequests)
	route(s, "GET", "/api/v1/requests/{id}", "", "An act that takes two people", s.oneRequest)
	route(s, "POST", "/api/v1/requests/{id}/approve", "", "Carry out what another person requested", s.approveRequest)
	route(s, "POST", "/api/v1/requests/{id}/reject", "", "Reject a request, or withdraw your own", s.rejectRequest)
	route(s, "GET", "/api/v1/audit", "", "List audited acts, newest first", s.listAudit)
	route(s, "POST", "/api/v1/audit/erase", "audit.erase", "Request to erase what entries say; another person approves it", s.eraseAudit)
	route(s, "GET", "/api/v1/audit/erasures", "audit.read", "List requests to erase entries, newest first", s.listAuditErasures)
	route(s, "POST", "/api/v1/audit/erasures/{id}/approve", "audit.erase", "Erase what another person requested; commitments, times, actors and actions stay", s.approveAuditErasure)
	route(s, "POST", "/api/v1/audit/erasures/{id}/reject", "audit.erase", "Reject a request to erase entries, or withdraw your own", s.rejectAuditErasure)
	s.raw("GET", "/api/v1/audit/export", "", "The audit log, or a project's entries of it, with proofs", media{gives: "application/x-ndjson"}, s.exportAudit,
		query("project", "Export only the entries of this project; empty: the whole log"))

	route(s, "GET", "/api/v1/backups", "backup.read", "List the backups that the server has made of itself", s.listBackups)
	route(s, "POST", "/api/v1/backups", "backup.make", "Make a backup while the server is in use; it is done in the background", s.makeBackup)
	route(s, "GET", "/api/v1/backups/{name}", "backup.read", "A backup, and how far it is", s.oneBackup)
	route(s, "POST", "/api/v1/backups/{name}/stop", "backup.make", "Stop making a backup", s.stopBackup)

	// A project.
	const p = "/api/v1/projects/{project}"
	route(s, "GET", p, "project.read", "A project", s.oneProject)
	s.raw("GET", p+"/events", "project.read", "What happens from now on, or after Last-Event-ID, as server-sent events", media{gives: "text/event-stream"}, s.events,
		&huma.Param{Name: "Last-Event-ID", In: "header", Schema: text, Description: "Id of the last event seen; 0-0 is before the oldest kept"})
	route(s, "GET", p+"/usage", "project.read", "What a project stores, by kind, beside its quota", s.projectUsage)
	route(s, "DELETE", p, "project.delete", "Delete an empty project", s.deleteProject)
	route(s, "GET", p+"/members", "member.read", "List who has which role", s.listMembers)
	route(s, "DELETE", p+"/members/{name}", "member.revoke", "Take a role away", s.revokeMember)
	route(s, "GET", p+"/keys", "keys.read", "List which keys exist, never the keys", s.listKeys)
	route(s, "POST", p+"/keys/destroy", "keys.destroy", "Destroy a key for ever, and with it what it sealed", s.destroyKey)

	route(s, "GET", p+"/datasets", "dataset.read", "List datasets", s.listDatasets)
	route(s, "GET", p+"/datasets/{name}", "dataset.read", "A dataset", s.oneDataset)
	route(s, "DELETE", p+"/datasets/{name}", "dataset.delete", "Delete a dataset", s.deleteDataset)
	route(s, "GET", p+"/datasets/{name}/versions", "dataset.read", "List a dataset's versions, newest first", s.listVersions)
	s.raw("POST", p+"/datasets/{name}/versions", "dataset.import", "Import a file as a new version", media{takes: "application/octet-stream", gives: "application/json"}, s.importVersion,
		query("filename", "The file's name; its ending says the format"))
	route(s, "POST", p+"/datasets/{name}/derive", "dataset.import", "Make a version by the dataset's transformation: at once by DuckDB, by a job on Spark", s.derive)
	route(s, "GET", p+"/datasets/{ref}/version", "dataset.read", "A version, whatever its state", s.datasetVersion)
	route(s, "GET", p+"/datasets/{ref}/preview", "dataset.query", "The first rows of a version", s.preview)
	route(s, "GET", p+"/datasets/{ref}/profile", "dataset.query", "What a version's columns look like: statistics, histograms, frequent values", s.profile)
	route(s, "GET", p+"/datasets/{ref}/quarantine", "dataset.query", "The rows that expectations left out of a version, and why", s.quarantined)
	route(s, "GET", p+"/datasets/{ref}/lineage", "dataset.read", "What a version was made from", s.datasetLineage)
	route(s, "GET", p+"/datasets/{ref}/descendants", "dataset.read", "The versions that were made from a version", s.datasetDescendants)
	route(s, "GET", p+"/widenings", "dataset.read", "List who asked for which data to be where, newest first", s.listWidenings)
	route(s, "POST", p+"/widenings", "dataset.relabel", "Change where a dataset version may be: fewer zones at once, more when a second person approves", s.relabel)
	route(s, "POST", p+"/widenings/{id}/approve", "dataset.relabel", "Approve what another person asked for", s.approveWidening)
	route(s, "POST", p+"/audit/who-read", "audit.reads", "List who read the features of a person, newest first; the question is audited", s.whoRead)
	route(s, "POST", p+"/widenings/{id}/reject", "dataset.relabel", "Reject a wider label, or withdraw your own", s.rejectWidening)
	route(s, "POST", p+"/query", "dataset.query", "Run SQL over datasets", s.query)

	s.governanceRoutes(p)
	route(s, "GET", p+"/search", "", "Find objects by name, owner, tag, column or lineage", s.search)
	s.lineageRoutes(p)
	s.ingestionRoutes(p)
	s.featureRoutes(p)
	s.trainingRoutes(p)
	s.checkpointRoutes(p)
	s.workerRoutes(p)
	s.replicaRoutes(p)
	s.registryRoutes(p)
	s.runRoutes(p)
	s.sweepRoutes(p)
	s.importRoutes(p)
	s.monitoringRoutes(p)

	route(s, "GET", p+"/deployments", "deployment.read", "List deployments", s.listDeployments)
	route(s, "GET", p+"/deployments/{name}", "deployment.read", "A deployment", s.oneDeployment)
	route(s, "DELETE", p+"/deployments/{name}", "deployment.apply", "End a deployment", s.deleteDeployment)
	route(s, "POST", p+"/deployments/{name}/predict", "job.submit", "Submit a job that answers the rows of a dataset with a deployment's stable version, into a version of another dataset", s.predict)
	s.rolloutRoutes(p)
	s.gatewayRoutes(p)
	s.labelRoutes(p)
	s.alertRoutes(p)

	// Other people's protocols.
	s.foreign()
	inference := &oip.API{
		Serving: d.Serving, Version: o.Version, Project: projectOf, Status: StatusOf,
		Ended: s.ended,
		Gate: func(r *http.Request, action, project string) error {
			return s.gate(r.Context(), policy.Action(action), project)
		},
		Permits: func(ctx context.Context, action, project, name string) (bool, error) {
			return s.authz.Permits(ctx, policy.Action(action), policy.Object{Project: project, Kind: "deployment", Name: name})
		},
		Again: s.principal,
		Told: func(ctx context.Context, err error) error {
			return flight.Status(ctx, s.endedCall(ctx, "inference.GRPCInferenceService", err))
		},
	}
	inference.Register(s.inference)
	s.inferenceCalls(inference)
	features := &feast.API{
		Features: d.Features, Project: projectOf, Status: StatusOf, Ended: s.ended,
		Gate: func(r *http.Request, action policy.Action, project string) error {
			return s.gate(r.Context(), action, project)
		},
	}
	features.Register(s.feast)
	s.flightRoutes()
	s.rpcRoutes()
	s.optunaCalls()

	// Whatever is left: known callers learn that there is nothing.
	mux.HandleFunc("/", s.nothing)
	s.handler = s.guard(mux)
	return s
}

// schemas names the types in the API's description by package and type
// ("dataset.Version"), and says how amounts are written.
func schemas() huma.Registry {
	r := huma.NewMapRegistry("#/components/schemas/", func(t reflect.Type, hint string) string {
		name := huma.DefaultSchemaNamer(t, hint)
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if pkg := path.Base(t.PkgPath()); t.Name() != "" && pkg != "httpapi" && pkg != "." {
			return pkg + "." + name
		}
		return name
	})
	for _, t := range []reflect.Type{reflect.TypeFor[resource.CPU](), reflect.TypeFor[resource.Bytes](), reflect.TypeFor[resource.Bandwidth]()} {
		r.RegisterTypeAlias(t, reflect.TypeFor[quantity]())
	}
	r.RegisterTypeAlias(reflect.TypeFor[compute.Duration](), reflect.TypeFor[string]())
	r.RegisterTypeAlias(reflect.TypeFor[serving.Number](), reflect.TypeFor[any]())   // a number, or "nan"
	r.RegisterTypeAlias(reflect.TypeFor[training.Workers](), reflect.TypeFor[any]()) // a number, or {min, max}
	return r
}

// quantity is how amounts are written: 500m, 4GiB, or a number.
type quantity struct{}

// Schema implements huma.SchemaProvider.
func (quantity) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{{Type: huma.TypeString}, {Type: huma.TypeNumber}}}
}
