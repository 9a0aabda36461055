// Package stream kills the server (SIGKILL) while events are pushed, online rows are
// folded and dataset versions cut, starts it again, and compares in the end what was
// acknowledged, or stood in a topic of Kafka and a stream of NATS, with what the
// online store and the dataset have. The seed is printed; the flags are
//
//	go test ./test/stream -args -kills=100 -seed=7
package stream

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

var (
	kills = flag.Int("kills", 4, "how often the server is killed")
	seed  = flag.Uint64("seed", 0, "seed of the pushes; 0 takes one from the clock")
)

const (
	path      = "/api/v1/projects/shop/"
	customers = 3
	pushers   = 2
	manifests = `
{api_version: falaj/v1, kind: Project, name: shop}
---
{api_version: falaj/v1, kind: Dataset, name: purchases, project: shop, spec: {columns: [{name: customer, type: string}, {name: at, type: timestamp}, {name: amount, type: int64}]}}
---
{api_version: falaj/v1, kind: Entity, name: customer, project: shop, spec: {}}
---
{api_version: falaj/v1, kind: FeatureView, name: spending, project: shop, spec: {source: {dataset: purchases, stream: {push: {}}}, entities: [customer], timestamp: at,
  aggregations: [{name: spent, function: sum, column: amount, type: int64, window: 1d}, {name: bought, function: count, window: 1d}]}}
`
	// followed is a view of the messages of a source.
	followed = `
---
{api_version: falaj/v1, kind: Dataset, name: NAME, project: shop, spec: {columns: [{name: customer, type: string}, {name: at, type: timestamp}]}}
---
{api_version: falaj/v1, kind: Source, name: NAME, project: shop, spec: {dataset: NAME, mode: incremental, from: {FROM, tls: "off"}}}}
---
{api_version: falaj/v1, kind: FeatureView, name: NAME, project: shop, spec: {source: {dataset: NAME, stream: {source: NAME}}, entities: [customer], timestamp: at,
  aggregations: [{name: clicked, function: count, window: 1d}]}}
`
)

// mostPoison stays below the dead letters at which a stream stops.
const mostPoison = 9000

// messages are what was sent to a log: of the first ones each tenth is no event.
type messages struct {
	name   string
	from   string // of the source's manifest
	send   func(message string) error
	sent   int
	poison int
}

// fill sends messages until it is enough.
func (m *messages) fill(enough <-chan struct{}) error {
	for {
		for range 50 {
			message := fmt.Sprintf(`{"customer": "c0", "at": %q}`, time.Now().UTC().Format(time.RFC3339Nano))
			if m.sent++; m.sent%10 == 0 && m.poison < mostPoison {
				m.poison++
				message = message[:20]
			}
			if err := m.send(message); err != nil {
				return err
			}
		}
		select {
		case <-enough:
			return nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// pusher sends events of its own, each batch until it is acknowledged.
type pusher struct {
	name   string
	rand   *rand.Rand
	events int
	spent  [customers]int64
	bought [customers]int64
}

// push sends a batch. Whether one that was not answered came, only ids tell.
func (p *pusher) push(ctx context.Context, s *live.Server, connect func() *client.Client) error {
	var events []map[string]any
	var ids []string
	for range 1 + p.rand.IntN(20) {
		customer, amount := p.rand.IntN(customers), p.rand.Int64N(100)
		events = append(events, map[string]any{"customer": fmt.Sprint("c", customer), "at": time.Now().UTC().Format(time.RFC3339Nano), "amount": amount})
		ids = append(ids, fmt.Sprint(p.name, "-", p.events))
		p.events++
		p.spent[customer] += amount
		p.bought[customer]++
	}
	for {
		var got struct{ Accepted, Duplicates int }
		err := connect().Do(ctx, http.MethodPost, path+"feature-views/spending/push", map[string]any{"events": events, "ids": ids}, &got)
		if err == nil {
			if got.Accepted+got.Duplicates != len(events) {
				return fmt.Errorf("of %d events %+v", len(events), got)
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		select { // the server is away
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestEventsSurviveKills(t *testing.T) {
	if testing.Short() {
		t.Skip("kills a real server")
	}
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d, %d kills", *seed, *kills)
	logs := []*messages{newTopic(t), newStream(t)}
	all := []byte(manifests)
	for _, m := range logs {
		all = append(all, strings.NewReplacer("NAME", m.name, "FROM", m.from).Replace(followed)...)
	}
	s := live.New(t, "")
	s.Env = append(s.Env, "FALAJ_SOURCES_HOSTS=127.0.0.1")
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	c := s.Client(t)
	connect := func() *client.Client {
		mu.Lock()
		defer mu.Unlock()
		return c
	}
	if _, err := c.Apply(t.Context(), "", all, false); err != nil {
		t.Fatal(err)
	}
	do := func(method, rest string, body, out any) error {
		return connect().Do(t.Context(), method, path+rest, body, out)
	}
	for _, view := range []string{"spending", "kafka", "nats"} {
		if err := do(http.MethodPost, "feature-views/"+view+"/materialise", map[string]any{"wait": "30s"}, nil); err != nil {
			t.Fatal(err)
		}
	}

	pushing, stop := context.WithTimeout(t.Context(), 10*time.Minute)
	defer stop()
	sending := make([]*pusher, pushers)
	enough := make(chan struct{})
	var group sync.WaitGroup
	for i := range sending {
		p := &pusher{name: fmt.Sprint("p", i), rand: rand.New(rand.NewPCG(*seed, uint64(i)))}
		sending[i] = p
		group.Go(func() {
			for {
				if err := p.push(pushing, s, connect); err != nil {
					t.Errorf("pushing: %v", err)
					return
				}
				select {
				case <-enough:
					return
				default:
				}
			}
		})
	}
	for _, m := range logs {
		group.Go(func() {
			if err := m.fill(enough); err != nil {
				t.Errorf("sending to %s: %v", m.name, err)
			}
		})
	}
	r := rand.New(rand.NewPCG(*seed, 99))
	for n := range *kills {
		if n%2 == 1 { // in the middle of a backfill and a cut
			_ = do(http.MethodPost, "feature-views/spending/materialise", map[string]any{}, nil)
		}
		<-time.After(time.Duration(r.IntN(1500)) * time.Millisecond) // a moment to kill it in
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		c = s.Client(t)
		mu.Unlock()
	}
	close(enough)
	group.Wait()

	var spent, bought [customers]int64
	events := 0
	for _, p := range sending {
		events += p.events
		for i := range customers {
			spent[i], bought[i] = spent[i]+p.spent[i], bought[i]+p.bought[i]
		}
	}
	t.Logf("%d events, %d messages of %s, %d of %s", events, logs[0].sent, logs[0].name, logs[1].sent, logs[1].name)
	waitFolded(t, do, "spending", events)
	for _, m := range logs {
		waitFolded(t, do, m.name, m.sent-m.poison)
	}
	var entities []map[string]any
	for i := range customers {
		entities = append(entities, map[string]any{"customer": fmt.Sprint("c", i)})
	}
	var answer struct {
		Columns []struct {
			Name   string
			Values []json.Number
		}
	}
	if err := do(http.MethodPost, "features/online", map[string]any{"entities": entities, "features": []string{"spending:spent", "spending:bought"}}, &answer); err != nil {
		t.Fatal(err)
	}
	for i := range customers {
		if got, want := fmt.Sprintf("%v %v", answer.Columns[0].Values[i], answer.Columns[1].Values[i]), fmt.Sprintf("%v %v", spent[i], bought[i]); got != want {
			t.Errorf("online c%d: %s, want %s", i, got, want)
		}
	}
	for _, m := range logs {
		var clicked struct {
			Columns []struct{ Values []json.Number }
		}
		if err := do(http.MethodPost, "features/online", map[string]any{"entities": []any{map[string]any{"customer": "c0"}}, "features": []string{m.name + ":clicked"}}, &clicked); err != nil {
			t.Fatal(err)
		}
		if got, want := fmt.Sprint(clicked.Columns[0].Values), fmt.Sprint([]int{m.sent - m.poison}); got != want {
			t.Errorf("%s online: %s, want %s", m.name, got, want)
		}
		var st struct{ Dead int }
		if err := do(http.MethodGet, "feature-views/"+m.name+"/stream", nil, &st); err != nil || st.Dead != m.poison {
			t.Errorf("%s: %d dead letters, want %d: %v", m.name, st.Dead, m.poison, err)
		}
	}
	// A training set cuts the log; it and the dataset have the same.
	var set struct{ Dataset string }
	if err := do(http.MethodPost, "training-sets", map[string]any{
		"name": "check", "spine": "SELECT customer, MAX(\"at\") AS seen FROM purchases GROUP BY customer", "timestamp": "seen", "features": []string{"spending:bought"},
	}, &set); err != nil {
		t.Fatal(err)
	}
	var rows struct{ Rows [][]json.Number }
	if err := do(http.MethodPost, "query", map[string]any{"sql": "SELECT COUNT(*) AS n, SUM(amount) AS amount FROM purchases"}, &rows); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(rows.Rows[0]), fmt.Sprint([]int64{int64(events), spent[0] + spent[1] + spent[2]}); got != want {
		t.Errorf("the dataset has %s, want %s", got, want)
	}
}

// newTopic is a topic of a Kafka that outlives the server.
func newTopic(t *testing.T) *messages {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "clicks"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return &messages{name: "kafka", from: fmt.Sprintf("kafka: {brokers: [%q], topic: clicks", c.ListenAddrs()[0]), send: func(message string) error {
		return cl.ProduceSync(t.Context(), &kgo.Record{Topic: "clicks", Value: []byte(message)}).FirstErr()
	}}
}

// newStream is a stream of a NATS server that outlives ours.
func newStream(t *testing.T) *messages {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("NATS is not ready")
	}
	address := s.Addr().String()
	conn, err := nats.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "clicks", Subjects: []string{"clicks"}}); err != nil {
		t.Fatal(err)
	}
	return &messages{name: "nats", from: fmt.Sprintf("nats: {servers: [%q], stream: clicks", address), send: func(message string) error {
		_, err := js.Publish(t.Context(), "clicks", []byte(message))
		return err
	}}
}

// waitFolded waits until reads of a view find so many events.
func waitFolded(t *testing.T, do func(method, rest string, body, out any) error, view string, events int) {
	t.Helper()
	last := ""
	for end := time.Now().Add(2 * live.Wait); time.Now().Before(end); {
		var st struct {
			Waiting, Position int64
			Events            int
			Trouble           string
		}
		if err := do(http.MethodGet, "feature-views/"+view+"/stream", nil, &st); err != nil {
			t.Fatal(err)
		}
		if st.Waiting == 0 && st.Events >= events {
			return
		}
		last = fmt.Sprintf("%+v", st)
		<-time.After(100 * time.Millisecond)
	}
	t.Fatalf("%s: %d events are not online: %s", view, events, last)
}
