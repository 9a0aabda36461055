package app

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime/child"
	"github.com/falaj-ml/falaj/internal/serving/runtime/onnx"
	"github.com/falaj-ml/falaj/internal/usecase/replica"
)

// runReplica calls the server, is given a model, and answers until the server hangs up.
// SIGTERM has it ask for that.
func runReplica(args, environ []string) error {
	if len(args) != 1 {
		return fault.New(fault.Invalid, "the library's path is missing")
	}
	env := map[string]string{}
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	conn, err := replica.Call(ctx, env)
	if err != nil {
		return fault.Wrap(err, "call the server")
	}
	defer conn.Close()
	// What the library prints has seen rows, and is nobody's to read.
	if err := silence(); err != nil {
		return err
	}
	return child.Serve(ctx, conn, conn, onnx.New(args[0]))
}

// silence makes what is printed go nowhere.
func silence() error {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	for _, fd := range []int{1, 2} {
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return err
		}
	}
	return nil
}
