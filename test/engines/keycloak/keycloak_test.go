// Package keycloak logs people in at a real Keycloak.
package keycloak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const (
	admin  = "admin"
	secret = "only-for-tests+&=ü"
	realm  = "bank"
)

// keycloak is a Keycloak with a realm.
type keycloak struct {
	t     *testing.T
	url   string
	token string
	until time.Time
}

// start starts a Keycloak whose realm has the client falaj, and people in groups.
func start(t *testing.T, falaj string) *keycloak {
	t.Helper()
	program, err := filepath.Abs("../../../.tmp/venv/keycloak/bin/kc.sh")
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		live.Absent(t, "Keycloak is not there: scripts/engines/keycloak.sh")
	}
	address, port := live.Address(t)
	management, managementPort := live.Address(t)
	cmd := exec.Command(program, "start", "--optimized", "--http-enabled=true", "--hostname-strict=false",
		"--http-host=127.0.0.1", "--http-port="+port, "--http-management-host=127.0.0.1", "--http-management-port="+managementPort)
	cmd.Env = append(os.Environ(), "KC_BOOTSTRAP_ADMIN_USERNAME="+admin, "KC_BOOTSTRAP_ADMIN_PASSWORD="+secret, "JAVA_OPTS_APPEND=-Xmx500m")
	live.Peer{Cmd: cmd, Ready: live.Answers("http://" + management + "/health/ready")}.Start(t)
	k := &keycloak{t: t, url: "http://" + address}
	k.ask(http.MethodPost, "/admin/realms", map[string]any{
		"realm": realm, "enabled": true, "accessTokenLifespan": 300,
		"groups": []any{map[string]any{"name": "ml", "subGroups": []any{map[string]any{"name": "engineers"}, map[string]any{"name": "leads"}}}},
		"clients": []any{map[string]any{
			"clientId": "falaj", "secret": secret, "publicClient": false, "standardFlowEnabled": true, "redirectUris": []string{falaj + "/auth/oidc/kc/callback"},
			"attributes": map[string]any{
				"pkce.code.challenge.method": "S256", "backchannel.logout.url": falaj + "/auth/oidc/kc/logout", "backchannel.logout.session.required": "true",
				"post.logout.redirect.uris": falaj + "/console/",
			},
			"protocolMappers": []any{map[string]any{
				"name": "groups", "protocol": "openid-connect", "protocolMapper": "oidc-group-membership-mapper",
				"config": map[string]any{"claim.name": "groups", "full.path": "true", "id.token.claim": "true", "access.token.claim": "true", "userinfo.token.claim": "true"},
			}},
		}},
		"users": []any{person("alice", "/ml/engineers"), person("bob")},
	}, nil)
	return k
}

func person(name string, groups ...string) map[string]any {
	return map[string]any{
		"username": name, "enabled": true, "email": name + "@bank.example", "emailVerified": true, "firstName": name, "lastName": "Example",
		"credentials": []any{map[string]any{"type": "password", "value": secret, "temporary": false}}, "groups": groups,
	}
}

// ask sends a request to Keycloak's administration.
func (k *keycloak) ask(method, path string, body, out any) {
	k.t.Helper()
	if time.Now().After(k.until) {
		res, err := http.PostForm(k.url+"/realms/master/protocol/openid-connect/token", url.Values{"grant_type": {"password"}, "client_id": {"admin-cli"}, "username": {admin}, "password": {secret}})
		if err != nil {
			k.t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		var answer struct {
			Token string `json:"access_token"`
		}
		if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || answer.Token == "" {
			k.t.Fatalf("Keycloak gives its administrator no token: %s, %v", res.Status, err)
		}
		k.token, k.until = answer.Token, time.Now().Add(30*time.Second)
	}
	text, err := json.Marshal(body)
	if err != nil {
		k.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(k.t.Context(), method, k.url+path, bytes.NewReader(text))
	if err != nil {
		k.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+k.token)
	req.Header.Set("Content-Type", "application/json")
	res, err := (&http.Client{Timeout: live.Wait}).Do(req)
	if err != nil {
		k.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, _ := io.ReadAll(res.Body)
	if res.StatusCode >= http.StatusBadRequest {
		k.t.Fatalf("%s %s: %s %s", method, path, res.Status, answer)
	}
	if out != nil {
		if err := json.Unmarshal(answer, out); err != nil {
			k.t.Fatal(err)
		}
	}
}

type object struct {
	ID       string   `json:"id"`
	Username string   `json:"username"`
	Path     string   `json:"path"`
	Groups   []object `json:"subGroups"`
}

func (k *keycloak) user(name string) string {
	k.t.Helper()
	var found []object
	k.ask(http.MethodGet, "/admin/realms/"+realm+"/users?exact=true&username="+name, nil, &found)
	if len(found) != 1 {
		k.t.Fatalf("%d people are called %s", len(found), name)
	}
	return found[0].ID
}

// move puts a person into one group instead of another.
func (k *keycloak) move(name, from, to string) {
	k.t.Helper()
	user := k.user(name)
	for group, method := range map[string]string{from: http.MethodDelete, to: http.MethodPut} {
		var g object
		k.ask(http.MethodGet, "/admin/realms/"+realm+"/group-by-path"+group, nil, &g)
		k.ask(method, "/admin/realms/"+realm+"/users/"+user+"/groups/"+g.ID, nil, nil)
	}
}

var form = regexp.MustCompile(`<form[^>]*action="([^"]+)"`)

// browser logs in as a person does, and keeps the cookies.
type browser struct {
	http.Client

	at string // Falaj
}

func newBrowser(t *testing.T, at string) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &browser{Client: http.Client{Jar: jar, Timeout: time.Minute}, at: at}
}

// login logs in at Keycloak's page, and gives the path of ours that the browser ends at.
func (b *browser) login(ctx context.Context, name, password string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.at+"/auth/oidc/kc/login?next=/console/p/nyc", http.NoBody)
	if err != nil {
		return "", err
	}
	res, err := b.Do(req)
	if err != nil {
		return "", err
	}
	page, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	action := form.FindSubmatch(page)
	if action == nil {
		return res.Request.URL.Path, errors.New("there is no form: " + string(page[:min(len(page), 500)]))
	}
	to := html.UnescapeString(string(action[1]))
	if req, err = http.NewRequestWithContext(ctx, http.MethodPost, to, strings.NewReader(url.Values{"username": {name}, "password": {password}}.Encode())); err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if res, err = b.Do(req); err != nil {
		return "", err
	}
	_ = res.Body.Close()
	return res.Request.URL.Path, nil
}

// get asks Falaj with the cookies.
func (b *browser) get(ctx context.Context, path string, out any) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.at+path, http.NoBody)
	if err != nil {
		return 0, err
	}
	res, err := b.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	if out != nil && res.StatusCode == http.StatusOK {
		err = json.NewDecoder(res.Body).Decode(out)
	}
	return res.StatusCode, err
}

func TestKeycloak(t *testing.T) {
	s := live.New(t, "")
	address, _ := live.Address(t)
	falaj := "http://" + address
	k := start(t, falaj)
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	s.Args = []string{"--http", address, "--config", write("falaj.yaml", fmt.Sprintf(`
identity:
  url: %s
  providers:
    kc:
      title: Bank account
      issuer: %s/realms/%s
      client_id: falaj
      client_secret_file: %s
      recheck: 10s
      unproved: 5m
`, falaj, k.url, realm, write("secret", secret)))}
	s.Up(t)
	p := s.Project(t, "nyc")
	p.Apply(`
{api_version: falaj/v1, kind: Grant, name: engineers, project: PROJECT, spec: {principal: group/kc//ml/engineers, role: engineer}}
---
{api_version: falaj/v1, kind: Grant, name: leads, project: PROJECT, spec: {principal: group/kc//ml/leads, role: deployer}}
`)

	alice := newBrowser(t, falaj)
	if _, err := alice.login(t.Context(), "alice", "wrong"); err != nil {
		t.Fatal(err)
	}
	if status, err := alice.get(t.Context(), "/api/v1/whoami", nil); err != nil || status != http.StatusUnauthorized {
		t.Errorf("with a wrong password: %d, %v", status, err)
	}
	if at, err := alice.login(t.Context(), "alice", secret); err != nil || at != "/console/p/nyc" {
		t.Fatalf("the login ends at %q, %v", at, err)
	}
	var who struct{ Kind, Name, ID string }
	if status, err := alice.get(t.Context(), "/api/v1/whoami", &who); err != nil || status != http.StatusOK || who.Kind != "user" || who.Name != "alice" {
		t.Fatalf("whoami: %d, %+v, %v", status, who, err)
	}
	if status, err := alice.get(t.Context(), "/api/v1/projects/nyc", nil); err != nil || status != http.StatusOK {
		t.Errorf("an engineer of the group does not see the project: %d, %v", status, err)
	}
	if said := p.Run(0, "account", "show", "user/alice"); !strings.Contains(said, "engineer in project nyc, by group/kc//ml/engineers") {
		t.Errorf("account show:\n%s", said)
	}
	bob := newBrowser(t, falaj)
	if _, err := bob.login(t.Context(), "bob", secret); err != nil {
		t.Fatal(err)
	}
	if status, err := bob.get(t.Context(), "/api/v1/projects/nyc", nil); err != nil || status != http.StatusNotFound {
		t.Errorf("somebody in no group sees the project: %d, %v", status, err)
	}

	roles := func() string {
		var o client.Object
		p.Must(p.C.Do(t.Context(), http.MethodGet, "/api/v1/accounts/user%2Falice", nil, &o))
		var out []string
		grants, _ := o["grants"].([]any)
		for _, g := range grants {
			one, _ := g.(map[string]any)
			out = append(out, client.Object(one).Text("role"))
		}
		return strings.Join(out, " ")
	}
	k.move("alice", "/ml/engineers", "/ml/leads")
	p.Eventually("the role follows the group", func() (bool, error) { return roles() == "deployer", nil })

	// Keycloak's keys rotate: one of a higher priority signs from now on.
	k.ask(http.MethodPost, "/admin/realms/"+realm+"/components", map[string]any{
		"name": "next", "providerId": "rsa-generated", "providerType": "org.keycloak.keys.KeyProvider",
		"config": map[string]any{"priority": []string{"200"}, "enabled": []string{"true"}, "active": []string{"true"}, "keySize": []string{"2048"}},
	}, nil)
	again := newBrowser(t, falaj)
	p.Eventually("a login after the rotation", func() (bool, error) {
		at, err := again.login(t.Context(), "alice", secret)
		if err != nil || at != "/console/p/nyc" {
			return false, err
		}
		status, err := again.get(t.Context(), "/api/v1/whoami", nil)
		if status != http.StatusOK {
			again = newBrowser(t, falaj)
		}
		return status == http.StatusOK, err
	})

	// A logout at Keycloak ends all sessions of the person, by the back channel.
	began := time.Now()
	k.ask(http.MethodPost, "/admin/realms/"+realm+"/users/"+k.user("alice")+"/logout", nil, nil)
	for _, b := range []*browser{alice, again} {
		p.Eventually("the logout", func() (bool, error) {
			status, err := b.get(t.Context(), "/api/v1/whoami", nil)
			return status == http.StatusUnauthorized, err
		})
	}
	t.Logf("logged out after %s", time.Since(began).Round(time.Millisecond))

	// A person who is disabled there is refused here.
	k.ask(http.MethodPut, "/admin/realms/"+realm+"/users/"+k.user("bob"), map[string]any{"enabled": false}, nil)
	p.Eventually("the session of a disabled person ends", func() (bool, error) {
		status, err := bob.get(t.Context(), "/api/v1/whoami", nil)
		return status == http.StatusUnauthorized, err
	})
	if said := p.Run(0, "audit", "list", "--installation", "--limit", "200", "-o", "json"); !strings.Contains(said, "logged out at kc") || !strings.Contains(said, "account.groups") {
		t.Error("the audit log has neither the logout nor the change of groups")
	}
}
