package oidc

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Limits of ID tokens.
const (
	maxToken = 512 << 10 // bytes: some 10,000 groups
	skew     = time.Minute
	// slack is how old a token may be that the provider has just made: clocks differ, and
	// some keep a token for a moment.
	slack = 5 * time.Minute
)

// Proof is what a provider proves of a person.
type Proof struct {
	Issuer, Subject      string
	Session              string // the provider's id of its session; empty is not known
	Username, Name, Mail string
	Groups               []string
	AuthTime             time.Time // when the person authenticated; zero is not known
	ACR                  string    // how; empty is not known
	Refresh              string    // a refresh token; empty where the provider gives none
}

// expected is what an ID token must fit.
type expected struct {
	nonce     string
	subject   string // empty at a first sign-in
	fresh     time.Time
	acr       []string
	refreshed bool
}

// claims are the standard ones that are read of an ID token.
type claims struct {
	AuthorizedParty string          `json:"azp"`
	Session         string          `json:"sid"`
	AuthTime        json.Number     `json:"auth_time"`
	ACR             string          `json:"acr"`
	Name            string          `json:"name"`
	Mail            string          `json:"email"`
	Events          json.RawMessage `json:"events"`
}

// prove reads what the token endpoint gave.
func (p *Provider) prove(ctx context.Context, m *metadata, tokens *oauth2.Token, want expected) (Proof, error) {
	raw, _ := tokens.Extra("id_token").(string)
	if raw == "" && want.refreshed { // the provider renews no ID tokens: it has confirmed the login all the same
		return p.renewed(ctx, m, tokens, want)
	}
	id, all, err := p.verify(ctx, m, raw)
	if err != nil {
		return Proof{}, err
	}
	var c claims
	if err := id.Claims(&c); err != nil {
		return Proof{}, p.refused("the ID token has a claim of a wrong type").WithCause(err)
	}
	now := p.cfg.Now()
	switch {
	case len(c.Events) > 0:
		return Proof{}, p.refused("the token is not an ID token")
	case id.Subject == "":
		return Proof{}, p.refused("the ID token has no subject")
	case want.subject != "" && id.Subject != want.subject:
		return Proof{}, p.refused("the ID token is of another person")
	case !want.refreshed && !same(id.Nonce, want.nonce):
		return Proof{}, p.refused("the ID token was not made for this attempt to log in")
	case c.AuthorizedParty != "" && c.AuthorizedParty != p.cfg.ClientID,
		len(id.Audience) > 1 && c.AuthorizedParty == "":
		return Proof{}, p.refused("the ID token was made for another client")
	case id.IssuedAt.After(now.Add(skew)):
		return Proof{}, p.skewed("ahead of", id.IssuedAt.Sub(now))
	case id.IssuedAt.Before(now.Add(-slack)):
		return Proof{}, p.skewed("behind", now.Sub(id.IssuedAt))
	}
	if id.AccessTokenHash != "" {
		if err := id.VerifyAccessToken(tokens.AccessToken); err != nil {
			return Proof{}, p.refused("the access token does not belong to the ID token").WithCause(err)
		}
	}
	out := Proof{Issuer: p.cfg.Issuer, Subject: id.Subject, Session: c.Session, Name: c.Name, Mail: c.Mail, ACR: c.ACR, Refresh: tokens.RefreshToken}
	if at, err := c.AuthTime.Int64(); err == nil {
		out.AuthTime = time.Unix(at, 0)
	}
	if !want.fresh.IsZero() && out.AuthTime.Before(want.fresh.Add(-skew)) {
		return Proof{}, p.refused("the provider did not ask the person to log in again")
	}
	if len(want.acr) > 0 && !slices.Contains(want.acr, out.ACR) {
		return Proof{}, p.refused("the login is of class %.80q, not one of %s", out.ACR, joined(want.acr))
	}
	return p.complete(ctx, m, tokens, out, all)
}

// renewed is the proof of a refresh without an ID token: what the person's endpoint says.
func (p *Provider) renewed(ctx context.Context, m *metadata, tokens *oauth2.Token, want expected) (Proof, error) {
	return p.complete(ctx, m, tokens, Proof{Issuer: p.cfg.Issuer, Subject: want.subject, Refresh: tokens.RefreshToken}, map[string]any{})
}

// complete adds what a provider says of the person elsewhere than in the ID token: many have
// groups and names at the UserInfo endpoint only.
func (p *Provider) complete(ctx context.Context, m *metadata, tokens *oauth2.Token, out Proof, all map[string]any) (Proof, error) {
	_, hasGroups := claim(all, p.cfg.GroupsClaim)
	_, hasName := claim(all, p.cfg.UsernameClaim)
	if (!hasGroups && !overage(all, p.cfg.GroupsClaim) || !hasName) && m.provider.UserInfoEndpoint() != "" && tokens.AccessToken != "" {
		info, err := m.provider.UserInfo(p.context(ctx), oauth2.StaticTokenSource(tokens))
		if err != nil {
			return Proof{}, p.away(err)
		}
		if info.Subject != out.Subject {
			return Proof{}, p.refused("the UserInfo endpoint answers for another person")
		}
		more := map[string]any{}
		if err := info.Claims(&more); err != nil {
			return Proof{}, p.away(err)
		}
		merged := maps.Clone(more)
		maps.Copy(merged, all) // what is signed goes first
		all = merged
	}
	groups, err := p.groups(ctx, all, tokens.AccessToken)
	if err != nil {
		return Proof{}, err
	}
	out.Groups = groups
	out.Username = textOf(all, p.cfg.UsernameClaim)
	if out.Name == "" {
		out.Name = textOf(all, "name")
	}
	if out.Mail == "" {
		out.Mail = textOf(all, "email")
	}
	if out.Username == "" { // of Google, which has none
		out.Username = out.Mail
	}
	return out, nil
}

// verify checks the signature, issuer, audience and time of a token.
func (p *Provider) verify(ctx context.Context, m *metadata, raw string) (*oidc.IDToken, map[string]any, error) {
	switch {
	case raw == "":
		return nil, nil, p.refused("the provider gave no ID token").WithHint("An administrator of Falaj should check that the scope openid is allowed for this client.")
	case len(raw) > maxToken:
		return nil, nil, p.refused("the ID token has %d bytes, at most %d are read", len(raw), maxToken).
			WithHint("An administrator of the provider should let it send only the groups that Falaj's grants name.")
	}
	verifier := oidc.NewVerifier(p.cfg.Issuer, m.keys, &oidc.Config{ClientID: p.cfg.ClientID, SupportedSigningAlgs: m.algorithms, Now: p.cfg.Now})
	token, err := verifier.Verify(p.context(ctx), raw)
	var late *oidc.TokenExpiredError
	switch {
	case err != nil && strings.Contains(err.Error(), unavailableKeys):
		return nil, nil, p.away(err)
	case errors.As(err, &late):
		return nil, nil, p.refused("the ID token expired %s ago", p.cfg.Now().Sub(late.Expiry).Round(time.Second)).
			WithHint("An administrator should check that this server and the provider have the same time, by NTP.").WithCause(err)
	case err != nil:
		return nil, nil, p.refused("the ID token is not valid").WithCause(err)
	}
	all := map[string]any{}
	if err := token.Claims(&all); err != nil {
		return nil, nil, p.refused("the ID token is no JSON object").WithCause(err)
	}
	return token, all, nil
}

// skewed is the error of a token from another time.
func (p *Provider) skewed(how string, by time.Duration) *fault.Error {
	return p.refused("the provider's clock is %s %s this server's", by.Round(time.Second), how).
		WithHint("An administrator should synchronise the clocks of both servers, by NTP.")
}

func same(a, b string) bool {
	return a != "" && subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}

func joined(words []string) string { return strings.Join(words, " ") }
