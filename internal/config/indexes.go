package config

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
)

// PackageIndexes reads the indexes that environments may name: name=URL each. Error:
// fault.Invalid.
func PackageIndexes(list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, entry := range list {
		name, url, _ := strings.Cut(entry, "=")
		if err := id.CheckName("index name", name); err != nil {
			return nil, fault.New(fault.Invalid, "%w", err).WithHint("Write each index as name=URL, such as torch-cpu=https://download.pytorch.org/whl/cpu.")
		}
		if _, twice := out[name]; twice {
			return nil, fault.New(fault.Invalid, "duplicate index %s", name)
		}
		if err := environment.CheckIndex(url); err != nil || url == "" {
			return nil, fault.New(fault.Invalid, "index %s has no URL that can be used", name).WithHint("Write it as name=URL, http or https, without credentials.")
		}
		out[name] = url
	}
	return out, nil
}

// PackageIndex is where environment builds download packages from.
type PackageIndex struct {
	Index string   `json:"index"` // URL
	Hosts []string `json:"hosts"` // that builds may connect to, as host:port
}

// None reports that builds may connect to nowhere.
func (i PackageIndex) None() bool { return len(i.Hosts) == 0 }

// NoPackageIndex is the warning about an installation whose builds may connect to nowhere.
const NoPackageIndex = "Environments with packages cannot be built: lib/package-index.json is missing beside the binary, " +
	"and environments.hosts is empty. Run `make deps`, or set environments.index and environments.hosts."

// PackageIndexOf is that of the configuration, or what lib/package-index.json says, which
// `make deps` writes. Error: fault.Invalid.
func PackageIndexOf(c Config) (index PackageIndex, err error) {
	const name = "lib/package-index.json"
	from := "environments.index"
	if c.Environments.Index == "" || len(c.Environments.Hosts) == 0 {
		b, err := os.ReadFile(BesideOr(name, ""))
		if err == nil {
			err, from = json.Unmarshal(b, &index), name
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return index, fault.New(fault.Invalid, "%s cannot be read: %w", name, err).WithHint("Run `make deps` again, or set environments.index and environments.hosts.")
		}
	}
	if c.Environments.Index != "" {
		index.Index, from = c.Environments.Index, "environments.index"
	}
	if len(c.Environments.Hosts) > 0 {
		index.Hosts = c.Environments.Hosts
	}
	return index, fault.Wrap(environment.CheckIndex(index.Index), "%s", from)
}
