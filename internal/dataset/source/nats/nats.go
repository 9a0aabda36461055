// Package nats reads streams of NATS JetStream whose messages hold a JSON object
// each, by sequence numbers that are kept with the versions.
package nats

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/messages"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Driver implements source.Driver.
type Driver struct{}

var _ source.Driver = Driver{}

// Check implements source.Driver.
func (Driver) Check(r source.Request) error {
	o := *r.From.NATS
	switch {
	case len(o.Servers) == 0:
		return fault.New(fault.Invalid, "spec.from.nats.servers: at least one host:port is required")
	case o.Stream == "":
		return fault.New(fault.Invalid, "spec.from.nats.stream: it is required")
	}
	if err := source.CheckTLS("spec.from.nats.tls", o.TLS); err != nil {
		return err
	}
	for _, s := range o.Servers {
		if _, _, err := net.SplitHostPort(s); err != nil {
			return fault.New(fault.Invalid, "spec.from.nats.servers: %q is not host:port", s)
		}
		if err := r.Access.Allowed(s); err != nil {
			return err
		}
	}
	return messages.Check("nats", r)
}

// dialer connects to hosts that are allowed, and remembers why it did not. The
// client connects again in a goroutine of its own.
type dialer struct {
	access source.Access

	mu  sync.Mutex
	why error // of the last connection, where that was refused
}

func (d *dialer) refused() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.why
}

// Dial implements nats.CustomDialer.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.access.Dial(context.Background(), network, address) // it has a time-out of its own
	d.mu.Lock()
	defer d.mu.Unlock()
	d.why = err
	return conn, err
}

// Open implements source.Driver.
func (Driver) Open(ctx context.Context, r source.Request) (_ source.Reader, err error) {
	o := *r.From.NATS
	d := &dialer{access: r.Access}
	opts := []nats.Option{
		nats.Name("falaj"), nats.SetCustomDialer(d), nats.Timeout(source.ConnectTime), nats.MaxReconnects(3), nats.RetryOnFailedConnect(false),
		nats.IgnoreDiscoveredServers(), // what a server says of others is no reason to reach them
		nats.SkipHostLookup(),          // names are allowed, not the addresses that they have now
	}
	secure, err := source.TLS(o.TLS, "", r.Secret) // the name is that of the server that is tried
	if err != nil {
		return nil, err
	}
	if secure != nil {
		opts = append(opts, nats.Secure(secure))
	}
	if user, ok := r.Secret["username"]; ok {
		opts = append(opts, nats.UserInfo(user.Reveal(), r.Secret["password"].Reveal()))
	}
	if token, ok := r.Secret["token"]; ok {
		opts = append(opts, nats.Token(token.Reveal()))
	}
	if creds, ok := r.Secret["creds"]; ok {
		opts = append(opts, nats.UserCredentialBytes([]byte(creds.Reveal())))
	}
	l := &log{o: o, dialer: d}
	if l.conn, err = nats.Connect(strings.Join(o.Servers, ","), opts...); err != nil {
		return nil, l.explain(err)
	}
	defer func() {
		if err != nil {
			_ = l.Close()
		}
	}()
	js, err := jetstream.New(l.conn)
	if err != nil {
		return nil, l.explain(err)
	}
	bounded, cancel := context.WithTimeout(ctx, source.ConnectTime)
	defer cancel()
	if l.stream, err = js.Stream(bounded, o.Stream); err != nil {
		return nil, l.explain(err)
	}
	state := l.stream.CachedInfo().State
	first, next := messages.Places{0: int64(max(state.FirstSeq, 1))}, messages.Places{0: int64(state.LastSeq) + 1} //nolint:gosec // G115: sequences rise from 1
	first[0] = min(first[0], next[0])
	from, until, err := messages.Bounds(r, first, next)
	if err != nil {
		return nil, err
	}
	l.until = until[0]
	if r.After != nil || r.Resume != nil {
		l.next = from[0]
	}
	if from[0] < until[0] {
		cfg := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: uint64(from[0])} //nolint:gosec // G115: as above
		if o.Subject != "" {
			cfg.FilterSubjects = []string{o.Subject}
		}
		if l.consumer, err = l.stream.OrderedConsumer(bounded, cfg); err != nil {
			return nil, l.explain(err)
		}
		if err := l.look(bounded); err != nil {
			return nil, err
		}
	}
	return messages.Open(ctx, l, r, from, until)
}

// log is a stream read up to a fixed sequence.
type log struct {
	o        source.NATS
	dialer   *dialer
	conn     *nats.Conn
	stream   jetstream.Stream
	consumer jetstream.Consumer
	next     int64 // sequence after the last that was read; 0: nothing was read before
	until    int64
	pending  uint64 // messages that wait, of the subjects asked for
	end      bool
}

// fetch is how many messages are asked for at once, at most: a fetch of more than
// wait would wait for others.
const fetch = 4096

// look asks how many messages wait.
func (l *log) look(ctx context.Context) error {
	info, err := l.consumer.Info(ctx)
	if err != nil {
		return l.explain(err)
	}
	l.pending, l.end = info.NumPending, info.NumPending == 0
	return nil
}

// Next implements messages.Log.
func (l *log) Next(ctx context.Context) ([]messages.Message, error) {
	if l.end {
		return nil, io.EOF
	}
	batch, err := l.consumer.Fetch(int(min(fetch, l.pending)), jetstream.FetchMaxWait(5*time.Second))
	if err != nil {
		return nil, l.explain(err)
	}
	var out []messages.Message
	missing := int64(0) // the first sequence that did not come; 0 for none
	for m := range batch.Messages() {
		at, err := m.Metadata()
		if err != nil {
			return nil, l.explain(err)
		}
		seq := int64(at.Sequence.Stream) //nolint:gosec // G115: sequences rise from 1
		if l.next > 0 && seq > l.next && l.next < l.until && missing == 0 {
			missing = l.next
		}
		l.next = seq + 1
		if seq < l.until {
			out = append(out, messages.Message{Offset: seq, Value: m.Data()})
		}
		// The last of the reading may be of another subject, or deleted: then what
		// comes after it, or nothing more, says so.
		l.pending = at.NumPending
		l.end = l.end || seq+1 >= l.until || at.NumPending == 0
	}
	if err := batch.Error(); err != nil && !errors.Is(err, nats.ErrTimeout) {
		return nil, l.explain(err)
	}
	if len(out) == 0 && !l.end {
		if err := l.look(ctx); err != nil { // nothing came: does anything still wait?
			return nil, err
		}
	}
	if missing == 0 && l.end && l.next > 0 && l.next < l.until {
		missing = l.next
	}
	if missing > 0 {
		if err := l.kept(ctx, missing); err != nil {
			return nil, err
		}
	}
	return out, ctx.Err()
}

// kept refuses to go on when a message that did not come was removed by the
// stream's limits: the server goes on at the next one that it has, and says
// nothing. One that is of another subject or was deleted by itself is not missing;
// where limits have come as far meanwhile nobody can tell, and it counts as lost.
func (l *log) kept(ctx context.Context, seq int64) error {
	ctx, cancel := context.WithTimeout(ctx, source.ConnectTime)
	defer cancel()
	info, err := l.stream.Info(ctx)
	if err != nil {
		return l.explain(err)
	}
	if oldest := int64(info.State.FirstSeq); oldest > seq { //nolint:gosec // G115: sequences rise from 1
		return fault.New(fault.Gone, "messages %d to %d of stream %s were deleted before they were read", seq, oldest-1, l.o.Stream).
			WithHint("Set the stream's retention longer than an ingestion run. To start from the oldest message, ingest with --anew.")
	}
	return nil
}

// Close implements messages.Log.
func (l *log) Close() error {
	if l.conn != nil {
		l.conn.Close()
	}
	return nil
}

// explain puts an error into words.
func (l *log) explain(err error) error {
	where := strings.Join(l.o.Servers, ", ")
	var known *fault.Error
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fault.New(fault.NotFound, "stream %q not found at %s", l.o.Stream, where)
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return fault.New(fault.Invalid, "JetStream is not enabled on %s", where).WithHint("Enable JetStream on the server. Without it, messages are not stored and cannot be replayed.")
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		return fault.New(fault.Invalid, "%s rejected the credentials in the secret", where).WithHint("Check username and password, token or creds in the secret.")
	case errors.Is(err, nats.ErrSecureConnWanted), errors.Is(err, nats.ErrSecureConnRequired):
		return fault.New(fault.Invalid, "%s: %v", where, err).WithHint("Enable TLS on that server, or set tls: off in a trusted network.")
	case errors.Is(err, context.Canceled):
		return err
	}
	if why := l.dialer.refused(); why != nil {
		if said := source.Unreachable(where, why); said != nil {
			return said
		}
	}
	if said := source.Unreachable(where, err); said != nil {
		return said
	}
	return fault.New(fault.Unavailable, "%s: %w", where, err)
}
