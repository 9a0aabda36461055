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
	"github.com/falaj-ml/falaj/internal/feature"
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
	"github.com/falaj-ml/falaj/internal/usecase/search"
)

// APIVersion is that of the API, not of the build: v1 only grows.
const APIVersion = "v1"

// Options is what New needs beside the domains.
type Options struct {
	Config
	Auth             Authenticator
	Authz            Authorizer
	DB               *store.DB     // keeps answers for those who repeat a request; has the events
	Journal          audit.Journal // refusals; nil records none
	Log              *slog.Logger
	Registry         *prometheus.Registry
	Ready            func() error      // nil when the server can work
	CheckDiskReserve func() error      // nil when there is space for new things; may be nil
	Memory           *membudget.Budget // what requests may take of the memory; nil bounds nothing
	Console          http.Handler      // the console's static files
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
	mux := newMux()
	config := huma.DefaultConfig("Falaj", APIVersion)
	config.OpenAPIPath, config.DocsPath, config.SchemasPath = "", "", ""
	config.CreateHooks = nil // no $schema links in answers
	config.Formats = map[string]huma.Format{"application/json": bodies, "json": bodies}
	config.Info.Description = "The API of Falaj. Foreign clients (MLflow, Open Inference Protocol, Feast) have their own paths."
	config.Components.Schemas = schemas()
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}}
	s := &Server{
		Domains: d, cfg: o.Config, auth: o.Auth, authz: o.Authz, journal: o.Journal, log: o.Log,
		db: o.DB, central: o.Follows, metrics: newMetrics(o.Registry), mux: mux, api: humago.New(mux, config), checkDiskReserve: o.CheckDiskReserve, memory: o.Memory,
		watches: newStreams("event_streams", "streams of events"), follows: newStreams("log_streams", "logs that are followed"), uploading: newUploads(), pages: search.SealPages(d.Keys),
	}

	// Open to everybody.
	s.open("/healthz", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok\n") }).atGateway()
	s.open("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := o.Ready(); err != nil {
			plain(w, http.StatusServiceUnavailable, err.Error()+"\n")
			return
		}
		plain(w, http.StatusOK, "ready\n")
	}).atGateway()
	s.open("/{$}", o.Console.ServeHTTP)
	s.open("/console/", o.Console.ServeHTTP)
	s.signIn()

	// The installation.
	s.raw("GET", "/metrics", "system.read", "Get metrics in the Prometheus text format", media{gives: "text/plain"}, promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{}).ServeHTTP).atGateway()
	s.raw("GET", "/api/openapi.json", "", "Get this OpenAPI document", media{gives: "application/json"}, s.openAPI)
	s.raw("POST", "/api/v1/apply", "", "Apply manifests; permissions are checked per object", media{takes: "application/yaml", gives: "application/json"}, s.apply,
		query("project", "Project of manifests without project"), query("dry_run", "true: validate, report what would be created or updated, and change nothing"),
		&huma.Param{Name: "If-Match", In: "header", Schema: text, Description: "ETag of the project or dataset in a single manifest; if it has changed, the request fails with 409 and changes nothing"}).takes(yamlBody).atGateway()
	route(s, "GET", "/api/v1/manifests/{kind}/{name}", "", "Get the manifest of an object; applying it unchanged changes nothing", s.oneManifest).atGateway()
	route(s, "GET", "/api/v1/whoami", "", "Get the principal of the token", s.whoami).atGateway()
	route(s, "GET", "/api/v1/projects", "", "List the projects you may read", s.listProjects).atGateway()
	route(s, "GET", "/api/v1/tokens", "", "List your own tokens, or those of a project", s.listTokens).atGateway()
	route(s, "POST", "/api/v1/tokens", "", "Create a token; its secret is returned once", s.createToken).atGateway()
	route(s, "DELETE", "/api/v1/tokens/{id}", "", "Revoke a token", s.revokeToken).atGateway()
	route(s, "GET", "/api/v1/zones", "zone.read", "List zones", s.listZones)
	route(s, "POST", "/api/v1/zones/{zone}/widenings", "zone.apply", "Change a zone's jurisdiction, provider or trust; widening requires approval", s.changeLaw)
	route(s, "GET", "/api/v1/widenings", "zone.apply", "List requested zone changes, newest first", s.listZoneWidenings)
	route(s, "POST", "/api/v1/widenings/{id}/approve", "zone.apply", "Approve another person's zone change", s.approveZoneWidening)
	route(s, "POST", "/api/v1/widenings/{id}/reject", "zone.apply", "Reject a zone change, or withdraw your own", s.rejectZoneWidening).keepsNothing()
	route(s, "GET", "/api/v1/pools", "pool.read", "List pools and their use", s.listPools)
	route(s, "GET", "/api/v1/pools/{name}", "pool.read", "Get a pool", s.onePool)
	route(s, "GET", "/api/v1/queues", "queue.read", "List queues with their use and pending jobs", s.listQueues)
	route(s, "GET", "/api/v1/scheduler", "queue.read", "Get a scheduler snapshot: pools, queues, running and pending workloads with estimated times", s.snapshot)
	route(s, "GET", "/api/v1/queues/{name}", "queue.read", "Get a queue", s.oneQueue)
	route(s, "DELETE", "/api/v1/queues/{name}", "queue.delete", "Delete an empty queue", s.deleteQueue)
	route(s, "GET", "/api/v1/cost/report", "", "Report usage and cost of a project or the installation", s.costReport)
	route(s, "GET", "/api/v1/cost/forecast", "", "Forecast cost to month end for a project or the installation", s.costForecast)
	route(s, "GET", "/api/v1/cost/compare", "", "Compare the total cost of owned and rented nodes for measured work", s.costCompare)
	route(s, "GET", "/api/v1/budgets", "", "List budgets and the amounts spent", s.listBudgets)
	route(s, "GET", "/api/v1/budgets/{project}", "cost.read", "Get the budget of a project", s.oneBudget)
	route(s, "DELETE", "/api/v1/budgets/{project}", "budget.delete", "Delete a project's budget", s.deleteBudget)
	route(s, "POST", "/api/v1/pools/{name}/nodes/{node}/release", "pool.apply", "Release a quarantined node", s.releaseNode)
	route(s, "GET", "/api/v1/requests", "", "List requests for two-person approval, newest first", s.listRequests)
	route(s, "GET", "/api/v1/requests/{id}", "", "Get a request for two-person approval", s.oneRequest)
	route(s, "POST", "/api/v1/requests/{id}/approve", "", "Approve another person's request; the action is performed at once", s.approveRequest).keepsNothing()
	route(s, "POST", "/api/v1/requests/{id}/reject", "", "Reject a request, or withdraw your own", s.rejectRequest).keepsNothing()
	route(s, "GET", "/api/v1/audit", "", "List audit log entries, newest first", s.listAudit).atGateway()
	route(s, "POST", "/api/v1/audit/erase", "audit.erase", "Request the erasure of the content of audit log entries", s.eraseAudit).keepsNothing().atGateway()
	route(s, "GET", "/api/v1/audit/erasures", "audit.read", "List requests to erase audit log entries, newest first", s.listAuditErasures).atGateway()
	route(s, "POST", "/api/v1/audit/erasures/{id}/approve", "audit.erase", "Approve a request to erase audit log entries; commitments, times, actors and actions are kept", s.approveAuditErasure).keepsNothing().atGateway()
	route(s, "POST", "/api/v1/audit/erasures/{id}/reject", "audit.erase", "Reject a request to erase audit log entries, or withdraw your own", s.rejectAuditErasure).keepsNothing().atGateway()
	s.raw("GET", "/api/v1/audit/export", "", "Export the audit log, or a project's entries, with proofs", media{gives: "application/x-ndjson"}, s.exportAudit,
		query("project", "Export only the entries of this project; empty: the whole log")).atGateway()

	route(s, "GET", "/api/v1/backups", "backup.read", "List the backups of the server", s.listBackups)
	route(s, "POST", "/api/v1/backups", "backup.make", "Start a backup of the running server", s.makeBackup)
	route(s, "GET", "/api/v1/backups/{name}", "backup.read", "Get a backup and its progress", s.oneBackup)
	route(s, "POST", "/api/v1/backups/{name}/stop", "backup.make", "Stop a running backup", s.stopBackup).keepsNothing()

	// A project.
	const p = "/api/v1/projects/{project}"
	route(s, "GET", p, "project.read", "Get a project", s.oneProject).atGateway()
	s.raw("GET", p+"/events", "project.read", "Stream events from now on, or after Last-Event-ID, as server-sent events", media{gives: "text/event-stream"}, s.events,
		&huma.Param{Name: "Last-Event-ID", In: "header", Schema: text, Description: "Id of the last received event; 0-0 starts at the oldest stored event"})
	route(s, "GET", p+"/usage", "project.read", "Get a project's storage usage by kind, and its quota", s.projectUsage)
	route(s, "DELETE", p, "project.delete", "Delete an empty project", s.deleteProject)
	route(s, "GET", p+"/members", "member.read", "List members and their roles", s.listMembers).atGateway()
	route(s, "DELETE", p+"/members/{name}", "member.revoke", "Revoke a role", s.revokeMember).atGateway()
	route(s, "GET", p+"/keys", "keys.read", "List keys without key material", s.listKeys)
	route(s, "POST", p+"/keys/destroy", "keys.destroy", "Destroy a key permanently (crypto-shredding)", s.destroyKey).keepsNothing()

	route(s, "GET", p+"/datasets", "dataset.read", "List datasets", s.listDatasets)
	route(s, "GET", p+"/datasets/{name}", "dataset.read", "Get a dataset", s.oneDataset)
	route(s, "DELETE", p+"/datasets/{name}", "dataset.delete", "Delete a dataset", s.deleteDataset)
	route(s, "GET", p+"/datasets/{name}/versions", "dataset.read", "List a dataset's versions, newest first", s.listVersions)
	s.raw("POST", p+"/datasets/{name}/versions", "dataset.import", "Import a file as a new version", media{takes: "application/octet-stream", gives: "application/json"}, s.importVersion,
		query("filename", "File name; its extension determines the format"),
		query("allow_schema_change", "true: accept a version that lacks columns of the newest accepted version, or has them with other types")).takes(fileBody).takes(fileBody)
	route(s, "POST", p+"/datasets/{name}/derive", "dataset.import", "Create a version by the dataset's transformation: synchronously in DuckDB, or in a Spark job", s.derive)
	route(s, "GET", p+"/datasets/{ref}/version", "dataset.read", "Get a version in any state", s.datasetVersion)
	route(s, "GET", p+"/datasets/{ref}/preview", "dataset.query", "Get the first rows of a version", s.preview)
	route(s, "GET", p+"/datasets/{ref}/profile", "dataset.query", "Get statistics of a version's columns: histograms, frequent values", s.profile)
	route(s, "GET", p+"/datasets/{ref}/quarantine", "dataset.query", "List the quarantined rows of a version and the violated expectations", s.quarantined)
	route(s, "GET", p+"/datasets/{ref}/lineage", "dataset.read", "Get the upstream lineage of a version", s.datasetLineage)
	route(s, "GET", p+"/datasets/{ref}/descendants", "dataset.read", "List the downstream versions of a version", s.datasetDescendants)
	route(s, "GET", p+"/widenings", "dataset.read", "List requests to widen data protection labels, newest first", s.listWidenings)
	route(s, "POST", p+"/widenings", "dataset.relabel", "Change the residency and classification of a dataset version; widening requires approval", s.relabel)
	route(s, "POST", p+"/widenings/{id}/approve", "dataset.relabel", "Approve another person's request to widen data protection labels", s.approveWidening)
	route(s, "POST", p+"/audit/who-read", "audit.reads", "List reads of an entity's features, newest first; the query is audited", s.whoRead)
	route(s, "POST", p+"/widenings/{id}/reject", "dataset.relabel", "Reject a request to widen data protection labels, or withdraw your own", s.rejectWidening).keepsNothing()
	route(s, "POST", p+"/query", "dataset.query", "Run SQL over datasets", s.query).readsOnly()

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

	route(s, "GET", p+"/deployments", "deployment.read", "List deployments", s.listDeployments).atGateway()
	route(s, "GET", p+"/deployments/{name}", "deployment.read", "Get a deployment", s.oneDeployment).atGateway()
	route(s, "DELETE", p+"/deployments/{name}", "deployment.apply", "Delete a deployment", s.deleteDeployment)
	route(s, "POST", p+"/deployments/{name}/predict", "job.submit", "Submit a batch prediction job over a dataset with a deployment's stable version", s.predict)
	s.rolloutRoutes(p)
	s.gatewayRoutes(p)
	s.labelRoutes(p)
	s.alertRoutes(p)

	// Other people's protocols.
	s.foreign()
	inference := &oip.API{
		Serving: inferenceServing{d.Serving.Inference, d.Serving.Deployments, d.Serving.Metrics, d.Serving.Loader}, Version: o.Version, Project: projectOf, Status: StatusOf,
		Ended: s.ended,
		Gate: func(r *http.Request, action, project string) error {
			return s.gate(r.Context(), policy.Action(action), project)
		},
		Permits: func(ctx context.Context, action, project, name string) (bool, error) {
			return s.authz.Permits(ctx, policy.Action(action), policy.Object{Project: project, Kind: "deployment", Name: name})
		},
		Reauthenticate: s.principal,
		EndedCall: func(ctx context.Context, err error) error {
			return flight.Status(ctx, s.endedCall(ctx, "inference.GRPCInferenceService", err))
		},
	}
	inference.Register(s.inference)
	s.inferenceCalls(inference)
	features := &feast.API{
		Features: feastFeatures{d.Features.Definitions, d.Features.Materialisation, d.Features.OnlineReads, d.Features.Streams}, Project: projectOf, Status: StatusOf, Ended: s.ended,
		Gate: func(r *http.Request, action policy.Action, project string) error {
			return s.gate(r.Context(), action, project)
		},
	}
	features.Register(s.feast)
	s.flightRoutes()
	s.rpcRoutes()
	s.optunaCalls()

	// Whatever is left: known callers learn that there is nothing.
	mux.route("/").atGateway()
	mux.HandleFunc("/", s.nothing)
	guard := s.requireDiskReserve
	if s.checkDiskReserve == nil {
		guard = nil
	}
	mux.serve(o.Follows != "", guard)
	s.handler = s.guard(mux)
	return s
}

// feastFeatures is what Feast's protocol asks of features.
type feastFeatures struct {
	*feature.Definitions
	*feature.Materialisation
	*feature.OnlineReads
	*feature.Streams
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
