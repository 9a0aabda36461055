package slurm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

const (
	commandTime = 30 * time.Second
	retryTime   = 5 * time.Second
	outputLimit = 64 << 20 // of one command; a queue of 100,000 jobs is 20 MB
)

// run runs one of Slurm's commands as a user; empty is our own.
func (l *Launcher) run(ctx context.Context, as, stdin, name string, args ...string) (string, error) {
	path := name
	for _, dir := range l.path() {
		if p := filepath.Join(dir, name); executable(p) {
			path = p
			break
		}
	}
	if path == name {
		return "", fault.New(fault.Unavailable, "%s is not on this machine", name).
			WithHint("Install Slurm's client commands, or set bin of the engine to their directory.")
	}
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.WaitDelay = "/", time.Second
	cmd.Env = []string{"PATH=" + strings.Join(l.path(), ":"), "LANG=C.UTF-8", "SLURM_TIME_FORMAT=%s"}
	if l.c.Conf != "" {
		cmd.Env = append(cmd.Env, "SLURM_CONF="+l.c.Conf)
	}
	if as != "" {
		cred, err := credential(as)
		if err != nil {
			return "", err
		}
		cmd.Env = append(cmd.Env, "USER="+as, "LOGNAME="+as)
		if os.Geteuid() == 0 && cred.Uid != 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
		}
	}
	out, errs := &bounded{limit: outputLimit}, &bounded{limit: 4 << 10}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), out, errs
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return "", fault.New(fault.Unavailable, "%s did not answer in time", name)
	case err != nil:
		return "", refusal(name, strings.TrimSpace(errs.String()), err)
	case out.over:
		return "", fault.New(fault.TooLarge, "the output of %s is over %d MiB", name, outputLimit>>20)
	}
	return out.String(), nil
}

func (l *Launcher) path() []string {
	dirs := []string{"/usr/local/bin", "/usr/bin", "/bin", "/opt/slurm/bin", "/usr/local/slurm/bin"}
	if l.c.Bin != "" {
		return append([]string{l.c.Bin}, dirs...)
	}
	return dirs
}

func executable(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Mode().Perm()&0o111 != 0
}

// away are parts of messages with which Slurm says that asking again may help.
var away = []string{
	"Unable to contact", "Connection refused", "Connection timed out", "Connection reset by peer", "Broken pipe", "No route to host",
	"Network is unreachable", "Socket timed out", "Zero Bytes were transmitted", "Unexpected message received", "Message receive failure",
	"Communication connection failure", "in standby mode", "Transport endpoint", "Resource temporarily unavailable",
	"Protocol authentication error", "Munge", "Slurm temporarily unable", "controller not responding",
}

// gone are those with which it says that there is no such job any more.
var gone = []string{"Invalid job id specified", "Job/step already completing or completed"}

// refusal classifies a failed command by what it said.
func refusal(name, said string, err error) error {
	for _, part := range away {
		if strings.Contains(said, part) {
			return fault.New(fault.Unavailable, "Slurm does not respond: %s", plain(said))
		}
	}
	for _, part := range gone {
		if strings.Contains(said, part) {
			return fault.New(fault.NotFound, "Slurm has no such job: %s", plain(said))
		}
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() < 0 {
		return fault.New(fault.Unavailable, "%s: %w", name, err)
	}
	kind, hint := fault.Invalid, "Check the pool's options, and `sinfo` and `scontrol show partition` on the cluster."
	switch {
	case strings.Contains(said, "QOS") || strings.Contains(said, "Job violates accounting") || strings.Contains(said, "MaxSubmitJob"):
		kind, hint = fault.Exhausted, "The account's or QOS's limits on Slurm forbid it now; ask the cluster's administrator."
	case strings.Contains(said, "Requested node configuration is not available"):
		hint = "No node of the partition has the resources of one worker; see `falaj pool describe`."
	case said == "":
		said = err.Error()
	}
	return fault.New(kind, "%s refused: %s", name, plain(said)).WithHint("%s", hint)
}

// plain is one line of what a command said.
func plain(said string) string {
	said = strings.ReplaceAll(said, "sbatch: error: ", "")
	said = strings.Join(strings.Fields(said), " ")
	return said[:min(len(said), 500)]
}

// credential is a user of this machine with all groups.
func credential(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fault.New(fault.Invalid, "this machine has no Unix user %q", name).
			WithHint("The user must be known here as on the cluster's nodes.")
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	cred := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	groups, err := u.GroupIds()
	if err != nil {
		return nil, fault.Wrap(err, "reading the groups of %s", name)
	}
	for _, g := range groups {
		if n, err := strconv.ParseUint(g, 10, 32); err == nil {
			cred.Groups = append(cred.Groups, uint32(n))
		}
	}
	return cred, nil
}

// userName is what squeue calls the user; empty is our own.
func userName(name string) string {
	if name != "" {
		return name
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Geteuid())
}

// bounded keeps the beginning of what is written.
type bounded struct {
	bytes.Buffer
	limit int
	over  bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if room := b.limit - b.Len(); len(p) > room {
		b.over = true
		_, _ = b.Buffer.Write(p[:max(room, 0)])
		return len(p), nil
	}
	return b.Buffer.Write(p)
}
