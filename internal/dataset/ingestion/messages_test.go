package ingestion_test

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/kafka"
	"github.com/falaj-ml/falaj/internal/dataset/source/nats"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Messages of other subjects are passed over, so that what the stream's limits take of
// them is not missed; a source that reads something else has positions of its own.
func TestMessages(t *testing.T) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server is not ready")
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Addr().(*net.TCPAddr).Port))
	conn, err := client.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	send := func(subject string, n int) {
		t.Helper()
		for range n {
			if _, err := js.Publish(t.Context(), subject, []byte("{}")); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []string{"one", "two"} {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, MaxMsgs: 3, Storage: jetstream.MemoryStorage}); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t)
	w.config = func(c *ingestion.Config) {
		c.Drivers = map[string]source.Driver{"nats": nats.Driver{}}
		c.Access = source.Access{Hosts: []string{"127.0.0.1"}}
	}
	w.build(t)
	w.h.Declare(t, "clicks", dataset.Spec{Columns: []dataset.Column{{Name: "id", Type: "int64"}}})
	ctx := datasettest.Context(t)
	apply := func(stream string) (reading string) {
		t.Helper()
		spec := ingestion.Spec{Dataset: "clicks", Mode: source.Incremental, From: source.From{NATS: &source.NATS{
			Servers: []string{address}, Stream: stream, Subject: stream + ".x", TLS: source.TLSOff,
		}}}
		if _, _, err := w.Apply(ctx, ingestion.ApplyRequest{Project: p, Name: "clicks", Spec: spec}); err != nil {
			t.Fatal(err)
		}
		reading, err := w.CheckMessages(ctx, p, "clicks", "clicks")
		if err != nil {
			t.Fatal(err)
		}
		return reading
	}
	var at source.Position
	read := func(reading string) (n int, err error) {
		err = w.Messages(ctx, p, reading, at, func(messages [][]byte, to source.Position) error {
			n, at = n+len(messages), slices.Clone(to)
			return nil
		})
		return n, err
	}
	one := apply("one")
	for round, sent := range []struct{ x, y int }{{1, 0}, {0, 2}, {0, 2}, {0, 3}, {1, 0}, {0, 0}} {
		send("one.x", sent.x)
		send("one.y", sent.y)
		before := at
		if n, err := read(one); n != sent.x || err != nil {
			t.Fatalf("round %d: %d messages, %v", round, n, err)
		}
		if moved := string(before) != string(at); moved != (sent.x+sent.y > 0) {
			t.Errorf("round %d: from %s to %s", round, before, at)
		}
	}
	// Some are gone indeed.
	send("one.x", 5)
	_, err = read(one)
	if !fault.Is(err, fault.Gone) || !strings.Contains(fault.HintOf(err), "delete the source clicks") {
		t.Errorf("%v %q", err, fault.HintOf(err))
	}
	two := apply("two")
	if _, err := read(one); !fault.Is(err, fault.Conflict) {
		t.Errorf("the source reads something else: %v", err)
	}
	if again := apply("one"); two == one || again != one {
		t.Errorf("%s, %s, %s", one, two, again)
	}
	if err := w.Delete(ctx, p, "clicks"); err != nil {
		t.Fatal(err)
	}
	at = nil
	anew := apply("one")
	if n, err := read(anew); anew == one || n != 3 || err != nil {
		t.Errorf("another source of the same name, %s: %d messages, %v", anew, n, err)
	}
}

// A topic may end with what is no message, and retention takes that, too.
func TestMessagesOfKafka(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "clicks"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	w := newWorld(t)
	w.config = func(c *ingestion.Config) {
		c.Drivers = map[string]source.Driver{"kafka": kafka.Driver{}}
		c.Access = source.Access{Hosts: []string{"127.0.0.1"}}
	}
	w.build(t)
	w.h.Declare(t, "clicks", dataset.Spec{Columns: []dataset.Column{{Name: "id", Type: "int64"}}})
	ctx := datasettest.Context(t)
	spec := ingestion.Spec{Dataset: "clicks", Mode: source.Incremental, From: source.From{Kafka: &source.Kafka{Brokers: c.ListenAddrs(), Topic: "clicks", TLS: source.TLSOff}}}
	if _, _, err := w.Apply(ctx, ingestion.ApplyRequest{Project: p, Name: "clicks", Spec: spec}); err != nil {
		t.Fatal(err)
	}
	reading, err := w.CheckMessages(ctx, p, "clicks", "clicks")
	if err != nil {
		t.Fatal(err)
	}
	var at source.Position
	for round, values := range [][][]byte{{[]byte("{}"), nil}, {}, {nil, nil}, {}, {[]byte("{}")}} {
		for _, v := range values {
			if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "clicks", Key: []byte("k"), Value: v}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		n, want := 0, 0
		for _, v := range values {
			if v != nil {
				want++
			}
		}
		if err := w.Messages(ctx, p, reading, at, func(messages [][]byte, to source.Position) error {
			n, at = n+len(messages), slices.Clone(to)
			return nil
		}); err != nil || n != want {
			t.Fatalf("round %d: %d messages, %v", round, n, err)
		}
		trim := kmsg.NewPtrDeleteRecordsRequest()
		topic := kmsg.NewDeleteRecordsRequestTopic()
		one := kmsg.NewDeleteRecordsRequestTopicPartition()
		one.Offset = -1 // all that there is
		topic.Topic, topic.Partitions = "clicks", append(topic.Partitions, one)
		trim.Topics = append(trim.Topics, topic)
		if _, err := trim.RequestWith(t.Context(), cl); err != nil {
			t.Fatal(err)
		}
	}
}
