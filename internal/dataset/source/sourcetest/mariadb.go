package sourcetest

import (
	"database/sql"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// The user that MariaDB has.
const (
	MariaDBUser     = "reader"
	MariaDBPassword = "canary-mariadb-password"
)

// MariaDB starts a private MariaDB with a database "shop", and gives its port and
// a connection of somebody who may do everything. Where it is not installed the
// test is skipped, or fails under CI=true.
func MariaDB(t *testing.T) (port int, db *sql.DB) {
	t.Helper()
	server, err := exec.LookPath("mariadbd")
	if err != nil {
		server, err = exec.LookPath("/usr/sbin/mariadbd")
	}
	install, ierr := exec.LookPath("mariadb-install-db")
	if err != nil || ierr != nil {
		absent(t, "MariaDB")
	}
	dir, err := os.MkdirTemp("", "falaj-maria-") //nolint:usetesting // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	data := filepath.Join(dir, "data")
	as := []string{}
	if os.Geteuid() == 0 {
		as = append(as, "--user=root")
	}
	out, err := exec.CommandContext(t.Context(), install, append([]string{
		"--no-defaults", "--datadir=" + data, "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve",
	}, as...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("mariadb-install-db: %v\n%s", err, out)
	}
	port = freePort(t)
	socket := filepath.Join(dir, "s")
	log := begin(t, nil, server, append([]string{
		"--no-defaults", "--datadir=" + data, "--socket=" + socket, "--port=" + strconv.Itoa(port), "--bind-address=127.0.0.1",
		"--skip-name-resolve", "--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=0", "--skip-log-bin", "--pid-file=" + filepath.Join(dir, "pid"),
	}, as...)...)
	open := func(user, password, network, address, database string) *sql.DB {
		cfg := mysql.NewConfig()
		cfg.User, cfg.Passwd, cfg.Net, cfg.Addr, cfg.DBName, cfg.Logger = user, password, network, address, database, &mysql.NopLogger{}
		cfg.Params = map[string]string{"time_zone": "'+00:00'"}
		c, err := mysql.NewConnector(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return sql.OpenDB(c)
	}
	root := open("root", "", "unix", socket, "")
	defer func() { _ = root.Close() }()
	eventually(t, log, func() error { return root.PingContext(t.Context()) })
	for _, s := range []string{
		"CREATE DATABASE shop", "CREATE USER '" + MariaDBUser + "'@'%' IDENTIFIED BY '" + MariaDBPassword + "'", "GRANT ALL ON shop.* TO '" + MariaDBUser + "'@'%'",
	} {
		if _, err := root.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	db = open(MariaDBUser, MariaDBPassword, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), "shop")
	t.Cleanup(func() { _ = db.Close() })
	return port, db
}

// HasMariaDB reports whether it is installed.
func HasMariaDB() bool {
	_, here := exec.LookPath("/usr/sbin/mariadbd")
	_, path := exec.LookPath("mariadbd")
	return here == nil || path == nil
}
