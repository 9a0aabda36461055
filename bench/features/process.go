package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// task is what a process of its own does.
type task struct {
	Do       string   `json:"do"` // join, copy, store or bare
	Dir      string   `json:"dir"`
	Order    string   `json:"order,omitempty"`
	Views    []string `json:"views,omitempty"`
	Entities int      `json:"entities,omitempty"`
	Span     float64  `json:"span,omitempty"` // seconds
}

// cost is what a task took.
type cost struct {
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu"`  // seconds, of the user and the kernel
	Peak    float64 `json:"peak"` // MiB of resident memory
	Rows    int64   `json:"rows"`
	Found   []int64 `json:"found"` // values of each view that are not null
}

// taskVariable holds the task of a process that was started for one.
const taskVariable = "BENCH_FEATURES_TASK"

// asked does the task of this process and ends it, where it has one.
func asked() error {
	text := os.Getenv(taskVariable)
	if text == "" {
		return nil
	}
	var t task
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return err
	}
	began, before := time.Now(), processTime()
	var c cost
	var err error
	switch t.Do {
	case "join":
		c, err = t.join(context.Background())
	case "copy":
		c, err = t.copy(context.Background())
	case "store":
		c, err = t.store(context.Background())
	case "bare":
		c, err = t.bare(context.Background())
	default:
		err = fmt.Errorf("there is no task %q", t.Do)
	}
	if err != nil {
		return err
	}
	c.Seconds, c.CPU = time.Since(began).Seconds(), processTime()-before
	if c.Peak, err = peak(); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(c); err != nil {
		return err
	}
	os.Exit(0)
	return nil
}

func processTime() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// peak is VmHWM: rusage would count what the parent held when it forked.
func peak() (float64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 64)
			return kib / 1024, err
		}
	}
	return 0, errors.New("the kernel tells no VmHWM")
}

// inProcess does a task in a process of its own.
func inProcess(ctx context.Context, t task) (cost, error) {
	self, err := os.Executable()
	if err != nil {
		return cost{}, err
	}
	text, err := json.Marshal(t)
	if err != nil {
		return cost{}, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), taskVariable+"="+string(text))
	return outcome(cmd)
}

// outcome runs a command that prints a cost.
func outcome(cmd *exec.Cmd) (cost, error) {
	var c cost
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		said := strings.TrimSpace(stderr.String())
		return c, fmt.Errorf("%w: %s", err, said[max(0, len(said)-300):])
	}
	return c, json.Unmarshal(out, &c)
}
