package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
)

// side is one of the two servers.
type side struct {
	url, token string
	server     *harness.Server // Falaj
	b          *bench
	cmd        *exec.Cmd // MLflow
	ended      chan struct{}
}

// script runs a Python program of this folder and gives what it says.
func (b *bench) script(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, b.python, append([]string{filepath.Join(b.Root, "bench", "tracking", name)}, args...)...)
	cmd.Env = append(os.Environ(), quiet(b.Dir)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", name, err, said.String()[max(0, said.Len()-2000):])
	}
	return out.String(), nil
}

func quiet(home string) []string {
	return []string{"HOME=" + home, "MLFLOW_DISABLE_TELEMETRY=true", "DO_NOT_TRACK=true", "GIT_PYTHON_REFRESH=quiet", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false"}
}

// falaj starts Falaj with an empty project on a database; "" is its SQLite.
func (b *bench) falaj(ctx context.Context, name, database string, core int) (*side, error) {
	var settings []string
	if database != "" {
		settings = append(settings, "FALAJ_STORE_URL="+database)
	}
	s, err := b.Up(ctx, filepath.Join(b.Dir, "falaj-"+name), core, settings...)
	if err != nil {
		return nil, err
	}
	o := &side{url: s.URL, server: s, b: b}
	c, err := s.Client()
	if err == nil {
		o.token, err = projectOf(ctx, c, "bench")
	}
	if err != nil {
		_ = o.stop()
		return nil, err
	}
	return o, nil
}

// bring imports a database of MLflow.
func (s *side) bring(ctx context.Context, file string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(s.b.Root, "bin", "falaj"), "import", "mlflow", file, "-p", "bench", "--no-artifacts")
	cmd.Env = append(os.Environ(), "FALAJ_URL="+s.url, "FALAJ_TOKEN="+s.server.Token)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import: %w\n%s", err, out)
	}
	return nil
}

// mlflow starts `mlflow server` with its default workers on a backend store.
func (b *bench) mlflow(ctx context.Context, store, artifacts string, core int) (*side, error) {
	// None of those that the kernel gives to who asks for any: it takes half a minute until it listens.
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:"+strconv.Itoa(15_000+rand.IntN(17_000))) //nolint:gosec // no secret
	if err != nil {
		return nil, err
	}
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	if err := l.Close(); err != nil {
		return nil, err
	}
	m := &side{url: "http://127.0.0.1:" + port, b: b, ended: make(chan struct{})}
	m.cmd = exec.CommandContext(ctx, b.python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", port, "--backend-store-uri", store, "--artifacts-destination", artifacts)
	if b.Quick { // four take a minute to start
		m.cmd.Args = append(m.cmd.Args, "--workers", "1")
	}
	m.cmd.Dir = b.Dir
	m.cmd.Env = append(os.Environ(), quiet(b.Dir)...)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	m.cmd.Cancel = func() error { return syscall.Kill(-m.cmd.Process.Pid, syscall.SIGKILL) }
	log, err := os.OpenFile(filepath.Join(b.Dir, "mlflow.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	m.cmd.Stdout, m.cmd.Stderr = log, log
	if err := harness.StartOn(core, m.cmd.Start); err != nil {
		return nil, err
	}
	go func() {
		_ = m.cmd.Wait()
		close(m.ended)
	}()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	late := time.After(10 * time.Minute) // it imports for minutes on a busy machine
	for {
		select {
		case <-m.ended:
			text, _ := os.ReadFile(log.Name())
			return nil, fmt.Errorf("mlflow server ended:\n%s", text[max(0, len(text)-2000):])
		case <-late:
			_ = m.stop()
			return nil, errors.New("mlflow server is not ready after 10 minutes")
		case <-tick.C:
			if resp, err := http.Get(m.url + "/health"); err == nil { //nolint:noctx // our own child
				_ = resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					return m, nil
				}
			}
		}
	}
}

func (s *side) stop() error {
	if s.server != nil {
		return s.server.Stop()
	}
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	<-s.ended
	return nil
}

func (s *side) pid() int {
	if s.server != nil {
		return s.server.PID()
	}
	return s.cmd.Process.Pid
}

func (s *side) cpu() (float64, error) { return harness.TreeCPUSeconds(s.pid()) }

// anon is the RssAnon of a side's processes, in MiB.
func (s *side) anon() (total float64) {
	for _, p := range harness.Tree(s.pid()) {
		a, _ := harness.Resident(p)
		total += a
	}
	return total
}

// both starts the two sides with the same contents; theirs is nil where there is no
// MLflow, and b.absent says why.
func (b *bench) both(ctx context.Context, database string, s size, do func(ours, theirs *side) error) error {
	if err := b.ready(ctx, database); err != nil {
		return err
	}
	var file, ourURL, store string
	var err error
	if b.absent == "" {
		if file, err = b.generate(ctx, s); err != nil {
			return err
		}
		store = "sqlite:///" + file
	}
	name := strings.ToLower(database) + "-" + strconv.Itoa(s.runs)
	if database == "PostgreSQL" {
		pg, err := b.postgres(ctx)
		if err != nil {
			return err
		}
		defer pg.stop()
		ourURL = pg.url("ours")
		if b.absent == "" {
			store = strings.Replace(pg.url("theirs"), "postgres://", "postgresql+psycopg://", 1)
			if _, err := b.script(ctx, "postgres.py", file, store); err != nil {
				return err
			}
		}
	}
	ours, err := b.falaj(ctx, name, ourURL, b.serve)
	if err != nil {
		return err
	}
	defer func() { _ = ours.stop() }()
	var theirs *side
	if b.absent == "" {
		b.Say("importing it into Falaj")
		if err := ours.bring(ctx, file); err != nil {
			return err
		}
		if theirs, err = b.mlflow(ctx, store, filepath.Join(b.Dir, "artifacts-"+name), b.serve); err != nil {
			return err
		}
		defer func() { _ = theirs.stop() }()
	} else if _, _, err := ours.caller("").ask(ctx, request{Name: "experiment", Method: http.MethodPost, Path: "/api/2.0/mlflow/experiments/create", Body: `{"name": "bench"}`}, "", ""); err != nil {
		return err // the requests are to the experiment 1
	}
	return do(ours, theirs)
}

// cluster is a PostgreSQL of our own, on a socket in its directory.
type cluster struct {
	dir string
	cmd *exec.Cmd
}

func (c *cluster) url(database string) string {
	return "postgres://postgres@/" + database + "?host=" + c.dir
}

func (c *cluster) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGINT)
	_ = c.cmd.Wait()
	_ = os.RemoveAll(c.dir)
}

func (b *bench) postgres(ctx context.Context) (*cluster, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(found) == 0 {
		return nil, errors.New("no PostgreSQL is installed: make engines")
	}
	bin := found[len(found)-1]
	dir, err := os.MkdirTemp("", "falaj-bench-pg-") // a socket's path is short
	if err != nil {
		return nil, err
	}
	attr := &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 { // PostgreSQL refuses to run as root
		who, err := user.Lookup("postgres")
		if err != nil {
			return nil, err
		}
		uid, _ := strconv.ParseUint(who.Uid, 10, 32)
		gid, _ := strconv.ParseUint(who.Gid, 10, 32)
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(dir, int(uid), int(gid)); err != nil {
			return nil, err
		}
	}
	run := func(name string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, filepath.Join(bin, name), args...)
		cmd.SysProcAttr, cmd.Dir = attr, dir
		return cmd
	}
	if out, err := run("initdb", "-D", dir+"/data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	c := &cluster{dir: dir, cmd: run("postgres", "-D", dir+"/data", "-k", dir, "-c", "listen_addresses=", "-c", "log_min_messages=warning")}
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGINT) }
	if err := harness.StartOn(b.serve, c.cmd.Start); err != nil {
		return nil, err
	}
	for _, database := range []string{"ours", "theirs"} {
		var out []byte
		for range 100 { // until it listens
			if out, err = run("createdb", "-h", dir, "-U", "postgres", database).CombinedOutput(); err == nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if err != nil {
			c.stop()
			return nil, fmt.Errorf("createdb: %w\n%s", err, out)
		}
	}
	return c, nil
}

// fsync is the times of n appends of so many bytes and their fsync on the same disk.
func (b *bench) fsync(n, bytes int) ([]float64, error) {
	f, err := os.CreateTemp(b.Dir, "fsync-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	block := make([]byte, bytes)
	times := make([]float64, n)
	for i := range times {
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			return nil, err
		}
		if err := f.Sync(); err != nil {
			return nil, err
		}
		times[i] = harness.Millis(time.Since(began))
	}
	return times, nil
}
