package cli

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

var placeColumns = []column{{"KIND", "kind"}, {"PLACE", "name"}, {"ROWS", "rows"}, {"NOW", "into"}, {"NOTE", "note"}}

// erase erases a person, or says where it is.
func (a *app) erase() *cobra.Command {
	var dry, begin bool
	var reason, deadline string
	cmd := &cobra.Command{
		Use: "erase ENTITY KEY...", Short: "Erase a person's data, or search for it with --dry-run",
		Long: "Removes a person's rows from every version of every dataset, including training sets (each affected version is\n" +
			"replaced by one without them), from streams, the online store and the prediction log; flags the models trained on\n" +
			"them; and erases them again after a backup that contains them is restored. KEY is the value of each join key of the\n" +
			"entity, in order; - reads the values from standard input, one per line, which keeps them out of the shell's history.\n" +
			"The command is idempotent. The final state is done if every location was searched; done_in_part if some were not\n" +
			"(the certificate lists them, each with the reason and the tool to use); or not_found if no data with the key was\n" +
			"ever recorded. `falaj erase certificate ID` writes the certificate, which names the person only by a pseudonym. See\n" +
			"docs/guides/erasure.md.",
		Example: "  falaj erase customer 4711 --dry-run -p shop\n  falaj erase customer 4711 --reason 'request 2026-17' -p shop\n  pass show request-17 | falaj erase customer - --reason 'request 2026-17' -p shop",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			keys := a.secretLines(args[1:])
			body := map[string]any{"entity": args[0], "keys": keys}
			if dry {
				return a.findPerson(cmd, body)
			}
			if reason == "" {
				return usage("--reason is required: the reference of the request, without the person's name")
			}
			body["reason"] = reason
			if deadline != "" {
				t, err := time.Parse(time.DateOnly, deadline)
				if err != nil {
					return usage("--deadline is %q; write a day such as 2026-12-31", deadline)
				}
				body["deadline"] = t.AddDate(0, 0, 1).Format(time.RFC3339)
			}
			var e client.Object
			if err := a.call(cmd, http.MethodPost, body, &e, "erasures", "erase"); err != nil {
				return err
			}
			if begin {
				return a.showErasure(e)
			}
			e, err := a.awaitErasure(cmd, e)
			if err != nil {
				return err
			}
			if err := a.showErasure(e); err != nil || e.Text("state") != "not_found" {
				return err
			}
			return fault.New(fault.NotFound, "the key was not found, so nothing was erased").
				WithHint("Check the key, and the order of the join keys of entity %s.", plain(e.Text("entity")))
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "report the stores with the person's data without changing anything")
	cmd.Flags().BoolVar(&begin, "no-wait", false, "return once the erasure is recorded, without waiting for it to finish")
	cmd.Flags().StringVar(&reason, "reason", "", "reason, kept permanently; must not name the person")
	cmd.Flags().StringVar(&deadline, "deadline", "", "due date, such as 2026-12-31 (default in 30 days)")
	cmd.AddCommand(
		&cobra.Command{
			Use: "list", Short: "List erasures, newest first", Example: "  falaj erase list -p shop", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return a.list(cmd, []column{{"ID", "id"}, {"ENTITY", "entity"}, {"STATE", "state"}, {"REQUESTED", "requested_at"}, {"DEADLINE", "deadline"}, {"DONE", "done_at"}, {"REASON", "reason"}}, "erasures")
			},
		},
		&cobra.Command{
			Use: "certificate ID", Short: "Write the certificate of an erasure to standard output",
			Long: "Writes the certificate as JSON in one line, without a trailing line break. The SHA-256 of these bytes is in the\n" +
				"audit log, in detail.certificate of the erasure.apply entry that ends the erasure.",
			Example: "  falaj erase certificate ers_01J… -p shop > certificate.json\n  sha256sum certificate.json", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				path, err := a.inProjectPath("erasures", args[0], "certificate")
				if err != nil {
					return err
				}
				c, err := a.connect()
				if err != nil {
					return err
				}
				answer, err := c.Send(cmd.Context(), http.MethodGet, path, nil, nil)
				if err != nil {
					return err
				}
				defer answer.Body.Close()
				_, err = io.Copy(a.Stdout, answer.Body)
				return err
			},
		},
		&cobra.Command{
			Use: "show ID", Short: "Show an erasure", Example: "  falaj erase show ers_01J… -p shop", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				var e client.Object
				if err := a.call(cmd, http.MethodGet, nil, &e, "erasures", args[0]); err != nil {
					return err
				}
				return a.showErasure(e)
			},
		},
	)
	return cmd
}

// secretLines are arguments that may be read from standard input instead, a line each:
// arguments stay in the shell's history.
func (a *app) secretLines(args []string) []string {
	if len(args) != 1 || args[0] != "-" {
		return args
	}
	var lines []string
	for in := bufio.NewScanner(a.Stdin); in.Scan(); {
		lines = append(lines, in.Text())
	}
	return lines
}

// redact is the command that takes texts out of what a job said.
func (a *app) redact() *cobra.Command {
	var texts []string
	var reason string
	var dry bool
	cmd := &cobra.Command{
		Use: "redact JOB", Short: "Redact texts in a job's script and logs",
		Long: "Replaces texts by asterisks in the job's script, command, parameters and environment variables, in the output\n" +
			"quoted by its attempts, and in its logs, which are kept as artifacts of its runs. The job must have finished. The\n" +
			"recorded digests stay unchanged. --text - reads the texts from standard input, one per line. Requires the permission\n" +
			"erasure.apply; the audit log records the action without the texts.",
		Example: "  falaj job redact job_01J… --text 4711 --dry-run -p shop\n  pass show request-17 | falaj job redact job_01J… --text - --reason 'request 2026-17' -p shop", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(texts) == 0 {
				return usage("--text is required; --text - reads standard input")
			}
			if reason == "" && !dry {
				return usage("--reason is required: the reference of the request, without the person's name")
			}
			var found struct{ Items []client.Object }
			body := map[string]any{"texts": a.secretLines(texts), "dry_run": dry}
			if reason != "" {
				body["reason"] = reason
			}
			if err := a.call(cmd, http.MethodPost, body, &found, "jobs", args[0], "redact"); err != nil {
				return err
			}
			return a.print(found.Items, []column{{"PLACE", "place"}, {"COUNT", "count"}})
		},
	}
	cmd.Flags().StringArrayVar(&texts, "text", nil, "text to redact; - reads standard input; repeatable")
	cmd.Flags().StringVar(&reason, "reason", "", "reason, kept permanently; must not contain the texts")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "report where the texts occur without changing anything")
	return cmd
}

func (a *app) findPerson(cmd *cobra.Command, body map[string]any) error {
	var f client.Object
	if err := a.call(cmd, http.MethodPost, body, &f, "erasures", "search"); err != nil {
		return err
	}
	if a.output != "table" {
		return a.printOne(f)
	}
	return a.sayPlaces(f)
}

// maxTroubled is how often an erasure may be found in trouble: most passes by itself.
const maxTroubled = 50

// awaitErasure asks until it is done, and says how far it is.
func (a *app) awaitErasure(cmd *cobra.Command, e client.Object) (client.Object, error) {
	told, troubled := 0, 0
	for state := e.Text("state"); state == "requested" || state == "erasing"; state = e.Text("state") {
		for places := objectsIn(e, "places"); told < len(places); told++ {
			a.note("%s %s: %s rows", places[told].Text("kind"), places[told].Text("name"), places[told].Text("rows"))
		}
		trouble := e.Text("trouble")
		if trouble != "" {
			troubled++
		}
		if troubled > maxTroubled {
			return e, fault.New(fault.Unavailable, "erasure %s is not done yet: %s", e.Text("id"), plain(trouble)).
				WithHint("The server keeps retrying. Check its state with falaj erase show %s.", e.Text("id"))
		}
		if err := pause(cmd.Context(), 200*time.Millisecond); err != nil {
			return e, err
		}
		path, err := a.inProjectPath("erasures", e.Text("id"))
		if err != nil {
			return e, err
		}
		c, err := a.connect()
		if err != nil {
			return e, err
		}
		e = nil
		if err := a.await(cmd.Context(), c, path, &e); err != nil { // also while the server starts again
			return e, err
		}
	}
	return e, nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *app) showErasure(e client.Object) error {
	if a.output != "table" {
		return a.printOne(e)
	}
	a.say("%s  %s: a person of entity %s, for %s", e.Text("id"), e.Text("state"), plain(e.Text("entity")), plain(e.Text("reason")))
	for _, line := range [][2]string{{"pseudonym", "pseudonym"}, {"requested", "requested_at"}, {"deadline", "deadline"}, {"ended", "done_at"}, {"not done yet", "trouble"}, {"note", "note"}} {
		if text := e.Text(line[1]); text != "" {
			a.say("  %-12s %s", line[0], plain(text))
		}
	}
	return a.sayPlaces(e)
}

// sayPlaces prints where a person is or was.
func (a *app) sayPlaces(e client.Object) error {
	places := objectsIn(e, "places")
	if len(places) == 0 {
		a.say("No rows of the person were found.")
	} else if err := a.print(places, placeColumns); err != nil {
		return err
	}
	if deleted := objectsIn(e, "deleted"); len(deleted) > 0 {
		a.say("Previously deleted versions with rows of the person:")
		for _, p := range deleted {
			a.say("  %s  %s", plain(p.Text("name")), plain(p.Text("note")))
		}
	}
	if left := objectsIn(e, "unsearched"); len(left) > 0 {
		a.say("Not searched, or the person may remain there:")
		for _, u := range left { // lines: a table would cut what is to be done
			a.say("  %s  %s: %s", plain(u.Text("kind")), plain(u.Text("name")), plain(u.Text("reason")))
			if tool := u.Text("tool"); tool != "" {
				a.say("    → %s", plain(tool))
			}
		}
	}
	if list, _ := e["models"].([]any); len(list) > 0 {
		a.say("Models that were trained on rows of the person:")
		for _, x := range list {
			a.say("  %s", plain(toText(x)))
		}
	}
	return nil
}

func objectsIn(o client.Object, field string) (out []client.Object) {
	list, _ := o[field].([]any)
	for _, x := range list {
		if m, ok := x.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

func toText(x any) string { s, _ := x.(string); return s }
