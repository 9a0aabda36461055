// Package oci_test runs jobs in OCI images on the real binary, by runc.
package oci_test

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/oci/ocitest"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/test/live"
)

// site is a Falaj that may use one registry.
type site struct {
	*live.Project
	registry *ocitest.Registry
}

func newSite(t *testing.T) *site {
	t.Helper()
	sandboxtest.Runc(t)
	x := &site{registry: ocitest.New(t)}
	s := live.New(t, "")
	config := filepath.Join(s.Home, "falaj.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "images: {registries: [%[1]q], insecure: [%[1]q]}\n", x.registry.Host), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Args = []string{"--config", config}
	s.Up(t)
	x.Project = s.Project(t, "images")
	return x
}

func (x *site) submit(name string, spec map[string]any) string {
	x.T.Helper()
	var o client.Object
	x.Must(x.C.Do(x.T.Context(), http.MethodPost, x.Path("jobs"), map[string]any{"name": name, "spec": spec}, &o))
	return o.Text("id")
}

// ends waits for the job's end and gives its log.
func (x *site) ends(id, state string) string {
	x.T.Helper()
	var o client.Object
	x.Eventually("job "+id+" does not end", func() (bool, error) {
		err := x.C.Do(x.T.Context(), http.MethodGet, x.Path("jobs/"+id+"?wait=30s"), nil, &o)
		return slices.Contains([]string{"failed", "succeeded", "cancelled"}, o.Text("state")), err
	})
	if got := o.Text("state"); got != state {
		x.T.Fatalf("job %s is %s, not %s:\n%s", id, got, state, x.Run(0, "job", "describe", id))
	}
	return x.Run(0, "job", "logs", id)
}

// TestImageEnvironment: a tag is pinned, the image's own programs run, the API
// answers inside, nothing else does, and what is absent is refused at apply.
func TestImageEnvironment(t *testing.T) {
	x := newSite(t)
	ref := x.registry.Push(t, "team/base", ocitest.Image(t, []string{"FROM_IMAGE=yes"}, ocitest.Busybox(t)))
	x.Apply(fmt.Sprintf(`{api_version: falaj/v1, kind: Environment, project: images, name: base, spec: {image: "%s/team/base:latest"}}`, x.registry.Host))
	if said := x.Run(0, "env", "show", "base"); !strings.Contains(said, ref) {
		t.Errorf("the tag was not pinned:\n%s", said)
	}
	id := x.submit("look", map[string]any{
		"environment": "base", "resources": map[string]string{"cpu": "200m", "memory": "128MiB"}, "command": []string{
			"/bin/sh", "-c", `echo "from image: $FROM_IMAGE"; ls /usr/bin/ | head -n 1; id -u; cat /etc/shadow 2>/dev/null; ls -d /home /work 2>/dev/null
			wget -q -O - "$FALAJ_URL/healthz" && echo; nc -w 1 192.0.2.1 80 </dev/null || echo unreachable; echo result >"$FALAJ_OUTPUT_DIR/result"`,
		},
	})
	log := x.ends(id, "succeeded")
	for _, want := range []string{"from image: yes", "\n1000\n", "unreachable"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has no %q:\n%s", want, log)
		}
	}
	for name, c := range map[string]struct{ image, say string }{
		"absent":   {x.registry.Host + "/team/none:latest", "no image"},
		"away":     {"registry.invalid/team/base:latest", "may not come from registry registry.invalid"},
		"misspelt": {"Not An Image", "name of an image"},
	} {
		_, err := x.Try(x.C, fmt.Sprintf(`{api_version: falaj/v1, kind: Environment, project: images, name: %s, spec: {image: %q}}`, name, c.image))
		if err == nil || !strings.Contains(err.Error()+fmt.Sprintf("%+v", err), c.say) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDigitsInImage: PyTorch learns the same in an image as in the machine's own
// Python.
func TestDigitsInImage(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	x := newSite(t)
	ref := x.registry.Push(t, "falaj/torch", torch(t, root))
	env, err := os.ReadFile(filepath.Join(root, "examples/digits-ddp/env.yaml"))
	x.Must(err)
	train, err := os.ReadFile(filepath.Join(root, "examples/digits-ddp/train.py"))
	x.Must(err)
	x.Apply(strings.Replace(string(env), "name: torch", "name: torch\nproject: images", 1))
	x.Apply(fmt.Sprintf(`{api_version: falaj/v1, kind: Environment, project: images, name: image, spec: {image: %q}}`, ref))
	source := x.Source("train.py", train)
	var curves [][]float64
	for _, environment := range []string{"torch", "image"} {
		id := x.submit("digits-"+environment, map[string]any{
			"environment": environment, "source": source, "framework": "torchrun", "workers": 2, "command": []string{"python", "train.py", "--steps", "12"},
			"resources": map[string]string{"cpu": "500m", "memory": "1GiB"}, "timeout": "10m", "max_attempts": 1,
		})
		curves = append(curves, losses(t, x.ends(id, "succeeded")))
	}
	if len(curves[0]) != 12 || len(curves[1]) != 12 {
		t.Fatalf("%v", curves)
	}
	for i := range curves[0] {
		if math.Abs(curves[0][i]-curves[1][i]) > 1e-3 {
			t.Errorf("step %d: %v and in the image %v", i, curves[0][i], curves[1][i])
		}
	}
	if curves[0][11] >= curves[0][0] {
		t.Errorf("nothing was learnt: %v", curves[0])
	}
}

var lossRE = regexp.MustCompile(`step (\d+) loss ([0-9.]+)`)

// losses are those that the first worker wrote, by step.
func losses(t *testing.T, log string) []float64 {
	t.Helper()
	var all []float64
	for _, m := range lossRE.FindAllStringSubmatch(log, -1) {
		v, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	return all
}

// torch is the image of Debian's Python with PyTorch, made of this machine's
// packages.
func torch(t *testing.T, root string) v1.Image {
	t.Helper()
	live.Torch(t)
	dir := filepath.Join(root, ".tmp", "images")
	if _, err := os.Stat(filepath.Join(dir, "torch", "index.json")); err != nil { // else `make engines` made it
		if out, err := exec.CommandContext(t.Context(), "/usr/bin/python3", filepath.Join(root, "scripts/engines/images.py"), dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	index, err := layout.ImageIndexFromPath(filepath.Join(dir, "torch"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil || len(m.Manifests) != 1 {
		t.Fatalf("%v %+v", err, m)
	}
	img, err := index.Image(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return img
}
