package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Signing keys are asked for again after keysAge; an older set serves for keysGrace while
// the provider does not answer. A key that is not in the set makes it ask again, at most once
// per keysWait, so that strangers with forged tokens do not make us hammer the provider.
const (
	keysAge   = 10 * time.Minute
	keysGrace = time.Hour
	keysWait  = 10 * time.Second
	maxKeys   = 100
)

// algorithms are the accepted ones: asymmetric, so that who can check a token cannot make
// one.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// accepted are those of a provider's algorithms that are accepted; where it names none, it
// is the one that all must have.
func accepted(theirs []string) (out []string) {
	if len(theirs) == 0 {
		return []string{string(jose.RS256)}
	}
	for _, a := range algorithms {
		if slices.Contains(theirs, string(a)) {
			out = append(out, string(a))
		}
	}
	return out
}

// keySet is a provider's published keys. It implements go-oidc's KeySet.
type keySet struct {
	url    string
	client *http.Client
	now    func() time.Time

	lock  chan struct{} // held by who reads or changes what follows
	keys  []jose.JSONWebKey
	read  time.Time // when keys were read
	tried time.Time // when they were asked for
	err   error     // of the last try; nil when it worked
}

// errUnsigned is the error of a token whose signature is by none of the keys. The causes
// are one text: they help only who forges.
var errUnsigned = errors.New("the signature is by none of the provider's keys")

// VerifySignature gives the payload of a token that one of the keys signed.
func (k *keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	jws, err := jose.ParseSignedCompact(token, algorithms)
	if err != nil || len(jws.Signatures) != 1 {
		return nil, errors.Join(errUnsigned, err)
	}
	header := jws.Signatures[0].Header // keys that a token brings or points to are not looked at
	keys, err := k.current(ctx, false)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(keys, fits(header)) {
		if keys, err = k.current(ctx, true); err != nil {
			return nil, err
		}
	}
	for _, key := range keys {
		if fits(header)(key) {
			if payload, err := jws.Verify(key.Key); err == nil {
				return payload, nil
			}
		}
	}
	return nil, errUnsigned
}

// fits reports whether a key may have made the signature.
func fits(h jose.Header) func(jose.JSONWebKey) bool {
	return func(key jose.JSONWebKey) bool {
		return (h.KeyID == "" || key.KeyID == h.KeyID) && (key.Algorithm == "" || key.Algorithm == h.Algorithm)
	}
}

// current are the keys, asked for again where they are too old, or where missing says that
// one is not there.
func (k *keySet) current(ctx context.Context, missing bool) ([]jose.JSONWebKey, error) {
	select {
	case k.lock <- struct{}{}:
		defer func() { <-k.lock }()
	case <-ctx.Done():
		return nil, k.away(ctx.Err())
	}
	now := k.now()
	age := now.Sub(k.read)
	known := !k.read.IsZero()
	if due := !known || missing || age > keysAge; due && now.Sub(k.tried) >= keysWait {
		k.tried = now
		keys, err := k.fetch(ctx)
		if k.err = err; err == nil {
			k.keys, k.read, age, known = keys, now, 0, true
		}
	}
	if known && age < keysGrace {
		return k.keys, nil
	}
	return nil, k.away(k.err)
}

// away is the error of keys that cannot be read. go-oidc keeps the text of errors only: text
// says which it is.
func (k *keySet) away(err error) error { return errors.Join(errors.New(unavailableKeys), err) }

const unavailableKeys = "the provider's signing keys are unavailable"

func (k *keySet) fetch(ctx context.Context) ([]jose.JSONWebKey, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime) // one caller asks for all
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	res, err := k.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("keys: the provider answers %s", res.Status)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	return keysOf(body)
}

// keysOf reads a JWK set. Keys that sign nothing, are secret or of an unknown kind are left
// out, as RFC 7517 asks.
func keysOf(body []byte) ([]jose.JSONWebKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(body, &set); err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("keys: the provider has %d keys, at most %d are read", len(set.Keys), maxKeys)
	}
	var keys []jose.JSONWebKey
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(raw, &key) != nil || !key.Valid() || !key.IsPublic() || key.Use != "" && key.Use != "sig" {
			continue
		}
		keys = append(keys, key)
	}
	return keys, nil
}
