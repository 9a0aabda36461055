package config

import (
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
)

// Engine is an engine beside "local", which is always there. Which of the
// settings below the line an engine has, engineKinds says.
type Engine struct {
	Kind  string   `koanf:"kind"`  // slurm, kube or ray
	URL   string   `koanf:"url"`   // where its nodes reach this server; empty is the HTTP listener's own address
	CA    string   `koanf:"ca"`    // PEM file that the nodes trust; empty is what they trust anyway
	Lease duration `koanf:"lease"` // how long a worker goes on without this server; empty is 5m

	Bin         string            `koanf:"bin"`          // directory of Slurm's commands; empty is the usual ones
	Conf        string            `koanf:"conf"`         // slurm.conf; empty is Slurm's default
	Users       map[string]string `koanf:"users"`        // project → Unix user whose jobs Slurm makes
	DefaultUser string            `koanf:"default_user"` // of the other projects
	Worker      string            `koanf:"worker"`       // falaj-worker on the nodes; empty is the path that it has here, and on Ray the one here is sent
	Kubeconfig  string            `koanf:"kubeconfig"`   // empty is what a pod is given
	Context     string            `koanf:"context"`      // of the kubeconfig; empty is its current one
	Namespace   string            `koanf:"namespace"`    // empty is the context's
	WorkerImage string            `koanf:"worker_image"` // that has falaj-worker at /falaj-worker
	Address     string            `koanf:"address"`      // of Ray's Jobs API: http://head:8265
	TokenFile   string            `koanf:"token_file"`   // of Ray's Jobs API
}

// engineKinds has the settings of each kind of engine beside kind, url, ca and
// lease.
var engineKinds = map[string][]string{
	"slurm": {"bin", "conf", "users", "default_user", "worker"},
	"kube":  {"kubeconfig", "context", "namespace", "worker_image"},
	"ray":   {"address", "token_file", "worker"},
}

var everyEngine = []string{"kind", "url", "ca", "lease"}

// engineKeys are the settings of an engine, by its kind.
func engineKeys(at string, settings map[string]any) (known []string, called string, err error) {
	kind, _ := settings["kind"].(string)
	if _, ok := engineKinds[kind]; !ok {
		return nil, "", fault.New(fault.Invalid, "%s.kind: %.40q must be one of %s%s", at, kind,
			strings.Join(slices.Sorted(maps.Keys(engineKinds)), ", "), nearest(kind, slices.Collect(maps.Keys(engineKinds))))
	}
	return slices.Concat(everyEngine, engineKinds[kind]), "An engine of kind " + kind, nil
}

// validateEngines says what is wrong with the values.
func (c Config) validateEngines() error {
	for name, e := range c.Engines {
		if err := id.CheckName("engine name", name); err != nil {
			return err
		}
		if name == "local" {
			return fault.New(fault.Invalid, "engines: local is always there and has no settings")
		}
		if e.URL != "" {
			u, err := url.Parse(e.URL)
			if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || strings.Trim(u.Path, "/") != "" ||
				u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())) {
				return fault.New(fault.Invalid, "engines.%s.url: %.100q is not https://host:port", name, e.URL).
					WithHint("Use https. Plain HTTP is permitted only for loopback addresses.")
			}
		}
		if e.Lease != "" {
			if d, err := time.ParseDuration(e.Lease); err != nil || d < 5*time.Second || d > 24*time.Hour {
				return fault.New(fault.Invalid, "engines.%s.lease: %q is not a duration between 5s and 24h", name, e.Lease)
			}
		}
		for key, path := range map[string]string{"ca": e.CA, "bin": e.Bin, "conf": e.Conf, "kubeconfig": e.Kubeconfig, "token_file": e.TokenFile, "worker": e.Worker} {
			if path != "" && !filepath.IsAbs(path) {
				return fault.New(fault.Invalid, "engines.%s.%s: %q is not an absolute path", name, key, path)
			}
		}
		switch {
		case e.Kind == "kube" && e.WorkerImage == "":
			return fault.New(fault.Invalid, "engines.%s.worker_image is missing", name).
				WithHint("Set an image that contains the binary /falaj-worker, such as one built from scratch with a single COPY.")
		case e.Kind == "ray" && e.Address == "":
			return fault.New(fault.Invalid, "engines.%s.address is missing", name).WithHint("Name Ray's Jobs API, such as http://head:8265.")
		}
	}
	return nil
}

// EngineHosts are the names under which the nodes of engines reach this server.
func (c Config) EngineHosts() []string {
	var hosts []string
	for _, e := range c.Engines {
		if u, err := url.Parse(e.URL); err == nil && u.Hostname() != "" {
			hosts = append(hosts, u.Hostname())
		}
	}
	slices.Sort(hosts)
	return hosts
}
