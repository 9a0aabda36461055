// Package cli is the command line: one file per command group. It reaches a
// server only through the client package; `up` and the hidden child modes are
// given to it by cmd/falaj as functions.
//
// # Map
//
//   - cli.go: World, the root command, exit codes, which server and token.
//   - backup.go: backup, restore. system.go: up, recover-admin, doctor, config, login, version, and the hidden child modes.
//   - context.go: the servers that a user is logged in to.
//   - objects.go: apply, get, describe, delete, and the one list of kinds.
//   - data.go: dataset, feature, env. lineage.go: what is around a dataset. search.go. work.go: job, model, deploy, pool, audit,
//     token. deploy.go: how versions are tried. keys.go: key.
//   - sweep.go: what Optuna's studies tried, and being their storage.
//   - complete.go: what shells complete. wait.go: asking on while the server is away.
//   - cost.go: what was used and what it cost; chart.go draws a comparison.
//   - simulate.go: simulate, which needs no server but for --from-live.
//   - import.go: bring over what other systems have; mlflow/ reads them.
//   - output.go: tables, JSON, YAML, progress bars. visible.go: control characters in them.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not permitted, 4 not found,
// 5 conflict, 6 unavailable.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

// World is what the command line touches outside itself; cmd/falaj and the
// tests give it.
type World struct {
	Args    []string
	Env     []string // os.Environ()
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Version string
	// Commit and Built are those of this program; empty where the build did not say.
	Commit, Built string

	// Up runs the server until ctx ends; flags are configuration keys. It calls
	// keep with the first-run token.
	Up func(ctx context.Context, configFile string, flags map[string]any, keep func(server, token, ca string) error) error
	// CheckConfig loads and validates the configuration and renders it.
	CheckConfig func(configFile string, flags map[string]any) (string, error)
	// Doctor checks this machine and renders the findings; false means unusable.
	Doctor func(configFile string, flags map[string]any) (string, bool)
	// AcceptRollback goes on with an audit log that was rolled back, offline;
	// false when there was nothing to accept.
	AcceptRollback func(ctx context.Context, configFile string, flags map[string]any, reason string) (bool, error)
	// Reseal seals the master key by another passphrase, offline; an empty file
	// name means by none.
	Reseal func(configFile string, flags map[string]any, passphraseFile string) error
	// Backup copies the installation of a stopped server into a directory, and Restore
	// puts it back; both say what they did.
	Backup  func(ctx context.Context, configFile string, flags map[string]any, dir string) (string, error)
	Restore func(ctx context.Context, configFile string, flags map[string]any, dir, digest string, takeBucket bool) (string, error)
	// RecoverAdmin makes a new token for the first administrator, offline.
	RecoverAdmin func(ctx context.Context, configFile string, flags map[string]any) (string, error)
	// VerifyAudit checks an export offline.
	VerifyAudit func(r io.Reader, key string, checkpoints io.Reader) (string, error)
	// Simulate plays workloads and gives the summary as JSON; done is told how
	// much is done, from 0 to 1.
	Simulate func(ctx context.Context, args SimulateArgs, done func(share float64)) ([]byte, error)
	// SimulateLive plays a server's world and gives the answer as JSON.
	SimulateLive func(ctx context.Context, args LiveArgs) ([]byte, error)
	// Child runs a hidden mode (parsers and SQL in their own process).
	Child func(mode string, args []string, stdin io.Reader, stdout io.Writer) error
}

type app struct {
	World
	server, token, project, output string
	ca, context                    string

	unreadable bool // the file of contexts, and that was said

	out    io.Writer // standard output itself; see raw
	screen io.Writer // standard error itself, on which progress is drawn; texts of others go through plain
}

// Run executes the command line and returns the exit code.
func Run(ctx context.Context, w World) int {
	out, said := &visible{w: w.Stdout}, &visible{w: w.Stderr}
	defer out.end()
	defer said.end()
	a := &app{World: w, out: w.Stdout, screen: w.Stderr}
	a.Stdout, a.Stderr = out, said
	root := a.root()
	root.SetArgs(w.Args)
	root.SetIn(w.Stdin)
	root.SetOut(out)
	root.SetErr(said)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	code := exitCode(err)
	fmt.Fprintf(said, "falaj: %s\n", err)
	if hint := hintOf(err); hint != "" {
		fmt.Fprintf(said, "  → %s\n", hint)
	} else if _, refused := errors.AsType[*client.Error](err); code == 2 && cmd != nil && !refused { // of a manifest the help says nothing
		fmt.Fprintf(said, "  → See `%s --help`.\n", cmd.CommandPath())
	}
	if refused, ok := errors.AsType[*client.Error](err); ok && refused.Version != "" && refused.Version != w.Version {
		fmt.Fprintf(said, "  → The server is Falaj %s and this command is %s: their features may differ.\n", refused.Version, w.Version)
	}
	return code
}

func exitCode(err error) int {
	kind := fault.KindOf(err)
	if refused, ok := errors.AsType[*client.Error](err); ok {
		kind = fault.ParseKind(refused.Kind)
	}
	if _, ok := errors.AsType[usageError](err); ok {
		return 2
	}
	if _, ok := errors.AsType[*client.NoAnswerError](err); ok {
		return 6
	}
	switch kind {
	case fault.Invalid, fault.TooLarge:
		return 2
	case fault.Unauthenticated, fault.PermissionDenied:
		return 3
	case fault.NotFound, fault.Gone:
		return 4
	case fault.Conflict:
		return 5
	case fault.Unavailable:
		return 6
	case fault.Internal, fault.Exhausted, fault.Unsupported, fault.Timeout:
	}
	return 1
}

func hintOf(err error) string {
	if refused, ok := errors.AsType[*client.Error](err); ok {
		return refused.Hint
	}
	return fault.HintOf(err)
}

type usageError struct{ error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

var formats = []string{"table", "json", "yaml", "csv", "manifest"}

// inCSV are the commands that print rows of datasets, and know the format csv.
var inCSV = []string{"falaj dataset query", "falaj dataset preview"}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "falaj",
		Short: "A sovereign machine-learning platform in one binary",
		Long: "Falaj manages the machine-learning life cycle, from data and features to training, models\n" +
			"and serving, and keeps a verifiable record of it. `falaj up` starts a server; most other\n" +
			"commands connect to a server. Control characters in names, logs and errors are shown as\n" +
			"escapes such as \\x1b; logs and file contents redirected to a pipe or a file are unchanged.",
		Example:       "  falaj up --data ./data\n  falaj apply -f project.yaml\n  falaj dataset import weather weather.csv --project nyc\n  falaj job why job_01J…",
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { // before anything is done
			if !slices.Contains(formats, a.output) {
				return usage("--output is %q; use table, json, yaml or, for `falaj get`, manifest, or, for `falaj dataset query`, csv", a.output)
			}
			if name := a.contextNamed(); name != "" && cmd.Name() != "login" {
				if _, err := a.logins().find(name); err != nil {
					return err
				}
			}
			if a.output == "manifest" && cmd.CommandPath() != "falaj get" {
				return usage("--output manifest is for `falaj get` only")
			}
			if a.output == "csv" && !slices.Contains(inCSV, cmd.CommandPath()) {
				return usage("--output csv is only for `%s`", strings.Join(inCSV, "` and `"))
			}
			return nil
		},
	}
	// Cobra's own shows only one of Short and Long.
	root.SetHelpTemplate("{{with .Short}}{{.}}.\n\n{{end}}{{with .Long}}{{. | trimTrailingWhitespaces}}\n\n{{end}}{{if or .Runnable .HasSubCommands}}{{.UsageString}}{{end}}")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := root.PersistentFlags()
	f.StringVar(&a.server, "server", "", "URL of the server (FALAJ_URL; default the current context)")
	f.StringVar(&a.token, "token", "", "access token (FALAJ_TOKEN; default the stored token); prefer the variable, because arguments are visible to other users")
	f.StringVar(&a.context, "context", "", "context to use (FALAJ_CONTEXT; default the current context); see \"falaj context\"")
	f.StringVarP(&a.project, "project", "p", "", "project (FALAJ_PROJECT)")
	f.StringVarP(&a.output, "output", "o", "table", "output format: table, json, yaml; for get also manifest, for rows of datasets also csv")
	f.StringVar(&a.ca, "ca", "", "PEM file of a certificate authority to trust")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	root.AddGroup(&cobra.Group{ID: "system", Title: "The server:"}, &cobra.Group{ID: "object", Title: "Objects:"}, &cobra.Group{ID: "action", Title: "Actions:"})
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("system", a.up(), a.recoverAdmin(), a.backup(), a.restore(), a.doctor(), a.config(), a.login(), a.contexts(), a.version())
	add("object", a.apply(), a.get(), a.describe(), a.delete())
	add("action", a.search(), a.dataset(), a.lineage(), a.feature(), a.environment(), a.job(), a.run(), a.sweep(), a.model(), a.deploy(), a.predict(), a.monitor(), a.pool(), a.zone(), a.queue(), a.projects(), a.cost(), a.plan(), a.simulate(), a.importing(), a.audit(), a.request(), a.erase(), a.key(), a.accounts(), a.sessions(), a.tokens())
	root.AddCommand(a.child())
	a.completed(root)
	requireKnownSubcommand(root)
	wrongArgsAreUsage(root)
	return root
}

// wrongArgsAreUsage makes a wrong number of arguments exit with code 2.
func wrongArgsAreUsage(c *cobra.Command) {
	for _, sub := range c.Commands() {
		wrongArgsAreUsage(sub)
	}
	if valid := c.Args; valid != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			err := valid(cmd, args)
			if err == nil {
				return nil
			}
			how := strings.TrimSuffix(cmd.UseLine(), " [flags]")
			for n, last := range slices.Backward(args) {
				if valid(cmd, args[:n]) == nil {
					return usage("%q is an argument too many; write %s", last, how)
				}
			}
			if strings.Contains(err.Error(), "arg(s)") { // as cobra counts
				return usage("an argument is missing; write %s", how)
			}
			return usageError{err}
		}
	}
}

// requireKnownSubcommand makes a wrong word after a group, such as "sumbit" after job, an error and not a help page.
func requireKnownSubcommand(c *cobra.Command) {
	for _, sub := range c.Commands() {
		requireKnownSubcommand(sub)
	}
	if c.HasSubCommands() && c.RunE == nil && c.Run == nil {
		c.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			msg := fmt.Sprintf("%q is not a command of %s", args[0], cmd.CommandPath())
			if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
				msg += "; did you mean " + strings.Join(s, " or ") + "?"
			} else if s := elsewhere(cmd, args); s != "" {
				msg += "; write " + s
			}
			return usage("%s", msg)
		}
		c.Args = cobra.ArbitraryArgs
	}
}

// elsewhere is the command for all kinds of objects that does what somebody looked for
// below the commands of one kind, as in "falaj env list"; empty if there is none.
func elsewhere(group *cobra.Command, args []string) string {
	verb, ok := map[string]string{
		"list": "get", "ls": "get", "get": "get", "show": "describe", "describe": "describe", "delete": "delete", "rm": "delete", "remove": "delete",
	}[args[0]]
	if !ok {
		return ""
	}
	for _, word := range append([]string{group.Name(), group.Name() + "-view"}, group.Aliases...) {
		if name, _, err := kindOf(word); err == nil {
			return strings.Join(append([]string{"falaj", verb, name}, args[1:]...), " ")
		}
	}
	return ""
}

func (a *app) env(name string) string {
	for _, kv := range a.Env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// connect makes the client from flags, environment and what login stored.
func (a *app) connect() (*client.Client, error) {
	stored := a.stored()
	server, token := first(a.server, a.env("FALAJ_URL"), stored.Server, "http://127.0.0.1:7070"), first(a.token, a.env("FALAJ_TOKEN"))
	if a.context != "" { // what a command names itself comes before what the environment names for all
		server, token = first(a.server, stored.Server), a.token
	}
	if token == "" && (server == stored.Server || stored.Server == "") {
		token = stored.Token // a stored token goes to the server that it is for, and to no other
	}
	if token == "" {
		return nil, fault.New(fault.Unauthenticated, "no access token for %s", server).
			WithHint("Run `falaj login`, or set FALAJ_TOKEN.")
	}
	var options []client.Option
	if ca := first(a.ca, stored.CA); ca != "" {
		options = append(options, client.WithCA(ca))
	}
	return client.New(server, token, options...)
}

// chosen is the project that was named: by flag, by environment, at login; may be empty.
func (a *app) chosen() string { return first(a.project, a.env("FALAJ_PROJECT"), a.stored().Project) }

const allProjects = "all projects, ignoring the project of FALAJ_PROJECT or the context"

// narrowed limits what is the installation's to the project that was named, unless wide.
func (a *app) narrowed(wide bool) url.Values {
	q := url.Values{}
	if p := a.chosen(); p != "" && !wide {
		q.Set("project", p)
	}
	return q
}

// inProject is the project to act in.
func (a *app) inProject() (string, error) {
	p := a.chosen()
	if p == "" {
		return "", usage("project is required: set --project or FALAJ_PROJECT")
	}
	return p, nil
}
