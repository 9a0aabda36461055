package profiler

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
)

// oldNsys stands for nsys of before 2023.1, as far as it is used here.
const oldNsys = `#!/bin/sh
here=${0%/*}
echo "$TMPDIR $*" >>"$here/said"
for a; do case $a in --output=*) output=${a#--output=} ;; esac; done
case "$*" in
start*) echo "$output" >"$here/report"; [ ! -p "$here/started" ] || echo >"$here/started" ;;
stop*) echo report >"$(cat "$here/report")" ;;
*gputrace*) echo trace >"${output}_gputrace.csv" ;;
--version) echo 'NVIDIA Nsight Systems version 2022.4.2.1-df9881f' ;;
esac
`

// TestNsys: the session that the program was started in records, and ends also
// when nobody waits.
func TestNsys(t *testing.T) {
	t.Parallel()
	interpreter, _ := sandboxtest.Python(t)
	begin := func(env ...string) Place {
		cmd := exec.CommandContext(t.Context(), interpreter, "-c", "print(flush=True)\nimport time\ntime.sleep(1000)")
		cmd.Env = env
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		if _, err := out.Read(make([]byte, 1)); err != nil { // it runs
			t.Fatal(err)
		}
		return Place{Root: cmd.Process.Pid, Dir: t.TempDir()}
	}
	r := Request{ID: "prf_1", Tool: Nsys, Seconds: 1}
	if _, err := Take(t.Context(), r, begin()); !fault.Is(err, fault.Unsupported) || !strings.Contains(fault.HintOf(err), "nsys launch") {
		t.Errorf("a program by itself: %v", err)
	}
	if _, err := Take(t.Context(), r, begin("NSYS_PROFILING_SESSION_ID=7")); !fault.Is(err, fault.Unsupported) {
		t.Errorf("without nsys: %v", err)
	}

	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "nsys"), []byte(oldNsys), 0o700); err != nil {
		t.Fatal(err)
	}
	at := begin("NSYS_PROFILING_SESSION_ID=7", "TMPDIR="+bin)
	at.Path = bin
	got, err := Take(t.Context(), r, at)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Files) != 2 || string(got.Files[0].Data) != "report\n" || string(got.Files[1].Data) != "trace\n" || got.Version != "2022.4.2.1-df9881f" || got.Lasted <= 0 || got.Processes != 1 {
		t.Errorf("%+v", got)
	}
	started := filepath.Join(bin, "started")
	if err := syscall.Mkfifo(started, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = os.ReadFile(started)
		cancel()
	}()
	r.Seconds = MaxSeconds
	if _, err := Take(ctx, r, at); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	said, err := os.ReadFile(filepath.Join(bin, "said"))
	var words []string
	for line := range strings.Lines(string(said)) {
		f := strings.Fields(line)
		if f[0] != bin {
			t.Errorf("its sessions are looked for in %s", f[0])
		}
		words = append(words, f[1])
	}
	if want := []string{"start", "stop", "stats", "stats", "--version", "start", "stop"}; err != nil || !slices.Equal(words, want) {
		t.Errorf("%q %v", words, err)
	}
}
