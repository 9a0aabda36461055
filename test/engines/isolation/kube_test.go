package isolation_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine/kube/kubetest"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/repotest"
	"github.com/falaj-ml/falaj/test/live"
)

// metadata is where clouds answer those who ask for a machine's credentials.
const metadata = "169.254.169.254"

// TestHostileOnKubernetes: a pod has no right, no file and no address that is not
// its own; a gang reaches its own workers, the server and what it is allowed; the
// namespace takes no pod with more. The network is fenced by the test, as by a
// cluster whose network enforces NetworkPolicies.
func TestHostileOnKubernetes(t *testing.T) {
	kubetest.Need(t)
	if out, err := exec.CommandContext(t.Context(), "ip", "address", "add", metadata+"/32", "dev", "lo").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	open, _ := service(t, "tcp", kubetest.Address+":0", "open")
	closed, calls := service(t, "tcp", kubetest.Address+":0", "closed")
	cloud, cloudCalls := service(t, "tcp", metadata+":80", "closed")
	datagram := echo(t)
	cert, key := kubetest.Certificate(t)

	c := kubetest.Start(t, kubetest.Options{Pods: true})
	s := live.New(t, "")
	worker, busybox, account := c.Worker(s.Bin.Worker), c.Import("busybox"), c.Falaj()
	config := filepath.Join(s.Home, "falaj.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "tls: {cert: %s, key: %s}\nengines: {cluster: {kind: kube, kubeconfig: %s, namespace: %s, worker_image: %q}}\n",
		cert, key, account, kubetest.Namespace, worker), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Args = []string{"--config", config, "--http", kubetest.Address + ":0"}
	s.Env = append(s.Env, "SSL_CERT_FILE="+cert, "FALAJ_JOBS_NETWORK="+open.Addr().String())
	s.Up(t)
	p, q := s.Project(t, "p"), s.Project(t, "q")
	p.Apply(fmt.Sprintf("{api_version: falaj/v1, kind: Pool, name: pods, spec: {engine: cluster, mode: delegated, options: {image: %[1]q, pull: never}}}\n---\n"+
		"{api_version: falaj/v1, kind: Pool, name: shared, spec: {engine: cluster, mode: delegated, options: {image: %[1]q, pull: never, shared: \"true\"}}}\n---\n"+
		"{api_version: falaj/v1, kind: Project, name: secret}", busybox))
	unfence := c.Fence()

	secret := "SECRET_" + id.New("x")
	onPods := map[string]any{"pools": []string{"pods"}, "env": map[string]string{"MARK": secret}}
	victim := sleeper(p, "victim", `echo "$MARK" >"$FALAJ_SCRATCH_DIR/secret"; httpd -p 8080 -h "$FALAJ_SCRATCH_DIR"; echo "at $FALAJ_SCRATCH_DIR,"`, onPods)
	_, scratch, _ := strings.Cut(p.Run(0, "job", "logs", victim.job), "at ")
	scratch, _, _ = strings.Cut(scratch, ",")
	address := strings.TrimSpace(c.Kubectl("--namespace", kubetest.Namespace, "get", "pods", "--selector", "falaj.dev/launch="+victim.attempt, "-o", "jsonpath={.items[0].status.podIP}"))
	if page, err := http.Get("http://" + net.JoinHostPort(address, "8080") + "/secret"); err != nil || page.Body.Close() != nil || page.StatusCode != http.StatusOK {
		t.Fatalf("the victim is not as this test expects it: %v %+v", err, page)
	}
	local := sleeper(p, "local", "", nil)
	other := sleeper(q, "other", "", onPods)

	reversed := []byte(secret)
	slices.Reverse(reversed)
	attack := submit(q, "attack", map[string]any{
		"command": []string{"./attacker", "pod"}, "source": source(q, "attacker", s.Bin.Program(t, "./test/attack/testdata/attacker")), "network": []string{open.Addr().String()}, "workers": 2,
		"timeout": "5m", "max_attempts": 1, "pools": []string{"pods"},
		"env": map[string]string{
			"A_DATA": s.Data, "A_SECRET": string(reversed), "A_OTHER_FILE": filepath.Join(scratch, "secret"), "A_OTHER_JOB": victim.job, "A_SOCKET": filepath.Join(c.Dir, "containerd.sock"),
			"A_OPEN": open.Addr().String(), "A_DATAGRAM": datagram,
			"A_CLOSED": strings.Join([]string{closed.Addr().String(), cloud.Addr().String(), net.JoinHostPort(address, "8080"), kubetest.Address + ":10250", "10.96.0.1:443", "192.0.2.1:443", "[2001:db8::1]:443"}, ","),
		},
	})
	t.Run("a gang of attackers", func(t *testing.T) {
		at := *q
		at.T = t
		judge(t, ended(&at, attack), secret, 2, 70)
	})
	if n := calls.Load() + cloudCalls.Load(); n > 0 {
		t.Errorf("%d connections came to where nobody may connect", n)
	}

	// A fence that lets nobody through would prove nothing: workers of a gang reach
	// each other, and without the fence each of the places answers.
	neighbours := submit(p, "neighbours", map[string]any{
		"command": []string{"/bin/sh", "-c", `if [ "$RANK" = 0 ]; then mkdir site; echo "from the first" >site/word; httpd -p 8080 -h site; exec nc -l -p 8081; fi
			until wget -q -O - "http://$MASTER_ADDR:8080/word"; do sleep 0.2; done; until echo "from the second" | nc "$MASTER_ADDR" 8081; do sleep 0.2; done`},
		"pools": []string{"pods"}, "workers": 2, "timeout": "1m",
	})
	if out := ended(p, neighbours); !strings.Contains(out, "[1] from the first") || !strings.Contains(out, "[0] from the second") {
		t.Errorf("workers of one gang do not reach each other:\n%s", out)
	}
	guarded(p, victim, other, local)
	unfence()
	host, port, err := net.SplitHostPort(closed.Addr().String())
	p.Must(err)
	unfenced := submit(q, "unfenced", map[string]any{
		"command": []string{"/bin/sh", "-c", fmt.Sprintf("wget -q -O - http://%s:8080/secret; nc %s %s </dev/null; nc %s 80 </dev/null", address, host, port, metadata)}, "pools": []string{"pods"}, "timeout": "2m",
	})
	if out := ended(q, unfenced); !strings.Contains(out, secret) || strings.Count(out, "closed") != 2 {
		t.Errorf("without the fence:\n%s", out)
	}

	t.Run("the namespace", func(t *testing.T) { namespace(t, c.With(t), account, victim) })
	t.Run("directories of the node", func(t *testing.T) {
		at := *p
		at.T = t
		job := submit(&at, "shared", map[string]any{"command": []string{"/bin/true"}, "pools": []string{"shared"}})
		at.Eventually("the restricted standard does not refuse", func() (bool, error) {
			out, _ := at.Command(t.Context(), "job", "describe", job, "-p", "p")
			why, _ := at.Command(t.Context(), "job", "why", job, "-p", "p")
			return strings.Contains(out+why, "violates PodSecurity") && strings.Contains(out+why, "hostPath"), fmt.Errorf("%s%s", out, why)
		})
		at.Run(0, "job", "cancel", job)
	})
	t.Run("what a user may say of a pod", func(t *testing.T) {
		for _, field := range []string{"options", "hostPath", "privileged", "security_context", "service_account", "mounts"} {
			err := p.C.Do(t.Context(), http.MethodPost, p.Path("jobs"), map[string]any{"name": "more", "spec": map[string]any{
				"command": []string{"/bin/true"}, "pools": []string{"pods"}, field: map[string]string{"shared": "true"},
			}}, nil)
			if err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("a job with %s: %v", field, err)
			}
		}
	})
	hidden(t, victim.token, other.token, secret)
	if said := p.Run(0, "pool", "describe", "pods"); !strings.Contains(said, "if the cluster's network enforces NetworkPolicies") {
		t.Errorf("describe does not tell on what the fence depends:\n%s", said)
	}
	over(p, victim)
}

// namespace: what Falaj's account may, and what the namespace takes from anybody.
func namespace(t *testing.T, c *kubetest.Cluster, account string, victim running) {
	t.Helper()
	as := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(kubectl(t), "kubectl"), append([]string{"--kubeconfig", account}, args...)...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		return out.String(), err
	}
	for what, may := range map[string]string{
		"get secrets --namespace kube-system": "no", "create jobs --namespace default": "no", "create pods/exec --namespace falaj": "no",
		"create clusterrolebindings": "no", "list secrets --namespace falaj": "no", "get nodes/proxy": "no", "update namespaces": "no", "impersonate users": "no",
		"create jobs --namespace falaj": "yes",
	} {
		if out, _ := as(append([]string{"auth", "can-i"}, strings.Fields(what)...)...); strings.TrimSpace(lastLine(out)) != may {
			t.Errorf("may it %s? %s", what, out)
		}
	}
	for name, spec := range map[string]string{
		"privileged": `containers: [{name: c, image: x, securityContext: {privileged: true}}]`,
		"hostPath":   `containers: [{name: c, image: x}], volumes: [{name: v, hostPath: {path: /}}]`,
		"host":       `hostNetwork: true, hostPID: true, containers: [{name: c, image: x}]`,
		"root":       `containers: [{name: c, image: x, securityContext: {runAsUser: 0}}]`,
	} {
		file := filepath.Join(t.TempDir(), "pod.yaml")
		if err := os.WriteFile(file, fmt.Appendf(nil, "apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: %s}\nspec: {%s}\n", strings.ToLower(name), kubetest.Namespace, spec), 0o600); err != nil {
			t.Fatal(err)
		}
		// Even the administrator's.
		out, err := exec.CommandContext(t.Context(), filepath.Join(kubectl(t), "kubectl"), "--kubeconfig", c.Kubeconfig, "create", "-f", file).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "violates PodSecurity") {
			t.Errorf("a pod with %s: %v %s", name, err, out)
		}
	}
	// The token is in the Secret alone.
	for _, kind := range []string{"pods", "jobs", "events", "services", "networkpolicies"} {
		if out := c.Kubectl("--namespace", kubetest.Namespace, "get", kind, "-o", "json"); strings.Contains(out, victim.token) || kind == "pods" && !strings.Contains(out, victim.attempt) {
			t.Errorf("%s tell the token, or nothing", kind)
		}
	}
}

func kubectl(t *testing.T) string {
	t.Helper()
	root, err := repotest.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, ".tmp", "kube", "bin")
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// echo answers datagrams.
func echo(t *testing.T) string {
	t.Helper()
	c, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", kubetest.Address+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		b := make([]byte, 100)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(b[:n], from)
		}
	}()
	return c.LocalAddr().String()
}
