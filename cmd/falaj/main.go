// Command falaj is the server and its command line in one binary.
package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/falaj-ml/falaj/internal/app"
	"github.com/falaj-ml/falaj/internal/cli"
	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/doctor"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/sandbox/harden"
	"github.com/falaj-ml/falaj/internal/usecase/simulation"
)

// What the linker sets: the version, the commit and its time.
var version, commit, built = "dev", "", ""

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	hardened := slices.Contains(os.Environ(), harden.Marker)
	_ = os.Unsetenv(harden.Name) // what the server starts is not started anew
	w := cli.World{Args: os.Args[1:], Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Version: version, Commit: commit, Built: built}
	w.Up = func(ctx context.Context, file string, flags map[string]any, keep func(server, token, ca string) error) error {
		cfg, err := config.Load(file, w.Env, flags)
		if err != nil {
			return err
		}
		if !hardened {
			err = harden.Exec(w.Env) // returns only when it fails
		} else if state, failed := harden.Of(os.Getpid()); failed != nil {
			err = failed
		} else {
			err = state.Err() // the environment alone proves nothing
		}
		syscall.Umask(0o077) // whatever library makes a file, it is nobody else's
		return app.Run(ctx, cfg, app.World{Version: version, Out: w.Stdout, Log: w.Stderr, Path: filepath.SplitList(os.Getenv("PATH")), Keep: keep, Hardening: err})
	}
	w.CheckConfig = func(file string, flags map[string]any) (string, error) {
		cfg, err := config.Load(file, w.Env, flags)
		if err == nil {
			err = cfg.CheckFiles()
		}
		return cfg.Show(), err
	}
	w.Doctor = func(file string, flags map[string]any) (string, bool) { return doctor.Check(file, w.Env, flags) }
	w.AcceptRollback = func(ctx context.Context, file string, flags map[string]any, reason string) (bool, error) {
		cfg, err := config.Load(file, w.Env, flags)
		if err != nil {
			return false, err
		}
		return app.AcceptRollback(ctx, cfg, app.World{Version: version, Out: w.Stdout, Log: w.Stderr}, reason)
	}
	w.Reseal = func(file string, flags map[string]any, passphraseFile string) error {
		cfg, err := config.Load(file, w.Env, flags)
		if err != nil {
			return err
		}
		return app.Reseal(cfg, passphraseFile)
	}
	w.RecoverAdmin = func(ctx context.Context, file string, flags map[string]any) (string, error) {
		cfg, err := config.Load(file, w.Env, flags)
		if err != nil {
			return "", err
		}
		return app.RecoverAdmin(ctx, cfg, app.World{Version: version, Out: w.Stdout, Log: w.Stderr})
	}
	w.Backup = func(ctx context.Context, file string, flags map[string]any, dir string) (string, error) {
		cfg, err := config.Load(file, w.Env, flags)
		if err != nil {
			return "", err
		}
		syscall.Umask(0o077)
		return app.Backup(ctx, cfg, app.World{Version: version, Out: w.Stdout, Log: w.Stderr}, dir)
	}
	w.Restore = func(ctx context.Context, file string, flags map[string]any, dir, digest string, takeBucket bool) (string, error) {
		cfg, err := config.Load(file, w.Env, flags)
		if err != nil {
			return "", err
		}
		syscall.Umask(0o077)
		return app.Restore(ctx, cfg, app.World{Version: version, Out: w.Stdout, Log: w.Stderr}, dir, digest, takeBucket)
	}
	w.VerifyAudit = audit.VerifyText
	w.Simulate = func(ctx context.Context, args cli.SimulateArgs, done func(share float64)) ([]byte, error) {
		summary, err := simulation.Run(ctx, simulation.Traces(args), done)
		if err != nil {
			return nil, err
		}
		return json.Marshal(summary)
	}
	w.SimulateLive = func(ctx context.Context, args cli.LiveArgs) ([]byte, error) {
		answer, err := simulation.RunLive(ctx, simulation.Live(args))
		if err != nil {
			return nil, err
		}
		return json.Marshal(answer)
	}
	w.Child = func(mode string, args []string, in io.Reader, out io.Writer) error {
		return app.Child(mode, args, w.Env, version, in, out)
	}
	return cli.Run(ctx, w)
}
