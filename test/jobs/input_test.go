package jobs

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// TestWaitsForWhatIsNot: what no pool has is said at once, and amounts may be
// numbers.
func TestWaitsForWhatIsNot(t *testing.T) {
	t.Parallel()
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "waits")
	for says, spec := range map[string]map[string]any{
		"no pool has h100":                 {"command": []string{"/bin/true"}, "resources": map[string]any{"cpu": 1, "memory": 1 << 26, "accelerators": map[string]int{"h100": 2}}},
		"900 cpu wanted":                   {"command": []string{"/bin/true"}, "resources": map[string]any{"cpu": 900, "memory": "1GiB"}},
		"no pool has nvidia.com/mig-1g.10": {"command": []string{"/bin/true"}, "resources": map[string]any{"cpu": 0.5, "memory": "1GiB", "accelerators": map[string]int{"nvidia.com/mig-1g.10gb": 1}}},
	} {
		job := submit(p, "waits", spec)
		var why string
		p.Eventually(says+" is not said", func() (bool, error) {
			why = p.Run(0, "job", "describe", job)
			return strings.Contains(why, says), nil
		})
		p.Run(0, "job", "cancel", job)
	}
	var o client.Object
	err := p.C.Do(t.Context(), http.MethodPost, p.Path("jobs"), map[string]any{"name": "nowhere", "spec": map[string]any{"command": []string{"/bin/true"}, "pools": []string{"hpc"}}}, &o)
	if err == nil || !strings.Contains(err.Error(), `pool "hpc" not found`) {
		t.Errorf("a pool that is not there: %v", err)
	}
	if out := p.Run(4, "pool", "doctor", "hpc"); !strings.Contains(out, "falaj pool list") {
		t.Error(out)
	}
	if out := p.Run(4, "job", "describe", "job_x"); !strings.Contains(out, "falaj get jobs") {
		t.Error(out)
	}
}

// TestUnresolvable: a job whose environment cannot be built ends with the
// resolver's words.
func TestUnresolvable(t *testing.T) {
	t.Parallel()
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "unresolvable")
	p.Apply(`{api_version: falaj/v1, kind: Environment, name: bad, project: PROJECT, spec: {requirements: ["falaj-no-such-package-at-all==99"]}}`)
	// Submitted while it is being built, or after: the one fails, the other is refused.
	var o client.Object
	err := p.C.Do(t.Context(), http.MethodPost, p.Path("jobs"), map[string]any{"name": "needs", "spec": map[string]any{"command": []string{"python", "-c", "1"}, "environment": "bad"}}, &o)
	if err == nil {
		got := ended(p, o.Text("id"))
		text := p.Run(0, "job", "describe", o.Text("id"))
		if got.Class != "environment" || !strings.Contains(text, "falaj-no-such-package-at-all") {
			t.Error(text)
		}
	}
	p.Run(1, "env", "wait", "bad")
	if out := p.Run(1, "env", "check", "bad"); !strings.Contains(out, "falaj-no-such-package-at-all") {
		t.Error(out)
	}
	err = p.C.Do(t.Context(), http.MethodPost, p.Path("jobs"), map[string]any{"name": "needs", "spec": map[string]any{"command": []string{"python", "-c", "1"}, "environment": "bad"}}, &o)
	if refused, ok := err.(*client.Error); !ok || !strings.Contains(refused.Detail, "falaj-no-such-package-at-all") { //nolint:errorlint // nothing wraps it here
		t.Errorf("%v", err)
	}
}

// TestServerAway: a job works on while its server is gone, its requests fail in
// words, and it ends once, with everything that it wrote. Who waits for it or
// follows it does not take the server's end for the job's.
func TestServerAway(t *testing.T) {
	t.Parallel()
	s := live.New(t, "")
	at, _ := live.Address(t) // it comes back where it was
	s.Args = []string{"--http", at}
	s.Up(t)
	p := s.Project(t, "away")
	job := submit(p, "stays", map[string]any{"command": script(
		"import os, time, urllib.request",
		"def asks():",
		"    try: return urllib.request.urlopen(os.environ['FALAJ_URL'] + '/healthz', timeout=5).status == 200",
		"    except OSError: return False",
		"while not asks(): pass",
		"print('there', flush=True)",
		"while asks(): time.sleep(0.05)",
		"print('gone', flush=True)",
		"d = os.environ['FALAJ_CHECKPOINT_DIR']",
		"os.mkdir(d + '/.new'); open(d + '/.new/state', 'w').write('1'); os.rename(d + '/.new', d + '/step-1')",
		"while not asks(): time.sleep(0.05)",
		"print('back', flush=True)",
	)})
	p.Eventually("it does not begin", func() (bool, error) {
		out, code := p.Command(t.Context(), "job", "logs", job, "-p", p.Name)
		return code == 0 && strings.Contains(out, "there"), nil
	})
	followed := p.Begin(t.Context(), "job", "logs", job, "--follow", "-p", p.Name)
	awaited := p.Begin(t.Context(), "job", "wait", job, "-p", p.Name)
	p.Must(s.Kill())
	kept := filepath.Join(s.Data, "training", "checkpoints", job, "step-1", "state")
	p.Eventually("it does not go on alone", func() (bool, error) {
		_, err := os.Stat(kept)
		return err == nil, err
	})
	p.Again()
	if got := ended(p, job); got.State != "succeeded" || got.Attempts != 1 {
		t.Errorf("%+v", got)
	}
	if said, code := awaited(); code != 0 || !strings.Contains(said, job+" succeeded") {
		t.Errorf("job wait: exit code %d: %s", code, said)
	}
	said, code := followed()
	lines := strings.Split(strings.TrimSuffix(said, "\n"), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "falaj: ") })
	if code != 0 || !slices.Equal(lines, []string{"there", "gone", "back"}) {
		t.Errorf("job logs --follow: exit code %d: %s", code, said)
	}
	if log := p.Run(0, "job", "logs", job); log != "there\ngone\nback\n" {
		t.Error(log)
	}
	if out := p.Run(0, "job", "checkpoints", job); !strings.Contains(out, "step-1") {
		t.Error(out)
	}
}

// TestFullDisk: who fills the disk is told so, and what was saved before is
// kept once there is space again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	s := live.New(t, "")
	d := s.Disk(t, 192)
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := s.Project(t, "full")
	job := submit(p, "fills", map[string]any{"command": script(
		"import os",
		"d = os.environ['FALAJ_CHECKPOINT_DIR']",
		"os.mkdir(d + '/.one'); open(d + '/.one/state', 'w').write('1'); os.rename(d + '/.one', d + '/step-1')",
		"f = open(d + '/.two', 'wb', buffering=0)",
		"while True: f.write(bytes(1 << 20))",
	)})
	got := ended(p, job)
	text := p.Run(0, "job", "describe", job)
	// Its limit ends it, or the disk is full before anybody has looked.
	limit := got.Class == "out_of_disk" && strings.Contains(text, "request more in spec.disk")
	full := got.State == "failed" && strings.Contains(strings.ToLower(text), "no space left on device")
	if !limit && !full {
		t.Error(text)
	}
	p.Eventually("its checkpoint is not kept", func() (bool, error) {
		return strings.Contains(p.Run(0, "job", "checkpoints", job), "step-1"), nil
	})
	p.Eventually("there is no space again", func() (bool, error) {
		var o client.Object
		err := p.C.Do(t.Context(), http.MethodPost, p.Path("jobs"), map[string]any{"name": "next", "spec": map[string]any{"command": []string{"/bin/true"}}}, &o)
		job = o.Text("id")
		return err == nil, err
	})
	if got := ended(p, job); got.State != "succeeded" {
		t.Errorf("%+v", got)
	}
}
