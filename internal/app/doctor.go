package app

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/harden"
)

// finding is one line of the doctor's report.
type finding struct {
	mark string // ✓ works, ! works but, ✗ does not work
	text string
	todo string
}

// Doctor checks the machine and the configuration, changes nothing, and says
// what to do. usable is false when `falaj up` would refuse.
func Doctor(file string, env []string, flags map[string]any) (report string, usable bool) {
	cfg, err := LoadConfig(file, env, flags)
	if err != nil {
		return render([]finding{{"✗", "configuration: " + err.Error(), fault.HintOf(err)}}), false
	}
	var out []finding
	if err := cfg.checkCredentials(); err != nil {
		out = append(out, finding{"✗", "configuration: " + err.Error(), fault.HintOf(err)})
	}
	say := func(ok bool, text, todo string) {
		mark := "✓"
		if !ok {
			mark = "✗"
		}
		out = append(out, finding{mark, text, todo})
	}
	out = append(out, finding{"✓", fmt.Sprintf("configuration is valid; %d cores, %s", runtime.NumCPU(), runtime.GOARCH), ""})

	dir, _ := filepath.Abs(cfg.Data)
	switch info, err := os.Stat(dir); {
	case os.IsNotExist(err):
		out = append(out, finding{"✓", "data directory " + cfg.Data + " will be made", ""})
	case err != nil || !info.IsDir():
		say(false, "data directory "+cfg.Data+" cannot be used", "Choose another with --data.")
	case open(info):
		out = append(out, finding{"!", "data directory " + cfg.Data + " is open to other users", "chmod 700 " + cfg.Data + "; `falaj up` does it, too."})
	default:
		err := checkSpace("the data directory", dir, cfg.reserve())
		say(err == nil, "data directory "+cfg.Data, fault.HintOf(err))
	}
	out = append(out, upgradeFinding(context.Background(), cfg)...)
	out = append(out, masterKey(dir, cfg.Keys.PassphraseFile)...)
	out = append(out, certificateFinding(cfg, time.Now())...)
	out = append(out, enginesFindings(cfg)...)
	out = append(out, databaseFindings(context.Background(), cfg)...)
	out = append(out, onlineFindings(context.Background(), cfg)...)
	if cfg.Blob.S3.Endpoint != "" {
		err := cfg.checkBucket(context.Background())
		text := "objects in the bucket " + cfg.Blob.S3.Bucket + " at " + cfg.Blob.S3.Endpoint
		if err != nil {
			text += ": " + err.Error()
		}
		say(err == nil, text, fault.HintOf(err))
	}
	if cfg.Audit.Checkpoints == "" {
		out = append(out, finding{"!", "no second place for audit checkpoints", "Set audit.checkpoints to a file on another disk, so that a rewritten log is found."})
	}
	if cfg.Erasures.Ledger == "" {
		out = append(out, finding{"!", "the erasure ledger is in the data directory", "Set erasures.ledger to a file outside of the backup, so that a restore does not undo erasures."})
	}

	worker := cfg.workerPath()
	_, err = os.Stat(worker)
	say(err == nil, "falaj-worker", "Build it with `make build`, or set worker.path.")
	level, _ := sandbox.ParseLevel(cfg.Isolation) // validated
	if err := sandbox.Check(context.Background(), worker, level); err != nil {
		say(false, "isolation "+cfg.Isolation+": "+err.Error(), fault.HintOf(err))
	} else {
		mark := "✓"
		if level < sandbox.Sandbox {
			mark = "!"
		}
		out = append(out, finding{mark, "isolation " + cfg.Isolation, "Weaker than sandbox: user code shares this machine's processes and network. Use sandbox where the kernel allows it."})
	}
	out = append(out, hardening(dir)...)
	uv := cfg.uvPath()
	say(uv != "", "uv, which builds environments", "Run `make deps`, or set environments.uv.")
	_, err = exec.LookPath("python3")
	say(err == nil, "python3 for environments", "Install Python 3.10 or newer.")
	_, err = os.Stat(cfg.ortPath())
	say(err == nil, "ONNX Runtime library", "Run `make deps`, or set FALAJ_ORT_LIB. Only serving needs it.")
	locales, err := exec.CommandContext(context.Background(), "locale", "-a").Output()
	out = append(out, localeFinding(string(locales), err)...)

	usable = true
	for _, f := range out {
		usable = usable && f.mark != "✗"
	}
	return render(out), usable
}

// localeFinding says whether models that normalise text load here: ONNX Runtime wants the
// locale that the file names, which is en_US.UTF-8 where skl2onnx wrote it. locales is what
// `locale -a` says; a machine without that program is not judged.
func localeFinding(locales string, err error) []finding {
	if err != nil {
		return nil
	}
	for name := range strings.FieldsSeq(locales) {
		if name == "en_US.utf8" || strings.EqualFold(name, "en_US.UTF-8") {
			return []finding{{"✓", "locale en_US.UTF-8 for models of text", ""}}
		}
	}
	return []finding{{
		"!", "the machine has no locale en_US.UTF-8: ONNX models that normalise text, such as a TfidfVectorizer of scikit-learn, do not load",
		"On Debian: apt-get install locales, then localedef -i en_US -f UTF-8 en_US.UTF-8. Only serving such models needs it.",
	}}
}

// hardening says of what a server deprives itself: the one that has the data directory,
// else one that would be started here.
func hardening(dir string) []finding {
	who, todo := "a server here", "Something forbids it, such as a seccomp profile around this process."
	state, err := harden.Try()
	if pid := lifecycle.Owner(dir); pid != 0 {
		who, todo = fmt.Sprintf("the server (process %d)", pid), "Restart it with `falaj up` of this version; its log has the reason."
		state, err = harden.Of(pid)
	}
	if err != nil {
		return []finding{{"!", who + " keeps privileges that it does not need: " + err.Error(), todo}}
	}
	say := func(ok bool, good, bad string) finding {
		if ok {
			return finding{"✓", who + " " + good, ""}
		}
		return finding{"!", who + " " + bad, todo}
	}
	return []finding{
		say(state.NoNewPrivileges, "child processes cannot gain privileges", "may start programs that gain privileges (set-id bits)"),
		say(state.Filtered, "unneeded system calls are blocked", "has no system call filter"),
		say(state.Capabilities == 0, "has no capability that it does not need", fmt.Sprintf("has capabilities that it does not need: %#x", state.Capabilities)),
	}
}

// masterKey compares the master key's file with the passphrase that is configured.
func masterKey(dir, passphraseFile string) (out []finding) {
	if passphraseFile != "" {
		if _, err := keys.ReadPassphrase(passphraseFile); err != nil {
			out = append(out, finding{"✗", "passphrase file for the master key: " + err.Error(), fault.HintOf(err)})
		} else {
			out = append(out, finding{"✓", "passphrase file for the master key", ""})
		}
	}
	sealed, err := keys.Sealed(filepath.Join(dir, "master.key"))
	switch {
	case errors.Is(err, os.ErrNotExist) && passphraseFile != "":
		return append(out, finding{"✓", "the master key will be sealed", ""})
	case errors.Is(err, os.ErrNotExist):
		return append(out, finding{"!", "the master key will be a plain file in the data directory", "Seal it: falaj up --key-passphrase-file FILE"})
	case err != nil:
		return append(out, finding{"✗", err.Error(), fault.HintOf(err)})
	case sealed && passphraseFile == "":
		return append(out, finding{"✗", "the master key is sealed, but no passphrase is configured", "Name the passphrase's file with --key-passphrase-file."})
	case sealed:
		return append(out, finding{"✓", "the master key is sealed", ""})
	case passphraseFile != "":
		return append(out, finding{"!", "the master key is a plain file in the data directory", "The next start seals it by the passphrase."})
	}
	return append(out, finding{"!", "the master key is a plain file in the data directory", "Seal it: falaj up --key-passphrase-file FILE"})
}

func render(findings []finding) string {
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "%s %s\n", f.mark, f.text)
		if f.todo != "" && f.mark != "✓" {
			fmt.Fprintf(&b, "    → %s\n", f.todo)
		}
	}
	return b.String()
}

// checkFree refuses to continue when the data directory's disk has less left than the
// reserve: what is acknowledged must be kept, and refusals must be recorded.
func (c Config) checkFree() error { return checkSpace("the data directory", c.Data, c.reserve()) }

// reserve is what is left free on the disk of the data directory.
func (c Config) reserve() diskSpace {
	return diskSpace{bytes: bytes(c.Limits.Free), files: c.Limits.FreeFiles}
}

// diskSpace is space for bytes and for files.
type diskSpace struct{ bytes, files int64 }

func (r diskSpace) plus(s diskSpace) diskSpace {
	return diskSpace{r.bytes + s.bytes, r.files + s.files}
}

// freeSpace is what the file system of a directory has left.
func freeSpace(dir string) (diskSpace, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return diskSpace{}, err
	}
	r := diskSpace{bytes: int64(s.Bavail) * s.Bsize, files: int64(s.Ffree)} //nolint:gosec // a disk's blocks fit
	if s.Files == 0 {                                                       // it makes inodes as they are needed
		r.files = math.MaxInt64
	}
	return r, nil
}

func checkSpace(what, dir string, least diskSpace) error {
	free, err := freeSpace(dir)
	if err != nil {
		return fault.New(fault.Unavailable, "disk of %s: %w", filepath.Base(dir), err)
	}
	if free.bytes < least.bytes {
		return fault.New(fault.Exhausted, "the disk of %s has %s left, %s are needed", what, resource.Bytes(free.bytes).Words(), resource.Bytes(least.bytes).Words()).
			WithHint("Free some space, or lower limits.free.").WithCause(fault.ErrFull)
	}
	if free.files < least.files {
		return fault.New(fault.Exhausted, "the disk of %s has %d inodes left, %d are needed", what, free.files, least.files).
			WithHint("Remove files, or lower limits.free_files.").WithCause(fault.ErrFull)
	}
	return nil
}

// spaceFor refuses to store what a job leaves where that would take the disk of the data
// directory below half of its reserve: the reserve is for what was begun, and not for one
// job alone. Nil where objects are kept elsewhere.
func (c Config) spaceFor(bytes, files int64) error {
	free, err := freeSpace(c.Data)
	if err != nil {
		return fault.New(fault.Unavailable, "disk of the data directory: %w", err)
	}
	least := c.reserve()
	least.bytes, least.files = least.bytes/2, least.files/2
	if free.bytes-least.bytes < bytes || free.files-least.files < files {
		return fault.New(fault.Exhausted, "it has %d MiB in %d files, but the server's disk has only %d MiB and %d inodes above half of its reserve: %w",
			(bytes+1<<20-1)>>20, files, max(free.bytes-least.bytes, 0)>>20, max(free.files-least.files, 0), syscall.ENOSPC).
			WithHint("Leave less, or have space freed on the server's disk. Holes of a sparse file count: they are stored as zeros.")
	}
	return nil
}

// workerPath is the falaj-worker to use.
func (c Config) workerPath() string {
	if c.Worker.Path != "" {
		return c.Worker.Path
	}
	return besideOr("falaj-worker", "falaj-worker")
}

// uvPath is the uv to use, empty when there is none.
func (c Config) uvPath() string {
	if c.Environments.UV != "" {
		return c.Environments.UV
	}
	if p := besideOr("uv", ""); p != "" {
		return p
	}
	p, err := exec.LookPath("uv")
	if err != nil {
		return ""
	}
	return p
}

// ortPath is the ONNX Runtime library to load.
func (c Config) ortPath() string {
	if c.Serving.ORT != "" {
		return c.Serving.ORT
	}
	return besideOr("lib/libonnxruntime.so", "libonnxruntime.so")
}

// besideOr finds a file beside this binary or in the directory above it, where
// a source tree has lib/.
func besideOr(name, otherwise string) string {
	exe, err := os.Executable()
	if err != nil {
		return otherwise
	}
	if exe, err = filepath.EvalSymlinks(exe); err != nil {
		return otherwise
	}
	for _, dir := range []string{filepath.Dir(exe), filepath.Dir(filepath.Dir(exe))} {
		if path := filepath.Join(dir, name); exists(path) {
			return path
		}
	}
	return otherwise
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
