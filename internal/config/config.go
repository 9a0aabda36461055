package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"

	"github.com/falaj-ml/falaj/internal/compute/cost"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online/redis"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// Config is everything that can be set. Sources, later ones win: defaults, the
// file, FALAJ_* environment variables (FALAJ_TLS_CERT sets tls.cert), flags.
type Config struct {
	Data        string   `koanf:"data" doc:"Data directory"`
	HTTP        string   `koanf:"http" doc:"Address of the HTTP listener"`
	GRPC        string   `koanf:"grpc" doc:"Address of the gRPC listener"`
	Flight      string   `koanf:"flight" doc:"Address of the Arrow Flight listener"`
	HTTPProxies []string `koanf:"http_proxies" doc:"Reverse proxies (IP addresses, or networks such as 10.0.0.0/8) whose X-Forwarded-For is trusted for the client address in the audit log; empty trusts none"`
	HTTPHosts   []string `koanf:"http_hosts" doc:"Host names under which clients reach the HTTP listener, besides localhost"`

	EncryptedDisk bool `koanf:"encrypted_disk" doc:"Set when the data directory is on an encrypted disk, such as LUKS. SQL over sealed tables may then spill to it in plain text"`

	TLS struct {
		Cert string `koanf:"cert" doc:"PEM certificate chain; required for non-loopback listeners"`
		Key  string `koanf:"key" doc:"PEM private key"`
	} `koanf:"tls"`

	Store struct {
		URL          string `koanf:"url" doc:"Database: sqlite:///path or postgres://user@host/database. Empty: SQLite in the data directory. A remote host requires TLS: ?sslmode=verify-full"`
		PasswordFile string `koanf:"password_file" doc:"File with the PostgreSQL password; reloaded when it changes"`
	} `koanf:"store"`

	Blob struct {
		S3 struct {
			Endpoint    string `koanf:"endpoint" doc:"S3 endpoint for object storage, as https://host[:port]. Empty: files in the data directory"`
			Bucket      string `koanf:"bucket" doc:"Bucket for objects. Object versioning must be off"`
			Prefix      string `koanf:"prefix" doc:"Prefix of object names; must differ between installations that share a bucket"`
			Region      string `koanf:"region" doc:"Bucket region. Empty: taken from the endpoint's name, else us-east-1"`
			Zone        string `koanf:"zone" doc:"Zone of the bucket. Must be home, because any object may be stored in it"`
			Credentials string `koanf:"credentials" doc:"File with the lines access_key = … and secret_key = …; reloaded when it changes"`
			CA          string `koanf:"ca" doc:"PEM bundle of trusted authorities for the endpoint. Empty: the system's"`
		} `koanf:"s3"`
	} `koanf:"blob"`

	Tables struct {
		Dir string `koanf:"dir" doc:"Directory for the files of open datasets, readable by other engines. Empty: tables/ in the data directory"`
	} `koanf:"tables"`

	Online struct {
		URL          string   `koanf:"url" doc:"Online store: redis://…, rediss://… with TLS, or unix:///path. Empty: Pebble in the data directory"`
		PasswordFile string   `koanf:"password_file" doc:"File with the Redis password; reloaded when it changes"`
		CA           string   `koanf:"ca" doc:"PEM bundle of trusted authorities for Redis. Empty: the system's"`
		Prefix       string   `koanf:"prefix" doc:"Prefix of keys in Redis; must differ between installations that share a server"`
		Acknowledged string   `koanf:"acknowledged" doc:"Durability required of Redis before a write is acknowledged: synced (appendonly yes, appendfsync always) or in-memory, where a power loss may lose the latest writes"`
		Verify       duration `koanf:"verify" doc:"Interval for comparing a sample of online rows of each view with their source; 0 disables it"`
		Rotate       duration `koanf:"rotate" doc:"Age at which the encryption subkey of the online rows of a view is rotated, such as 90d; 0 disables rotation"`
		History      duration `koanf:"history" doc:"How far back point-in-time online reads reach, such as 30d; older row versions in the data directory are removed. 0 keeps all"`
		VerifyRows   int64    `koanf:"verify_rows" doc:"Maximum rows of a source that is compared; larger views are skipped"`
		Layout       string   `koanf:"layout" doc:"Redis layout: falaj (encrypted rows only), or feast to also keep unencrypted copies of public and internal features in Feast's layout, for unmodified Feast SDKs"`
	} `koanf:"online"`

	Identity Identity `koanf:"identity"`

	Keys struct {
		PassphraseFile string `koanf:"passphrase_file" doc:"File with the passphrase that seals the master key"`
	} `koanf:"keys"`

	Audit struct {
		Checkpoints string   `koanf:"checkpoints" doc:"File of the witness, a second copy of the audit checkpoints, preferably on another disk. Empty: a file in the data directory"`
		Alert       string   `koanf:"alert" doc:"URL that receives a CloudEvent by POST when audit verification fails or the server certificate is about to expire. Empty: only events, metrics and the server log"`
		Verify      duration `koanf:"verify" doc:"Interval of background verification, such as 1h: every audit log entry is verified once per interval"`
	} `koanf:"audit"`

	Approvals struct {
		RoleAge duration `koanf:"role_age" doc:"Minimum age of the role of the second person in a two-person approval, such as 24h. Roles granted on the first day of the installation count immediately"`
	} `koanf:"approvals"`

	Erasures struct {
		Ledger string `koanf:"ledger" doc:"Erasure ledger, preferably on another disk and outside backups of the data directory: after a restore it is used to repeat erasures. Empty: a file in the data directory"`
	} `koanf:"erasures"`

	Backup struct {
		Dir string `koanf:"dir" doc:"Directory for online backups, preferably on another disk. Empty disables them"`
	} `koanf:"backup"`

	Worker struct {
		Path string `koanf:"path" doc:"Path of the falaj-worker binary. Empty: beside falaj"`
	} `koanf:"worker"`

	Isolation string `koanf:"isolation" doc:"Minimum isolation of user code on the home pool: sandbox, or process where the kernel forbids sandboxes"`

	Engines map[string]Engine `koanf:"engines" doc:"Engines besides local, by name: kind (slurm, kube or ray), url and more; configuration file only"`

	Scheduler struct {
		Policy string `koanf:"policy" doc:"Scheduling policy: fifo (priority, then submission time); fair (the queue with the lowest share of its quota first); tiresias (jobs with less than 16 accelerator-hours first); goodput (as fifo; elastic jobs get the number of workers that maximises goodput)"`
	} `koanf:"scheduler"`

	Cost struct {
		Currency string `koanf:"currency" doc:"Currency of all amounts, as an ISO 4217 code; amounts are never converted"`
	} `koanf:"cost"`

	Jobs struct {
		Network []string `koanf:"network" doc:"Egress allow-list of jobs, as host:port: destinations that a job may request. Empty allows none"`
		Disk    struct {
			Scratch      size  `koanf:"scratch" doc:"Default limit of a job's working directory and FALAJ_SCRATCH_DIR; override with spec.disk"`
			Output       size  `koanf:"output" doc:"Default limit of FALAJ_OUTPUT_DIR; override with spec.disk"`
			Checkpoints  size  `koanf:"checkpoints" doc:"Default limit of FALAJ_CHECKPOINT_DIR; override with spec.disk"`
			Files        int64 `koanf:"files" doc:"Default limit of files and directories in all of these together; override with spec.disk"`
			Logs         size  `koanf:"logs" doc:"Maximum size of the stored log of a job attempt; the beginning and the end are kept"`
			Project      size  `koanf:"project" doc:"Disk limit of all running jobs of a project together, and maximum of spec.disk; 0 means no limit"`
			ProjectFiles int64 `koanf:"project_files" doc:"Limit of files and directories of all running jobs of a project together, and maximum of spec.disk; 0 means no limit"`
		} `koanf:"disk"`
		GrowAfter duration `koanf:"grow_after" doc:"How long an elastic job (workers {min, max}) must have run, and free capacity must have lasted, before it is scaled up; 0 disables scaling up"`
	} `koanf:"jobs"`

	Environments struct {
		UV      string   `koanf:"uv" doc:"Path of the uv binary. Empty: beside falaj, or on the PATH"`
		Index   string   `koanf:"index" doc:"Package index URL. Empty: from lib/package-index.json"`
		Indexes []string `koanf:"indexes" doc:"Additional package indexes that environments may name, as name=URL, such as torch-cpu=https://download.pytorch.org/whl/cpu. Builds that name an index may connect to its host"`
		Hosts   []string `koanf:"hosts" doc:"Egress allow-list of environment builds, as host:port. Empty: from lib/package-index.json"`
		CA      string   `koanf:"ca" doc:"PEM bundle of trusted authorities for environment builds. Empty: the system's"`
		Timeout duration `koanf:"timeout" doc:"Maximum duration of a build"`

		Interpreters []string `koanf:"interpreters" doc:"Absolute paths of additional Python interpreters for environments, besides those on the PATH"`
	} `koanf:"environments"`

	Images struct {
		Registries []string `koanf:"registries" doc:"Registries that OCI images may be pulled from, as host or host:port. Empty allows none"`
		Insecure   []string `koanf:"insecure" doc:"Registries of this list that use plain HTTP"`
		CA         string   `koanf:"ca" doc:"PEM bundle of trusted authorities for registries, in addition to the system's"`
		Auth       string   `koanf:"auth" doc:"Registry credentials, in the format of Docker's config.json"`
		MaxBytes   size     `koanf:"max_bytes" doc:"Maximum size of an unpacked image"`
	} `koanf:"images"`

	Serving struct {
		ORT      string   `koanf:"ort_lib" doc:"Path of the ONNX Runtime library. Empty: lib/ beside the binary"`
		Memory   size     `koanf:"memory" doc:"Memory limit of all inference runs in the server's process together, in addition to the models; a run beyond it fails. Empty: half of the machine's memory"`
		Process  size     `koanf:"process_memory" doc:"Maximum memory of a model process, whatever its manifest requests. Empty: as the manifest requests, else derived from the model size"`
		LoadTime duration `koanf:"load_timeout" doc:"Maximum time to read and load a model"`
		// InProcess is empty by default: then no model runs in the server's process.
		InProcess []InProcess `koanf:"in_process" doc:"Models that may run in the server's process: a list of entries, each with project, model or signer (key_id of the version), or several of them; configuration file only. Such a model can read the server's memory and crash the server. Empty: every model runs in its own process"`

		Remotes map[string]Remote `koanf:"remotes" doc:"Remote inference servers, by name: url, protocol (oip-grpc or oip-http), zone and more; configuration file only"`
	} `koanf:"serving"`

	Gateway struct {
		Upstream  string   `koanf:"upstream" doc:"https://host:port of the upstream server. The gateway serves that server's deployments and nothing else. Empty: this server is no gateway"`
		Name      string   `koanf:"name" doc:"Name of the gateway on the upstream server"`
		Project   string   `koanf:"project" doc:"Project whose deployments the gateway serves"`
		Zone      string   `koanf:"zone" doc:"Zone of the gateway, as in its manifest on the upstream server"`
		TokenFile string   `koanf:"token_file" doc:"File with a token of the upstream server with the scope gateway.pull; read for each request"`
		CA        string   `koanf:"ca" doc:"PEM bundle of trusted authorities for the upstream server. Empty: the system's"`
		Every     duration `koanf:"every" doc:"Interval at which the gateway synchronises with its upstream server: configuration, models, and predictions to hand over"`
		Alone     duration `koanf:"alone" doc:"How long the gateway keeps serving after losing contact with its server, such as 30d; 0 means for ever"`
	} `koanf:"gateway"`

	Retention struct {
		Outputs          duration `koanf:"outputs" doc:"Retention of the output, log and directory of an ended job, such as 7d, and at most retention.jobs"`
		Events           duration `koanf:"events" doc:"Retention of events for subscribers that catch up, such as 30d; events that a reaction has not processed are kept"`
		Tokens           duration `koanf:"tokens" doc:"How long revoked and expired tokens stay listed, such as 90d; 0 means for ever"`
		Windows          duration `koanf:"windows" doc:"Retention of monitoring windows, such as 400d"`
		Jobs             duration `koanf:"jobs" doc:"Retention of ended jobs, builds, queries and replicas, such as 400d; 0 means for ever. The record of a job that something cites, such as a run with results or a model, is kept"`
		Requests         duration `koanf:"requests" doc:"Retention of decided requests for approval, such as 400d; 0 means for ever. The audit log records requester and approver"`
		Ingestions       duration `koanf:"ingestions" doc:"Retention of ingestion runs, such as 400d; 0 means for ever. The newest run of each source is kept"`
		Materialisations duration `koanf:"materialisations" doc:"Retention of materialisation runs, such as 400d, and at least predictions.retention; 0 means for ever. The newest run of each view is kept"`
		Audit            duration `koanf:"audit" doc:"How long audit entries stay in the database, such as 400d, before they are archived in the object store, where they remain readable; 0 means for ever. Audit entries are never deleted"`
		DeletedRuns      duration `koanf:"deleted_runs" doc:"How long deleted runs, logged models and experiments can be restored, such as 90d, before they are pruned; 0 disables automatic pruning"`
	} `koanf:"retention"`

	Predictions struct {
		Retention duration `koanf:"retention" doc:"Retention of logged predictions, such as 90d; 0 means for ever"`
		MaxBytes  size     `koanf:"max_bytes" doc:"Maximum size of the prediction log; the oldest predictions are removed first"`
	} `koanf:"predictions"`

	Alerts struct {
		Hosts    []string `koanf:"hosts" doc:"Webhook hosts that may be on private networks or use plain HTTP, as host or host:port; all others must be public and use https"`
		Commands string   `koanf:"commands" doc:"Directory of the programs that alerts may run. Empty allows none"`
	} `koanf:"alerts"`

	Sources struct {
		Hosts     []string `koanf:"hosts" doc:"Hosts that datasets may be ingested from, as host or host:port. Empty allows none"`
		Files     []string `koanf:"files" doc:"Directories whose files datasets may be ingested from. Empty allows none"`
		ChunkRows int      `koanf:"chunk_rows" doc:"Rows per committed chunk of an ingestion; an interrupted ingestion resumes after the last chunk"`
	} `koanf:"sources"`

	Lineage struct {
		OpenLineage struct {
			URL       string `koanf:"url" doc:"OpenLineage endpoint that receives Falaj's run events, such as https://marquez.example/api/v1/lineage. Empty disables it"`
			TokenFile string `koanf:"token_file" doc:"File with the bearer token for the OpenLineage endpoint. Empty sends none"`
			Zone      string `koanf:"zone" doc:"Zone of the OpenLineage endpoint: it receives only events about data that is allowed in that zone"`
		} `koanf:"openlineage"`
	} `koanf:"lineage"`

	Limits struct {
		Upload     size     `koanf:"upload" doc:"Maximum size of an uploaded file"`
		Body       size     `koanf:"body" doc:"Maximum size of a JSON body"`
		Requests   size     `koanf:"requests" doc:"Memory limit of all requests together: bodies, decoded values and responses; one principal may use half. A request beyond it waits for 2s, then gets 429. Empty: a sixteenth of the memory of the machine or cgroup, from 256MiB to 768MiB"`
		Answer     size     `koanf:"answer" doc:"Maximum size of rows in one JSON response, such as an SQL query or a preview. Arrow Flight streams rows without this limit"`
		Checkpoint size     `koanf:"checkpoint" doc:"Maximum size of a job checkpoint that is stored"`
		Free       size     `koanf:"free" doc:"Free disk space below which the server refuses to start and rejects writes; 0 disables the reserve"`
		FreeFiles  int64    `koanf:"free_files" doc:"Free inodes below which the server refuses to start and rejects writes; 0 disables the reserve"`
		Garbage    size     `koanf:"garbage" doc:"Heap allocated between garbage collections, or the size of the live heap if that is larger. A larger value uses less CPU. With 0, or with GOGC in the environment, the Go default applies"`
		SQLMemory  size     `koanf:"sql_memory" doc:"Memory limit of an SQL query"`
		SQLDisk    size     `koanf:"sql_disk" doc:"Spill space of an SQL query in the data directory; queries over sealed tables spill only with encrypted_disk"`
		SQLTime    duration `koanf:"sql_time" doc:"Maximum duration of an SQL query"`

		Statements  int  `koanf:"sql_statements" doc:"Concurrent SQL statements of all projects; one project may use three quarters, one principal half"`
		Imports     int  `koanf:"imports" doc:"Concurrent imports of dataset versions of all projects; shared like limits.sql_statements"`
		Connections int  `koanf:"connections" doc:"Maximum open connections of all listeners, at most half of the open-file limit. 0 means half of that limit, but at most 16384"`
		BodyRate    size `koanf:"body_rate" doc:"Minimum average rate of a request body after the first 20 s, in bytes per second; slower bodies get 408. 0 disables the check"`
		Accounts    int  `koanf:"accounts" doc:"Maximum number of user accounts of the installation, and of service accounts of each project"`
		Tokens      int  `koanf:"tokens" doc:"Maximum number of active tokens of an account"`
		QueuedJobs  int  `koanf:"queued_jobs" doc:"Maximum number of pending and running jobs of a project; one principal may have half"`
	} `koanf:"limits"`

	Log struct {
		Level  string `koanf:"level" doc:"Log level: debug, info, warn or error"`
		Format string `koanf:"format" doc:"Log format: text or json. With json every line is an object, and the first administrator token is written to the file admin-token in the data directory"`
	} `koanf:"log"`
}

// TablesDir is where the files of open datasets are.
func (c Config) TablesDir() string {
	dir := cmp.Or(c.Tables.Dir, filepath.Join(c.Data, "tables"))
	if abs, err := filepath.Abs(dir); err == nil { // else the working directory is gone, and opening it says so
		return abs
	}
	return dir
}

// Kept is a duration that Validate has read.
func Kept(text duration) time.Duration {
	d, _ := resource.ParseDuration(text)
	return d
}

type (
	duration = string
	size     = string
)

// Defaults are the settings that have a default, by key.
func Defaults() map[string]any {
	return map[string]any{
		"data": "./data", "http": "127.0.0.1:7070", "grpc": "127.0.0.1:7071", "flight": "127.0.0.1:7072",
		"isolation":            "sandbox",
		"environments.timeout": "20m",
		"jobs.grow_after":      "10m",
		"jobs.disk.scratch":    "100GiB", "jobs.disk.output": "64GiB", "jobs.disk.checkpoints": "1TiB", "jobs.disk.files": 1_000_000, "jobs.disk.logs": "64MiB",
		"jobs.disk.project": "0", "jobs.disk.project_files": 0, "limits.free_files": 1000,
		"online.prefix":        "falaj:",
		"online.acknowledged":  synced,
		"online.layout":        falajLayout,
		"approvals.role_age":   "24h",
		"audit.verify":         "1h",
		"online.verify":        "1h",
		"online.verify_rows":   20_000_000,
		"online.rotate":        "90d",
		"online.history":       "0",
		"scheduler.policy":     "fifo",
		"cost.currency":        "AED",
		"images.max_bytes":     "64GiB",
		"sources.chunk_rows":   250_000,
		"serving.load_timeout": "2m",
		"gateway.zone":         "home",
		"gateway.alone":        "0",
		"gateway.every":        "10s",
		"retention.outputs":    "7d", "retention.events": "30d", "retention.tokens": "90d", "retention.windows": "400d", "retention.jobs": "400d",
		"retention.requests": "400d", "retention.ingestions": "400d", "retention.materialisations": "400d", "retention.audit": "0", "retention.deleted_runs": "0",
		"predictions.retention": "90d", "predictions.max_bytes": "10GiB", "lineage.openlineage.zone": "home",
		"limits.upload": "64GiB", "limits.body": "4MiB", "limits.answer": "32MiB", "limits.checkpoint": "1TiB", "limits.free": "64MiB", "limits.garbage": "32MiB",
		"limits.sql_statements": 4, "limits.imports": 4, "limits.connections": 0, "limits.body_rate": "4KiB", "limits.accounts": 10_000, "limits.tokens": 100, "limits.queued_jobs": 10_000,
		"limits.sql_memory": "2GiB", "limits.sql_disk": "16GiB", "limits.sql_time": "10m",
		"log.level": "info", "log.format": "text",
	}
}

// named are the settings that are entries by name.
var named = []entries{
	{"engines", "kind, url", engineKeys},
	{"serving.remotes", "url, protocol, zone", keysOf[Remote]("A remote")},
	{"identity.providers", "issuer, client_id", keysOf[Provider]("A provider")},
}

// Load reads the configuration. path may be empty; env is os.Environ();
// flags holds what was set on the command line, by dotted name.
func Load(path string, env []string, flags map[string]any) (Config, error) {
	k := koanf.New(".")
	_ = k.Load(confmap.Provider(Defaults(), "."), nil) // a map cannot fail
	if path != "" {
		if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return Config{}, fault.New(fault.Invalid, "configuration file %s does not exist", path)
			}
			return Config{}, fault.New(fault.Invalid, "configuration file %s: %v", path, err)
		}
	}
	known := knownKeys()
	fromEnv, err := variables(env)
	if err != nil {
		return Config{}, err
	}
	_ = k.Load(confmap.Provider(fromEnv, "."), nil)
	_ = k.Load(confmap.Provider(flags, "."), nil)
	for _, e := range named {
		if err := e.check(k.Cut(e.at).Raw()); err != nil {
			return Config{}, err
		}
	}
	if err := checkInProcessKeys(k.Get("serving.in_process")); err != nil {
		return Config{}, err
	}
	for _, key := range k.Keys() {
		if slices.ContainsFunc(named, func(e entries) bool { return strings.HasPrefix(key, e.at+".") }) {
			continue // checked above
		}
		if !slices.Contains(known, key) {
			return Config{}, fault.New(fault.Invalid, "configuration key %q does not exist%s", key, nearest(key, known)).
				WithHint("Run `falaj config show` for all keys.")
		}
	}
	var c Config
	if err := k.UnmarshalWithConf("", &c, koanf.UnmarshalConf{Tag: "koanf"}); err != nil {
		return Config{}, fault.New(fault.Invalid, "configuration: %v", err)
	}
	return c, c.Validate()
}

// notKeys are FALAJ_* variables that mean something to clients or jobs.
var notKeys = []string{"FALAJ_URL", "FALAJ_TOKEN", "FALAJ_PROJECT", "FALAJ_CONTEXT", "FALAJ_CONFIG", "FALAJ_ORT_LIB", "FALAJ_JOB", "FALAJ_ATTEMPT"}

func variables(env []string) (map[string]any, error) {
	lists := map[string]bool{} // they have commas between values
	byVar := map[string]string{}
	for _, f := range fields(Config{}) {
		_, lists[f.key] = f.value.([]string)
		if f.variable() != "" {
			byVar[f.variable()] = f.key
		}
	}
	byVar["FALAJ_ORT_LIB"] = "serving.ort_lib"
	out := map[string]any{}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "FALAJ_") {
			continue
		}
		key, ok := byVar[name]
		switch {
		case ok && lists[key]:
			out[key] = strings.Split(value, ",")
		case ok:
			out[key] = value
		case !slices.Contains(notKeys, name):
			return nil, fault.New(fault.Invalid, "environment variable %s does not match any setting", name).
				WithHint("Unset it, or run `falaj config show` for the keys.")
		}
	}
	return out, nil
}

// Validate says what is wrong with the values, before anything is opened.
func (c Config) Validate() error {
	for name, addr := range map[string]string{"http": c.HTTP, "grpc": c.GRPC, "flight": c.Flight} {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return fault.New(fault.Invalid, "%s: %q is not host:port", name, addr)
		}
		if !isLoopback(host) && (c.TLS.Cert == "" || c.TLS.Key == "") {
			return fault.New(fault.Invalid, "%s: %s is not a loopback address, which requires TLS", name, addr).
				WithHint("Set tls.cert and tls.key, or listen on 127.0.0.1.")
		}
	}
	for i, addr := range c.Environments.Hosts {
		if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || port == "" {
			return fault.New(fault.Invalid, "environments.hosts[%d]: %q is not host:port", i, addr).
				WithHint("Write host:port, such as index.example:443, or leave environments.hosts unset.")
		}
	}
	for _, text := range c.HTTPProxies {
		if _, err := network(text); err != nil {
			return fault.New(fault.Invalid, "http_proxies: %q is neither an IP address nor a network such as 10.0.0.0/8", text)
		}
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		return fault.New(fault.Invalid, "tls.cert and tls.key must be set together")
	}
	if a := c.Online.Acknowledged; a != synced && a != inMemory {
		return fault.New(fault.Invalid, "online.acknowledged: %q is neither %s nor %s", a, synced, inMemory)
	}
	if d, err := time.ParseDuration(c.Audit.Verify); err != nil || d < time.Minute {
		return fault.New(fault.Invalid, "audit.verify: %q is not a duration of at least 1m", c.Audit.Verify)
	}
	if d, err := resource.ParseDuration(c.Approvals.RoleAge); err != nil || d <= 0 {
		return fault.New(fault.Invalid, "approvals.role_age: %q is not a duration above 0, such as 24h", c.Approvals.RoleAge)
	}
	if u, err := url.Parse(c.Audit.Alert); err != nil || c.Audit.Alert != "" && (u.Host == "" || u.Scheme != "https" && u.Scheme != "http") {
		return fault.New(fault.Invalid, "audit.alert: %q is not an http or https URL", c.Audit.Alert)
	}
	if d, err := time.ParseDuration(c.Online.Verify); err != nil || d != 0 && d < time.Minute {
		return fault.New(fault.Invalid, "online.verify: %q is neither 0 nor a duration of at least 1m, such as 1h", c.Online.Verify)
	}
	for name, v := range map[string]string{"online.rotate": c.Online.Rotate, "online.history": c.Online.History} {
		if d, err := resource.ParseDuration(v); err != nil || d != 0 && d < time.Hour {
			return fault.New(fault.Invalid, "%s: %q is neither 0 nor a duration of at least 1h, such as 90d", name, v)
		}
	}
	for name, n := range map[string]int{"sql_statements": c.Limits.Statements, "imports": c.Limits.Imports, "accounts": c.Limits.Accounts, "tokens": c.Limits.Tokens, "queued_jobs": c.Limits.QueuedJobs} {
		if n < 1 {
			return fault.New(fault.Invalid, "limits.%s: %d is not above 0", name, n)
		}
	}
	if n := c.Limits.Connections; n < 0 {
		return fault.New(fault.Invalid, "limits.connections: %d is below 0", n)
	}
	if c.Online.VerifyRows < 1 {
		return fault.New(fault.Invalid, "online.verify_rows: %d is not above 0", c.Online.VerifyRows)
	}
	if l := c.Online.Layout; l != falajLayout && l != feastLayout {
		return fault.New(fault.Invalid, "online.layout: %q is neither %s nor %s", l, falajLayout, feastLayout)
	}
	if c.Online.Layout == feastLayout && c.Online.URL == "" {
		return fault.New(fault.Invalid, "online.layout: %s is a layout of Redis", feastLayout).WithHint("Set online.url.")
	}
	if n := len(c.Online.Prefix); n == 0 || n > 64 {
		return fault.New(fault.Invalid, "online.prefix: it has %d bytes, and needs 1 to 64", n)
	}
	if p := scheduler.Policy(c.Scheduler.Policy); !slices.Contains(scheduler.Policies, p) {
		return fault.New(fault.Invalid, "scheduler.policy: %q must be one of %q", c.Scheduler.Policy, scheduler.Policies)
	}
	if err := cost.Currency(c.Cost.Currency); err != nil {
		return fault.Wrap(err, "cost.currency")
	}
	if level, err := sandbox.ParseLevel(c.Isolation); err != nil || level != sandbox.Sandbox && level != sandbox.Process {
		return fault.New(fault.Invalid, "isolation: %q is neither sandbox nor process", c.Isolation)
	}
	if err := environment.CheckIndex(c.Environments.Index); err != nil {
		return fault.Wrap(err, "environments.index")
	}
	if _, err := PackageIndexes(c.Environments.Indexes); err != nil {
		return fault.Wrap(err, "environments.indexes")
	}
	for name, v := range map[string]string{"environments.timeout": c.Environments.Timeout, "limits.sql_time": c.Limits.SQLTime, "serving.load_timeout": c.Serving.LoadTime} {
		if d, err := time.ParseDuration(v); err != nil || d <= 0 {
			return fault.New(fault.Invalid, "%s: %q is not a duration such as 10m", name, v)
		}
	}
	if d, err := time.ParseDuration(c.Jobs.GrowAfter); err != nil || d < 0 {
		return fault.New(fault.Invalid, "jobs.grow_after: %q is not a duration such as 10m", c.Jobs.GrowAfter)
	}
	for name, r := range map[string]struct {
		value   string
		least   time.Duration
		forever bool
	}{
		"outputs": {c.Retention.Outputs, 10 * time.Minute, false}, "events": {c.Retention.Events, time.Hour, false},
		"tokens": {c.Retention.Tokens, time.Hour, true}, "windows": {c.Retention.Windows, 24 * time.Hour, false},
		"deleted_runs": {c.Retention.DeletedRuns, time.Hour, true}, "jobs": {c.Retention.Jobs, 24 * time.Hour, true},
		"requests": {c.Retention.Requests, 30 * 24 * time.Hour, true}, "ingestions": {c.Retention.Ingestions, 24 * time.Hour, true},
		"materialisations": {c.Retention.Materialisations, 24 * time.Hour, true}, "audit": {c.Retention.Audit, 24 * time.Hour, true},
	} {
		d, err := resource.ParseDuration(r.value)
		if err == nil && (d >= r.least || d == 0 && r.forever) {
			continue
		}
		if r.forever {
			return fault.New(fault.Invalid, "retention.%s: %q is neither 0 nor a duration of at least %s", name, r.value, r.least)
		}
		return fault.New(fault.Invalid, "retention.%s: %q is not a duration of at least %s", name, r.value, r.least)
	}
	if outputs, jobs := Kept(c.Retention.Outputs), Kept(c.Retention.Jobs); jobs > 0 && outputs > jobs {
		return fault.New(fault.Invalid, "retention.outputs: the outputs of a job are kept for %s, longer than its record, which retention.jobs keeps for %s", c.Retention.Outputs, c.Retention.Jobs).
			WithHint("Set retention.outputs to at most retention.jobs.")
	}
	if _, err := resource.ParseDuration(c.Predictions.Retention); err != nil {
		return fault.Wrap(err, "predictions.retention")
	}
	if err := openlineage.CheckURL(c.Lineage.OpenLineage.URL); err != nil {
		return fault.Wrap(err, "lineage.openlineage.url")
	}
	for name, n := range map[string]int64{"limits.free_files": c.Limits.FreeFiles, "jobs.disk.project_files": c.Jobs.Disk.ProjectFiles, "jobs.disk.files": c.Jobs.Disk.Files - 1} {
		if n < 0 {
			return fault.New(fault.Invalid, "%s is too small: it is a number of files", name)
		}
	}
	if c.Sources.ChunkRows < 1 {
		return fault.New(fault.Invalid, "sources.chunk_rows: %d is not a number of rows", c.Sources.ChunkRows)
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level) {
		return fault.New(fault.Invalid, "log.level: %q must be debug, info, warn or error", c.Log.Level)
	}
	if c.Log.Format != "text" && c.Log.Format != "json" {
		return fault.New(fault.Invalid, "log.format: %q is neither text nor json", c.Log.Format)
	}
	if err := c.validateStores(); err != nil {
		return err
	}
	if err := c.validateObjects(); err != nil {
		return fault.Wrap(err, "blob.s3")
	}
	if err := errors.Join(c.validateEngines(), c.validateRemotes(), c.validateInProcess(), c.validateGateway(), c.validateIdentity()); err != nil {
		return err
	}
	return c.sizes()
}

// validateStores looks at the database and the online store, without asking them.
func (c Config) validateStores() error {
	if err := store.CheckURL(c.StoreURL()); err != nil {
		return fault.Wrap(err, "store.url")
	}
	if c.Online.URL != "" {
		if err := redis.CheckURL(c.Online.URL); err != nil {
			return fault.Wrap(err, "online.url")
		}
	}
	for name, s := range map[string]struct{ url, file string }{
		"store": {c.Store.URL, c.Store.PasswordFile}, "online": {c.Online.URL, c.Online.PasswordFile},
	} {
		switch {
		case s.file == "":
		case s.url == "" || strings.HasPrefix(s.url, "sqlite:"):
			return fault.New(fault.Invalid, "%s.password_file: %s.url has no server with passwords", name, name)
		case hasPassword(s.url):
			return fault.New(fault.Invalid, "%s.password_file: %s.url has a password, too", name, name).WithHint("Remove it from the URL.")
		}
	}
	if c.Online.CA != "" && !strings.HasPrefix(c.Online.URL, "rediss:") {
		return fault.New(fault.Invalid, "online.ca: online.url is not rediss://")
	}
	return nil
}

// hasPassword reports a URL that holds one.
func hasPassword(text string) bool {
	u, err := url.Parse(text)
	if err != nil {
		return false
	}
	_, set := u.User.Password()
	return set || u.Query().Has("password")
}

// PasswordsInURLs are the settings that hold a password where the environment, the process
// list and the configuration show it.
func (c Config) PasswordsInURLs() []string {
	var names []string
	for _, s := range []struct{ name, url string }{{"store", c.Store.URL}, {"online", c.Online.URL}} {
		if hasPassword(s.url) {
			names = append(names, s.name)
		}
	}
	return names
}

// MoveHint says how to move a password out of a URL.
const MoveHint = "Move it to a file that only the server can read, and set %s.password_file; the file is reloaded when it changes. A later release rejects passwords in URLs."

// StoreURL is the database to open.
func (c Config) StoreURL() string {
	if c.Store.URL != "" {
		return c.Store.URL
	}
	return "sqlite://" + filepath.Join(c.Data, "falaj.db")
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// Show renders the configuration in force, one key a line with its meaning.
func (c Config) Show() string {
	var b strings.Builder
	for _, f := range fields(c) {
		fmt.Fprintf(&b, "%-26s %-34s %s\n", f.key, f.text(), f.doc)
	}
	return b.String()
}

// Proxies are the networks of http_proxies; Validate has read them once.
func (c Config) Proxies() []netip.Prefix {
	var out []netip.Prefix
	for _, text := range c.HTTPProxies {
		if p, err := network(text); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// network reads a network, or an address as the network of it alone.
func network(text string) (netip.Prefix, error) {
	if ip, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	return p.Masked(), err
}

// JSONLog reports whether programs read the log.
func (c Config) JSONLog() bool { return c.Log.Format == "json" }
