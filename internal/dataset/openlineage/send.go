package openlineage

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

const (
	sendTime    = 10 * time.Second
	maxResponse = 64 << 10 // bytes that are read of an answer
	maxToken    = 16 << 10
)

// Sender posts events to one receiver, which the operator's configuration names.
// Safe for concurrent use.
type Sender struct {
	url, tokenFile string
	client         *http.Client
}

// CheckURL validates an OpenLineage endpoint; empty disables sending. Plain HTTP is allowed only
// to this machine. Error: fault.Invalid.
func CheckURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" {
		return fault.New(fault.Invalid, "it is not an HTTP URL").WithHint("Write it as https://host/api/v1/lineage.")
	}
	if u.User != nil {
		return fault.New(fault.Invalid, "it contains a user name or password").WithHint("Put a token into a file, and set token_file.")
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme == "http" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fault.New(fault.Invalid, "plain HTTP would send events to %s unencrypted", u.Hostname()).WithHint("Use https, or a receiver on this machine.")
	}
	return nil
}

// NewSender makes a sender. tokenFile may be empty; it is read for each event, so
// that a token can be changed. roots nil are the system's.
func NewSender(to, tokenFile string, roots *x509.CertPool) *Sender {
	return &Sender{to, tokenFile, &http.Client{
		Timeout: sendTime,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // it would go where nobody configured, with the token
		},
		Transport: &http.Transport{
			Proxy: nil, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, TLSHandshakeTimeout: sendTime,
			MaxResponseHeaderBytes: maxResponse, MaxIdleConns: 1, IdleConnTimeout: time.Minute,
		},
	}}
}

// Send posts an event and returns when it was acknowledged. Errors: fault.Invalid
// when the receiver will never take it; otherwise another try may help.
func (s *Sender) Send(ctx context.Context, e Event) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "falaj-openlineage/1")
	if s.tokenFile != "" {
		token, err := readToken(s.tokenFile)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err
		}
		return fault.New(fault.Unavailable, "the OpenLineage endpoint is unavailable: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, maxResponse)
	switch code := resp.StatusCode; {
	case code >= 200 && code < 300:
		return nil
	case code == http.StatusBadRequest, code == http.StatusRequestEntityTooLarge, code == http.StatusUnprocessableEntity:
		return fault.New(fault.Invalid, "the OpenLineage endpoint rejected an event: %s", resp.Status)
	}
	return fault.New(fault.Unavailable, "the OpenLineage endpoint returned %s", resp.Status).
		WithHint("Check lineage.openlineage.url and token_file. Events are queued until the endpoint accepts them.")
}

func readToken(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fault.New(fault.Unavailable, "the token for the OpenLineage endpoint: %w", err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxToken))
	token := strings.TrimSpace(string(b))
	if err != nil || token == "" || strings.ContainsAny(token, "\r\n") {
		return "", fault.New(fault.Unavailable, "the file %s does not contain a token on one line", file)
	}
	return token, nil
}
