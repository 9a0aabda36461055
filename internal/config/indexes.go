package config

import (
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
