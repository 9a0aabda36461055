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
		Use: "request", Short: "Acts that take two people: what waits for approval, approve, reject",
		Long: "Some acts take two people, where there is another person with the right: to ask for less in a model\n" +
			"policy, to permit more in a policy of a project, to open restricted data to yourself, to destroy a key and\n" +
			"to erase a person. Whoever asks for one gets the ID of a request. Another person approves it: one who had\n" +
			"the right for approvals.role_age before the request, and whose account, role and token were not made by\n" +
			"who requested it. The server then carries it out. Requests expire after 7 days.",
	}
	var state string
	var wide bool
	list := &cobra.Command{
		Use: "list", Short: "List requests, newest first: of the project, or without one of the whole installation", Args: cobra.NoArgs,
		Example: "  falaj request list\n  falaj request list -p shop --state requested",
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := a.narrowed(wide)
			if state != "" {
				q.Set("state", state)
			}
			return a.printAll(cmd, "/api/v1/requests", q, requestColumns)
		},
	}
	list.Flags().StringVar(&state, "state", "", "only those in this state: requested, approved, done, failed, rejected, withdrawn or expired")
	list.Flags().BoolVar(&wide, "installation", false, allProjects)
	cmd.AddCommand(
		list,
		a.requestAct(http.MethodGet, "show", "", "Show a request", "Says what would change, who requested it, and which right its approver needs."),
		a.requestAct(http.MethodPost, "approve", "/approve", "Carry out what another person requested", "It is carried out at once, with the rights of who requested it."),
		a.requestAct(http.MethodPost, "reject", "/reject", "Reject a request, or withdraw your own", "The request has no effect then."),
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
