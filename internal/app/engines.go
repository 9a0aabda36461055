package app

import (
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine/kube"
	"github.com/falaj-ml/falaj/internal/compute/engine/ray"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/compute/engine/slurm"
	"github.com/falaj-ml/falaj/internal/compute/provisioner"
	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/filewatch"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

// openEngines makes the engines of the configuration. Whether they answer shows
// later: Falaj starts without them.
func (a *App) openEngines() (map[string]compute.Engine, error) {
	engines := map[string]compute.Engine{}
	for name, e := range a.cfg.Engines {
		made, err := a.openEngine(name, e)
		if err != nil {
			return nil, fault.Wrap(err, "engine %s", name)
		}
		engines[name] = made
	}
	return engines, nil
}

func (a *App) openEngine(name string, e config.Engine) (compute.Engine, error) {
	dir := filepath.Join(a.cfg.Data, "engines", name)
	l, isolation, err := a.launch(name, dir, e)
	if err != nil {
		return compute.Engine{}, err
	}
	at, ca, err := a.reach(name, e)
	if err != nil {
		return compute.Engine{}, err
	}
	lease, _ := time.ParseDuration(e.Lease) // validated
	driver, err := remote.New(remote.Config{
		Name: name, Dir: filepath.Join(dir, "workloads"), Launcher: l, URL: at, CA: ca, Isolation: string(isolation), Lease: lease,
		MaxTree: max(config.Bytes(a.cfg.Limits.Checkpoint), config.Bytes(a.cfg.Limits.Upload)), Log: a.log,
	})
	if err != nil {
		return compute.Engine{}, err
	}
	a.onClose(driver.Close)
	out := compute.Engine{Kind: e.Kind, Remote: true, Driver: driver, Isolation: isolation, Alike: alike(e.Kind)}
	if p, ok := l.(provisioner.Provisioner); ok {
		out.Provisioners = map[string]provisioner.Provisioner{e.Kind: p}
	}
	if c, ok := l.(interface {
		Check(options map[string]string) error
	}); ok {
		out.Check = c.Check
	}
	return out, nil
}

// alike says which pools start gangs only whose workers have the same: Slurm's, and
// those in which Kueue admits each of a gang's Jobs by itself.
func alike(kind string) func(options map[string]string) bool {
	return func(options map[string]string) bool {
		return kind == "slurm" || kind == "kube" && options["queue"] != ""
	}
}

// launch makes what differs between the kinds of engines, and says how far
// each keeps its work apart.
func (a *App) launch(name, dir string, e config.Engine) (remote.Launcher, scheduler.Isolation, error) {
	worker := e.Worker
	if worker == "" {
		worker = a.cfg.WorkerPath()
	}
	switch e.Kind {
	case "slurm":
		l, err := slurm.New(slurm.Config{
			Bin: e.Bin, Conf: e.Conf, Users: e.Users, DefaultUser: e.DefaultUser, Worker: worker, Dir: filepath.Join(dir, "slurm"), Log: a.log,
		})
		return l, scheduler.Process, err
	case "kube":
		ours, err := remote.Installation(dir)
		if err != nil {
			return nil, "", err
		}
		l, err := kube.New(kube.Config{
			Kubeconfig: e.Kubeconfig, Context: e.Context, Namespace: e.Namespace, WorkerImage: e.WorkerImage, Installation: ours, Log: a.log,
		})
		return l, scheduler.Container, err
	case "ray":
		ours, err := remote.Installation(dir)
		if err != nil {
			return nil, "", err
		}
		l, err := ray.New(ray.Config{
			Address: e.Address, TokenFile: e.TokenFile, Worker: e.Worker, Ship: a.cfg.WorkerPath(), Installation: ours, Log: a.log,
		})
		return l, scheduler.None, err
	}
	return nil, "", fault.New(fault.Unsupported, "engine %s: unknown kind %q", name, e.Kind)
}

// reach is where the nodes of an engine find this server, and the certificate
// that they trust, in PEM: as it is when a worker is started.
func (a *App) reach(name string, e config.Engine) (at string, ca func() string, err error) {
	ca = func() string { return "" }
	at = strings.TrimSuffix(e.URL, "/")
	if at == "" {
		l, err := a.listenHTTP()
		if err != nil {
			return "", ca, err
		}
		at = a.url(l)
	}
	if u, err := url.Parse(at); err == nil && u.Scheme == "http" {
		return at, ca, nil
	}
	if e.CA != "" {
		f, err := filewatch.Open(func() (string, error) { b, err := filewatch.Read(e.CA); return string(b), err }, e.CA)
		if err != nil {
			return "", ca, fault.New(fault.Invalid, "ca: %w", err)
		}
		a.follow("engines."+name+".ca", f)
		return at, f.Value, nil
	}
	// Nobody else can vouch for a certificate that signed itself. What stands before the
	// server may have another.
	f, err := filewatch.Open(func() (string, error) { return config.OwnAuthority(a.cfg.TLS.Cert), nil }, a.cfg.TLS.Cert)
	if err != nil {
		return "", ca, err
	}
	return at, f.Value, nil
}
