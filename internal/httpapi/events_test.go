package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/governance/project"
)

// heard is one message of a stream; a comment alone has only an id.
type heard struct{ id, name, data string }

// stream is an open stream of events.
type stream struct {
	status   int
	messages chan heard    // closed when the stream has ended
	close    func()        // ends it from our side
	ended    chan struct{} // closed when it has ended
}

// watch opens the events of a project; after is a Last-Event-ID or "".
func (w *world) watch(t *testing.T, secret, in, after string) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/api/v1/projects/"+in+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	if after != "" {
		req.Header.Set("Last-Event-ID", after)
	}
	resp, err := http.DefaultTransport.RoundTrip(req) //nolint:bodyclose // closed by the reader below
	if err != nil {
		t.Fatal(err)
	}
	s := &stream{status: resp.StatusCode, messages: make(chan heard, 1<<16), close: cancel, ended: make(chan struct{})}
	if s.status == http.StatusOK && resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("the stream is %s", resp.Header.Get("Content-Type"))
	}
	go func() {
		defer func() { _ = resp.Body.Close() }()
		defer close(s.ended)
		defer close(s.messages)
		var m heard
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			switch field, value, _ := strings.Cut(lines.Text(), ": "); field {
			case "id":
				m.id = value
			case "event":
				m.name = value
			case "data":
				m.data = value
			case "":
				s.messages <- m
				m = heard{}
			}
		}
	}()
	if s.status == http.StatusOK {
		if m := s.next(t); m != (heard{}) { // the first words
			t.Fatalf("the stream begins with %v", m)
		}
	}
	return s
}

func (s *stream) next(t *testing.T) heard {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	select {
	case m, ok := <-s.messages:
		if !ok {
			t.Fatal("the stream ended")
		}
		return m
	case <-deadline.C:
		t.Fatal("the stream says nothing")
	}
	return heard{}
}

// event is the next message that is an event.
func (s *stream) event(t *testing.T) heard {
	t.Helper()
	for {
		if m := s.next(t); m.name != "" {
			return m
		}
	}
}

// mustEnd waits until the server has ended the stream.
func (s *stream) mustEnd(t *testing.T, why string) {
	t.Helper()
	eventually(t, "the end of the stream: "+why, func() bool {
		select {
		case <-s.ended:
			return true
		default:
			return false
		}
	})
}

func TestEventsResume(t *testing.T) {
	w := open(t)
	w.publish(t, "flights", "dataset.first")
	s := w.watch(t, w.Secret, "flights", "")
	w.publish(t, "other", "dataset.elsewhere")
	w.publish(t, "flights", "dataset.second", "dataset.third", "job.fourth")
	second := s.event(t)
	var body eventMessage
	if err := json.Unmarshal([]byte(second.data), &body); err != nil {
		t.Fatal(err)
	}
	if second.name != "dataset.second" || body.Name != second.name || body.Project != "flights" || body.Time.IsZero() || string(body.Body) != `{"of":"dataset.second"}` {
		t.Errorf("the first after the beginning: %v", second)
	}
	if m := s.event(t); m.name != "dataset.third" {
		t.Errorf("then %v", m)
	}
	s.close()

	w.publish(t, "flights", "run.fifth")
	resumed := w.watch(t, w.Secret, "flights", second.id)
	for _, want := range []string{"dataset.third", "job.fourth", "run.fifth"} {
		if m := resumed.event(t); m.name != want {
			t.Errorf("resumed after %s: %v, not %s", second.id, m, want)
		}
	}
	resumed.close()

	// From the beginning, all of this project and nothing of the other.
	var names []string
	all := w.watch(t, w.Secret, "flights", "0-0")
	for !slices.Contains(names, "run.fifth") {
		names = append(names, all.event(t).name)
	}
	if diff := cmp.Diff([]string{"project.created", "dataset.first", "dataset.second", "dataset.third", "job.fourth", "run.fifth"}, names); diff != "" {
		t.Error(diff)
	}

	// A silent stream gives ids, too, so that a reader resumes past what others did.
	w.publish(t, "other", "dataset.later")
	id := ""
	for id == "" || id == second.id {
		id = all.next(t).id
	}
	all.close()
	w.publish(t, "flights", "job.sixth")
	if m := w.watch(t, w.Secret, "flights", id).event(t); m.name != "job.sixth" {
		t.Errorf("resumed after a heartbeat: %v", m)
	}

	for _, bad := range []string{"x", "1", "-1-2", "1-2-3", "99999999999999999999-1", strings.Repeat("1", 1000)} {
		if s := w.watch(t, w.Secret, "flights", bad); s.status != http.StatusBadRequest {
			t.Errorf("Last-Event-ID %.30s: %d", bad, s.status)
		}
	}
}

// TestEventsForReaders: an event is told to those who may read what it is about.
func TestEventsForReaders(t *testing.T) {
	w := open(t)
	members := map[project.Role]string{}
	for _, r := range project.Roles {
		members[r], _ = w.member(t, "flights", string(r)+"1", r)
	}
	neighbour, _ := w.member(t, "other", "neighbour", project.Admin)
	body := `{"project":"flights","name":"admin1","scopes":["project.read","job.read"]}`
	var narrow, blind tokenAnswer
	if err := json.Unmarshal([]byte(w.do(t, w.Secret, "POST", "/api/v1/tokens", body).body), &narrow); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(w.do(t, w.Secret, "POST", "/api/v1/tokens", strings.Replace(body, `"project.read",`, "", 1)).body), &blind); err != nil {
		t.Fatal(err)
	}
	after := w.watch(t, w.Secret, "flights", "")
	w.publish(t, "flights", "job.finished", "token.created", "key.destroyed", "unheard.of", "dataset.applied", "job.end")
	start := before(t, after, "job.finished")
	everything := []string{"job.finished", "token.created", "key.destroyed", "unheard.of", "dataset.applied"}
	for secret, want := range map[string][]string{
		members[project.Viewer]:   {"job.finished", "dataset.applied"},
		members[project.Engineer]: {"job.finished", "dataset.applied"},
		members[project.Deployer]: {"job.finished", "dataset.applied"},
		members[project.Auditor]:  everything,
		members[project.Admin]:    everything,
		narrow.Secret:             {"job.finished"},
	} {
		s := w.watch(t, secret, "flights", start)
		var names []string
		for {
			m := s.event(t)
			if m.name == "job.end" {
				break
			}
			names = append(names, m.name)
		}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("-wanted, +told:\n%s", diff)
		}
		s.close()
	}
	if s := w.watch(t, w.Secret, "absent", ""); s.status != http.StatusNotFound {
		t.Errorf("a project that is not there: %d", s.status)
	}
	for secret, want := range map[string]int{neighbour: http.StatusNotFound, blind.Secret: http.StatusForbidden, "": http.StatusUnauthorized} {
		if s := w.watch(t, secret, "flights", "0-0"); s.status != want {
			t.Errorf("one who may not watch: %d, not %d", s.status, want)
		}
	}
}

// before is the position before the first event of a name.
func before(t *testing.T, s *stream, name string) string {
	t.Helper()
	for {
		if m := s.event(t); m.name == name {
			group, number, _ := strings.Cut(m.id, "-")
			n, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			return group + "-" + strconv.Itoa(n-1)
		}
	}
}

// TestEventsEnd: a stream ends soon after its token or the role does, and goes
// on for others.
func TestEventsEnd(t *testing.T) {
	w := open(t)
	stays, _ := w.member(t, "flights", "stays", project.Viewer)
	other := w.watch(t, stays, "flights", "")
	revoked, id := w.member(t, "flights", "revoked", project.Viewer)
	s := w.watch(t, revoked, "flights", "")
	if got := w.do(t, w.Secret, "DELETE", "/api/v1/tokens/"+id, ""); got.status != http.StatusNoContent {
		t.Fatal(got)
	}
	s.mustEnd(t, "its token is revoked")

	dropped, _ := w.member(t, "flights", "dropped", project.Viewer)
	s = w.watch(t, dropped, "flights", "")
	grants, _, err := w.Tenancy.Members(w.AsAdmin(t.Context()), "flights", "")
	if err != nil {
		t.Fatal(err)
	}
	var who struct{ ID string }
	if err := json.Unmarshal([]byte(w.do(t, dropped, "GET", "/api/v1/whoami", "").body), &who); err != nil {
		t.Fatal(err)
	}
	for _, g := range grants {
		if g.Principal == who.ID {
			if err := w.Tenancy.Revoke(w.AsAdmin(t.Context()), "flights", g.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.mustEnd(t, "its role is taken away")

	s = w.watch(t, w.Secret, "other", "")
	if err := w.Tenancy.Delete(w.AsAdmin(t.Context()), "other"); err != nil {
		t.Fatal(err)
	}
	s.mustEnd(t, "its project is deleted")

	w.publish(t, "flights", "job.finished")
	before(t, other, "job.finished") // another's stream goes on
}

// TestEventsAtMost: one principal has a bounded number of streams, whatever the
// token; what is closed is given back.
func TestEventsAtMost(t *testing.T) {
	w := open(t)
	viewer, _ := w.member(t, "flights", "viewer1", project.Viewer)
	open := make([]*stream, maxPrincipalStreams)
	for i := range open {
		if open[i] = w.watch(t, viewer, "flights", ""); open[i].status != http.StatusOK {
			t.Fatalf("stream %d: %d", i, open[i].status)
		}
	}
	second, _ := w.member(t, "flights", "viewer1", project.Viewer)
	for name, secret := range map[string]string{"the same token": viewer, "another token": second} {
		if s := w.watch(t, secret, "flights", ""); s.status != http.StatusTooManyRequests {
			t.Errorf("one stream more by %s: %d", name, s.status)
		}
	}
	if s := w.watch(t, w.Secret, "flights", ""); s.status != http.StatusOK {
		t.Errorf("somebody else's first stream: %d", s.status)
	} else {
		s.close()
	}
	open[0].close()
	eventually(t, "a stream in the place of a closed one", func() bool {
		s := w.watch(t, viewer, "flights", "")
		defer s.close()
		return s.status == http.StatusOK
	})
	for _, s := range open {
		s.close()
	}
	eventually(t, "no stream is counted", func() bool { return w.server.watches.Held() == 0 })
}

// TestEveryEventHasReaders: whoever adds a kind of event decides who reads it.
func TestEveryEventHasReaders(t *testing.T) {
	installation := []string{"zone", "pool", "queue", "node"} // in no project
	event := regexp.MustCompile(`^([a-z_]+)\.[a-z_]+$`)
	seen := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() != "events.go" || path == filepath.Join("..", "httpapi", "events.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			text, _ := strconv.Unquote(lit.Value)
			m := event.FindStringSubmatch(text)
			if m == nil {
				return true
			}
			seen[m[1]] = true
			if _, ok := readers[m[1]]; !ok && !slices.Contains(installation, m[1]) {
				t.Errorf("%s: the event %s has no line in readers (httpapi/events.go)", path, text)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for noun := range readers {
		if !seen[noun] {
			t.Errorf("there is no event of %s", noun)
		}
	}
}
