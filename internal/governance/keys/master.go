package keys

import (
	"bytes"
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tink-crypto/tink-go/v2/aead/subtle"
	"golang.org/x/crypto/argon2"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/fsync"
	"github.com/falaj-ml/falaj/internal/store"
)

const (
	keySize           = 32
	maxMasterFile     = 4 << 10
	minPassphrase     = 12
	maxPassphrase     = 1 << 10
	masterFileVersion = 1
)

// argon2id parameters for new files: RFC 9106's second choice with half its
// memory, because the server is to stay small. Old files keep their own.
const (
	argonTime      = 4
	argonMemoryKiB = 32 << 10
	argonThreads   = 1
	// A file that asks for more than this is refused: it would be a way to
	// exhaust the machine.
	argonMaxTime      = 64
	argonMaxMemoryKiB = 1 << 20
)

// masterFile is the content of master.key, one JSON object.
type masterFile struct {
	Version     int    `json:"falaj_master_key"`
	Fingerprint string `json:"fingerprint"` // to tell keys apart in messages
	Key         []byte `json:"key,omitempty"`
	KDF         *kdf   `json:"kdf,omitempty"`
	Sealed      []byte `json:"sealed,omitempty"`
}

type kdf struct {
	Name      string `json:"name"` // "argon2id"
	Salt      []byte `json:"salt"`
	Time      uint32 `json:"time"`
	MemoryKiB uint32 `json:"memory_kib"`
	Threads   uint8  `json:"threads"`
}

// ReadPassphrase reads a passphrase file: its content without one line break at
// the end, 12 to 1,024 bytes. Error: fault.Invalid when it is too short, too
// long, or readable by everybody.
func ReadPassphrase(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.New(fault.Invalid, "open the passphrase file: %w", err).
			WithHint("Name an existing file that holds the passphrase.")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return nil, fault.New(fault.Invalid, "all users can read the passphrase file %s (mode %04o)", path, info.Mode().Perm()).
			WithHint("Run: chmod 0400 %s", fault.ShellWord(path))
	}
	b, err := io.ReadAll(io.LimitReader(f, maxPassphrase+2))
	if err != nil {
		return nil, fault.Wrap(err, "read the passphrase file")
	}
	b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
	if err := checkPassphrase(b); err != nil {
		return nil, err
	}
	return b, nil
}

func checkPassphrase(p []byte) error {
	if len(p) < minPassphrase || len(p) > maxPassphrase {
		return fault.New(fault.Invalid, "the passphrase has %d bytes", len(p)).
			WithHint("Use %d to %d bytes.", minPassphrase, maxPassphrase)
	}
	return nil
}

// Reseal writes the master key file anew under another passphrase; an empty one
// (then or now) means the bare file. The bytes of the old file are overwritten.
func Reseal(path string, now, then []byte) error {
	f, key, _, err := openMaster(path, now)
	if err != nil {
		return err
	}
	defer f.Close()
	return replaceMaster(path, f, key, then)
}

// Sealed reports whether the master key file is sealed by a passphrase, for
// `doctor`.
func Sealed(path string) (bool, error) {
	f, m, err := readMasterFile(path)
	if err != nil {
		return false, err
	}
	return m.KDF != nil, f.Close()
}

// loadMaster gives the database's master key, proved right by the database's
// check. It makes the file only for a database that never had one: a lost file
// must not be papered over with a new key.
func loadMaster(ctx context.Context, cfg Config) ([]byte, error) {
	var check Check
	fresh := false
	err := cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		check, err = cfg.Store.Check(ctx, tx)
		return err
	})
	switch {
	case fault.Is(err, fault.NotFound):
		fresh = true
	case err != nil:
		return nil, fault.Wrap(err, "read the master key's check")
	}

	f, key, sealed, err := openMaster(cfg.MasterFile, cfg.Passphrase)
	switch {
	case errors.Is(err, fs.ErrNotExist) && fresh:
		key = randomBytes(keySize)
		if err := writeMaster(cfg.MasterFile, key, cfg.Passphrase); err != nil {
			return nil, fault.Wrap(err, "write the new master key")
		}
	case errors.Is(err, fs.ErrNotExist):
		return nil, fault.New(fault.Invalid, "the master key file %s is missing, and the database holds keys that it encrypted", cfg.MasterFile).
			WithHint("Restore the file from its backup. Without it the data cannot be read.")
	case err != nil:
		return nil, err
	default:
		defer f.Close()
		if len(cfg.Passphrase) > 0 && !sealed {
			if err := replaceMaster(cfg.MasterFile, f, key, cfg.Passphrase); err != nil {
				return nil, fault.Wrap(err, "seal the master key by the passphrase")
			}
		}
	}

	if fresh {
		return key, recordCheck(ctx, cfg, key)
	}
	if !hmac.Equal(check.MAC, checkMAC(key, check.Salt)) {
		return nil, fault.New(fault.Invalid, "the master key in %s (fingerprint %s) is not the key of this database",
			cfg.MasterFile, fingerprint(key)).
			WithHint("Restore the master key file of this data directory.")
	}
	return key, nil
}

func recordCheck(ctx context.Context, cfg Config, key []byte) error {
	salt := randomBytes(keySize)
	check := Check{Salt: salt, MAC: checkMAC(key, salt)}
	err := cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		return cfg.Store.SetCheck(ctx, tx, check)
	})
	return fault.Wrap(err, "record the master key's check")
}

func checkMAC(master, salt []byte) []byte {
	m := hmac.New(sha256.New, derive(master, "falaj master key check v1"))
	m.Write(salt)
	return m.Sum(nil)
}

func fingerprint(master []byte) string {
	return hex.EncodeToString(derive(master, "falaj master key fingerprint v1")[:6])
}

// openMaster reads the file and unseals the key. The open file comes back so
// that replaceMaster can overwrite its bytes.
func openMaster(path string, passphrase []byte) (f *os.File, key []byte, sealed bool, err error) {
	f, m, err := readMasterFile(path)
	if err != nil {
		return nil, nil, false, err
	}
	key, err = m.open(path, passphrase)
	if err != nil {
		_ = f.Close()
		return nil, nil, false, err
	}
	return f, key, m.KDF != nil, nil
}

func readMasterFile(path string) (*os.File, masterFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, masterFile{}, fault.Wrap(err, "open the master key")
	}
	m, err := decodeMaster(f, path)
	if err != nil {
		_ = f.Close()
		return nil, masterFile{}, err
	}
	return f, m, nil
}

func decodeMaster(f *os.File, path string) (masterFile, error) {
	info, err := f.Stat()
	if err != nil {
		return masterFile{}, err
	}
	if !info.Mode().IsRegular() {
		return masterFile{}, fault.New(fault.Invalid, "the master key %s is not a regular file", path).
			WithHint("Restore the file from its backup.")
	}
	if info.Mode().Perm()&0o077 != 0 {
		return masterFile{}, fault.New(fault.Invalid, "other users can read the master key %s (mode %04o)", path, info.Mode().Perm()).
			WithHint("Find out which users read it, then run: chmod 0600 %s", fault.ShellWord(path))
	}
	b, err := io.ReadAll(io.LimitReader(f, maxMasterFile+1))
	if err != nil {
		return masterFile{}, fault.Wrap(err, "read the master key")
	}
	m, err := parseMaster(b)
	return m, fault.Wrap(err, "master key %s", path)
}

func parseMaster(b []byte) (masterFile, error) {
	bad := func(why string) (masterFile, error) {
		return masterFile{}, fault.New(fault.Invalid, "%s", why).WithHint("Restore the file from its backup.")
	}
	if len(b) > maxMasterFile {
		return bad("the file is too long")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var m masterFile
	if err := d.Decode(&m); err != nil {
		return bad("the file is not a master key: " + err.Error())
	}
	if m.Version != masterFileVersion {
		return bad("the file is of another version")
	}
	if m.KDF == nil {
		if len(m.Key) != keySize || len(m.Sealed) != 0 {
			return bad("the key does not have 32 bytes")
		}
		return m, nil
	}
	k := m.KDF
	if k.Name != "argon2id" || len(k.Salt) < 16 || len(k.Salt) > 64 || len(m.Key) != 0 || len(m.Sealed) > 256 ||
		k.Time < 1 || k.Time > argonMaxTime || k.MemoryKiB < 8 || k.MemoryKiB > argonMaxMemoryKiB || k.Threads < 1 || k.Threads > 64 {
		return bad("the parameters that seal the key are out of range")
	}
	return m, nil
}

func (m masterFile) open(path string, passphrase []byte) ([]byte, error) {
	if m.KDF == nil {
		return m.Key, nil
	}
	if len(passphrase) == 0 {
		return nil, fault.New(fault.Invalid, "the master key %s is sealed by a passphrase", path).
			WithHint("Start with --key-passphrase-file FILE.")
	}
	a, err := m.KDF.aead(passphrase)
	if err != nil {
		return nil, err
	}
	key, err := a.Decrypt(m.Sealed, m.KDF.associated())
	if err != nil || len(key) != keySize {
		return nil, fault.New(fault.Invalid, "the passphrase cannot decrypt the master key %s", path).
			WithHint("Use the passphrase that encrypted it (key fingerprint %s); if it is right, the file is damaged: restore it.", m.Fingerprint)
	}
	return key, nil
}

func (k *kdf) aead(passphrase []byte) (*subtle.AESGCM, error) {
	return subtle.NewAESGCM(argon2.IDKey(passphrase, k.Salt, k.Time, k.MemoryKiB, k.Threads, keySize))
}

// associated binds the sealed key to the parameters, so that they cannot be weakened.
func (k *kdf) associated() []byte {
	b, _ := json.Marshal(k) // numbers and bytes always encode
	return append([]byte("falaj master key v1 "), b...)
}

func encodeMaster(key, passphrase []byte) ([]byte, error) {
	m := masterFile{Version: masterFileVersion, Fingerprint: fingerprint(key)}
	if len(passphrase) == 0 {
		m.Key = key
	} else {
		if err := checkPassphrase(passphrase); err != nil {
			return nil, err
		}
		m.KDF = &kdf{Name: "argon2id", Salt: randomBytes(16), Time: argonTime, MemoryKiB: argonMemoryKiB, Threads: argonThreads}
		a, err := m.KDF.aead(passphrase)
		if err != nil {
			return nil, err
		}
		if m.Sealed, err = a.Encrypt(key, m.KDF.associated()); err != nil {
			return nil, err
		}
	}
	b, err := json.Marshal(m)
	return append(b, '\n'), err
}

// writeMaster puts the file in place whole or not at all, durably.
func writeMaster(path string, key, passphrase []byte) error {
	b, err := encodeMaster(key, passphrase)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	tmp, err := os.CreateTemp(dir, ".master-*") // CreateTemp makes it 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // gone already after the rename
	_, err = tmp.Write(b)
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err == nil {
		err = fsync.Dir(dir)
	}
	return err
}

// replaceMaster writes the new file, then overwrites the old one's bytes, which
// are still reachable through old: a sealed key is worth little while the bare
// one can be read from the disk. (Copy-on-write file systems keep them anyway.)
func replaceMaster(path string, old *os.File, key, passphrase []byte) error {
	info, err := old.Stat()
	if err != nil {
		return err
	}
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer w.Close()
	if opened, err := w.Stat(); err != nil || !os.SameFile(info, opened) {
		return fault.New(fault.Conflict, "the master key %s was replaced meanwhile", path).WithHint("Try again.")
	}
	if err := writeMaster(path, key, passphrase); err != nil {
		return err
	}
	if _, err := w.WriteAt(make([]byte, info.Size()), 0); err != nil {
		return fault.Wrap(err, "overwrite the old master key file")
	}
	return w.Sync()
}

// derive gives 32 bytes for a named use.
func derive(secret []byte, use string) []byte {
	k, err := hkdf.Key(sha256.New, secret, nil, use, keySize)
	if err != nil { // only for a length HKDF cannot give
		panic(err)
	}
	return k
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // crypto/rand never fails: it ends the program
	return b
}
