// Package identity says who is asking: people, services and job attempts, and
// the tokens that prove it.
//
// # Map
//
//   - identity.go: Principal, and how it travels in the context.
//   - scope.go: what a token's scopes cover.
//   - account/ is the service: users, service accounts and their tokens, and
//     Authenticate, the only way from a secret to a Principal.
//   - signin/ logs people in at identity providers, and commands by the browser;
//     oidc/ speaks OpenID Connect with one provider.
//   - identitysql/ stores all of it; identitytest/ has a provider for tests.
//
// This package holds only the words, so that audit and policy can speak them
// and the service can use both.
package identity

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/project"
)

// Kind of principal.
type Kind string

// The kinds.
const (
	User    Kind = "user"
	Service Kind = "service"
	Attempt Kind = "attempt" // one attempt of one job; its token ends with it
	System  Kind = "system"  // Falaj's own loops
)

// Principal is who acts. Handlers find it with From; nothing but the
// authentication at the edge and background loops put it there.
type Principal struct {
	Kind Kind   `json:"kind"`
	ID   string `json:"id"`             // "usr_01J…", "svc_…", "att_…", or the loop's name
	Name string `json:"name,omitempty"` // for people to read
	// Project binds a token to one project; empty for users of several.
	Project project.Name `json:"project,omitempty"`
	Token   string       `json:"token,omitempty"` // id of the token used, never the secret
	// Scopes narrow what the token may do; empty means whatever the roles allow.
	Scopes []string `json:"scopes,omitempty"`
	// Behalf is, of a job's attempt, the account that submitted the job: of classified
	// contents the attempt reads no more than that account may read at the same time. Of
	// a loop it is who owns what the loop makes.
	// Empty where Falaj submitted the job. It is no part of what audit entries say of an
	// actor; the job's entry names its submitter.
	Behalf string `json:"-"`
	// Bound says that the token of a job's attempt works only where its sandbox reaches
	// Falaj: see Via.
	Bound bool `json:"-"`
	// Expires is when the token used does; zero for those who use none. It is not
	// part of what audit entries say of an actor.
	Expires time.Time `json:"-"`
}

// Owner is the owner of the principal's objects: for a loop that works on behalf of an account,
// that account.
func (p Principal) Owner() string {
	if p.Kind == System && p.Behalf != "" {
		return p.Behalf
	}
	return p.ID
}

// String is "user alice (usr_01J…)", as audit entries show it.
func (p Principal) String() string {
	if p.Name == "" || p.Name == p.ID {
		return string(p.Kind) + " " + p.ID
	}
	return string(p.Kind) + " " + p.Name + " (" + p.ID + ")"
}

type contextKey struct{}

// carrier is a context with a principal: with context.WithValue, each request would make
// two objects of it, and each From copy it once more.
type carrier struct {
	context.Context
	principal Principal
}

func (c *carrier) Value(key any) any {
	if key == (contextKey{}) {
		return &c.principal
	}
	return c.Context.Value(key)
}

// With puts the principal into the context.
func With(ctx context.Context, p Principal) context.Context { return &carrier{ctx, p} }

// From is the principal of the request; the zero Principal may do nothing.
func From(ctx context.Context) Principal {
	if p, ok := ctx.Value(contextKey{}).(*Principal); ok {
		return *p
	}
	return Principal{}
}

// Loop is the principal of a background loop of Falaj.
func Loop(name string) Principal { return Principal{Kind: System, ID: name} }

// Call is the request that a context serves.
type Call struct {
	Address string // of the caller: an IP address; empty is not known
	Method  string // of HTTP
	Path    string
}

type callKey struct{}

// WithCall marks a context with the request that it serves.
func WithCall(ctx context.Context, c Call) context.Context {
	return context.WithValue(ctx, callKey{}, &c)
}

// CallOf is the request that a context serves; the zero Call where it serves none.
func CallOf(ctx context.Context) Call {
	if c, ok := ctx.Value(callKey{}).(*Call); ok {
		return *c
	}
	return Call{}
}

type viaKey struct{}

// Through marks a context as that of connections that only the sandbox of an attempt can
// open.
func Through(ctx context.Context, attempt string) context.Context {
	return context.WithValue(ctx, viaKey{}, attempt)
}

// Via is the attempt whose sandbox a request came from; empty for requests that came by
// the network.
func Via(ctx context.Context) string {
	attempt, _ := ctx.Value(viaKey{}).(string)
	return attempt
}

// Strayed reports whether the token of an attempt came from elsewhere than the attempt's
// sandbox, to which it is bound.
func (p Principal) Strayed(ctx context.Context) bool {
	return p.Kind == Attempt && p.Bound && Via(ctx) != p.ID
}
