package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/policy/authorizer"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
	"github.com/falaj-ml/falaj/internal/httpapi/manifest"
)

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) //nolint:gosec // our own text, as text/plain
}

func (s *Server) openAPI(w http.ResponseWriter, r *http.Request) {
	b, err := s.OpenAPI()
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b)
}

// OpenAPI is the API's description, OpenAPI 3.1 in JSON, the same for the same
// code.
func (s *Server) OpenAPI() ([]byte, error) {
	b, err := s.api.OpenAPI().MarshalJSON()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = json.Indent(&out, b, "", "  ")
	return out.Bytes(), err
}

func (s *Server) nothing(w http.ResponseWriter, r *http.Request) {
	if s.central != "" {
		s.fail(w, r, fault.New(fault.NotFound, "path %.200s not found: this server is a gateway, which serves predictions only", r.URL.Path).
			WithHint("Use the gateway's upstream server for all other requests."))
		return
	}
	s.fail(w, r, fault.New(fault.NotFound, "path %.200s not found", r.URL.Path).WithHint("GET /api/openapi.json lists all paths."))
}

// self is who asks.
type self struct {
	identity.Principal
	ExpiresAt time.Time `json:"expires_at,omitzero" doc:"When the token expires"`
}

func (s *Server) whoami(ctx context.Context, _ *struct{}) (*body[self], error) {
	p := identity.From(ctx)
	return one(self{Principal: p, ExpiresAt: p.Expires}, nil)
}

func (s *Server) listProjects(ctx context.Context, in *struct{ Page }) (*body[items[project.Project]], error) {
	return listed(s.Projects.List(ctx, in.Size, in.Token))
}

func (s *Server) oneProject(ctx context.Context, in *InProject) (*tagged[project.Project], error) {
	p, err := s.Projects.One(ctx, project.Name(in.Project))
	return revised(p, p.Revision, err)
}

// projectUsage is what a project stores.
type projectUsage struct {
	Quota   project.Quota `json:"quota,omitzero" doc:"Storage quota; missing fields are unlimited"`
	Bytes   int64         `json:"bytes" doc:"Stored bytes, on disk or in the bucket"`
	Objects int64         `json:"objects" doc:"Stored files"`
	Kinds   []storedKind  `json:"kinds"`
}

type storedKind struct {
	Kind    string `json:"kind" doc:"artifacts, checkpoints, datasets, models or sources"`
	Bytes   int64  `json:"bytes"`
	Objects int64  `json:"objects"`
}

func (s *Server) projectUsage(ctx context.Context, in *InProject) (*body[projectUsage], error) {
	p, err := s.Projects.One(ctx, project.Name(in.Project))
	if err != nil {
		return nil, err
	}
	sum, kinds, err := s.Stored.Used(ctx, in.Project)
	out := projectUsage{Quota: p.Quota, Bytes: sum.Bytes, Objects: sum.Objects, Kinds: make([]storedKind, len(kinds))}
	for i, k := range kinds {
		out.Kinds[i] = storedKind(k)
	}
	return one(out, err)
}

func (s *Server) deleteProject(ctx context.Context, in *InProject) (*none, error) {
	return &none{}, s.Projects.Delete(ctx, project.Name(in.Project))
}

func (s *Server) listMembers(ctx context.Context, in *struct {
	InProject
	Page
},
) (*body[items[member]], error) {
	return s.members(ctx, project.Name(in.Project), in.Token)
}

// member is a grant with the name of the account that it is for.
type member struct {
	project.Grant
	Who string `json:"who,omitempty" doc:"Name of the account"`
}

func (s *Server) members(ctx context.Context, in project.Name, token string) (*body[items[member]], error) {
	grants, next, err := s.Projects.Members(ctx, in, token)
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(grants))
	for i, g := range grants {
		ids[i] = g.Principal
	}
	names, err := s.Accounts.Names(ctx, ids...)
	out := make([]member, len(grants))
	for i, g := range grants {
		out[i] = member{g, names[g.Principal]}
	}
	return listed(out, next, err)
}

func (s *Server) revokeMember(ctx context.Context, in *struct {
	InProject
	Name string `path:"name" maxLength:"200" doc:"Name of the grant"`
},
) (*none, error) {
	return &none{}, s.Projects.Revoke(ctx, project.Name(in.Project), in.Name)
}

// governanceKinds are the manifests of who may do what.
func (s *Server) governanceKinds() map[string]applier {
	return map[string]applier{
		"Grant": {gate: "member.grant", wide: func(d manifest.Document) bool {
			var spec project.GrantSpec
			return d.Into(&spec) == nil && spec.Installation
		}, apply: decoded(func(ctx context.Context, p, name string, spec project.GrantSpec, dry bool) (applied, error) {
			_, change, err := s.Projects.Grant(ctx, tenancy.GrantRequest{Project: project.Name(p), Name: name, Spec: spec, DryRun: dry})
			return applied{Result: string(change)}, err
		}), show: s.showGrant},
		"Secret": {gate: secrets.ActionApply, apply: decoded(func(ctx context.Context, p, name string, spec secrets.Spec, dry bool) (applied, error) {
			_, change, err := s.Secrets.Apply(ctx, secrets.Request{Project: p, Name: name, Spec: spec, DryRun: dry})
			return applied{Result: string(change)}, err
		}), show: func(ctx context.Context, p, name string) (string, any, error) {
			secret, err := s.Secrets.One(ctx, p, name)
			return name, secret.Spec(), err
		}},
		"Policy": {gate: "project.update", apply: decoded(func(ctx context.Context, p, name string, spec authorizer.Spec, dry bool) (applied, error) {
			_, change, err := s.Policies.ApplyPolicy(ctx, authorizer.PolicyRequest{Project: project.Name(p), Name: name, Spec: spec, DryRun: dry})
			return applied{Result: string(change)}, err
		}), show: func(ctx context.Context, p, name string) (string, any, error) {
			own, err := s.Policies.Policy(ctx, project.Name(p), name)
			return name, own.Spec, err
		}},
	}
}

// governanceRoutes are those of accounts, of the installation's own grants and,
// below p, of a project's policies.
func (s *Server) governanceRoutes(p string) {
	route(s, "GET", "/api/v1/accounts", "", "List a project's service accounts, or every account", s.listAccounts).atGateway()
	route(s, "POST", "/api/v1/accounts", "", "Create an account without role or token", s.createAccount).atGateway()
	route(s, "GET", "/api/v1/accounts/{ref}", "", "Get an account with its groups and roles, and where each role comes from", s.oneAccount).atGateway()
	route(s, "POST", "/api/v1/accounts/{ref}/disable", "", "Disable an account: its tokens stop working and its sessions end", s.disableAccount).keepsNothing().atGateway()
	route(s, "POST", "/api/v1/accounts/{ref}/enable", "", "Enable a disabled account", s.enableAccount).atGateway()
	route(s, "DELETE", "/api/v1/accounts/{ref}", "", "Delete an account with its roles and tokens", s.deleteAccount).atGateway()
	route(s, "GET", "/api/v1/members", "member.read", "List the members of the installation and their roles", s.listOverseers).atGateway()
	route(s, "DELETE", "/api/v1/members/{name}", "member.revoke", "Revoke a role in the installation", s.revokeOverseer).atGateway()
	route(s, "GET", p+"/secrets", "secret.read", "List the names of secrets and their users", s.listSecrets)
	route(s, "GET", p+"/secrets/{name}", "secret.read", "Get the metadata of a secret", s.oneSecret)
	route(s, "DELETE", p+"/secrets/{name}", "secret.delete", "Delete an unused secret", s.deleteSecret)
	route(s, "GET", p+"/erasures", "erasure.read", "List erasures of persons, newest first", s.listErasures)
	route(s, "GET", p+"/erasures/{id}", "erasure.read", "Get an erasure and, once finished, its certificate", s.oneErasure)
	s.raw("GET", p+"/erasures/{id}/certificate", "erasure.read", "Download the certificate of a finished erasure: the bytes whose SHA-256 is in the audit log", media{gives: "application/json"}, s.certificate)
	route(s, "POST", p+"/erasures/erase", "erasure.apply", "Start the erasure of a person's data", s.erase).keepsNothing()
	route(s, "POST", p+"/erasures/search", "erasure.apply", "Search for a person's data without erasing it", s.findPerson).readsOnly()
	route(s, "GET", p+"/policies", "project.read", "List a project's own policies", s.listPolicies).atGateway()
	route(s, "GET", p+"/policies/{name}", "project.read", "Get a policy", s.onePolicy).atGateway()
	route(s, "DELETE", p+"/policies/{name}", "project.update", "Delete a policy", s.deletePolicy).atGateway()
}

// accountRef names an account.
type accountRef struct {
	Ref     string `path:"ref" maxLength:"100" doc:"user/alice, service/ci or an account id; encode the slash as %2F"`
	Project string `query:"project" maxLength:"63" doc:"Project of a service account"`
}

func (s *Server) listAccounts(ctx context.Context, in *struct {
	Page
	Project string `query:"project" maxLength:"63" doc:"Service accounts of this project; empty: every account"`
},
) (*body[items[account.Account]], error) {
	return listed(s.Accounts.Accounts(ctx, project.Name(in.Project), in.Size, in.Token))
}

func (s *Server) createAccount(ctx context.Context, in *struct {
	Body struct {
		Project string `json:"project,omitempty" maxLength:"63" doc:"Project of the service account"`
		Name    string `json:"name,omitempty" maxLength:"63" doc:"Service account to create"`
		User    string `json:"user,omitempty" maxLength:"63" doc:"User to create an account for, instead of a service account"`
	}
},
) (*body[account.Account], error) {
	switch b := in.Body; {
	case (b.User == "") == (b.Name == ""):
		return nil, fault.New(fault.Invalid, "set either name, for a service account, or user")
	case b.User != "":
		return one(s.Accounts.CreateUser(ctx, b.User))
	case b.Project == "":
		return nil, fault.New(fault.Invalid, "project is required for a service account").WithHint("Set project.")
	default:
		return one(s.Accounts.CreateService(ctx, project.Name(b.Project), b.Name))
	}
}

func (s *Server) oneAccount(ctx context.Context, in *accountRef) (*body[tenancy.Standing], error) {
	return one(s.Projects.Standing(ctx, project.Name(in.Project), in.Ref))
}

func (s *Server) disableAccount(ctx context.Context, in *struct {
	Ref     string `path:"ref" maxLength:"100" doc:"user/alice, service/ci or an account id; encode the slash as %2F"`
	Project string `query:"project" maxLength:"63" doc:"Project of a service account"`
	Body    struct {
		Reason string `json:"reason,omitempty" maxLength:"200" doc:"Reason, shown with the account and in the audit log"`
	}
},
) (*body[account.Account], error) {
	return one(s.Accounts.Disable(ctx, project.Name(in.Project), in.Ref, in.Body.Reason))
}

func (s *Server) enableAccount(ctx context.Context, in *accountRef) (*body[account.Account], error) {
	return one(s.Accounts.Enable(ctx, project.Name(in.Project), in.Ref))
}

func (s *Server) deleteAccount(ctx context.Context, in *accountRef) (*none, error) {
	return &none{}, s.Accounts.DeleteAccount(ctx, project.Name(in.Project), in.Ref)
}

func (s *Server) listOverseers(ctx context.Context, in *struct{ Page }) (*body[items[member]], error) {
	return s.members(ctx, "", in.Token)
}

func (s *Server) revokeOverseer(ctx context.Context, in *struct {
	Name string `path:"name" maxLength:"200" doc:"Name of the grant"`
},
) (*none, error) {
	return &none{}, s.Projects.Revoke(ctx, "", in.Name)
}

func (s *Server) listPolicies(ctx context.Context, in *InProject) (*body[items[authorizer.Policy]], error) {
	list, err := s.Policies.Policies(ctx, project.Name(in.Project))
	return listed(list, "", err)
}

// policyPath names a policy.
type policyPath struct {
	InProject
	Name string `path:"name" maxLength:"63" doc:"Name of the policy"`
}

func (s *Server) onePolicy(ctx context.Context, in *policyPath) (*tagged[authorizer.Policy], error) {
	p, err := s.Policies.Policy(ctx, project.Name(in.Project), in.Name)
	return revised(p, p.Revision, err)
}

func (s *Server) deletePolicy(ctx context.Context, in *policyPath) (*none, error) {
	return &none{}, s.Policies.DeletePolicy(ctx, project.Name(in.Project), in.Name)
}

func (s *Server) listSecrets(ctx context.Context, in *struct {
	InProject
	Page
},
) (*body[items[keptSecret]], error) {
	list, next, err := s.Secrets.List(ctx, in.Project, in.Size, in.Token)
	kept := make([]keptSecret, len(list))
	for i, one := range list {
		kept[i] = keptSecret{one}
	}
	return listed(kept, next, err)
}

// keptSecret is a secret in a list; the description of the API has a list of
// webhooks' secrets, too.
type keptSecret struct{ secrets.Secret }

// secretPath names a secret.
type secretPath struct {
	InProject
	Name string `path:"name" maxLength:"63" doc:"Name of the secret"`
}

func (s *Server) oneSecret(ctx context.Context, in *secretPath) (*body[secrets.Secret], error) {
	return one(s.Secrets.One(ctx, in.Project, in.Name))
}

func (s *Server) deleteSecret(ctx context.Context, in *secretPath) (*none, error) {
	return &none{}, s.Secrets.Delete(ctx, in.Project, in.Name)
}

func (s *Server) listTokens(ctx context.Context, in *struct {
	Page
	Project string `query:"project" maxLength:"63" doc:"Tokens bound to this project; empty, without account: your own"`
	Account string `query:"account" maxLength:"128" doc:"Tokens of this account: user/NAME, service/NAME or an id. Without project it requires an administrator of the installation"`
	Ended   bool   `query:"ended" doc:"Include revoked and expired tokens, such as those of ended attempts of jobs"`
},
) (*body[items[account.Token]], error) {
	return listed(s.Accounts.Tokens(ctx, account.Filter{
		Project: project.Name(in.Project), Own: in.Project == "" && in.Account == "", Account: in.Account, Ended: in.Ended, PageSize: in.Size, PageToken: in.Token,
	}))
}

// tokenRequest makes a token and, when it names a service or a user, the account
// with its role: what a program or a colleague needs, in one call.
type tokenRequest struct {
	Project   string   `json:"project,omitempty" maxLength:"63" doc:"Project of the token and of the role"`
	Name      string   `json:"name,omitempty" maxLength:"63" doc:"Service account of the token; created if it does not exist; empty: your own account"`
	User      string   `json:"user,omitempty" maxLength:"63" doc:"User of the token, instead of a service account; created if it does not exist"`
	Role      string   `json:"role,omitempty" doc:"Role to grant to the account in the project"`
	Scopes    []string `json:"scopes,omitempty" maxItems:"64" doc:"Restrict the token to actions such as run.write or dataset.query:weather"`
	ExpiresIn string   `json:"expires_in,omitempty" doc:"Lifetime, such as 2160h; default 90 days"`

	Installation bool `json:"installation,omitempty" doc:"With name: create a service account and grant the role in the installation instead of a project. To read /metrics, use role auditor and scopes [system.read]"`

	AllProjects bool `json:"all_projects,omitempty" doc:"For a user: create a token that is valid in all projects in which the user has a role"`
}

type tokenAnswer struct {
	account.Token
	Secret string `json:"secret" doc:"Shown once"`
}

func (s *Server) createToken(ctx context.Context, in *struct{ Body tokenRequest }) (*body[tokenAnswer], error) {
	r := in.Body
	e := tenancy.Enrolment{Token: account.TokenSpec{Label: r.Name, Project: project.Name(r.Project), Scopes: r.Scopes}, In: project.Name(r.Project)}
	if r.ExpiresIn != "" {
		ttl, err := time.ParseDuration(r.ExpiresIn)
		if err != nil || ttl <= 0 {
			return nil, fault.New(fault.Invalid, "expires_in: %q is not a duration such as 720h", r.ExpiresIn)
		}
		e.Token.TTL = ttl
	}
	switch {
	case r.User != "" && r.Name != "":
		return nil, fault.New(fault.Invalid, "set either name, for a service account, or user, not both")
	case r.User != "":
		e.Token.For, e.Token.Label = "user/"+r.User, r.User
	case r.Name != "":
		if (r.Project == "") != r.Installation {
			return nil, fault.New(fault.Invalid, "project or installation is required for a service account").WithHint("Set project or installation.")
		}
		e.Token.For = "service/" + r.Name
	}
	if r.Installation && r.Name == "" {
		return nil, fault.New(fault.Invalid, "installation requires name, the service account")
	}
	if r.AllProjects {
		if r.User == "" {
			return nil, fault.New(fault.Invalid, "all_projects requires user: the token of a service account is bound to its project")
		}
		e.Token.Project = ""
	}
	if e.Token.For != "" {
		e.Token.Create, e.Role = true, project.Role(r.Role)
		if r.Role != "" && r.Project == "" && !r.Installation {
			return nil, fault.New(fault.Invalid, "project is required with role").WithHint("Set project, or remove role.")
		}
	}
	token, secret, err := s.Projects.Enrol(ctx, e)
	return one(tokenAnswer{Token: token, Secret: secret}, err)
}

func (s *Server) revokeToken(ctx context.Context, in *struct {
	ID string `path:"id" maxLength:"64"`
},
) (*none, error) {
	return &none{}, s.Accounts.RevokeToken(ctx, in.ID)
}

// keyView is a line of the key inventory.
type keyView struct {
	ID         keys.ID    `json:"id"`
	Owner      string     `json:"owner" doc:"Owner of the key, such as dataset/weather; empty: all keys of the project"`
	Algorithms string     `json:"algorithms"`
	State      keys.State `json:"state"`
	CreatedAt  time.Time  `json:"created_at"`
	Destroyed  time.Time  `json:"destroyed_at,omitzero"`
}

func (s *Server) listKeys(ctx context.Context, in *InPage) (*body[items[keyView]], error) {
	list, next, err := s.Keys.List(ctx, keys.Filter{Project: &in.Project}, in.Size, in.Token)
	views := make([]keyView, len(list))
	for i, k := range list {
		views[i] = keyView{ID: k.ID, Owner: k.Owner, Algorithms: k.Algorithms, State: k.State, CreatedAt: k.Created, Destroyed: k.Destroyed}
	}
	return listed(views, next, err)
}

func (s *Server) destroyKey(ctx context.Context, in *struct {
	InProject
	Body struct {
		Owner   string `json:"owner,omitempty" maxLength:"200" doc:"Identifier, as in the list; empty: every key of the project"`
		Confirm string `json:"confirm" maxLength:"200" doc:"Repeat the owner, or the project's name for all of its keys: the destruction is irreversible"`
	}
},
) (*none, error) {
	b := in.Body
	want := b.Owner
	if want == "" {
		want = in.Project
	}
	if b.Confirm != want {
		return nil, fault.New(fault.Invalid, "confirm is %.80q, not %q", b.Confirm, want).
			WithHint("Data encrypted with the key becomes permanently unreadable. Repeat the name to confirm.")
	}
	return &none{}, s.Keys.Destroy(ctx, in.Project, b.Owner)
}
