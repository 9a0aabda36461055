package cli

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

// accounts is the command that shows and stops accounts.
func (a *app) accounts() *cobra.Command {
	cmd := &cobra.Command{Use: "account", Aliases: []string{"accounts"}, Short: "Show accounts, their groups and roles; disable and enable them"}
	show := &cobra.Command{
		Use: "show ACCOUNT", Short: "Show an account with its groups and roles, and where each role comes from",
		Long:    "The account is user/NAME, service/NAME or an id. Your own account needs no role; those of others need member.read.",
		Example: "  falaj account show user/alice\n  falaj account show service/ci -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			var o client.Object
			if err := c.Do(cmd.Context(), http.MethodGet, a.accountPath(args[0], ""), nil, &o); err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(o)
			}
			a.showAccount(o)
			return nil
		},
	}
	var reason string
	disable := &cobra.Command{
		Use: "disable ACCOUNT", Short: "Disable an account: its tokens stop working and its sessions end",
		Long: "The account keeps its roles, and works again after `falaj account enable`. Running jobs continue; cancel them with\n" +
			"`falaj job cancel`. The last administrator and your own account cannot be disabled.",
		Example: "  falaj account disable user/alice --reason \"left the company\"", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeAccount(cmd, args[0], "disable", map[string]string{"reason": reason})
		},
	}
	disable.Flags().StringVar(&reason, "reason", "", "reason, shown with the account and in the audit log")
	enable := &cobra.Command{
		Use: "enable ACCOUNT", Short: "Enable a disabled account", Example: "  falaj account enable user/alice", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.changeAccount(cmd, args[0], "enable", nil) },
	}
	cmd.AddCommand(show, disable, enable)
	return cmd
}

// accountPath is where the API has an account; a service is one of the project.
func (a *app) accountPath(ref, act string) string {
	path := "/api/v1/accounts/" + url.PathEscape(ref)
	if act != "" {
		path += "/" + act
	}
	if strings.HasPrefix(ref, "service/") {
		if project, err := a.inProject(); err == nil {
			path += "?project=" + url.QueryEscape(project)
		}
	}
	return path
}

func (a *app) changeAccount(cmd *cobra.Command, ref, act string, body any) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	var o client.Object
	if err := c.Do(cmd.Context(), http.MethodPost, a.accountPath(ref, act), body, &o); err != nil {
		return err
	}
	return a.sayOr(o, "%s %s is %sd.", o.Text("kind"), o.Text("name"), act)
}

func (a *app) showAccount(o client.Object) {
	line := func(name, value string) {
		if value != "" {
			a.say("%-14s %s", name, value)
		}
	}
	line("id", o.Text("id"))
	line("name", o.Text("kind")+"/"+o.Text("name"))
	line("display name", o.Text("display_name"))
	line("e-mail", o.Text("email"))
	line("provider", o.Text("provider"))
	line("created", cell(o, "created_at"))
	line("tokens until", cell(o, "proved_until"))
	if o.Text("disabled_at") != "" {
		line("disabled", strings.TrimSpace(cell(o, "disabled_at")+" "+o.Text("disabled_reason")))
	}
	groups, _ := o["groups"].([]any)
	for i, g := range groups {
		name := ""
		if i == 0 {
			name = "groups"
		}
		text, _ := g.(string)
		a.say("%-14s %s", name, text)
	}
	grants, _ := o["grants"].([]any)
	for i, g := range grants {
		one, _ := g.(map[string]any)
		grant := client.Object(one)
		name := ""
		if i == 0 {
			name = "roles"
		}
		where := "in project " + grant.Text("project")
		if grant.Text("project") == "" {
			where = "in the installation"
		}
		if object := grant.Text("object"); object != "" {
			where += ", on " + object
		}
		from := "granted to the account"
		if principal := grant.Text("principal"); principal != o.Text("id") {
			from = "by " + principal
		}
		a.say("%-14s %s %s, %s (grant %s)", name, grant.Text("role"), where, from, grant.Text("name"))
	}
}

// sessions is the command that lists and ends logins at identity providers.
func (a *app) sessions() *cobra.Command {
	cmd := &cobra.Command{Use: "session", Aliases: []string{"sessions"}, Short: "List and end logins at identity providers"}
	var of string
	var all bool
	list := &cobra.Command{
		Use: "list", Short: "List your sessions, or those of an account", Args: cobra.NoArgs,
		Long:    "A session is a login at an identity provider, by a browser. --account and --all need an administrator of the installation.",
		Example: "  falaj session list\n  falaj session list --account user/alice\n  falaj session list --all -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := url.Values{}
			if of != "" {
				q.Set("account", of)
			}
			if all {
				q.Set("all", "true")
			}
			return a.printAll(cmd, "/api/v1/sessions", q, []column{
				{"ID", "id"}, {"ACCOUNT", "account"}, {"PROVIDER", "provider"}, {"ADDRESS", "address"}, {"CREATED", "created_at"}, {"EXPIRES", "expires_at"}, {"CLIENT", "client"},
			})
		},
	}
	list.Flags().StringVar(&of, "account", "", "sessions of this account: user/NAME or an id")
	list.Flags().BoolVar(&all, "all", false, "sessions of all accounts")
	end := &cobra.Command{
		Use: "end ID", Short: "End a session", Example: "  falaj session end tok_01J…", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.endToken(cmd, args[0], "session %s ended") },
	}
	cmd.AddCommand(list, end)
	return cmd
}
