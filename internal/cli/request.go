package cli

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

var requestColumns = []column{{"ID", "id"}, {"STATE", "state"}, {"PROJECT", "project"}, {"CHANGE", "summary"}, {"REQUESTED BY", "requested_by_name"}, {"REQUESTED", "requested_at"}, {"DECIDED BY", "decided_by_name"}}

// request is about acts that take two people.
func (a *app) request() *cobra.Command {
	cmd := &cobra.Command{
		Use: "request", Short: "Show, approve and reject requests for two-person approval",
		Long: "Some actions require the approval of a second person, if another person with the permission exists: weakening a\n" +
			"model policy, relaxing a policy of a project, granting yourself access to restricted data, destroying a key and\n" +
			"erasing a person. The command returns the ID of a request. The approver must have had the permission for\n" +
			"approvals.role_age before the request, and their account, role and token must not have been created by the\n" +
			"requester. The server then performs the action. Requests expire after 7 days.",
	}
	var state string
	var wide bool
	list := &cobra.Command{
		Use: "list", Short: "List requests of the project or, without a project, of the installation, newest first", Args: cobra.NoArgs,
		Example: "  falaj request list\n  falaj request list -p shop --state requested",
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := a.narrowed(wide)
			if state != "" {
				q.Set("state", state)
			}
			return a.printAll(cmd, "/api/v1/requests", q, requestColumns)
		},
	}
	list.Flags().StringVar(&state, "state", "", "only requests in this state: requested, approved, done, failed, rejected, withdrawn or expired")
	list.Flags().BoolVar(&wide, "installation", false, allProjects)
	cmd.AddCommand(
		list,
		a.requestAct(http.MethodGet, "show", "", "Show a request", "Shows the change, the requester and the permission that the approver needs."),
		a.requestAct(http.MethodPost, "approve", "/approve", "Approve a request of another person", "The action is performed at once, with the permissions of the requester."),
		a.requestAct(http.MethodPost, "reject", "/reject", "Reject a request, or withdraw your own", "A rejected request has no effect."),
	)
	return cmd
}

func (a *app) requestAct(method, verb, path, short, long string) *cobra.Command {
	return &cobra.Command{
		Use: verb + " ID", Short: short, Long: long, Example: "  falaj request list\n  falaj request " + verb + " req_01M7Z9YKWD1PV5STVPTQWGHWA5", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			var o client.Object
			if err := c.Do(cmd.Context(), method, "/api/v1/requests/"+url.PathEscape(args[0])+path, nil, &o); err != nil {
				return err
			}
			if verb == "show" || a.output != "table" {
				return a.printOne(o)
			}
			a.say("%s is %s: %s", o.Text("id"), o.Text("state"), o.Text("summary"))
			if why := o.Text("message"); why != "" {
				a.say("%s", why)
			}
			return nil
		},
	}
}
