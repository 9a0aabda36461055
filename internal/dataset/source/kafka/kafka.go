// Package kafka reads topics of Kafka whose messages hold a JSON object each. It
// keeps offsets with the versions, not in a consumer group: nobody else moves
// them.
package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/messages"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Driver implements source.Driver.
type Driver struct{}

var _ source.Driver = Driver{}

// Check implements source.Driver.
func (Driver) Check(r source.Request) error {
	o := *r.From.Kafka
	switch {
	case len(o.Brokers) == 0:
		return fault.New(fault.Invalid, "spec.from.kafka.brokers: at least one host:port is required")
	case o.Topic == "":
		return fault.New(fault.Invalid, "spec.from.kafka.topic: it is required")
	}
	switch o.SASL {
	case "", "plain", "scram-sha-256", "scram-sha-512":
	default:
		return fault.New(fault.Invalid, "spec.from.kafka.sasl: %q is not plain, scram-sha-256 or scram-sha-512", o.SASL)
	}
	if err := source.CheckTLS("spec.from.kafka.tls", o.TLS); err != nil {
		return err
	}
	for _, b := range o.Brokers {
		if _, _, err := net.SplitHostPort(b); err != nil {
			return fault.New(fault.Invalid, "spec.from.kafka.brokers: %q is not host:port", b)
		}
		if err := r.Access.Allowed(b); err != nil {
			return err
		}
	}
	return messages.Check("kafka", r)
}

// Open implements source.Driver.
func (Driver) Open(ctx context.Context, r source.Request) (_ source.Reader, err error) {
	o := *r.From.Kafka
	l := &log{o: o, left: messages.Places{}}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := r.Access.Dial(ctx, network, address)
		l.connected(err)
		if err != nil {
			return nil, err
		}
		host, _, _ := net.SplitHostPort(address)
		conf, err := source.TLS(o.TLS, host, r.Secret)
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		if conf == nil {
			return conn, nil
		}
		secure := tls.Client(conn, conf)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			l.connected(err)
			return nil, err
		}
		return secure, nil
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(o.Brokers...), kgo.ClientID("falaj"), kgo.Dialer(dial), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // where a transaction ends is an offset, too
		kgo.RequestRetries(3), kgo.RetryTimeout(source.ConnectTime), kgo.FetchMaxBytes(8 << 20), kgo.ConsumeResetOffset(kgo.NoResetOffset()),
	}
	user, password := r.Secret["username"].Reveal(), r.Secret["password"].Reveal()
	switch o.SASL {
	case "plain":
		opts = append(opts, kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()))
	case "scram-sha-256":
		opts = append(opts, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha256Mechanism()))
	case "scram-sha-512":
		opts = append(opts, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()))
	}
	asking, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fault.New(fault.Invalid, "spec.from.kafka: %v", err)
	}
	defer asking.Close()
	bounded, cancel := context.WithTimeout(ctx, 2*source.ConnectTime)
	defer cancel()
	first, next, err := l.bounds(bounded, asking)
	if err != nil {
		return nil, l.explain(err)
	}
	from, until, err := messages.Bounds(r, first, next)
	if err != nil {
		return nil, err
	}
	start := map[int32]kgo.Offset{}
	for p, at := range from {
		if at < until[p] {
			start[p] = kgo.NewOffset().At(at)
			l.left[p] = until[p]
		}
	}
	if len(start) > 0 {
		if l.client, err = kgo.NewClient(append(opts, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{o.Topic: start}))...); err != nil {
			return nil, fault.New(fault.Invalid, "spec.from.kafka: %v", err)
		}
	}
	return messages.Open(ctx, l, r, from, until)
}

// log is a topic read up to fixed offsets.
type log struct {
	o      source.Kafka
	client *kgo.Client
	left   messages.Places // partitions that are not read to their end, with the end

	mu  sync.Mutex // the client connects in goroutines of its own
	why error      // of the last connection, where that was refused
}

// connected notes what became of the last connection.
func (l *log) connected(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.why = err
}

func (l *log) refused() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

// bounds are the oldest offset of each partition and the one after its newest
// that is committed.
func (l *log) bounds(ctx context.Context, c *kgo.Client) (first, next messages.Places, err error) {
	meta := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = new(l.o.Topic)
	meta.Topics = append(meta.Topics, topic)
	info, err := meta.RequestWith(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	if len(info.Topics) != 1 {
		return nil, nil, kerr.UnknownTopicOrPartition
	}
	if err := kerr.ErrorForCode(info.Topics[0].ErrorCode); err != nil {
		return nil, nil, err
	}
	ask := func(at int64) (messages.Places, error) {
		req := kmsg.NewPtrListOffsetsRequest()
		req.ReplicaID, req.IsolationLevel = -1, 1
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic = l.o.Topic
		for _, p := range info.Topics[0].Partitions {
			one := kmsg.NewListOffsetsRequestTopicPartition()
			one.Partition, one.Timestamp = p.Partition, at
			t.Partitions = append(t.Partitions, one)
		}
		req.Topics = append(req.Topics, t)
		answer, err := req.RequestWith(ctx, c)
		if err != nil {
			return nil, err
		}
		out := messages.Places{}
		for _, t := range answer.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return nil, err
				}
				out[p.Partition] = p.Offset
			}
		}
		return out, nil
	}
	if next, err = ask(-1); err != nil {
		return nil, nil, err
	}
	first, err = ask(-2)
	return first, next, err
}

// Next implements messages.Log.
func (l *log) Next(ctx context.Context) ([]messages.Message, error) {
	if len(l.left) == 0 {
		return nil, io.EOF
	}
	fetches := l.client.PollFetches(ctx)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var failed error
	fetches.EachError(func(_ string, p int32, err error) {
		if _, reading := l.left[p]; reading || p < 0 {
			failed = errors.Join(failed, err)
		}
	})
	if failed != nil {
		return nil, l.explain(failed)
	}
	var out []messages.Message
	fetches.EachRecord(func(rec *kgo.Record) {
		end, reading := l.left[rec.Partition]
		if !reading {
			return
		}
		if rec.Offset < end && !rec.Attrs.IsControl() {
			out = append(out, messages.Message{Partition: rec.Partition, Offset: rec.Offset, Value: rec.Value})
		}
		if rec.Offset+1 >= end {
			delete(l.left, rec.Partition)
		}
	})
	return out, nil
}

// Close implements messages.Log.
func (l *log) Close() error {
	if l.client != nil {
		l.client.Close()
	}
	return nil
}

// explain puts an error into words.
func (l *log) explain(err error) error {
	where := strings.Join(l.o.Brokers, ", ")
	var known *fault.Error
	var said *kerr.Error
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &said):
		switch said.Code {
		case kerr.UnknownTopicOrPartition.Code, kerr.UnknownTopicID.Code:
			return fault.New(fault.NotFound, "there is no topic %q at %s", l.o.Topic, where)
		case kerr.TopicAuthorizationFailed.Code, kerr.SaslAuthenticationFailed.Code, kerr.ClusterAuthorizationFailed.Code:
			return fault.New(fault.Invalid, "%s: %s", where, said.Description).WithHint("Check username and password in the secret, and the user's read permissions.")
		case kerr.OffsetOutOfRange.Code:
			return fault.New(fault.Gone, "messages of topic %s were deleted before they were read", l.o.Topic).
				WithHint("Keep messages longer than the time between runs. To start from the oldest message, ingest with --anew.")
		}
		if !said.Retriable {
			return fault.New(fault.Invalid, "%s: %s", where, said.Message)
		}
		return fault.New(fault.Unavailable, "%s: %s", where, said.Message)
	}
	if why := l.refused(); why != nil {
		if said := source.Unreachable(where, why); said != nil {
			return said
		}
	}
	if said := source.Unreachable(where, err); said != nil {
		return said
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	return fault.New(fault.Unavailable, "%s: %w", where, err)
}
