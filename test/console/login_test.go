package console

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/falaj-ml/falaj/internal/governance/identity/identitytest"
	"github.com/falaj-ml/falaj/test/live"
)

// TestLogin logs in at an identity provider, by the browser, and lets a command log in.
func TestLogin(t *testing.T) {
	op := identitytest.NewProvider(t, nil)
	op.Be(identitytest.Person{Subject: "s-1", Username: "alice.smith", Name: "Alice Smith", Groups: []string{"/ml/engineers"}})
	address, _ := live.Address(t)
	s := live.New(t, "")
	dir := t.TempDir()
	for name, text := range map[string]string{"secret": op.Secret, "falaj.yaml": fmt.Sprintf(`
identity:
  url: http://%s
  providers:
    bank: {title: Bank account, issuer: "%s", client_id: %s, client_secret_file: %s}
`, address, op.URL, op.ClientID, filepath.Join(dir, "secret"))} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.Args = []string{"--http", address, "--config", filepath.Join(dir, "falaj.yaml")}
	s.Up(t)
	p := s.Project(t, "tiny")
	p.Apply(`{api_version: falaj/v1, kind: Grant, name: engineers, project: PROJECT, spec: {principal: group/bank//ml/engineers, role: engineer}}`)

	b := open(t, s.URL)
	b.others = []string{op.URL}
	b.do(chromedp.Navigate(s.URL + "/console/p/tiny/jobs"))
	b.see("Log in with Bank account", "Access token")
	b.accessible("login")
	b.picture("login")
	// The provider refuses: the login page says why.
	op.Turn(identitytest.Knobs{Answer: func(q url.Values) { q.Del("code"); q.Set("error", "access_denied") }})
	b.do(chromedp.Click(`a[href^="/auth/oidc/bank/login"]`, chromedp.NodeVisible))
	b.see("Login failed", "the login was cancelled or denied")
	b.picture("login-failed")
	op.Turn(identitytest.Knobs{})
	b.do(chromedp.Navigate(s.URL + "/console/p/tiny/jobs"))
	b.see("Log in with Bank account")
	b.do(chromedp.Click(`a[href^="/auth/oidc/bank/login"]`, chromedp.NodeVisible))
	b.see("No jobs", "alice-smith")
	if cookie := b.text("document.cookie"); cookie != "" {
		t.Errorf("scripts of the page read the cookie %q", cookie)
	}

	// A command logs in by this browser.
	home := t.TempDir()
	b.do(chromedp.Navigate(s.URL + "/console/")) // its origin is the server's
	code, said := command(t, s, home, func(to string) {
		u, err := url.Parse(to)
		if err != nil {
			t.Fatal(err)
		}
		b.mu.Lock()
		b.others = append(b.others, "http://127.0.0.1:"+u.Query().Get("port"))
		b.mu.Unlock()
		b.do(chromedp.Navigate(to))
		b.see("asks to act as alice-smith")
		b.accessible("command")
		b.picture("login-command")
		b.do(chromedp.Click(`//button[.="Allow"]`, chromedp.BySearch))
		b.see("The command needs this code")
		b.do(chromedp.Click(`//button[.="Continue"]`, chromedp.BySearch))
	})
	if code != 0 || !strings.Contains(said, "Logged in to "+s.URL+" as alice-smith") {
		t.Errorf("falaj login ends with %d:\n%s", code, said)
	}
	own := func(args ...string) (string, int) {
		cmd := exec.CommandContext(t.Context(), s.Bin.Falaj, args...)
		cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	if said, code := own("token", "list", "--own", "-o", "json"); code != 0 || !strings.Contains(said, "falaj login on") {
		t.Errorf("token list ends with %d:\n%s", code, said)
	}
	if said, code := own("account", "show", "user/alice-smith"); code != 0 || !strings.Contains(said, "engineer in project tiny, by group/bank//ml/engineers") {
		t.Errorf("account show ends with %d:\n%s", code, said)
	}
	if said, code := own("session", "list"); code != 0 || !strings.Contains(said, "bank") {
		t.Errorf("session list ends with %d:\n%s", code, said)
	}

	// Cancelled, the command ends and says so.
	b.do(chromedp.Navigate(s.URL + "/console/"))
	code, said = command(t, s, t.TempDir(), func(to string) {
		u, _ := url.Parse(to)
		b.mu.Lock()
		b.others = append(b.others, "http://127.0.0.1:"+u.Query().Get("port"))
		b.mu.Unlock()
		b.do(chromedp.Navigate(to))
		b.do(chromedp.Click(`//button[.="Cancel"]`, chromedp.BySearch))
	})
	if code != 3 || !strings.Contains(said, "the login was cancelled") {
		t.Errorf("a cancelled login ends with %d:\n%s", code, said)
	}

	// Logged out, the cookie is gone and the session has ended.
	b.do(chromedp.Navigate(s.URL + "/console/p/tiny/jobs"))
	b.see("No jobs")
	b.do(chromedp.Click(`.who button`, chromedp.NodeVisible))
	b.see("Log in with Bank account")
	b.do(chromedp.Reload())
	b.see("Log in with Bank account")
	if said, _ := own("session", "list", "-o", "json"); strings.Contains(said, "tok_") {
		t.Errorf("sessions after the logout:\n%s", said)
	}
}

var link = regexp.MustCompile(`http://\S+/console/command\?\S+`)

// command runs `falaj login --browser`, calls browse with its link, and gives how it ended.
func command(t *testing.T, s *live.Server, home string, browse func(to string)) (code int, said string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), live.Wait)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Bin.Falaj, "login", "--browser", "--server", s.URL)
	cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
	out, in := io.Pipe()
	cmd.Stdout, cmd.Stderr = in, in
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
		_ = in.Close()
	}()
	var text strings.Builder
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		text.WriteString(lines.Text() + "\n")
		if to := link.FindString(lines.Text()); to != "" {
			browse(to)
		}
	}
	<-ended
	return cmd.ProcessState.ExitCode(), text.String()
}
