package alert

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox"
)

// Commands are the programs that alerts may run: those that the operator put
// into a directory, and nothing that a manifest brings. The zero value has none.
type Commands struct {
	Dir     string          // absolute; visible inside, read-only
	Worker  string          // the falaj-worker binary
	Level   sandbox.Level   // of the sandbox
	Owner   string          // the installation, as sandbox.Policy.Owner
	Mounts  []sandbox.Mount // what they may see or write besides, such as a spool
	Timeout time.Duration   // 0 is 30 s, 1 min at most
}

func (c Commands) permitted() error {
	if c.Dir == "" {
		return fault.New(fault.Unsupported, "alert commands are disabled on this server").
			WithHint("An operator must set alerts.commands in the configuration to a directory of programs.")
	}
	return nil
}

// run gives the event to a program on its standard input. Exit code 0 is
// delivered; any other, a signal or the time limit is a failed attempt.
func (c Commands) run(ctx context.Context, r Row) error {
	if err := c.permitted(); err != nil {
		return refusal{err}
	}
	program := filepath.Join(c.Dir, r.To.Command[0]) // a name without a slash: Validate
	if info, err := os.Stat(program); err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return refusal{fault.New(fault.NotFound, "command %s is not a program in alerts.commands", clip(r.To.Command[0]))}
	}
	timeout := c.Timeout
	if timeout <= 0 {
		timeout = 30 * time.Second
	}
	timeout = min(timeout, time.Minute)
	cmd, err := sandbox.Command(ctx, c.Worker, sandbox.Policy{
		Level: c.Level, Owner: c.Owner, Mounts: append([]sandbox.Mount{{Path: c.Dir}}, c.Mounts...),
		Env: map[string]string{
			"PATH": c.Dir + ":/usr/bin:/bin", "HOME": "/tmp", "TZ": "UTC", "LANG": "C.UTF-8",
			"FALAJ_EVENT_ID": r.Event, "FALAJ_EVENT_TYPE": r.Type, "FALAJ_PROJECT": r.Project,
		},
		Limits: sandbox.Limits{CPU: resource.Cores(1), Memory: 256 * resource.MiB, Processes: 64, OpenFiles: 256, FileSize: 16 * resource.MiB, Wall: timeout},
	}, append([]string{program}, r.To.Command[1:]...)...)
	if err != nil {
		return err
	}
	var said tail
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(r.Body), &said, &said
	if err := cmd.Run(); err != nil {
		if len(said.b) > 0 {
			return fault.New(fault.KindOf(err), "%w: %s", err, said.b)
		}
		return err
	}
	return nil
}

// tail keeps the last bytes that were written to it.
type tail struct{ b []byte }

const maxTail = 400

// Write implements io.Writer; it never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p[max(0, len(p)-maxTail):]...)
	t.b = t.b[max(0, len(t.b)-maxTail):]
	return len(p), nil
}
