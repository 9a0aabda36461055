package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
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
	Data        string   `koanf:"data" doc:"Directory of everything that Falaj keeps"`
	HTTP        string   `koanf:"http" doc:"Address of the HTTP listener"`
	GRPC        string   `koanf:"grpc" doc:"Address of the gRPC listener"`
	Flight      string   `koanf:"flight" doc:"Address of the Arrow Flight listener"`
	HTTPProxies []string `koanf:"http_proxies" doc:"Reverse proxies (IP addresses, or networks such as 10.0.0.0/8) whose X-Forwarded-For is trusted for the client's address in the audit log; empty trusts none"`
	HTTPHosts   []string `koanf:"http_hosts" doc:"Host names under which clients reach the HTTP listener, beside localhost"`

	EncryptedDisk bool `koanf:"encrypted_disk" doc:"The data directory is on an encrypted disk, such as LUKS: SQL over sealed tables may put there in the clear, for a while, what its memory cannot hold"`

	TLS struct {
		Cert string `koanf:"cert" doc:"PEM certificate chain; needed off loopback"`
		Key  string `koanf:"key" doc:"PEM private key"`
	} `koanf:"tls"`

	Store struct {
		URL          string `koanf:"url" doc:"sqlite:///path or postgres://user@host/database; empty is SQLite in the data directory. Another host needs TLS: ?sslmode=verify-full"`
		PasswordFile string `koanf:"password_file" doc:"File that holds the password of PostgreSQL; it is read again when it changes"`
	} `koanf:"store"`

	Blob struct {
		S3 struct {
			Endpoint    string `koanf:"endpoint" doc:"Where the objects are kept in a bucket: https://host[:port] of what speaks S3; empty is in the data directory"`
			Bucket      string `koanf:"bucket" doc:"Its bucket, which keeps no older versions"`
			Prefix      string `koanf:"prefix" doc:"What the names in it begin with; installations that share a bucket have different ones"`
			Region      string `koanf:"region" doc:"The bucket's region; empty is what the endpoint's name says, else us-east-1"`
			Zone        string `koanf:"zone" doc:"The zone that the bucket is in: home, because every object may be there"`
			Credentials string `koanf:"credentials" doc:"File with the lines access_key = … and secret_key = …; it is read again when it changes"`
			CA          string `koanf:"ca" doc:"PEM bundle that is trusted for the endpoint; empty is the system's"`
		} `koanf:"s3"`
	} `koanf:"blob"`

	Tables struct {
		Dir string `koanf:"dir" doc:"Directory of the files of open datasets, where other engines read them; empty is tables in the data directory"`
	} `koanf:"tables"`

	Online struct {
		URL          string   `koanf:"url" doc:"Store of online features: redis://…, rediss://… with TLS, or unix:///path; empty is in the data directory"`
		PasswordFile string   `koanf:"password_file" doc:"File that holds the password of Redis; it is read again when it changes"`
		CA           string   `koanf:"ca" doc:"PEM bundle that is trusted for Redis; empty is the system's"`
		Prefix       string   `koanf:"prefix" doc:"What the keys in it begin with; installations that share a server have different ones"`
		Acknowledged string   `koanf:"acknowledged" doc:"What Redis must have done with a write that is acknowledged: synced (appendonly yes, appendfsync always), or in-memory, of which a loss of power takes the last along"`
		Verify       duration `koanf:"verify" doc:"How often some of each view's online rows are compared with what they were made from; 0 never does"`
		Rotate       duration `koanf:"rotate" doc:"Age at which the subkey of a view's rows in the data directory is followed by the next, such as 90d; 0 never is"`
		History      duration `koanf:"history" doc:"How long reads as of a past time go back, such as 30d: rows in the data directory that answer no later one are removed; 0 keeps all"`
		VerifyRows   int64    `koanf:"verify_rows" doc:"Rows of a view's source; one with more is not compared"`
		Layout       string   `koanf:"layout" doc:"feast keeps copies of public and internal features in Feast's layout of Redis, too, in the clear, where an unmodified Feast SDK reads them; falaj keeps none"`
	} `koanf:"online"`

	Keys struct {
		PassphraseFile string `koanf:"passphrase_file" doc:"File whose content seals the master key"`
	} `koanf:"keys"`

	Audit struct {
		Checkpoints string   `koanf:"checkpoints" doc:"Second place for audit checkpoints: a file, best on another disk; empty is in the data directory"`
		Alert       string   `koanf:"alert" doc:"URL that receives a CloudEvent by POST when the audit log is not what was signed, or the server's certificate ends soon; empty: these are events, metrics and in the server's log only"`
		Verify      duration `koanf:"verify" doc:"How long a verification of every entry of the audit log in the background may take, such as 1h"`
	} `koanf:"audit"`

	Approvals struct {
		RoleAge duration `koanf:"role_age" doc:"How long before a request the second of two people must have had their role, such as 24h; roles given on the installation's first day count at once"`
	} `koanf:"approvals"`

	Erasures struct {
		Ledger string `koanf:"ledger" doc:"File of the erasure ledger, best on another disk and not in the backups of the data directory: by it persons who were erased are erased again after a restore; empty is in the data directory"`
	} `koanf:"erasures"`

	Backup struct {
		Dir string `koanf:"dir" doc:"Directory in which a running server makes its backups, best on another disk; empty makes none"`
	} `koanf:"backup"`

	Worker struct {
		Path string `koanf:"path" doc:"The falaj-worker binary; empty is beside falaj"`
	} `koanf:"worker"`

	Isolation string `koanf:"isolation" doc:"Least isolation of user code on the home pool: sandbox, or process where the kernel forbids sandboxes"`

	Engines map[string]EngineConfig `koanf:"engines" doc:"Engines beside local, by name: kind (slurm, kube or ray), url and more; in the file only"`

	Scheduler struct {
		Policy string `koanf:"policy" doc:"Who comes first: fifo, by priority, then the earlier; fair, of the queue that has least of its share; tiresias, who had less than 16 accelerator-hours; or goodput, as fifo, and elastic jobs get as many workers as pay"`
	} `koanf:"scheduler"`

	Cost struct {
		Currency string `koanf:"currency" doc:"What all amounts of money are in, as ISO 4217 names it; nothing is converted"`
	} `koanf:"cost"`

	Jobs struct {
		Network []string `koanf:"network" doc:"host:port that jobs may ask to reach; empty is none"`
		Disk    struct {
			Scratch      size  `koanf:"scratch" doc:"What a job keeps at most in its working directory and FALAJ_SCRATCH_DIR, unless its spec.disk says otherwise"`
			Output       size  `koanf:"output" doc:"What a job keeps at most in FALAJ_OUTPUT_DIR, unless its spec.disk says otherwise"`
			Checkpoints  size  `koanf:"checkpoints" doc:"What a job keeps at most in FALAJ_CHECKPOINT_DIR, unless its spec.disk says otherwise"`
			Files        int64 `koanf:"files" doc:"Files and directories that a job keeps at most in all of these, unless its spec.disk says otherwise"`
			Logs         size  `koanf:"logs" doc:"What is kept of the output of a job's attempt: its beginning and its end"`
			Project      size  `koanf:"project" doc:"What the running jobs of a project keep on the server's disk together, and the most that spec.disk may ask for; 0 is no limit"`
			ProjectFiles int64 `koanf:"project_files" doc:"Files and directories that the running jobs of a project keep together, and the most that spec.disk may ask for; 0 is no limit"`
		} `koanf:"disk"`
		GrowAfter duration `koanf:"grow_after" doc:"How long a job with workers {min, max} has run, and its pool has had room, before it goes on with more workers; 0 never does"`
	} `koanf:"jobs"`

	Environments struct {
		UV      string   `koanf:"uv" doc:"The uv binary; empty is beside falaj or on the PATH"`
		Index   string   `koanf:"index" doc:"Package index URL; empty is what lib/package-index.json says"`
		Indexes []string `koanf:"indexes" doc:"Further package indexes that environments may name, as name=URL, such as torch-cpu=https://download.pytorch.org/whl/cpu; builds that name one may reach its host"`
		Hosts   []string `koanf:"hosts" doc:"host:port that environment builds may reach; empty is what lib/package-index.json says"`
		CA      string   `koanf:"ca" doc:"PEM bundle that environment builds trust; empty is the system's"`
		Timeout duration `koanf:"timeout" doc:"Longest build"`

		Interpreters []string `koanf:"interpreters" doc:"Pythons that environments may be built on, besides those on the PATH: absolute paths"`
	} `koanf:"environments"`

	Images struct {
		Registries []string `koanf:"registries" doc:"host or host:port of the registries that OCI images may come from; empty is none"`
		Insecure   []string `koanf:"insecure" doc:"Those of them that speak plain HTTP"`
		CA         string   `koanf:"ca" doc:"PEM bundle that is trusted for registries beside the system's"`
		Auth       string   `koanf:"auth" doc:"Credentials of registries, in the format of Docker's config.json"`
		MaxBytes   size     `koanf:"max_bytes" doc:"Largest unpacked image"`
	} `koanf:"images"`

	Serving struct {
		ORT      string   `koanf:"ort_lib" doc:"ONNX Runtime library; empty is lib/ beside the binary"`
		Memory   size     `koanf:"memory" doc:"What runs of models in the server's process may take together, beside the models; a run beyond fails. Empty is half of the machine's memory"`
		Process  size     `koanf:"process_memory" doc:"The most that the process of one model may have, whatever its manifest asks; empty is what manifests ask, or by the model's size"`
		LoadTime duration `koanf:"load_timeout" doc:"How long it may take to read a model, and to load it"`
		// InProcess is empty by default: then no model runs in the server's process.
		InProcess []InProcessConfig `koanf:"in_process" doc:"Models that may run in the server's process: a list of entries, each with project, model or signer (key_id of the version), or several of them; in the file only. Such a model can read the server's memory and end the server. Empty: every model has a process of its own"`

		Remotes map[string]RemoteConfig `koanf:"remotes" doc:"Servers that run models for this one, by name: url, protocol (oip-grpc or oip-http), zone and more; in the file only"`
	} `koanf:"serving"`

	Gateway struct {
		Upstream  string   `koanf:"upstream" doc:"https://host:port of the server whose gateway this one is: it answers with that server's models, and has nothing else; empty: it is none"`
		Name      string   `koanf:"name" doc:"What the gateway is called there"`
		Project   string   `koanf:"project" doc:"Project whose deployments it answers for"`
		Zone      string   `koanf:"zone" doc:"Zone in which the gateway stands, as its manifest there says"`
		TokenFile string   `koanf:"token_file" doc:"File with a token of that server with the scope gateway.pull; read for each request"`
		CA        string   `koanf:"ca" doc:"PEM bundle that is trusted for that server; empty is the system's"`
		Every     duration `koanf:"every" doc:"How often the gateway asks what it should serve, and hands back what it answered"`
		Alone     duration `koanf:"alone" doc:"How long it goes on answering without having heard of that server, such as 30d; 0 is for ever"`
	} `koanf:"gateway"`

	Retention struct {
		Outputs          duration `koanf:"outputs" doc:"How long the output, the log and the directory of an ended job are kept, such as 7d"`
		Events           duration `koanf:"events" doc:"How long events are kept for listeners that come back, such as 30d; those that a reaction has not seen stay"`
		Tokens           duration `koanf:"tokens" doc:"How long a token is listed after it was revoked or expired, such as 90d; 0 is for ever"`
		Windows          duration `koanf:"windows" doc:"How long the windows of monitors are kept, such as 400d"`
		Jobs             duration `koanf:"jobs" doc:"How long jobs are kept once they have ended, and builds, queries and replicas, such as 400d; 0 is for ever. Of jobs that something cites, such as a run with results or a model, the record stays"`
		Requests         duration `koanf:"requests" doc:"How long requests that took two people are listed, such as 400d; 0 is for ever. The audit log has who requested and decided what"`
		Ingestions       duration `koanf:"ingestions" doc:"How long runs of sources are listed, such as 400d; 0 is for ever. The newest of each source stays"`
		Materialisations duration `koanf:"materialisations" doc:"How long materialisations are listed, such as 400d, and at least as long as predictions; 0 is for ever. The newest of each view stays"`
		DeletedRuns      duration `koanf:"deleted_runs" doc:"How long after they were deleted runs, logged models and experiments can be restored, such as 90d; then they are pruned. 0 prunes nothing unasked"`
	} `koanf:"retention"`

	Predictions struct {
		Retention duration `koanf:"retention" doc:"How long predictions are kept after they were made, such as 90d; 0 is for ever"`
		MaxBytes  size     `koanf:"max_bytes" doc:"Space that the log of predictions may take; the oldest go first"`
	} `koanf:"predictions"`

	Alerts struct {
		Hosts    []string `koanf:"hosts" doc:"host or host:port that webhooks may reach wherever they are, also by plain HTTP; others must be public and https"`
		Commands string   `koanf:"commands" doc:"Directory of the programs that alerts may run; empty is none"`
	} `koanf:"alerts"`

	Sources struct {
		Hosts     []string `koanf:"hosts" doc:"host or host:port that datasets may be ingested from; empty is none"`
		Files     []string `koanf:"files" doc:"Directories whose files datasets may be ingested from; empty is none"`
		ChunkRows int      `koanf:"chunk_rows" doc:"Rows after which an ingestion that is interrupted need not begin again"`
	} `koanf:"sources"`

	Lineage struct {
		OpenLineage struct {
			URL       string `koanf:"url" doc:"Endpoint that is told of Falaj's own runs as OpenLineage events, such as https://marquez.example/api/v1/lineage; empty tells nobody"`
			TokenFile string `koanf:"token_file" doc:"File with the bearer token for it; empty sends none"`
			Zone      string `koanf:"zone" doc:"Zone in which it stands: it is told only of data that may be there"`
		} `koanf:"openlineage"`
	} `koanf:"lineage"`

	Limits struct {
		Upload     size     `koanf:"upload" doc:"Largest uploaded file"`
		Body       size     `koanf:"body" doc:"Largest JSON body"`
		Requests   size     `koanf:"requests" doc:"Memory for the bodies, the decoded forms and the answers of all requests together; half of it for one principal. A request beyond it waits for 2s and is then refused. Empty is a sixteenth of the memory of the machine or cgroup, from 256MiB to 768MiB"`
		Answer     size     `koanf:"answer" doc:"Largest answer of rows as one JSON document, such as of an SQL query or a preview; a larger one is refused. Arrow Flight streams rows without this limit"`
		Checkpoint size     `koanf:"checkpoint" doc:"Largest checkpoint of a job that is kept"`
		Free       size     `koanf:"free" doc:"Free disk space below which the server does not start and accepts nothing new; 0 keeps no reserve"`
		FreeFiles  int64    `koanf:"free_files" doc:"Free inodes of that disk below which the server does not start and accepts nothing new; 0 keeps no reserve"`
		Garbage    size     `koanf:"garbage" doc:"Memory that the server may fill anew before it looks for what it needs no more; more of it costs less CPU. It may be as much as there is in use in any case. 0, or GOGC in the environment, leaves it to Go"`
		SQLMemory  size     `koanf:"sql_memory" doc:"Memory of one SQL query"`
		SQLDisk    size     `koanf:"sql_disk" doc:"Space in the data directory for what one SQL query cannot hold in memory; queries over sealed tables get it only with encrypted_disk"`
		SQLTime    duration `koanf:"sql_time" doc:"Longest SQL query"`

		Statements  int  `koanf:"sql_statements" doc:"SQL statements at a time, of all projects; a project has at most three quarters of them, a principal half"`
		Imports     int  `koanf:"imports" doc:"Imports of dataset versions at a time, of all projects; shared as limits.sql_statements"`
		Connections int  `koanf:"connections" doc:"Open connections of all listeners; 0 is half of the files that the server may open, at most 16384. More than half of the files cannot be had"`
		BodyRate    size `koanf:"body_rate" doc:"Bytes a second that the body of a request must bring, on the average beyond the first 20 s; 0 lets it take its time"`
		Accounts    int  `koanf:"accounts" doc:"Accounts: users of the installation, and service accounts of one project each have so many"`
		Tokens      int  `koanf:"tokens" doc:"Live tokens of one account"`
		QueuedJobs  int  `koanf:"queued_jobs" doc:"Jobs of one project that have not ended; one principal has at most half of them"`
	} `koanf:"limits"`

	Log struct {
		Level  string `koanf:"level" doc:"debug, info, warn or error"`
		Format string `koanf:"format" doc:"text or json. With json every line is an object, and the first administrator's token is in the file admin-token of the data directory"`
	} `koanf:"log"`
}

// tablesDir is where the files of open datasets are.
func (c Config) tablesDir() string {
	dir := cmp.Or(c.Tables.Dir, filepath.Join(c.Data, "tables"))
	if abs, err := filepath.Abs(dir); err == nil { // else the working directory is gone, and opening it says so
		return abs
	}
	return dir
}

// kept is a duration that Validate has read.
func kept(text duration) time.Duration {
	d, _ := resource.ParseDuration(text)
	return d
}

type (
	duration = string
	size     = string
)

func defaults() map[string]any {
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
		"retention.requests": "400d", "retention.ingestions": "400d", "retention.materialisations": "400d", "retention.deleted_runs": "0",
		"predictions.retention": "90d", "predictions.max_bytes": "10GiB", "lineage.openlineage.zone": "home",
		"limits.upload": "64GiB", "limits.body": "4MiB", "limits.answer": "32MiB", "limits.checkpoint": "1TiB", "limits.free": "64MiB", "limits.garbage": "32MiB",
		"limits.sql_statements": 4, "limits.imports": 4, "limits.connections": 0, "limits.body_rate": "4KiB", "limits.accounts": 10_000, "limits.tokens": 100, "limits.queued_jobs": 10_000,
		"limits.sql_memory": "2GiB", "limits.sql_disk": "16GiB", "limits.sql_time": "10m",
		"log.level": "info", "log.format": "text",
	}
}

// LoadConfig reads the configuration. path may be empty; env is os.Environ();
// flags holds what was set on the command line, by dotted name.
func LoadConfig(path string, env []string, flags map[string]any) (Config, error) {
	k := koanf.New(".")
	_ = k.Load(confmap.Provider(defaults(), "."), nil) // a map cannot fail
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
	if err := checkEngineKeys(k.Cut("engines").Raw()); err != nil {
		return Config{}, err
	}
	if err := checkRemoteKeys(k.Cut("serving.remotes").Raw()); err != nil {
		return Config{}, err
	}
	if err := checkInProcessKeys(k.Get("serving.in_process")); err != nil {
		return Config{}, err
	}
	for _, key := range k.Keys() {
		if strings.HasPrefix(key, "engines.") || strings.HasPrefix(key, "serving.remotes.") {
			continue // looked at above
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
			return nil, fault.New(fault.Invalid, "environment variable %s sets nothing", name).
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
			return fault.New(fault.Invalid, "%s: %s is not a loopback address, and there TLS is needed", name, addr).
				WithHint("Set tls.cert and tls.key, or listen on 127.0.0.1.")
		}
	}
	for _, text := range c.HTTPProxies {
		if _, err := network(text); err != nil {
			return fault.New(fault.Invalid, "http_proxies: %q is neither an IP address nor a network such as 10.0.0.0/8", text)
		}
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		return fault.New(fault.Invalid, "tls.cert and tls.key belong together")
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
		return fault.New(fault.Invalid, "scheduler.policy: %q is none of %q", c.Scheduler.Policy, scheduler.Policies)
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
	if _, err := packageIndexes(c.Environments.Indexes); err != nil {
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
		"materialisations": {c.Retention.Materialisations, 24 * time.Hour, true},
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
		return fault.New(fault.Invalid, "log.level: %q is none of debug, info, warn, error", c.Log.Level)
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
	if err := errors.Join(c.validateEngines(), c.validateRemotes(), c.validateInProcess(), c.validateGateway()); err != nil {
		return err
	}
	return c.sizes()
}

// validateStores looks at the database and the online store, without asking them.
func (c Config) validateStores() error {
	if err := store.CheckURL(c.storeURL()); err != nil {
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
			return fault.New(fault.Invalid, "%s.password_file: %s.url names no server that takes a password", name, name)
		case hasPassword(s.url):
			return fault.New(fault.Invalid, "%s.password_file: %s.url has a password, too", name, name).WithHint("Take it out of the URL.")
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

// passwordsInURLs are the settings that hold a password where the environment, the process
// list and the configuration show it.
func (c Config) passwordsInURLs() []string {
	var names []string
	for _, s := range []struct{ name, url string }{{"store", c.Store.URL}, {"online", c.Online.URL}} {
		if hasPassword(s.url) {
			names = append(names, s.name)
		}
	}
	return names
}

const moveHint = "Put it into a file that only the server may read, and name that by %s.password_file: it is read again when it changes. A later release refuses a password in a URL."

// warnOfURLs logs what of the configuration a later release refuses.
func (a *App) warnOfURLs(ctx context.Context) {
	for _, name := range a.cfg.passwordsInURLs() {
		a.log.WarnContext(ctx, "the configuration has a password in a URL", slog.String("setting", name+".url"), slog.String("hint", fmt.Sprintf(moveHint, name)))
	}
}

// storeURL is the database to open.
func (c Config) storeURL() string {
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

// proxies are the networks of http_proxies; Validate has read them once.
func (c Config) proxies() []netip.Prefix {
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
