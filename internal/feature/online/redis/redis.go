// Package redis is the driver of the online feature store for Redis or Valkey, 6.2
// or newer, one server or a cluster.
//
// A row is a sorted set whose members all have the score 0 and so are ordered by
// their bytes: the stamp (16 bytes, newest first) and the sealed value. The version
// that answers is the first at or after the stamp that is asked for. Rows of a table
// are listed in a set, so that dropping it does not walk through all keys.
//
// # What an acknowledgement means
//
// Redis answers a write when it is in memory; it is on the disk before that only
// with `appendonly yes` and `appendfsync always`. Open refuses a server that is set
// otherwise, or does not tell, unless Config.Loses permits it: then a write that was
// acknowledged may be gone after a loss of power, by default the last second.
// Neither says anything about replicas: a failover may lose what had not reached
// them. What was materialised can be materialised again.
//
// # Which store it is
//
// A Redis that comes back without what it had has another ID. Whoever keeps the records
// of what it holds says which one they are of (Expect); before and after each write, and
// with each read, it is compared. So nothing is acknowledged that is under a record which
// is about to go, and no empty store answers that nothing is known. Of a cluster, that
// holds for the node with the ID.
//
// Copies in Feast's layout (Config.Feast, feast.go) are written before
// the write is acknowledged, and are as safe as these.
package redis

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online"
)

// Config locates the server.
type Config struct {
	// URL is redis://user@host:port/db, rediss:// for TLS, or
	// unix:///path. Another host than this one needs TLS.
	URL string
	// Prefix begins all keys; "falaj:" when empty. It keeps two installations that
	// share a server apart.
	Prefix string
	// Feast keeps copies of rows in the layout of Feast's Redis store, too, in the
	// clear; see feast.go.
	Feast bool
	// Loses permits a server that acknowledges before it syncs.
	Loses bool
	// Owner claims the prefix for an installation; empty claims nothing.
	Owner string
	// Password and Roots say what the password is and which authorities are trusted now,
	// for each new connection; nil is what the URL says, and the system's.
	Password func() string
	Roots    func() *x509.CertPool
}

// DB is a connection to the server. Safe for concurrent use; Close it.
type DB struct {
	client rueidis.Client
	prefix string
	feast  bool
	owner  string
	expect atomic.Pointer[string] // ID of the store that is known

	mu    sync.Mutex
	asked map[string]rewriting // by address
}

var (
	_ online.Driver = (*DB)(nil)
	_ online.Fenced = (*DB)(nil)
)

const (
	timeout  = 5 * time.Second        // of one round trip that writes
	readTime = 900 * time.Millisecond // of one that reads, of a request that waits for it
	pipeline = 512                    // commands of a round trip
	page     = 64                     // versions that are read when the first is not enough
)

// Open connects. Errors: fault.Invalid for a URL or a server that may not be used;
// fault.Conflict when another installation claims the prefix; fault.Unavailable when it
// does not answer.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	options, err := optionsOf(cfg)
	if err != nil {
		return nil, err
	}
	client, err := rueidis.NewClient(options)
	if err != nil {
		return nil, located(options, away(err))
	}
	d := &DB{client: client, prefix: cfg.Prefix, feast: cfg.Feast, owner: cfg.Owner, asked: map[string]rewriting{}}
	if d.prefix == "" {
		d.prefix = "falaj:"
	}
	id, err := "", d.check(ctx, cfg.Loses)
	if err == nil {
		id, err = d.ID(ctx)
	}
	if err != nil {
		client.Close()
		return nil, located(options, err)
	}
	d.Expect(id)
	return d, nil
}

// Look asks a server whether it may be used, writes nothing, and says what it is.
// Errors: as of Open.
func Look(ctx context.Context, cfg Config) (version string, err error) {
	options, err := optionsOf(cfg)
	if err != nil {
		return "", err
	}
	client, err := rueidis.NewClient(options)
	if err != nil {
		return "", located(options, away(err))
	}
	defer client.Close()
	d := &DB{client: client}
	if err := d.check(ctx, cfg.Loses); err != nil {
		return "", located(options, err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	info, err := client.Do(ctx, client.B().Info().Section("server").Build()).ToString()
	if err != nil {
		return "", nil // it need not tell
	}
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, "redis_version:"); ok {
			version = strings.TrimSpace(v)
		}
	}
	return version, nil
}

// CheckURL says what is wrong with a URL without asking the server. Error: fault.Invalid,
// also for another host that would be reached without TLS.
func CheckURL(text string) error {
	_, err := optionsOf(Config{URL: text})
	return err
}

func optionsOf(cfg Config) (rueidis.ClientOption, error) {
	options, err := rueidis.ParseURL(cfg.URL)
	u, bad := url.Parse(cfg.URL)
	if err != nil || bad != nil || !slices.Contains([]string{"redis", "rediss", "unix"}, u.Scheme) {
		return options, fault.New(fault.Invalid, "the URL of Redis is invalid"). // it may hold a password
												WithHint("Write redis://user@host:port, rediss:// for TLS, or unix:///path.")
	}
	if err := checkPlace(u); err != nil {
		return options, err
	}
	options.DisableCache = true // answers are as of now
	options.ClientName = "falaj"
	options.ConnWriteTimeout = timeout
	options.Dialer.Timeout = timeout
	if cfg.Password != nil {
		user := options.Username
		options.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
			return rueidis.AuthCredentials{Username: user, Password: cfg.Password()}, nil
		}
	}
	if cfg.Roots != nil && options.TLSConfig != nil {
		options.DialCtxFn = func(ctx context.Context, address string, dialer *net.Dialer, secure *tls.Config) (net.Conn, error) {
			secure = secure.Clone()
			secure.RootCAs = cfg.Roots()
			if secure.ServerName == "" {
				secure.ServerName, _, _ = net.SplitHostPort(address)
			}
			return (&tls.Dialer{NetDialer: dialer, Config: secure}).DialContext(ctx, "tcp", address)
		}
	}
	return options, nil
}

// located says where Redis is, to whoever starts the server or looks at it.
func located(options rueidis.ClientOption, err error) error {
	if !fault.Is(err, fault.Unavailable) {
		return err
	}
	text := err.Error() + " (" + strings.Join(options.InitAddress, ", ") + ")"
	if cause := errors.Unwrap(err); cause != nil && !strings.Contains(text, cause.Error()) {
		text += ": " + cause.Error()
	}
	return &fault.Error{Kind: fault.Unavailable, Message: text, Hint: fault.HintOf(err), Err: err}
}

// Ask asks whether the server is there, and for no longer than ctx. Error:
// fault.Unavailable.
func (d *DB) Ask(ctx context.Context) error {
	err := d.client.Do(ctx, d.client.B().Ping().Build()).Error()
	if err != nil && ctx.Err() == nil { // the connection may have been closed while nobody used it
		err = d.client.Do(ctx, d.client.B().Ping().Build()).Error()
	}
	return away(err)
}

// Expect says which store, by its ID, is written and read from now on; any other is
// fault.Unavailable. After Open it is the one that is there.
func (d *DB) Expect(id string) { d.expect.Store(&id) }

func (d *DB) which() rueidis.Completed { return d.client.B().Get().Key(d.prefix + "id").Build() }

// expected asks whether the store is the one that is expected.
func (d *DB) expected(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return d.same(d.client.Do(ctx, d.which()))
}

func (d *DB) same(which rueidis.RedisResult) error {
	id, err := which.ToString()
	if err != nil && !rueidis.IsRedisNil(err) {
		return away(err)
	}
	if id != *d.expect.Load() {
		return fault.New(fault.Unavailable, "Redis was flushed or replaced").WithHint("Try again in a few seconds, when the state of the online store is known.")
	}
	return nil
}

// checkPlace refuses to send features through a network in the clear.
func checkPlace(u *url.URL) error {
	if u.Scheme != "redis" {
		return nil
	}
	host := u.Hostname()
	if ip := net.ParseIP(host); host == "localhost" || host == "" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fault.New(fault.Invalid, "the connection to Redis at %s would not use TLS", host).WithHint("Use rediss://, or a server on this machine.")
}

// check asks the server whether it syncs before it answers.
func (d *DB) check(ctx context.Context, loses bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := d.client.Do(ctx, d.client.B().Ping().Build()).Error(); err != nil {
		return away(err)
	}
	if loses {
		return nil
	}
	set, err := d.client.Do(ctx, d.client.B().ConfigGet().Parameter("appendonly", "appendfsync").Build()).AsStrMap()
	how := fmt.Sprintf("appendonly is %s, appendfsync %s", set["appendonly"], set["appendfsync"])
	if err != nil {
		how = "reading its configuration failed: " + err.Error()
	}
	if set["appendonly"] == "yes" && set["appendfsync"] == "always" {
		return nil
	}
	return fault.New(fault.Invalid, "Redis acknowledges writes before they are durable (%s)", how).
		WithHint("Set `appendonly yes` and `appendfsync always`, or set `online.acknowledged: in-memory` to accept that a power loss can lose acknowledged writes.")
}

// away is an error of the connection; those of the server are passed on.
func away(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	if said, ok := rueidis.IsRedisErr(err); ok {
		switch text := said.Error(); {
		case strings.HasPrefix(text, "OOM"):
			return fault.New(fault.Exhausted, "Redis is out of memory: %s", text).WithHint("Raise its maxmemory, or delete unused views.").WithCause(fault.ErrFull)
		case strings.HasPrefix(text, "NOAUTH"), strings.HasPrefix(text, "WRONGPASS"), strings.HasPrefix(text, "NOPERM"):
			return fault.New(fault.Unavailable, "Redis rejected the command: %s", text).WithHint("Check the user in online.url, and online.password_file.")
		case strings.HasPrefix(text, "LOADING"), strings.HasPrefix(text, "READONLY"), strings.HasPrefix(text, "CLUSTERDOWN"), strings.HasPrefix(text, "MISCONF"), strings.HasPrefix(text, "TRYAGAIN"):
			return fault.New(fault.Unavailable, "Redis is temporarily unavailable: %s", text).WithHint("Try again in a moment.")
		}
		return fault.New(fault.Internal, "Redis: %w", err)
	}
	if cert, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fault.New(fault.Unavailable, "the certificate of Redis is not trusted: %w", cert.Err).WithHint("Set online.ca to the PEM file of the CA.")
	}
	// The cause names an address, which callers are not told.
	return (&fault.Error{Kind: fault.Unavailable, Message: "Redis is unavailable", Err: err}).
		WithHint("Check that it is running and that online.url is correct. The server's log has details.").WithRetry(2 * time.Second)
}

func (d *DB) row(key online.RowKey) string     { return d.prefix + "r:" + string(key[:]) }
func (d *DB) table(key online.TableKey) string { return d.prefix + "t:" + string(key[:]) }

// put replaces a version as one step: no reader finds neither. ARGV has, for each
// version, its stamp, the bytes after all members with it, and its value.
var put = rueidis.NewLuaScript(`
for i = 1, #ARGV, 3 do
  redis.call('ZREMRANGEBYLEX', KEYS[1], '[' .. ARGV[i], ARGV[i + 1])
  redis.call('ZADD', KEYS[1], 0, ARGV[i] .. ARGV[i + 2])
end
return 0`)

// Write stores versions.
func (d *DB) Write(ctx context.Context, versions []online.Version) error {
	if err := d.expected(ctx); err != nil {
		return err
	}
	rows, order, err := d.list(ctx, versions)
	if err != nil {
		return err
	}
	for part := range slices.Chunk(order, pipeline) {
		if err := d.puts(ctx, part, rows); err != nil {
			return err
		}
	}
	return d.expected(ctx) // still, or they may be in another one
}

// list notes the rows of versions in their tables' sets, where one that is listed and
// not there does no harm, and gives the arguments of put by row.
func (d *DB) list(ctx context.Context, versions []online.Version) (rows map[online.RowKey][]string, order []online.RowKey, err error) {
	tables := map[online.TableKey][]string{}
	rows = map[online.RowKey][]string{}
	order = make([]online.RowKey, 0, len(versions))
	var stamp []byte
	for i := range versions {
		v := &versions[i]
		if _, known := rows[v.Row]; !known {
			t := online.TableKey(v.Row[:len(online.TableKey{})])
			tables[t] = append(tables[t], string(v.Row[:]))
			order = append(order, v.Row)
		}
		stamp = v.Stamp.Append(stamp[:0])
		rows[v.Row] = append(rows[v.Row], string(stamp), after(stamp), rueidis.BinaryString(v.Sealed))
	}
	var list []rueidis.Completed
	for t, members := range tables {
		for part := range slices.Chunk(members, pipeline) {
			list = append(list, d.client.B().Sadd().Key(d.table(t)).Member(part...).Build())
		}
	}
	return rows, order, d.all(ctx, list)
}

func (d *DB) puts(ctx context.Context, part []online.RowKey, rows map[online.RowKey][]string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	scripts := make([]rueidis.LuaExec, len(part))
	for i, row := range part {
		scripts[i] = rueidis.LuaExec{Keys: []string{d.row(row)}, Args: rows[row]}
	}
	for _, r := range put.ExecMulti(ctx, d.client, scripts...) {
		if err := r.Error(); err != nil {
			return away(err)
		}
	}
	return nil
}

// after bounds the members that begin with the stamp.
func after(stamp []byte) string {
	end := slices.Clone(stamp)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return "(" + string(end)
		}
	}
	return "+"
}

func (d *DB) all(ctx context.Context, commands []rueidis.Completed) error {
	for part := range slices.Chunk(commands, pipeline) {
		if _, err := d.do(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// do makes one round trip.
func (d *DB) do(ctx context.Context, commands []rueidis.Completed) ([]rueidis.RedisResult, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	results := d.client.DoMulti(ctx, commands...)
	for _, r := range results {
		if err := r.Error(); err != nil {
			return nil, away(err)
		}
	}
	return results, nil
}

// read makes one round trip, whose answers are of the store that is expected.
func (d *DB) read(ctx context.Context, commands []rueidis.Completed) ([]rueidis.RedisResult, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	results := d.client.DoMulti(ctx, append(commands, d.which())...)
	answers, which := results[:len(commands)], results[len(commands)]
	for _, r := range answers {
		if err := r.Error(); err != nil {
			return nil, away(err)
		}
	}
	return answers, d.same(which)
}

// Scan reads the first version of many rows in a round trip, and more of those of
// which visit wants more.
func (d *DB) Scan(ctx context.Context, rows []online.RowKey, from online.Stamp, visit func(int, online.Stamp, []byte) bool) error {
	first := "[" + string(from.Append(nil))
	at := 0
	for part := range slices.Chunk(rows, pipeline) {
		commands := make([]rueidis.Completed, len(part))
		for i, row := range part {
			commands[i] = d.members(row, first, 1)
		}
		results, err := d.read(ctx, commands)
		if err != nil {
			return err
		}
		for i, row := range part {
			members, err := results[i].AsStrSlice()
			if err != nil {
				return away(err)
			}
			if err := d.walk(ctx, row, members, func(s online.Stamp, sealed []byte) bool { return visit(at+i, s, sealed) }); err != nil {
				return err
			}
		}
		at += len(part)
	}
	return nil
}

func (d *DB) members(row online.RowKey, from string, most int64) rueidis.Completed {
	return d.client.B().Zrangebylex().Key(d.row(row)).Min(from).Max("+").Limit(0, most).Build()
}

// walk visits members, and what comes after them, until visit has enough.
func (d *DB) walk(ctx context.Context, row online.RowKey, members []string, visit func(online.Stamp, []byte) bool) error {
	for whole := 1; ; whole = page {
		for _, m := range members {
			if len(m) < online.StampSize {
				return fault.New(fault.Internal, "Redis contains a row version of %d bytes", len(m)).WithHint("Another client writes below the prefix of this installation.")
			}
			if !visit(online.StampOf([]byte(m[:online.StampSize])), []byte(m[online.StampSize:])) {
				return nil
			}
		}
		if len(members) < whole {
			return nil
		}
		results, err := d.read(ctx, []rueidis.Completed{d.members(row, "("+members[len(members)-1], page)})
		if err != nil {
			return err
		}
		if members, err = results[0].AsStrSlice(); err != nil {
			return away(err)
		}
	}
}

// Drop removes a table's rows and then the list of them, so that it may be begun
// again.
func (d *DB) Drop(ctx context.Context, table online.TableKey) error {
	if err := d.dropCopies(ctx, table); err != nil {
		return err
	}
	cursor := uint64(0)
	for {
		results, err := d.do(ctx, []rueidis.Completed{d.client.B().Sscan().Key(d.table(table)).Cursor(cursor).Count(pipeline).Build()})
		if err != nil {
			return err
		}
		entry, err := results[0].AsScanEntry()
		if err != nil {
			return away(err)
		}
		commands := make([]rueidis.Completed, 0, len(entry.Elements))
		for _, row := range entry.Elements {
			commands = append(commands, d.client.B().Unlink().Key(d.prefix+"r:"+row).Build())
		}
		if err := d.all(ctx, commands); err != nil {
			return err
		}
		if cursor = entry.Cursor; cursor == 0 {
			break
		}
	}
	return d.all(ctx, []rueidis.Completed{d.client.B().Unlink().Key(d.table(table)).Build()})
}

// Remove deletes rows, and then takes them off the lists of their tables. The bytes,
// which are sealed, stay in the append-only file until Redis rewrites it; of copies, which
// are not, Settled sees to that.
func (d *DB) Remove(ctx context.Context, rows []online.RowKey) error {
	if err := d.removeCopies(ctx, rows); err != nil {
		return err
	}
	var gone, unlisted []rueidis.Completed
	for _, row := range rows {
		t := online.TableKey(row[:len(online.TableKey{})])
		gone = append(gone, d.client.B().Unlink().Key(d.row(row)).Build())
		unlisted = append(unlisted, d.client.B().Srem().Key(d.table(t)).Member(string(row[:])).Build())
	}
	if err := d.all(ctx, gone); err != nil {
		return err
	}
	return d.all(ctx, unlisted)
}

// Close waits for running calls and closes the connection.
func (d *DB) Close() error {
	d.client.Close()
	return nil
}

// ID names what the server holds below the prefix: another server, or one that was
// emptied, has another ID. Error: fault.Conflict when it is another installation's.
func (d *DB) ID(ctx context.Context) (string, error) {
	if d.owner != "" {
		owner, err := d.first(ctx, "owner", d.owner)
		if err != nil {
			return "", err
		}
		if owner != d.owner {
			return "", fault.New(fault.Conflict, "the Redis keys with the prefix %q belong to another installation", d.prefix).
				WithHint("Set another online.prefix. If the other server is decommissioned, delete the key %sowner; the features are then materialised again.", d.prefix)
		}
	}
	return d.first(ctx, "id", rand.Text())
}

// first is the value of a key, which is given one if it has none.
func (d *DB) first(ctx context.Context, name, value string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	set := d.client.B().Set().Key(d.prefix + name).Value(value).Nx().Build()
	if err := d.client.Do(ctx, set).Error(); err != nil && !rueidis.IsRedisNil(err) {
		return "", away(err)
	}
	is, err := d.client.Do(ctx, d.client.B().Get().Key(d.prefix+name).Build()).ToString()
	return is, away(err)
}
