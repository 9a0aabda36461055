package store

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Bounds of PostgreSQL's use.
const (
	maxWriters  = 16          // connections that write, and as many that read
	maxAttempts = 12          // of one closure that loses against others
	maxTxTime   = time.Minute // of one attempt: an open transaction holds back every reader of a stream
	firstPause  = 2 * time.Millisecond
	maxPause    = 250 * time.Millisecond
	migrateLock = 0x66616c616a // advisory lock of migrations
)

// connectTime bounds a connection's beginning where the URL does not (connect_timeout).
const connectTime = 3 * time.Second

// postgresDB is PostgreSQL with SERIALIZABLE transactions, which it makes so by
// failing some of them: those run again, after a pause that grows.
type postgresDB struct {
	slots         *slots
	writes, reads *bun.DB
	pulse         *pulse
	beats         *sql.DB // its connection
	quit          context.CancelFunc
	ended         sync.WaitGroup
	offset        int64 // added to transaction ids, see store_origin
}

// parsePostgres reads a URL as libpq does, with its variables and files. Error:
// fault.Invalid, also for a connection to another host that TLS does not protect.
func parsePostgres(rawURL string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(rawURL)
	if err != nil {
		// The cause may show the password; its own text does not.
		return nil, fault.New(fault.Invalid, "store URL: %s", err.Error()).WithHint("Use postgres://user@host/database.")
	}
	ways := []*pgconn.FallbackConfig{{Host: cfg.Host, TLSConfig: cfg.TLSConfig}}
	for _, way := range append(ways, cfg.Fallbacks...) {
		if way.TLSConfig == nil && !onThisMachine(way.Host) {
			return nil, fault.New(fault.Invalid, "store URL: the connection to PostgreSQL at %s is not protected by TLS", way.Host).
				WithHint("Append ?sslmode=verify-full, and set sslrootcert to the PEM file of a private authority.")
		}
	}
	return cfg, nil
}

// onThisMachine reports a loopback address or a socket.
func onThisMachine(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") || ip != nil && ip.IsLoopback()
}

// unverified reports a configuration in which TLS does not authenticate the server.
func unverified(cfg *pgx.ConnConfig) bool {
	return cfg.TLSConfig != nil && cfg.TLSConfig.InsecureSkipVerify && cfg.TLSConfig.VerifyPeerCertificate == nil && !onThisMachine(cfg.Host)
}

// renewed sets, for a new connection, what may have changed since the server started: the
// password, and the TLS files.
func renewed(rawURL string, password func() string) func(context.Context, *pgx.ConnConfig) error {
	return func(_ context.Context, c *pgx.ConnConfig) error {
		if fresh, err := parsePostgres(rawURL); err == nil { // otherwise the former settings stay
			c.TLSConfig, c.Fallbacks = fresh.TLSConfig, fresh.Fallbacks
			c.Password = fresh.Password // as of .pgpass
		}
		if password != nil {
			c.Password = password()
		}
		return nil
	}
}

// connectPostgres is how connections are made.
func connectPostgres(c Config) (*pgx.ConnConfig, driver.Connector, error) {
	cfg, err := parsePostgres(c.URL)
	if err != nil {
		return nil, nil, err
	}
	// bun writes the arguments into the statement, so a prepared one is never used
	// twice; one round trip instead of two.
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTime
	}
	for name, value := range map[string]string{
		"application_name": "falaj", "TimeZone": "UTC", "client_encoding": "UTF8",
		"standard_conforming_strings":         "on", // how bun quotes
		"lock_timeout":                        "30s",
		"idle_in_transaction_session_timeout": "5min",
	} {
		if cfg.RuntimeParams[name] == "" {
			cfg.RuntimeParams[name] = value
		}
	}
	return cfg, stdlib.GetConnector(*cfg, stdlib.OptionBeforeConnect(renewed(c.URL, c.Password)), stdlib.OptionAfterConnect(syncedCommits)), nil
}

func openPostgres(ctx context.Context, c Config) (_ *postgresDB, err error) {
	cfg, connector, err := connectPostgres(c)
	if err != nil {
		return nil, err
	}
	pool := func() *sql.DB {
		db := sql.OpenDB(laterConnector{connector})
		db.SetMaxOpenConns(maxWriters)
		db.SetMaxIdleConns(maxWriters / 2)
		db.SetConnMaxIdleTime(5 * time.Minute)
		return db
	}
	p := &postgresDB{slots: newSlots(maxWriters), beats: sql.OpenDB(connector), quit: func() {}}
	p.beats.SetMaxOpenConns(1)
	p.pulse = newPulse(p.beats.PingContext, cmp.Or(c.Log, slog.New(slog.DiscardHandler)).With(slog.String("host", cfg.Host)))
	p.writes = bun.NewDB(pool(), pgdialect.New()).WithQueryHook(noteConflicts{})
	p.reads = bun.NewDB(pool(), pgdialect.New()).WithQueryHook(noteConflicts{})
	defer func() {
		if err != nil {
			_ = p.close()
		}
	}()
	if err := p.check(ctx); err != nil {
		return nil, opening(err)
	}
	if err := p.migrate(ctx, c); err != nil {
		return nil, classify(err)
	}
	beating, quit := context.WithCancel(context.Background())
	p.quit = quit
	p.ended.Go(func() { p.pulse.run(beating) })
	return p, nil
}

// syncedCommits undoes a server default that acknowledges before the sync, and
// keeps one that waits for replicas as well.
func syncedCommits(ctx context.Context, c *pgx.Conn) error {
	_, err := c.Exec(ctx, `SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'`)
	return err
}

// PostgreSQL is what a server says of itself and of our database.
type PostgreSQL struct {
	Version    string
	Database   string
	User       string
	Encoding   string
	Locale     string // by which text is sorted
	Encrypted  bool   // the connection
	Verified   bool   // and the certificate was looked at
	Here       bool   // it is on this machine
	Conns      int    // connections that it takes, of all
	number     int    // of the version
	provider   string
	fsync      string
	pages      string
	standby    bool
	mayCreate  bool   // tables in the schema
	schema     string // in which tables are made
	otherOwner string // of a table of ours that is not ours
}

// MaxConnections is how many connections to PostgreSQL a server has at most.
const MaxConnections = 2*maxWriters + 1

// ask reads what the server says.
func ask(ctx context.Context, db *sql.DB) (is PostgreSQL, err error) {
	err = db.QueryRowContext(ctx, `SELECT current_setting('server_version'), current_setting('server_version_num')::int, current_database(), current_user, datcollate,
			COALESCE(to_jsonb(d) ->> 'datlocprovider', 'c'), pg_encoding_to_char(encoding),
			current_setting('fsync'), current_setting('full_page_writes'), pg_is_in_recovery(),
			current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
			COALESCE(current_schema(), ''), COALESCE(has_schema_privilege(current_schema(), 'CREATE'), false),
			COALESCE((SELECT MIN(tableowner) FROM pg_tables WHERE schemaname = current_schema()
				AND tablename LIKE 'store\_%' AND NOT pg_has_role(tableowner, 'USAGE')), '')
		FROM pg_database d WHERE datname = current_database()`).
		Scan(&is.Version, &is.number, &is.Database, &is.User, &is.Locale, &is.provider, &is.Encoding, &is.fsync, &is.pages, &is.standby, &is.Conns,
			&is.schema, &is.mayCreate, &is.otherOwner)
	return is, err
}

// usable refuses a database that cannot give the store's guarantees, that sorts differently from
// SQLite, or in which this user cannot create tables.
func (is PostgreSQL) usable() error {
	const create = "Create the database with: createdb --template=template0 --encoding=UTF8 --locale=C --owner=USER NAME"
	switch {
	case is.number < 140000:
		return fault.New(fault.Invalid, "PostgreSQL %d is too old", is.number/10000).WithHint("Use PostgreSQL 14 or newer.")
	case is.Encoding != "UTF8":
		return fault.New(fault.Invalid, "the database has the encoding %s instead of UTF8", is.Encoding).WithHint(create)
	case is.provider != "b" && (is.provider != "c" || is.Locale != "C" && is.Locale != "POSIX"):
		return fault.New(fault.Invalid, "the database sorts text by the locale %q instead of C", is.Locale).WithHint(create)
	case is.fsync != "on" || is.pages != "on":
		return fault.New(fault.Invalid, "PostgreSQL runs with fsync=%s and full_page_writes=%s, which loses acknowledged writes when the power fails", is.fsync, is.pages).
			WithHint("Set both to on in postgresql.conf.")
	case is.standby:
		return fault.New(fault.Unavailable, "this PostgreSQL is a read-only standby").WithHint("Set the store URL to the primary.")
	case is.schema == "":
		return fault.New(fault.Invalid, "the search_path of the user %s names no existing schema", is.User).
			WithHint("CREATE SCHEMA %[1]s AUTHORIZATION %[1]s, or name one by ?search_path= in the store URL.", pgx.Identifier{is.User}.Sanitize())
	case !is.mayCreate:
		return fault.New(fault.Invalid, "the user %s may not create tables in the schema %s of the database %s", is.User, is.schema, is.Database).
			WithHint("ALTER DATABASE %s OWNER TO %s, as a superuser.", pgx.Identifier{is.Database}.Sanitize(), pgx.Identifier{is.User}.Sanitize())
	case is.otherOwner != "":
		return fault.New(fault.Invalid, "Falaj's tables in the database %s belong to %s, and the user %s cannot change them", is.Database, is.otherOwner, is.User).
			WithHint("REASSIGN OWNED BY %s TO %s, in this database as a superuser.", pgx.Identifier{is.otherOwner}.Sanitize(), pgx.Identifier{is.User}.Sanitize())
	}
	return nil
}

// check refuses a database that cannot be used.
func (p *postgresDB) check(ctx context.Context) error {
	is, err := ask(ctx, p.writes.DB)
	if err != nil {
		return err
	}
	return is.usable()
}

// Look asks a PostgreSQL what it is, and changes nothing; what it says comes also with an
// error. Errors: as of Open.
func Look(ctx context.Context, c Config) (PostgreSQL, error) {
	cfg, connector, err := connectPostgres(c)
	if err != nil {
		return PostgreSQL{}, err
	}
	db := sql.OpenDB(connector)
	defer func() { _ = db.Close() }()
	is, err := ask(ctx, db)
	if err != nil {
		return is, opening(err)
	}
	is.Here, is.Encrypted = onThisMachine(cfg.Host), cfg.TLSConfig != nil
	is.Verified = is.Encrypted && !unverified(cfg)
	return is, is.usable()
}

// migrate applies the migrations while no other process does.
func (p *postgresDB) migrate(ctx context.Context, cfg Config) error {
	conn, err := p.reads.DB.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, `SELECT pg_advisory_lock($1)`, int64(migrateLock)); err != nil {
		return fault.Wrap(classify(err), "waiting for another process to migrate")
	}
	defer func() {
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock($1)`, int64(migrateLock))
	}()
	if err := migrate(ctx, p.writes.DB, postgresMigrations, cfg, roomOf(ctx, p.writes.DB)); err != nil {
		return err
	}
	// After a restore into a server whose transaction ids are lower than those in
	// the rows, new entries must still come after the old ones.
	_, err = conn.ExecContext(ctx, `UPDATE store_origin SET tx_offset = newest - next + 1
		FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next,
			GREATEST((SELECT MAX(tx) FROM store_stream), (SELECT MAX(tx) FROM store_cursor)) AS newest) AS s
		WHERE newest >= next + tx_offset`)
	if err != nil {
		return err
	}
	return conn.QueryRowContext(ctx, `SELECT tx_offset FROM store_origin`).Scan(&p.offset)
}

func (p *postgresDB) update(ctx context.Context, lane string, fn func(ctx context.Context, tx bun.Tx) error) error {
	if err := p.slots.acquire(ctx, lane); err != nil {
		return err
	}
	defer p.slots.release()
	return p.pulse.through(ctx, func(ctx context.Context) error {
		return retry(ctx, func(ctx context.Context) error { return p.attempt(ctx, fn) })
	})
}

// attempt runs fn once. The transaction itself does not hear of a cancellation,
// so that a commit under way is never left in the dark by our own doing; of an outage it
// does.
func (p *postgresDB) attempt(ctx context.Context, fn func(ctx context.Context, tx bun.Tx) error) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxTxTime)
	defer cancel()
	caller := ctx // ctx becomes another below
	defer context.AfterFunc(caller, func() {
		if errors.Is(context.Cause(caller), errAway) {
			cancel()
		}
	})()
	tx, err := p.writes.BeginTx(bounded, &sql.TxOptions{Isolation: sql.LevelSerializable})
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done {
			_ = tx.Rollback()
		}
	}()
	ctx, cancelFn := context.WithTimeout(ctx, maxTxTime)
	defer cancelFn()
	if err := fn(ctx, tx); err != nil {
		return Ended(ctx, err)
	}
	done = true
	err = tx.Commit()
	if !inDoubt(err) {
		return err
	}
	return (&fault.Error{Kind: fault.Unavailable, Message: "the connection to the database broke during the commit, which may have taken place", Err: inDoubtError{err}}).
		WithHint("Check whether the change exists before you repeat it; with an idempotency key you can repeat it safely.")
}

func (p *postgresDB) view(ctx context.Context, fn func(ctx context.Context, tx bun.Tx) error) error {
	return p.pulse.through(ctx, func(ctx context.Context) error {
		return retry(ctx, func(ctx context.Context) error {
			return viewOn(ctx, p.reads, &sql.TxOptions{Isolation: sql.LevelSerializable, ReadOnly: true}, fn)
		})
	})
}

func (p *postgresDB) glance(ctx context.Context, fn func(ctx context.Context, db bun.IDB) error) error {
	return p.pulse.through(ctx, func(ctx context.Context) error {
		return retry(ctx, func(ctx context.Context) error { return fn(ctx, p.reads) })
	})
}

func (p *postgresDB) outage() error { return p.pulse.outage() }

// inDoubt reports whether a commit with this error may have taken effect. An error from the server
// says that it did not, except the errors with which a pooler reports a lost connection, and 40003
// (statement_completion_unknown).
func inDoubt(err error) bool {
	if err == nil || errors.Is(err, pgx.ErrTxCommitRollback) {
		return false
	}
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return !ok || lostConnection(err) || refused.Code == "40003"
}

// inDoubtError is the error of a commit without an answer.
type inDoubtError struct{ error }

func (e inDoubtError) Unwrap() error { return e.error }

// lostConnection reports that a transaction was stopped by the end of its connection, or
// had none, before it could have been committed.
func lostConnection(err error) bool {
	if _, doubt := errors.AsType[inDoubtError](err); doubt {
		return false
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok { // also of a connection that is refused
		return pg.Code[:2] == "08" || pg.Code == "57P01" || pg.Code == "57P02" || pg.Code == "57P03"
	}
	if untrusted(err) {
		return false
	}
	_, connect := errors.AsType[*pgconn.ConnectError](err)
	return connect || errors.Is(err, errAway) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed)
}

// retry runs f again while it loses against concurrent transactions.
func retry(ctx context.Context, f func(ctx context.Context) error) error {
	pause := firstPause
	for n := 1; ; n++ {
		var lost atomic.Bool
		err := f(context.WithValue(ctx, lostKey{}, &lost))
		if err == nil || n == maxAttempts || !lost.Load() && !isLost(err) {
			return err
		}
		timer := time.NewTimer(pause/2 + rand.N(pause)) //nolint:gosec // G404: jitter, not a secret
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
		pause = min(2*pause, maxPause)
	}
}

// isLost reports a serialisation failure or a deadlock.
func isLost(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01")
}

// noteConflicts notes a lost transaction even when the closure hides the error.
type noteConflicts struct{}

type lostKey struct{}

func (noteConflicts) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (noteConflicts) AfterQuery(ctx context.Context, e *bun.QueryEvent) {
	if e.Err == nil || !isLost(e.Err) {
		return
	}
	if lost, ok := ctx.Value(lostKey{}).(*atomic.Bool); ok {
		lost.Store(true)
	}
}

func (p *postgresDB) entryTx() string {
	return `pg_current_xact_id()::text::bigint + ` + strconv.FormatInt(p.offset, 10)
}

func (p *postgresDB) below() string {
	return `tx < pg_snapshot_xmin(pg_current_snapshot())::text::bigint + ` + strconv.FormatInt(p.offset, 10)
}

func (p *postgresDB) past() string { return `(tx, seq) > (?, ?)` }

func (p *postgresDB) now() string {
	return `(extract(epoch FROM clock_timestamp()) * 1000000)::bigint`
}
func (p *postgresDB) reader() *bun.DB { return p.reads }
func (p *postgresDB) others() bool    { return true }
func (p *postgresDB) waiting() int    { return p.slots.queue.length() }

// scrub writes the tables anew, without the old versions of their rows. The
// server's own log keeps them until it has gone round; archives and replicas are
// not ours.
func (p *postgresDB) scrub(ctx context.Context, tables []string) error {
	if len(tables) == 0 {
		return nil
	}
	if err := p.unseen(ctx); err != nil {
		return err
	}
	for _, t := range tables {
		if _, err := p.writes.DB.ExecContext(ctx, `VACUUM FULL `+pgx.Identifier{t}.Sanitize()); err != nil {
			return err
		}
	}
	return nil
}

// unseen waits until no snapshot is older than this call, because PostgreSQL keeps deleted rows
// for older snapshots. It sees snapshots of other users only if its own user has the role
// pg_read_all_stats.
func (p *postgresDB) unseen(ctx context.Context) error {
	var now string
	if err := p.writes.DB.QueryRowContext(ctx, `SELECT pg_current_xact_id()::xid::text`).Scan(&now); err != nil {
		return err
	}
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		var seen bool
		if err := p.reads.DB.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND age(backend_xmin) > age($1::text::xid))`, now).Scan(&seen); err != nil {
			return err
		}
		if !seen {
			return nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return errors.New("a read is in progress")
		}
	}
}

func (p *postgresDB) watermark(ctx context.Context) (Position, error) {
	var oldest int64
	err := p.reads.DB.QueryRowContext(ctx, `SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint`).Scan(&oldest)
	if err != nil {
		return Position{}, err
	}
	return Position{Tx: uint64(oldest + p.offset - 1), Seq: 1<<63 - 1}, nil //nolint:gosec // G115: transaction ids begin at 3
}

func (p *postgresDB) close() error {
	p.slots.close()
	p.quit()
	p.ended.Wait()
	return errors.Join(p.beats.Close(), p.reads.Close(), p.writes.Close())
}

// slots bounds the transactions that write at once and gives them out in the
// fair order of the queue.
type slots struct {
	mu      sync.Mutex
	free    int
	queue   *queue[chan struct{}]
	closed  bool
	running sync.WaitGroup
}

func newSlots(n int) *slots { return &slots{free: n, queue: newQueue[chan struct{}]()} }

func (s *slots) acquire(ctx context.Context, lane string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errClosed
	}
	s.running.Add(1)
	if s.free > 0 { // then nobody waits
		s.free--
		s.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	err := s.queue.push(lane, turn)
	s.mu.Unlock()
	if err != nil {
		s.running.Done()
		return err
	}
	timeout := time.NewTimer(maxTurnWait)
	defer timeout.Stop()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timeout.C:
		err = fault.New(fault.Unavailable, "waiting for the write lock exceeded %s", maxTurnWait).WithHint("Try again; PostgreSQL is too slow for the load.")
	}
	if !s.queue.remove(lane, turn) { // the turn came at the same moment
		s.release()
		return err
	}
	s.running.Done()
	return err
}

func (s *slots) release() {
	defer s.running.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	if turn, ok := s.queue.pop(); ok {
		close(turn)
		return
	}
	s.free++
}

// close waits for the transactions that run or wait.
func (s *slots) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
}
