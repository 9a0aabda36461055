package iceberg

import (
	"cmp"
	"net/http"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// maxForm bounds a token request.
const maxForm = 16 << 10

// tokenPath answers clients that know only OAuth2: their secret is a Falaj
// token, and so is what they get. The protocol has deprecated the route.
const tokenPath = root + "/v1/oauth/tokens"

// OpensItself says whether a request brings its credentials in the body, so that
// the handler asks for them.
func OpensItself(r *http.Request) bool {
	return r.Method == http.MethodPost && r.URL.Path == tokenPath && r.URL.RawPath == "" && r.Header.Get("Authorization") == ""
}

// The grants: by a secret, and by a token that is to be renewed.
const (
	byCredentials = "client_credentials"
	byExchange    = "urn:ietf:params:oauth:grant-type:token-exchange"
	accessToken   = "urn:ietf:params:oauth:token-type:access_token" //nolint:gosec // a name
)

// serveToken gives a token for a token. There is nothing to renew: it is valid
// as long as it is, so no time is said at which clients would ask again.
func (a *API) serveToken(w http.ResponseWriter, r *http.Request) {
	no := func(status int, code, text string) {
		write(w, status, map[string]string{"error": code, "error_description": text})
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		no(http.StatusBadRequest, "invalid_request", "the body is no form of at most 16 KiB")
		return
	}
	secret := r.PostForm.Get("client_secret")
	if r.PostForm.Get("grant_type") == byExchange {
		secret = r.PostForm.Get("subject_token")
	}
	if secret == "" { // as the header of this request
		_, secret, _ = r.BasicAuth()
		secret = cmp.Or(secret, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	}
	if _, err := a.Authenticate(r.Context(), secret); err != nil {
		if err = a.Ended(r, err); fault.KindOf(err) != fault.Unauthenticated {
			no(http.StatusServiceUnavailable, "temporarily_unavailable", "the token cannot be checked now")
			return
		}
		no(http.StatusUnauthorized, "invalid_client", "the client secret is no valid Falaj token; make one by falaj token create")
		return
	}
	switch r.PostForm.Get("grant_type") {
	case byCredentials, byExchange:
	default:
		no(http.StatusBadRequest, "unsupported_grant_type", "the grants are client_credentials, with a Falaj token as the secret, and token-exchange")
		return
	}
	write(w, http.StatusOK, map[string]string{"access_token": secret, "token_type": "bearer", "issued_token_type": accessToken})
}
