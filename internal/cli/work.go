package cli

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

// stream copies a plain answer to w.
func (a *app) stream(cmd *cobra.Command, w io.Writer, query string, parts ...string) error {
	path, err := a.inProjectPath(parts...)
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	resp, err := c.Send(cmd.Context(), http.MethodGet, path+query, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(w, resp.Body)
	if away(err) {
		return fault.New(fault.Unavailable, "the server broke off: this is not all").
			WithHint("The server is stopping, or your permission was revoked. Retry.")
	}
	return err
}

func (a *app) model() *cobra.Command {
	cmd := &cobra.Command{Use: "model", Aliases: []string{"models"}, Short: "Manage model versions, aliases, approvals and signatures"}
	cmd.AddCommand(&cobra.Command{
		Use: "versions NAME", Short: "List a model's versions", Example: "  falaj model versions delay -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.list(cmd, []column{{"MODEL", "name"}, {"VERSION", "version"}, {"STATE", "state"}, {"ALIASES", "aliases"}, {"SIGNED", "signed"}, {"CONTENT", "content"}, {"RUN", "run_id"}, {"DIGEST", "digest"}, {"CREATED", "created_at"}}, "models", args[0], "versions")
		},
	}, &cobra.Command{
		Use: "alias NAME ALIAS VERSION", Short: "Set an alias, such as champion, to a version", Example: "  falaj model alias delay champion 2 -p nyc", Args: cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.call(cmd, http.MethodPut, map[string]any{"version": args[2]}, nil, "models", args[0], "aliases", args[1]); err != nil {
				return err
			}
			a.say("model %s: %s is version %s", args[0], args[1], args[2])
			return nil
		},
	})
	cmd.AddCommand(a.modelVerify(), a.modelExport(), a.modelContent(), a.modelBOM(), a.modelCard())
	cmd.AddCommand(a.modelApprovals()...)
	cmd.AddCommand(a.modelOptimize())
	return cmd
}

func (a *app) deploy() *cobra.Command {
	cmd := &cobra.Command{Use: "deploy", Aliases: []string{"deployment"}, Short: "Query deployed models; manage canaries, promotion, rollback and automation"}
	var file string
	predict := &cobra.Command{
		Use: "predict NAME", Short: "Send an Open Inference Protocol request and print the response",
		Example: "  falaj deploy predict delay -f request.json", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := a.read(file)
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			var o client.Object
			header := http.Header{"Content-Type": {"application/json"}}
			if p := a.chosen(); p != "" {
				header.Set("Falaj-Project", p)
			}
			resp, err := c.Send(cmd.Context(), http.MethodPost, "/v2/models/"+url.PathEscape(args[0])+"/infer", strings.NewReader(string(b)), header)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if err := client.Decode(resp.Body, &o); err != nil {
				return err
			}
			return a.printOne(o)
		},
	}
	predict.Flags().StringVarP(&file, "file", "f", "-", "request body, - for standard input")
	cmd.AddCommand(append(a.rollouts(), predict)...)
	return cmd
}

func (a *app) audit() *cobra.Command {
	cmd := &cobra.Command{Use: "audit", Short: "Read, export and verify the audit log"}
	cmd.AddCommand(a.auditList(), a.auditExport(), a.auditVerify(), a.auditErase(), a.auditErasures(), a.auditDecide("approve"), a.auditDecide("reject"), a.auditWhoRead(), a.auditAccept())
	return cmd
}

func (a *app) auditList() *cobra.Command {
	filter := map[string]*string{}
	limit, wide := 50, false
	cmd := &cobra.Command{
		Use: "list", Short: "List audit log entries, newest first", Example: "  falaj audit list --outcome refused\n  falaj audit list -p nyc --action job.submit -o json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			q := a.narrowed(wide)
			for name, v := range filter {
				if *v != "" {
					q.Set(name, *v)
				}
			}
			objects := []client.Object{}
			for more := true; more; {
				var page auditPage
				if err := c.Do(cmd.Context(), http.MethodGet, "/api/v1/audit?"+q.Encode(), nil, &page); err != nil {
					return err
				}
				if page.Since != "" && len(objects) == 0 {
					fmt.Fprintf(a.Stderr, "falaj: entries since %s may be missing: %s\n", page.Since, page.Because)
				}
				objects = append(objects, page.Items...)
				if more = page.Next != "" && len(objects) < limit; more {
					q.Set("page_token", page.Next)
				} else if limit = max(limit, 0); page.Next != "" || len(objects) > limit {
					fmt.Fprintf(a.Stderr, "falaj: the list was cut after %d entries, and more match; --limit prints more\n", limit)
				}
			}
			return a.print(auditEntries(objects[:min(len(objects), limit)]), auditColumns)
		},
	}
	for _, f := range [][2]string{
		{"actor", "only entries of this account, by ID or name"},
		{"action", "only this action, such as job.submit"},
		{"object", "only entries of exactly this object, such as 'dataset weather@1'"},
		{"outcome", "only this outcome: done or refused"},
		{"since", "only entries at or after this time (RFC 3339)"},
		{"until", "only entries before this time (RFC 3339)"},
	} {
		filter[f[0]] = cmd.Flags().String(f[0], "", f[1])
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "maximum number of entries")
	cmd.Flags().BoolVar(&wide, "installation", false, allProjects)
	return cmd
}

// auditPage is a page of the audit log.
type auditPage struct {
	Items   []client.Object `json:"items"`
	Next    string          `json:"next_page_token"`
	Since   string          `json:"stale_since"`
	Because string          `json:"stale_because"`
}

var auditColumns = []column{{"INDEX", "index"}, {"TIME", "time"}, {"PROJECT", "project"}, {"ACTOR", "actor_name"}, {"ACTION", "action"}, {"OBJECT", "object"}, {"OUTCOME", "outcome"}, {"REASON", "reason"}}

// auditEntries shows in the column of the reason why an entry says nothing else.
func auditEntries(objects []client.Object) []client.Object {
	for _, o := range objects {
		if what, ok := o["damaged"].(string); ok && o["reason"] == nil {
			o["reason"] = "DAMAGED: " + what
		} else if by, ok := o["erased_by"]; ok && o["reason"] == nil {
			o["reason"] = fmt.Sprintf("erased by entry %v", by)
		}
	}
	return objects
}

func (a *app) auditExport() *cobra.Command {
	var file string
	var wide bool
	cmd := &cobra.Command{
		Use: "export", Short: "Export the audit log, or a project's entries, with proofs",
		Long: "With a project, only its entries are exported, each with a proof of inclusion in the signed log.\n" +
			"`falaj audit verify` verifies both kinds of export offline.",
		Example: "  falaj audit export -f audit.jsonl\n  falaj audit export -p nyc -f nyc.jsonl", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			path := "/api/v1/audit/export"
			if q := a.narrowed(wide); len(q) > 0 {
				path += "?" + q.Encode()
			}
			resp, err := c.Send(cmd.Context(), http.MethodGet, path, nil, nil)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if file == "-" {
				_, err = io.Copy(a.raw(), resp.Body)
				return err
			}
			f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return usage("%v", err)
			}
			_, err = io.Copy(f, resp.Body)
			if err = errors.Join(err, f.Close()); err != nil {
				_ = os.Remove(file) // half an export is none
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "-", "new file to write, - for standard output")
	cmd.Flags().BoolVar(&wide, "installation", false, allProjects)
	return cmd
}

func (a *app) auditVerify() *cobra.Command {
	var key, checkpoints string
	cmd := &cobra.Command{
		Use: "verify FILE", Short: "Verify every entry and checkpoint of an export, offline",
		Long: "Requires no server. With --key (the log's public key, from a trusted source) and --checkpoints (the witness, a\n" +
			"second copy of the checkpoints), it also detects a log that was rewritten as a whole.",
		Example: "  falaj audit verify audit.jsonl\n  falaj audit verify audit.jsonl --checkpoints /mnt/other/checkpoints", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			r := a.Stdin
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return usage("%v", err)
				}
				defer f.Close()
				r = f
			}
			var second io.Reader
			if checkpoints != "" {
				f, err := os.Open(checkpoints)
				if err != nil {
					return usage("%v", err)
				}
				defer f.Close()
				second = f
			}
			report, err := a.VerifyAudit(r, key, second)
			if err != nil {
				return err
			}
			a.say("%s", strings.TrimRight(report, "\n"))
			return nil
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "the log's public key")
	cmd.Flags().StringVar(&checkpoints, "checkpoints", "", "file of the witness, the second copy of the checkpoints")
	return cmd
}

func (a *app) auditErase() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "erase INDEX...", Short: "Request the erasure of the content of audit log entries",
		Long: "For the erasure of a person's data. Another administrator approves the request within 7 days. The content of the\n" +
			"entries is then removed, also from the database files. Commitment, time, actor, action and outcome are kept and\n" +
			"referenced by the entry of the erasure, so that the log still verifies. Entries about policies, approvals, roles,\n" +
			"tokens, keys, zones, erasures and the log itself cannot be erased. INDEX is the index shown by `falaj audit list`.\n" +
			"The reason must not name the person. Existing exports and backups are not changed.",
		Example: "  falaj audit list --actor bob -o json\n  falaj audit erase 118 121 --reason 'request 2026-17 of the subject'", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if reason == "" {
				return usage("--reason is required")
			}
			indexes := make([]int64, len(args))
			for i, arg := range args {
				var err error
				if indexes[i], err = strconv.ParseInt(arg, 10, 64); err != nil || indexes[i] < 0 {
					return usage("%q is not the index of an entry", arg)
				}
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			var o client.Object
			if err := c.Do(cmd.Context(), http.MethodPost, "/api/v1/audit/erase", map[string]any{"indexes": indexes, "reason": reason}, &o); err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(o)
			}
			a.say("Requested as %v. Another administrator approves it with `falaj audit approve %v`.", o["id"], o["id"])
			return nil
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason, recorded in the audit log")
	return cmd
}

func (a *app) auditErasures() *cobra.Command {
	return &cobra.Command{
		Use: "erasures", Short: "List requests to erase audit log entries, newest first", Example: "  falaj audit erasures", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.printAll(cmd, "/api/v1/audit/erasures", nil, []column{{"ID", "id"}, {"STATE", "state"}, {"REQUESTED BY", "requested_by_name"}, {"REQUESTED", "requested_at"}, {"DECIDED BY", "decided_by_name"}, {"REASON", "reason"}})
		},
	}
}

// auditDecide is the command that approves or rejects a request to erase entries.
func (a *app) auditDecide(verb string) *cobra.Command {
	short, long := "Reject a request to erase audit log entries, or withdraw your own", "A rejected request has no effect."
	if verb == "approve" {
		short = "Approve a request to erase audit log entries"
		long = "The entries are erased at once. The approver must not be the requester, and needs the role admin in the installation."
	}
	return &cobra.Command{
		Use: verb + " ID", Short: short, Long: long, Example: "  falaj audit erasures\n  falaj audit " + verb + " aer_01M7Z9YKWD1PV5STVPTQWGHWA5", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			var o struct {
				State  string `json:"state"`
				Erased int    `json:"erased"`
			}
			if err := c.Do(cmd.Context(), http.MethodPost, "/api/v1/audit/erasures/"+url.PathEscape(args[0])+"/"+verb, nil, &o); err != nil {
				return err
			}
			if o.State == "done" {
				a.say("%d entries erased", o.Erased)
			} else {
				a.say("%s is %s", args[0], o.State)
			}
			return nil
		},
	}
}

func (a *app) auditWhoRead() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "who-read ENTITY VALUE...", Short: "List reads of an entity's features",
		Long: "Lists feature reads of the entity with these values of its join keys, in order. The log stores only a digest of\n" +
			"each key, computed with a key of the project; this command is the only way to find reads by key. The query is\n" +
			"audited itself, with the digest and the reason, neither of which names the person.",
		Example: "  falaj audit who-read customer 4711 -p shop --reason 'request 2026-18 of the subject'", Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if reason == "" {
				return usage("--reason is required")
			}
			objects := []client.Object{}
			for token, more := "", true; more; {
				var page auditPage
				ask := map[string]any{"entity": args[0], "values": args[1:], "reason": reason}
				if token != "" {
					ask["page_token"] = token
				}
				if err := a.call(cmd, http.MethodPost, ask, &page, "audit", "who-read"); err != nil {
					return err
				}
				objects = append(objects, page.Items...)
				token, more = page.Next, page.Next != ""
			}
			return a.print(auditEntries(objects), auditColumns)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason, recorded in the audit log")
	return cmd
}

func (a *app) auditAccept() *cobra.Command {
	var c configArgs
	var reason string
	cmd := &cobra.Command{
		Use: "accept-rollback", Short: "Accept an audit log that does not match its signed checkpoints",
		Long: "Run on the server's machine while the server is stopped. After a restore from a backup, or after tampering with the\n" +
			"database, the log does not match the checkpoints in the second location. The server then refuses every change, and\n" +
			"refuses to start, until the mismatch is accepted with a reason. The finding and the reason become part of the log,\n" +
			"and the next checkpoint names the abandoned one.",
		Example: "  falaj audit accept-rollback --data ./data --reason 'restored the backup of 12 May'", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if reason == "" {
				return usage("--reason is required")
			}
			file, values, err := c.read(a, cmd.Flags())
			if err != nil {
				return err
			}
			accepted, err := a.AcceptRollback(cmd.Context(), file, values, reason)
			if err != nil {
				return err
			}
			if !accepted {
				a.say("Nothing to accept: the log matches its signatures. Nothing was recorded.")
				return nil
			}
			a.say("Accepted. Start the server again.")
			return nil
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason why the log does not match its checkpoints")
	c.register(cmd.Flags())
	return cmd
}

// endToken revokes a token, which may be that of a session.
func (a *app) endToken(cmd *cobra.Command, id, said string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	if err := c.Do(cmd.Context(), http.MethodDelete, "/api/v1/tokens/"+url.PathEscape(id), nil, nil); err != nil {
		return err
	}
	a.say(said, id)
	return nil
}

func (a *app) tokens() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Aliases: []string{"tokens"}, Short: "Create, list and revoke access tokens"}
	var name, user, expires string
	var everywhere, wide bool
	var scopes []string
	create := &cobra.Command{
		Use: "create", Short: "Create an access token, which is printed once",
		Long: "The token is for a service account or a user. The account is granted the role in the project,\n" +
			"and the token is bound to the project, as MLflow clients require. With --all-projects, a user's token is valid in\n" +
			"every project in which the user has a role. With --installation, the service account belongs to no project and its\n" +
			"role applies to the whole installation; restrict its token with --scope.",
		Example: "  falaj token create --name ci --role engineer -p nyc\n  falaj token create --installation --name prometheus --role auditor --scope system.read --expires 8760h\n  falaj token create --user alice --role admin -p nyc\n  falaj token create -p nyc", Args: cobra.NoArgs,
	}
	role := create.Flags().String("role", "engineer", "role in the project: viewer, engineer, deployer, admin or auditor")
	create.Flags().StringVar(&name, "name", "", "service account of the project, created if missing")
	create.Flags().StringVar(&user, "user", "", "user instead of a service account, created if missing")
	create.Flags().StringVar(&expires, "expires", "2160h", "lifetime")
	create.Flags().BoolVar(&everywhere, "all-projects", false, "do not bind a user's token to the project")
	create.Flags().BoolVar(&wide, "installation", false, "create an installation-wide service account that belongs to no project")
	create.Flags().StringArrayVar(&scopes, "scope", nil, "restrict the token to an action such as model.read; repeatable")
	create.RunE = func(cmd *cobra.Command, _ []string) error {
		project := ""
		var err error
		if !wide {
			project, err = a.inProject()
		}
		if err != nil {
			return err
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		body := map[string]any{"project": project, "installation": wide, "name": name, "user": user, "role": *role, "expires_in": expires, "all_projects": everywhere}
		if name == "" && user == "" {
			delete(body, "role") // one's own token
		}
		if len(scopes) > 0 {
			body["scopes"] = scopes
		}
		var o client.Object
		if err := c.Do(cmd.Context(), http.MethodPost, "/api/v1/tokens", body, &o); err != nil {
			return err
		}
		if a.output != "table" {
			return a.printOne(o)
		}
		a.say("%s", o.Text("secret"))
		clients := "FALAJ_TOKEN or MLFLOW_TRACKING_TOKEN"
		if everywhere { // MLflow's clients cannot name a project
			clients = "FALAJ_TOKEN"
		}
		fmt.Fprintf(a.Stderr, "The token is shown once and expires %s. Pass it to clients as %s.\n", cell(o, "expires_at"), clients)
		return nil
	}
	revoke := &cobra.Command{
		Use: "revoke ID", Short: "Revoke a token", Example: "  falaj token revoke tok_01J…", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.endToken(cmd, args[0], "token %s revoked") },
	}
	var ended, ownOnly bool
	var of, service string
	list := &cobra.Command{
		Use: "list", Short: "List tokens of the project, of an account, or your own", Args: cobra.NoArgs,
		Long: "Lists active tokens bound to the project, or with --own your own. --user or --name selects one account; without a\n" +
			"project, an administrator of the installation sees all its tokens. --ended includes revoked and expired tokens,\n" +
			"among them those of finished job attempts.",
		Example: "  falaj token list -p nyc\n  falaj token list --user alice --installation\n  falaj token list --ended -p nyc",
	}
	list.Flags().BoolVar(&ended, "ended", false, "include revoked and expired tokens")
	list.Flags().BoolVar(&ownOnly, "own", false, "your own tokens, of any project")
	list.Flags().BoolVar(&wide, "installation", false, "tokens of all projects; requires --user or --name")
	list.Flags().StringVar(&of, "user", "", "only tokens of this user")
	list.Flags().StringVar(&service, "name", "", "only tokens of this service account")
	list.RunE = func(cmd *cobra.Command, _ []string) error {
		q := a.narrowed(wide || ownOnly)
		switch {
		case of != "" && service != "", ownOnly && (of != "" || service != "" || wide):
			return usage("set one of --own, --user and --name")
		case wide && of == "" && service == "":
			return usage("--installation needs --user or --name; --own lists your own")
		case of != "":
			q.Set("account", "user/"+of)
		case service != "":
			q.Set("account", "service/"+service)
		}
		if ended {
			q.Set("ended", "true")
		}
		return a.printAll(cmd, kinds["tokens"].path, q, kinds["tokens"].columns)
	}
	cmd.AddCommand(create, list, revoke)
	return cmd
}
