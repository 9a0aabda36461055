package nats_test

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/nats-io/nats-server/v2/server"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/nats"
	"github.com/falaj-ml/falaj/internal/dataset/source/sourcetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
)

func TestNATS(t *testing.T) {
	// sync always: what is acknowledged is on disk.
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), SyncAlways: true, Username: "reader", Password: "canary-nats", NoSigs: true, NoLog: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server is not ready")
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Addr().(*net.TCPAddr).Port))
	conn, err := client.Connect(address, client.UserInfo("reader", "canary-nats"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	stream := func(t *testing.T, name string) jetstream.Stream {
		t.Helper()
		st, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	subject := sourcetest.Log{
		Driver: nats.Driver{},
		Request: func(t *testing.T, name string) source.Request {
			t.Helper()
			stream(t, name)
			return source.Request{
				From:   source.From{NATS: &source.NATS{Servers: []string{address}, Stream: name, TLS: source.TLSOff}},
				Secret: map[string]secrets.Text{"username": secrets.NewText("reader"), "password": secrets.NewText("canary-nats")},
				Access: source.Access{Hosts: []string{"127.0.0.1"}},
			}
		},
		Send: func(t *testing.T, name string, values ...string) {
			t.Helper()
			for _, v := range values {
				if _, err := js.Publish(t.Context(), name+".x", []byte(v)); err != nil {
					t.Fatal(err)
				}
			}
		},
		Trim: func(t *testing.T, name string, n int) {
			t.Helper()
			if err := stream(t, name).Purge(t.Context(), jetstream.WithPurgeKeep(uint64(n))); err != nil {
				t.Fatal(err)
			}
		},
	}
	sourcetest.Logs(t, subject)

	t.Run("some subjects", func(t *testing.T) {
		r := subject.Request(t, "some")
		for _, name := range []string{"some.a", "some.b", "some.a", "some.b"} {
			if _, err := js.Publish(t.Context(), name, []byte(`{"id": 1}`)); err != nil {
				t.Fatal(err)
			}
		}
		r.Mode, r.BatchRows, r.Parser, r.From.NATS.Subject = source.Incremental, 3, sourcetest.Parser{}, "some.a"
		r.Declared = []source.Column{{Name: "id", Type: "int64"}}
		if rows, _, _, _ := sourcetest.ReadAll(t, nats.Driver{}, r); len(rows) != 2 {
			t.Errorf("read %v", rows)
		}
	})
	t.Run("a host by its name", func(t *testing.T) {
		r := subject.Request(t, "named")
		subject.Send(t, "named", `{"id": 1}`)
		_, port, _ := net.SplitHostPort(address)
		r.Access.Hosts, r.From.NATS.Servers = []string{"localhost"}, []string{"localhost:" + port}
		r.Mode, r.BatchRows, r.Parser = source.Incremental, 3, sourcetest.Parser{}
		r.Declared = []source.Column{{Name: "id", Type: "int64"}}
		if rows, _, _, _ := sourcetest.ReadAll(t, nats.Driver{}, r); len(rows) != 1 {
			t.Errorf("read %v", rows)
		}
	})
	t.Run("removed while they are read", func(t *testing.T) {
		const sent = 5_000 // more than one fetch
		st, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "slow", Subjects: []string{"slow.>"}, Storage: jetstream.MemoryStorage})
		if err != nil {
			t.Fatal(err)
		}
		r := subject.Request(t, "any")
		r.From.NATS.Stream = "slow"
		subject.Send(t, "slow", `{"id": 0}`)
		r.Mode, r.BatchRows, r.Parser = source.Incremental, 1, sourcetest.Parser{}
		r.Declared = []source.Column{{Name: "id", Type: "int64"}}
		_, r.After, _, _ = sourcetest.ReadAll(t, nats.Driver{}, r)
		for i := range sent {
			if _, err := js.PublishAsync("slow.x", []byte(`{"id": `+strconv.Itoa(i)+`}`)); err != nil {
				t.Fatal(err)
			}
		}
		<-js.PublishAsyncComplete()
		in, err := nats.Driver{}.Open(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		n := 0
		for ; err == nil; n++ {
			if n == 1 { // the rest is gone while the first row is looked at
				if err := st.Purge(t.Context(), jetstream.WithPurgeKeep(10)); err != nil {
					t.Fatal(err)
				}
			}
			var rec arrow.RecordBatch
			if rec, _, err = in.Next(t.Context()); rec != nil {
				rec.Release()
			}
		}
		if !fault.Is(err, fault.Gone) {
			t.Errorf("after %d of %d rows: %v (%v)", n, sent, err, fault.KindOf(err))
		}
	})
	for name, change := range map[string]func(r *source.Request) fault.Kind{
		"a wrong password": func(r *source.Request) fault.Kind {
			r.Secret["password"] = secrets.NewText("wrong")
			return fault.Invalid
		},
		"an unknown stream": func(r *source.Request) fault.Kind { r.From.NATS.Stream = "nix"; return fault.NotFound },
		"nobody there": func(r *source.Request) fault.Kind {
			r.From.NATS.Servers = []string{"127.0.0.1:1"}
			return fault.Unavailable
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := subject.Request(t, "refused")
			r.Mode = source.Incremental
			kind := change(&r)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := nats.Driver{}.Open(ctx, r)
			if !fault.Is(err, kind) {
				t.Errorf("%v (%v), want %v", err, fault.KindOf(err), kind)
			}
		})
	}
}
