package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/diskspace"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/harden"
)

// finding is one line of the doctor's report.
type finding struct {
	mark string // ✓ works, ! works but, ✗ does not work
	text string
	todo string
}

// Check checks the machine and the configuration, changes nothing, and says
// what to do. usable is false when `falaj up` would refuse.
func Check(file string, env []string, flags map[string]any) (report string, usable bool) {
	cfg, err := config.Load(file, env, flags)
	if err != nil {
		return render([]finding{{"✗", "configuration: " + err.Error(), fault.HintOf(err)}}), false
	}
	var out []finding
	if err := cfg.CheckCredentials(); err != nil {
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
	case config.OpenToOthers(info):
		out = append(out, finding{"!", "data directory " + cfg.Data + " is open to other users", "chmod 700 " + cfg.Data + "; `falaj up` does it, too."})
	default:
		err := diskspace.Check("the data directory", dir, cfg.Reserve())
		say(err == nil, "data directory "+cfg.Data, fault.HintOf(err))
	}
	out = append(out, upgradeFinding(context.Background(), cfg)...)
	out = append(out, masterKey(dir, cfg.Keys.PassphraseFile)...)
	out = append(out, certificateFinding(cfg, time.Now())...)
	out = append(out, enginesFindings(cfg)...)
	out = append(out, databaseFindings(context.Background(), cfg)...)
	out = append(out, onlineFindings(context.Background(), cfg)...)
	if cfg.Blob.S3.Endpoint != "" {
		err := checkBucket(context.Background(), cfg)
		text := "objects in the bucket " + cfg.Blob.S3.Bucket + " at " + cfg.Blob.S3.Endpoint
		if err != nil {
			text += ": " + err.Error()
		}
		say(err == nil, text, fault.HintOf(err))
	}
	if cfg.Audit.Checkpoints == "" {
		out = append(out, finding{"!", "no witness for audit checkpoints", "Set audit.checkpoints to a file on another disk, so that a rewritten log is found."})
	}
	if cfg.Erasures.Ledger == "" {
		out = append(out, finding{"!", "the erasure ledger is in the data directory", "Set erasures.ledger to a file outside of the backup, so that a restore does not undo erasures."})
	}

	worker := cfg.WorkerPath()
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
	uv := cfg.UVPath()
	say(uv != "", "uv, which builds environments", "Run `make deps`, or set environments.uv.")
	if index, err := config.PackageIndexOf(cfg); err != nil {
		say(false, err.Error(), fault.HintOf(err))
	} else if index.None() {
		out = append(out, finding{"!", "no package index", config.NoPackageIndex})
	}
	_, err = exec.LookPath("python3")
	say(err == nil, "python3 for environments", "Install Python 3.10 or newer.")
	_, err = os.Stat(cfg.ORTPath())
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
