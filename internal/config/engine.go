package config

import (
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"reflect"
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

// checkEngineKeys refuses keys of engines that mean nothing, before they are
// read: raw is what is below "engines".
func checkEngineKeys(raw map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		settings, ok := raw[name].(map[string]any)
		if !ok {
			return fault.New(fault.Invalid, "configuration key engines.%s must be a mapping", name).
				WithHint("Write kind, url and so on below it.")
		}
		kind, _ := settings["kind"].(string)
		if _, ok := engineKinds[kind]; !ok {
			return fault.New(fault.Invalid, "engines.%s.kind: %.40q must be one of %s%s", name, kind,
				strings.Join(slices.Sorted(maps.Keys(engineKinds)), ", "), nearest(kind, slices.Collect(maps.Keys(engineKinds))))
		}
		known := slices.Concat(everyEngine, engineKinds[kind])
		for _, key := range slices.Sorted(maps.Keys(settings)) {
			if !slices.Contains(known, key) {
				return fault.New(fault.Invalid, "configuration key \"engines.%s.%s\" does not exist%s", name, key, nearest(key, known)).
					WithHint("An engine of kind %s has %s.", kind, strings.Join(known, ", "))
			}
		}
	}
	return nil
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

// enginesText is the engines as they are shown: "hpc (slurm: users={…})".
func enginesText(engines map[string]Engine) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(engines)) {
		v := reflect.ValueOf(engines[name])
		var set []string
		for i := range v.NumField() {
			if key := v.Type().Field(i).Tag.Get("koanf"); key != "kind" && !v.Field(i).IsZero() {
				set = append(set, fmt.Sprintf("%s=%s", key, withoutPassword(fmt.Sprint(v.Field(i).Interface()))))
			}
		}
		out = append(out, fmt.Sprintf("%s (%s)", name, strings.Join(append([]string{engines[name].Kind}, set...), " ")))
	}
	return strings.Join(out, ", ")
}
