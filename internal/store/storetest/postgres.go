package storetest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // driver

	"github.com/falaj-ml/falaj/internal/store"
)

// installPostgres is what brings the binaries.
const installPostgres = "apt-get install -y postgresql-15"

// Postgres returns the URL of a database of the test's own, which is empty or, where
// migrations are given, has those and the store's. It is on a private
// PostgreSQL that the first call in a test process starts and that ends with the
// process, however it ends. It listens on a socket in a temporary directory only.
// Where PostgreSQL is not installed the test is skipped, or fails under CI=true.
func Postgres(tb testing.TB, migrations ...store.Migrations) string {
	tb.Helper()
	c := started(tb, shared)
	if len(migrations) == 0 {
		return c.database(tb, "template0")
	}
	from, err := c.template(tb.Context(), migrations)
	if err != nil {
		tb.Fatal(err)
	}
	return c.database(tb, from)
}

// started is a cluster, or the end of the test.
func started(tb testing.TB, start func() (*cluster, error)) *cluster {
	tb.Helper()
	c, err := start()
	if errors.Is(err, errNoPostgres) {
		if os.Getenv("CI") == "true" { //nolint:forbidigo // CI tells the tests that nothing may be skipped
			tb.Fatalf("%v; install it with: %s", err, installPostgres)
		}
		tb.Skipf("%v; install it with: %s", err, installPostgres)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// template returns the name of a database that has the migrations and is only copied. The
// first call for a set of migrations creates it.
func (c *cluster) template(ctx context.Context, migrations []store.Migrations) (string, error) {
	key, err := schemaKey(migrations)
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if name := c.templates[key]; name != "" {
		return name, nil
	}
	name := fmt.Sprintf("schema_%d", c.databases.Add(1))
	if _, err := c.admin.ExecContext(ctx, `CREATE DATABASE `+name+` TEMPLATE template0`); err != nil {
		return "", fmt.Errorf("create database: %w", err)
	}
	db, err := store.Open(ctx, store.Config{URL: c.url(name), Migrations: migrations})
	if err != nil {
		return "", err
	}
	if err := db.Close(); err != nil {
		return "", err
	}
	c.templates[key] = name
	return name, nil
}

// database makes a copy of a template, and gives its URL.
func (c *cluster) database(tb testing.TB, template string) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	name := fmt.Sprintf("test_%d", c.databases.Add(1))
	if _, err := c.admin.ExecContext(ctx, `CREATE DATABASE `+name+` TEMPLATE `+template); err != nil {
		tb.Fatalf("create database: %v", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := c.admin.ExecContext(ctx, `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			tb.Errorf("drop database: %v", err)
		}
	})
	return c.url(name)
}

// Server is a PostgreSQL of one test's own, which it may stop. It is skipped as Postgres is.
type Server struct {
	URL string // of an empty database
	tb  testing.TB
	c   *cluster
}

// OwnPostgres starts one, which ends with the test.
func OwnPostgres(tb testing.TB) *Server {
	tb.Helper()
	c := started(tb, startPostgres)
	c.admin.SetMaxIdleConns(-1) // none is left over from before a Stop
	tb.Cleanup(func() { _ = c.alive.Close() })
	tb.Cleanup(func() { _ = c.admin.Close() })
	return &Server{c.database(tb, "template0"), tb, c}
}

// Pause stops all of its processes with SIGSTOP, until the function that it gives is
// called: the server takes connections and says nothing.
func (s *Server) Pause() (resume func()) {
	s.tb.Helper()
	pids := s.processes()
	send := func(signal syscall.Signal) {
		for _, pid := range pids {
			_ = syscall.Kill(pid, signal) // it may have ended
		}
	}
	send(syscall.SIGSTOP)
	resume = sync.OnceFunc(func() { send(syscall.SIGCONT) })
	s.tb.Cleanup(resume)
	return resume
}

// Stop ends the server, and Start starts it again.
func (s *Server) Stop() { s.command("stop") }

// Start starts a server that Stop ended.
func (s *Server) Start() { s.command("start") }

func (s *Server) command(what string) {
	s.tb.Helper()
	if _, err := io.WriteString(s.c.alive, what+"\n"); err != nil {
		s.tb.Fatal(err)
	}
}

// processes are the postmaster and its children.
func (s *Server) processes() []int {
	s.tb.Helper()
	text, err := os.ReadFile(filepath.Join(s.c.dir, "data", "postmaster.pid"))
	if err != nil {
		s.tb.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	first, err := strconv.Atoi(line)
	if err != nil {
		s.tb.Fatal(err)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", first, first))
	if err != nil {
		s.tb.Fatal(err)
	}
	pids := []int{first}
	for field := range strings.FieldsSeq(string(children)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			s.tb.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

var errNoPostgres = errors.New("no PostgreSQL binaries found")

// cluster is a running server.
type cluster struct {
	dir       string
	alive     io.WriteCloser // the pipe that keeps the server running
	admin     *sql.DB
	databases atomic.Int64

	mu        sync.Mutex
	templates map[[32]byte]string // names, by schemaKey
}

var shared = sync.OnceValues(startPostgres)

func (c *cluster) url(database string) string {
	return "postgres://postgres@/" + database + "?host=" + url.QueryEscape(c.dir)
}

// serve runs the server until its standard input ends, which it does when the
// test process does; then it stops the server and removes its directory. The lines stop
// and start do the one and the other before. It does not
// vacuum by itself: while it writes, later events are not seen yet.
const serve = `
trap '' INT TERM HUP
bin=$1 dir=$2
start() {
	"$bin/postgres" -D "$dir/data" -k "$dir" -c listen_addresses= -c max_connections=200 -c shared_buffers=32MB -c autovacuum=off -c log_min_messages=warning >>"$dir/log" 2>&1 &
	server=$!
}
start
while read -r line; do
	case $line in
	stop) kill -INT $server; wait $server ;;
	start) start ;;
	esac
done
kill -INT $server
wait $server
rm -rf "$dir"
`

func startPostgres() (*cluster, error) {
	bin, err := postgresBin()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "falaj-pg-")
	if err != nil {
		return nil, err
	}
	attr := &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 { // PostgreSQL refuses to run as root
		cred, err := postgresUser()
		if err != nil {
			return nil, err
		}
		if err := os.Chown(dir, int(cred.Uid), int(cred.Gid)); err != nil {
			return nil, err
		}
		attr.Credential = cred
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", filepath.Join(dir, "data"),
		"-U", "postgres", "--auth=trust", "--locale=C", "--encoding=UTF8", "--no-sync", "--no-instructions")
	initdb.SysProcAttr, initdb.Dir = attr, dir
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	// A real pipe whose other end only this process has: the kernel closes it,
	// also after a kill -9.
	server := exec.Command("/bin/sh", "-c", serve, "sh", bin, dir) //nolint:noctx // lives as long as this process
	server.SysProcAttr, server.Dir = attr, dir
	stdin, err := server.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := server.Start(); err != nil {
		return nil, err
	}
	c := &cluster{dir: dir, alive: stdin, templates: map[[32]byte]string{}}
	if c.admin, err = sql.Open("pgx", c.url("postgres")); err != nil {
		return nil, err
	}
	c.admin.SetMaxOpenConns(2)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if err = c.admin.PingContext(ctx); err == nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			return nil, fmt.Errorf("PostgreSQL does not start: %w\n%s", err, bytes.TrimSpace(log))
		case <-tick.C:
		}
	}
}

func postgresBin() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) > 0 {
		return filepath.Dir(found[len(found)-1]), nil
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		return filepath.Dir(path), nil
	}
	return "", errNoPostgres
}

func postgresUser() (*syscall.Credential, error) {
	u, err := user.Lookup("postgres")
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	if err != nil {
		return nil, fmt.Errorf("a user that PostgreSQL may run as: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}
