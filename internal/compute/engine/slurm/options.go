package slurm

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// passed are the options of a pool that sbatch takes under the same name. The
// value is an argument of sbatch, never a word of a shell.
var passed = []string{
	"partition", "qos", "account", "reservation", "constraint", "exclude", "licenses", "nice", "switches", "wckey", "exclusive",
}

// Options lists every option of a pool on Slurm, with its effect.
var Options = map[string]string{
	"partition":       "partition of the jobs",
	"qos":             "quality of service",
	"account":         "account to charge",
	"reservation":     "reservation to use",
	"constraint":      "features that nodes must have",
	"exclude":         "nodes not to use",
	"licenses":        "licenses to hold",
	"nice":            "amount by which the priority is lowered",
	"switches":        "maximum number of leaf switches",
	"wckey":           "key for accounting",
	"exclusive":       "whole nodes: user, mcs or yes",
	"time":            "time limit where the job gives none, as in sbatch --time",
	"gres":            "names of accelerators on Slurm: nvidia.com/gpu=gpu,nvidia.com/h100=gpu:h100",
	"modules":         "site modules to load, separated by spaces",
	"worker":          "path of falaj-worker on the nodes",
	"node_dir":        "directory of a node for a worker's files while it runs",
	"node_cache":      "directory of a node for the cache between workers",
	"node_cache_size": "bytes that the cache may hold",
	"extra":           "additional arguments of sbatch, separated by spaces",
	"shared":          "true when the nodes see the server's data directory at the same path",
}

var (
	valueRE  = regexp.MustCompile(`^[A-Za-z0-9_.,:=+@%/*&|()\[\]!-]{1,400}$`)
	moduleRE = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+/-]{0,199}$`)
	extraRE  = regexp.MustCompile(`^--[a-z][a-z0-9-]*(=[A-Za-z0-9_.,:=+@%/*&|()\[\]-]{1,400})?$`)
	pathRE   = regexp.MustCompile(`^/[A-Za-z0-9_.+/@-]{0,400}$`)
	gresRE   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_.-]+)?$`)
)

// ours are the arguments that a launch needs as we set them, and those that make
// jobs of another kind; "extra" may not have them.
var ours = []string{
	"array", "batch", "burst-buffer", "bb", "bbf", "begin", "chdir", "comment", "cpus-per-task", "clusters", "cluster-constraint",
	"delay-boot", "dependency", "error", "export", "export-file", "get-user-env", "gid", "gpus-per-task", "help", "hold", "ignore-pbs",
	"input", "job-name", "kill-on-invalid-dep", "mail-user", "mail-type", "no-kill", "no-requeue", "nodelist", "nodefile", "ntasks",
	"open-mode", "output", "parsable", "requeue", "signal", "test-only", "uid", "usage", "version", "wait", "wait-all-nodes", "wrap",
}

// CheckOptions refuses options that Slurm or the script could take for something
// else. Error: fault.Invalid.
func CheckOptions(options map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if err := checkOption(name, options[name]); err != nil {
			return fault.Wrap(err, "option %q of the pool", name)
		}
	}
	return nil
}

func checkOption(name, value string) error {
	bad := fault.New(fault.Invalid, "%.200q is not a value that can be passed to Slurm", value)
	switch name {
	case "modules":
		for m := range strings.FieldsSeq(value) {
			if !moduleRE.MatchString(m) {
				return fault.New(fault.Invalid, "%.200q is not the name of a module", m)
			}
		}
	case "extra":
		for arg := range strings.FieldsSeq(value) {
			key, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
			if !extraRE.MatchString(arg) {
				return fault.New(fault.Invalid, "%.200q is not of the form --name=value", arg)
			}
			// Slurm takes any beginning of a name that is unique.
			for _, o := range ours {
				if strings.HasPrefix(o, key) {
					return fault.New(fault.Invalid, "--%s is set by Falaj", key)
				}
			}
		}
	case "worker", "node_dir", "node_cache":
		if !pathRE.MatchString(value) || filepath.Clean(value) != value {
			return fault.New(fault.Invalid, "%.200q is not a clean absolute path", value)
		}
	case "gres":
		_, err := parseGres(value)
		return err
	case "shared":
		if value != "true" && value != "false" {
			return fault.New(fault.Invalid, "%.200q is neither true nor false", value)
		}
	case "time":
		if !valueRE.MatchString(value) {
			return bad
		}
	default:
		if _, known := Options[name]; !known {
			return fault.New(fault.Invalid, "Slurm's engine has no such option").
				WithHint("It has: %s.", strings.Join(slices.Sorted(maps.Keys(Options)), ", "))
		}
		if !valueRE.MatchString(value) {
			return bad
		}
	}
	return nil
}

// parseGres reads "nvidia.com/gpu=gpu,nvidia.com/h100=gpu:h100".
func parseGres(s string) (map[string]string, error) {
	names := map[string]string{}
	for pair := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		accelerator, gres, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || accelerator == "" || !gresRE.MatchString(gres) {
			return nil, fault.New(fault.Invalid, "%.200q is not of the form accelerator=gres", pair).
				WithHint("Such as nvidia.com/gpu=gpu,nvidia.com/h100=gpu:h100.")
		}
		names[accelerator] = gres
	}
	return names, nil
}

// gresOf is what Slurm calls an accelerator: as the pool says; else the last part
// of a name, which for a vendor of GPUs is a type of GPU.
func gresOf(accelerator string, names map[string]string) (string, error) {
	if g := names[accelerator]; g != "" {
		return g, nil
	}
	vendor, name, ok := strings.Cut(accelerator, "/")
	if !ok {
		vendor, name = "", accelerator
	}
	if name != "gpu" && (vendor == "nvidia.com" || vendor == "amd.com") {
		name = "gpu:" + strings.TrimPrefix(name, "mig-")
	}
	if !gresRE.MatchString(name) {
		return "", fault.New(fault.Invalid, "accelerator %.100q has no name on Slurm", accelerator).
			WithHint("Name it in the pool's option gres.")
	}
	return name, nil
}
