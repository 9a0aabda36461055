package kafka_test

import (
	"io"
	"net"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/kafka"
	"github.com/falaj-ml/falaj/internal/dataset/source/sourcetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
)

const partitions = 3

func TestKafka(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	_, port, _ := net.SplitHostPort(c.ListenAddrs()[0])
	sent := map[string]int{}
	subject := sourcetest.Log{
		Driver: kafka.Driver{},
		Request: func(t *testing.T, name string) source.Request {
			t.Helper()
			req := kmsg.NewPtrCreateTopicsRequest()
			topic := kmsg.NewCreateTopicsRequestTopic()
			topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, 1
			req.Topics = append(req.Topics, topic)
			if _, err := req.RequestWith(t.Context(), cl); err != nil {
				t.Fatal(err)
			}
			return source.Request{
				From:   source.From{Kafka: &source.Kafka{Brokers: c.ListenAddrs(), Topic: name, TLS: source.TLSOff}},
				Access: source.Access{Hosts: []string{"127.0.0.1"}},
			}
		},
		Send: func(t *testing.T, name string, values ...string) {
			t.Helper()
			for _, v := range values {
				r := &kgo.Record{Topic: name, Partition: int32(sent[name] % partitions), Value: []byte(v)}
				sent[name]++
				if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
		},
		Trim: func(t *testing.T, name string, n int) {
			t.Helper()
			req := kmsg.NewPtrDeleteRecordsRequest()
			topic := kmsg.NewDeleteRecordsRequestTopic()
			topic.Topic = name
			for p := range partitions {
				one := kmsg.NewDeleteRecordsRequestTopicPartition()
				one.Partition = int32(p)
				for i := range sent[name] - n { // of those sent, the ones before the last n
					if i%partitions == p {
						one.Offset++
					}
				}
				topic.Partitions = append(topic.Partitions, one)
			}
			req.Topics = append(req.Topics, topic)
			if _, err := req.RequestWith(t.Context(), cl); err != nil {
				t.Fatal(err)
			}
		},
	}
	sourcetest.Logs(t, subject)

	for name, change := range map[string]func(r *source.Request) fault.Kind{
		"an unknown topic": func(r *source.Request) fault.Kind { r.From.Kafka.Topic = "nix"; return fault.NotFound },
		"nobody there": func(r *source.Request) fault.Kind {
			r.From.Kafka.Brokers = []string{"127.0.0.1:1"}
			return fault.Unavailable
		},
		"a broker that says it is elsewhere": func(r *source.Request) fault.Kind {
			// It is reached by a name that is allowed, and names itself by one that is not.
			r.Access.Hosts, r.From.Kafka.Brokers = []string{"localhost"}, []string{"localhost:" + port}
			return fault.PermissionDenied
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := subject.Request(t, "refused"+strconv.Itoa(len(name)))
			subject.Send(t, r.From.Kafka.Topic, `{"id": 1}`)
			r.Mode, r.Parser = source.Incremental, sourcetest.Parser{}
			kind := change(&r)
			in, err := kafka.Driver{}.Open(t.Context(), r)
			if err == nil {
				_ = in.Close()
			}
			if !fault.Is(err, kind) {
				t.Errorf("%v (%v), want %v", err, fault.KindOf(err), kind)
			}
		})
	}
}

// TestAWrongCertificateLeavesNoConnection: where the secret is of no use, the connection that
// was made is closed.
func TestAWrongCertificateLeavesNoConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	closed := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			closed <- err
			return
		}
		defer c.Close()
		_, err = io.Copy(io.Discard, c) // until the other side closes
		closed <- err
	}()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection closes connections that nobody has
	_, err = kafka.Driver{}.Open(t.Context(), source.Request{
		From:   source.From{Kafka: &source.Kafka{Brokers: []string{l.Addr().String()}, Topic: "t", TLS: source.TLSVerify}},
		Access: source.Access{Hosts: []string{"127.0.0.1"}}, Secret: map[string]secrets.Text{"ca": secrets.NewText("no certificate")},
	})
	if err == nil || !strings.Contains(err.Error(), "no PEM certificate") {
		t.Errorf("%v", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}
