package config

import (
	"cmp"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// WorkerPath is the falaj-worker to use.
func (c Config) WorkerPath() string {
	if c.Worker.Path != "" {
		return c.Worker.Path
	}
	return BesideOr("falaj-worker", "falaj-worker")
}

// UVPath is the uv to use, empty when there is none.
func (c Config) UVPath() string {
	if c.Environments.UV != "" {
		return c.Environments.UV
	}
	if p := BesideOr("uv", ""); p != "" {
		return p
	}
	p, err := exec.LookPath("uv")
	if err != nil {
		return ""
	}
	return p
}

// ORTPath is the ONNX Runtime library to load.
func (c Config) ORTPath() string {
	if c.Serving.ORT != "" {
		return c.Serving.ORT
	}
	return BesideOr("lib/libonnxruntime.so", "libonnxruntime.so")
}

// BesideOr finds a file beside this binary or in the directory above it, where
// a source tree has lib/.
func BesideOr(name, otherwise string) string {
	exe, err := os.Executable()
	if err != nil {
		return otherwise
	}
	if exe, err = filepath.EvalSymlinks(exe); err != nil {
		return otherwise
	}
	for _, dir := range []string{filepath.Dir(exe), filepath.Dir(filepath.Dir(exe))} {
		if path := filepath.Join(dir, name); Exists(path) {
			return path
		}
	}
	return otherwise
}

// Exists reports whether there is a file.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// LedgerPath is where the erasure ledger is.
func (c Config) LedgerPath() string {
	return cmp.Or(c.Erasures.Ledger, filepath.Join(c.Data, "erasures.jsonl"))
}

// OpenToOthers reports whether others than the owner can reach into a directory.
func OpenToOthers(dir fs.FileInfo) bool { return dir.Mode().Perm()&0o077 != 0 }
