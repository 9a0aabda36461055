package cli

import (
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
)

// alerts lists what monitors told.
func (a *app) alerts() *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use: "alerts", Short: "List alerts and their delivery to webhooks and commands, newest first",
		Example: "  falaj monitor alerts -p nyc\n  falaj monitor alerts --state dead -p nyc", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{}
			switch state {
			case "":
			case "queued", "delivered", "dead":
				query.Set("state", state)
			default:
				return usage("--state is %q; it may be queued, delivered or dead", state)
			}
			return a.listOf(cmd, query, []column{
				{"ID", "id"},
				{"TYPE", "type"},
				{"SOURCE", "source"},
				{"TARGET", "target"},
				{"STATE", "state"},
				{"ATTEMPTS", "attempts"},
				{"CREATED", "created_at"},
				{"NEXT", "next_at"},
				{"REASON", "reason"},
			}, "alerts")
		},
	}
	cmd.Flags().StringVar(&state, "state", "", "only alerts in this state: queued, delivered or dead")
	return cmd
}

func (a *app) redeliver() *cobra.Command {
	return &cobra.Command{
		Use: "redeliver ID", Short: "Redeliver an alert whose retries are exhausted", Example: "  falaj monitor redeliver dlv_01J9Z6 -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.call(cmd, http.MethodPost, nil, nil, "alerts", args[0], "redeliver"); err != nil {
				return err
			}
			a.say("alert %s is queued again", args[0])
			return nil
		},
	}
}

// webhookSecret sets and deletes what signs webhooks.
func (a *app) webhookSecret() *cobra.Command {
	cmd := &cobra.Command{Use: "secret", Aliases: []string{"secrets"}, Short: "Manage the secrets that sign webhooks"}
	var generate bool
	set := &cobra.Command{
		Use: "set NAME", Short: "Set a secret from standard input, or generate one with --generate",
		Example: "  falaj monitor secret set pager --generate -p nyc\n  falaj monitor secret set pager -p nyc < secret.txt", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			value := ""
			if !generate {
				b, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), 1000))
				if err != nil {
					return err
				}
				if value = strings.TrimSpace(string(b)); value == "" {
					return usage("standard input is empty; pass the secret there, or use --generate")
				}
			}
			var made struct {
				Secret string `json:"secret"`
			}
			if err := a.call(cmd, http.MethodPost, map[string]string{"name": args[0], "value": value}, &made, "webhook-secrets"); err != nil {
				return err
			}
			if made.Secret != "" {
				a.say("%s", made.Secret)
				return nil
			}
			a.say("webhook secret %s set", args[0])
			return nil
		},
	}
	set.Flags().BoolVar(&generate, "generate", false, "generate a secret and print it once")
	cmd.AddCommand(set, &cobra.Command{
		Use: "list", Short: "List the names of secrets; values are never printed", Example: "  falaj monitor secret list -p nyc", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.list(cmd, []column{{"NAME", "name"}, {"CREATED", "created_at"}}, "webhook-secrets")
		},
	}, &cobra.Command{
		Use: "delete NAME", Short: "Delete a secret", Example: "  falaj monitor secret delete pager -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.call(cmd, http.MethodDelete, nil, nil, "webhook-secrets", args[0]); err != nil {
				return err
			}
			a.say("webhook secret %s deleted", args[0])
			return nil
		},
	})
	return cmd
}
