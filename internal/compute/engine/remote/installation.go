package remote

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
)

const installationFile = "installation"

// Installation names this Falaj on an engine that several use: 16 hexadecimal
// digits, kept in dir, which is made. It is the same for ever: by it the engine's
// work is found again.
func Installation(dir string) (string, error) {
	name, err := shim.Read[string](dir, installationFile)
	if !errors.Is(err, fs.ErrNotExist) {
		return name, fault.Wrap(err, "reading the name of this installation")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fault.Wrap(err, "naming this installation")
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	name = hex.EncodeToString(b[:])
	return name, fault.Wrap(shim.Write(dir, installationFile, name), "naming this installation")
}
