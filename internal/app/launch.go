package app

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/dataset/source/sqlite"
	"github.com/falaj-ml/falaj/internal/dataset/sqlworker"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sandbox"
	model "github.com/falaj-ml/falaj/internal/serving/runtime/child"
	"github.com/falaj-ml/falaj/internal/usecase/replica"
)

// Child runs a hidden mode of this binary: what touches users' files, SQL and models.
func Child(mode string, args, environ []string, version string, in io.Reader, out io.Writer) error {
	switch mode {
	case child.ParserMode:
		return parser.Main(in, out)
	case child.SnapshotMode:
		return parser.SnapshotMain(in, out)
	case child.SQLiteMode:
		return sqlite.Main(in, out)
	case child.SQLMode:
		return sqlworker.Main(in, out)
	case model.Mode:
		return runModel(args, in, out)
	case replica.Mode:
		return runReplica(args, environ)
	case "openapi":
		b, err := OpenAPI(version)
		if err != nil {
			return err
		}
		_, err = out.Write(append(b, '\n'))
		return err
	case "metrics-reference":
		page, err := MetricsReference()
		if err != nil {
			return err
		}
		_, err = io.WriteString(out, page)
		return err
	case "config-reference":
		_, err := io.WriteString(out, config.Reference())
		return err
	}
	return fault.New(fault.Invalid, "unknown mode %q", mode)
}

// launcher confines those children: this binary, read-only, and what is scratch.
type launcher struct {
	worker string
	self   string
	level  sandbox.Level
	owner  string // this installation: what a killed server leaves, the next one removes
}

func (a *App) launcher() child.Launcher {
	self, err := os.Executable()
	if err != nil {
		self = "/proc/self/exe"
	}
	level, _ := sandbox.ParseLevel(a.cfg.Isolation) // validated
	return launcher{worker: a.cfg.WorkerPath(), self: self, level: level, owner: a.groupsOwner}
}

// Launch implements child.Launcher.
func (l launcher) Launch(ctx context.Context, mode string, o child.LaunchOptions) (child.Process, error) {
	policy := l.policy(sandbox.Limits{Memory: o.Memory, Processes: 256, Wall: max(o.CPU, time.Minute) * 4, Yields: true})
	if o.Memory > 0 { // the heap of a process that has read a large file would grow to twice that file
		policy.Env["GOMEMLIMIT"] = strconv.FormatInt(int64(o.Memory-o.Memory/4), 10)
	}
	if o.Scratch != "" {
		policy.Mounts = append(policy.Mounts, sandbox.Mount{Path: o.Scratch, Writable: true})
	}
	cmd, err := sandbox.Command(ctx, l.worker, policy, l.self, "child", mode)
	if err != nil {
		return nil, err
	}
	return confined{cmd}, nil
}

// policy is what every child gets: this binary, and nothing else.
func (l launcher) policy(limits sandbox.Limits) sandbox.Policy {
	return sandbox.Policy{
		Level: l.level, Owner: l.owner, Mounts: []sandbox.Mount{{Path: l.self}},
		Env:    map[string]string{"PATH": "/usr/bin:/bin", "HOME": "/tmp", "GOMEMLIMIT": "off", "TZ": "UTC"},
		Limits: limits,
	}
}

// confined is a sandboxed command as child sees it.
type confined struct{ *sandbox.Cmd }

// Command implements child.Process.
func (c confined) Command() *exec.Cmd { return c.Cmd.Cmd }
