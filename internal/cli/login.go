package cli

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

// browserTime is how long a person may take to log in.
const browserTime = 10 * time.Minute

// providersOf are the identity providers of a server, as its login page offers them.
func providersOf(ctx context.Context, c *client.Client) ([]string, error) {
	var answer struct {
		Providers []struct {
			Name string `json:"name"`
		} `json:"providers"`
	}
	if err := c.Do(ctx, http.MethodGet, "/auth/providers", nil, &answer); err != nil {
		return nil, err
	}
	names := make([]string, len(answer.Providers))
	for i, p := range answer.Providers {
		names[i] = p.Name
	}
	return names, nil
}

// browserLogin gets a token by the browser: the person logs in to the console there, and
// allows this command. The browser brings the code to a port of this machine; where it runs on
// another, the person pastes it.
func (a *app) browserLogin(ctx context.Context, c *client.Client, server string) (token string, err error) {
	ctx, cancel := context.WithTimeout(ctx, browserTime)
	defer cancel()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	verifier, state := oauth2.GenerateVerifier(), rand.Text()
	codes := make(chan string, 2)
	back := &http.Server{Handler: callback(state, codes), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = back.Serve(l) }()
	defer func() { _ = back.Close() }()
	to := strings.TrimRight(server, "/") + "/console/command?" + url.Values{
		"challenge": {oauth2.S256ChallengeFromVerifier(verifier)}, "state": {state}, "label": {machineLabel()},
		"port": {strconv.Itoa(l.Addr().(*net.TCPAddr).Port)}, //nolint:forcetypeassert // it listens on TCP
	}.Encode()
	fmt.Fprintf(a.Stderr, "Log in and allow this command in the browser:\n\n  %s\n\n", to)
	if a.browser(ctx, to) {
		fmt.Fprintln(a.Stderr, "The page is open in your browser.")
	}
	if a.terminal() {
		fmt.Fprint(a.Stderr, "If the browser runs on another machine, paste the code that it shows here; an access token works, too: ")
		go func() {
			lines := bufio.NewScanner(a.Stdin)
			for lines.Scan() {
				if line := strings.TrimSpace(lines.Text()); line != "" {
					codes <- line
					return
				}
			}
		}()
	}
	var code string
	select {
	case <-ctx.Done():
		return "", fault.New(fault.Timeout, "the login timed out after %s", browserTime).WithHint("Run falaj login again.")
	case code = <-codes:
	}
	if a.terminal() {
		fmt.Fprintln(a.Stderr)
	}
	if code == "" {
		return "", fault.New(fault.PermissionDenied, "the login was cancelled")
	}
	if strings.HasPrefix(code, "flj_") { // a token after all
		return code, nil
	}
	return redeem(ctx, c, code, verifier)
}

// callback takes the code that the console sends the browser with. Others who find the port
// know no state.
func callback(state string, codes chan<- string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(state)) != 1 {
			http.Error(w, "This page belongs to another login.", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Security-Policy", "default-src 'none'")
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		text := "You are logged in. You can close this page."
		if q.Get("code") == "" {
			text = "The login was cancelled. You can close this page."
		}
		_, _ = fmt.Fprintln(w, text)
		select {
		case codes <- q.Get("code"):
		default: // one was enough
		}
	})
	return mux
}

// redeem trades a code for a token.
func redeem(ctx context.Context, c *client.Client, code, verifier string) (string, error) {
	form := url.Values{"grant_type": {"authorization_code"}, "code": {code}, "code_verifier": {verifier}}
	res, err := c.Send(ctx, http.MethodPost, "/auth/token", strings.NewReader(form.Encode()), http.Header{"Content-Type": {"application/x-www-form-urlencoded"}})
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	var answer struct {
		Token string `json:"access_token"`
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return "", fmt.Errorf("the server's answer: %w", err)
	}
	return answer.Token, nil
}

// machineLabel says which command it is, in lists of tokens: "alice@laptop".
func machineLabel() string {
	host, _ := os.Hostname()
	if who, err := user.Current(); err == nil {
		host = who.Username + "@" + host
	}
	return host
}

// browser opens a page in the person's browser, where there is one.
func (a *app) browser(ctx context.Context, to string) bool {
	var name string
	switch {
	case !a.terminal():
		return false
	case runtime.GOOS == "darwin":
		name = "open"
	case a.env("DISPLAY") != "" || a.env("WAYLAND_DISPLAY") != "":
		name = "xdg-open"
	default:
		return false
	}
	cmd := exec.CommandContext(ctx, name, to)
	return cmd.Start() == nil
}
