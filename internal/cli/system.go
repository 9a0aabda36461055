package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

// configFlags are the configuration keys that have a flag of their own.
var configFlags = []struct{ flag, key, help string }{
	{"data", "data", "data directory"},
	{"http", "http", "address of the HTTP listener (default 127.0.0.1:7070)"},
	{"grpc", "grpc", "address of the gRPC listener (default 127.0.0.1:7071)"},
	{"flight", "flight", "address of the Arrow Flight listener (default 127.0.0.1:7072)"},
	{"store", "store.url", "sqlite:///path or postgres://… (default SQLite in the data directory)"},
	{"isolation", "isolation", "minimum isolation of user code: sandbox, or process if the kernel does not support sandboxes"},
	{"key-passphrase-file", "keys.passphrase_file", "file with the passphrase that seals the master key"},
	{"tls-cert", "tls.cert", "PEM certificate chain, required for non-loopback listeners"},
	{"tls-key", "tls.key", "PEM private key"},
	{"log-level", "log.level", "debug, info, warn or error"},
	{"log-format", "log.format", "text or json"},
}

type configArgs struct {
	file string
	set  []string
}

func (c *configArgs) register(f *pflag.FlagSet) {
	f.StringVar(&c.file, "config", "", "configuration file (FALAJ_CONFIG)")
	f.StringArrayVar(&c.set, "set", nil, "set any configuration key, e.g. --set limits.upload=1GiB")
	for _, cf := range configFlags {
		f.String(cf.flag, "", cf.help)
	}
}

func (c *configArgs) read(a *app, f *pflag.FlagSet) (string, map[string]any, error) {
	values := map[string]any{}
	for _, kv := range c.set {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			return "", nil, usage("--set %s: write key=value", kv)
		}
		values[k] = v
		if strings.HasSuffix(k, "hosts") || k == "jobs.network" {
			values[k] = strings.Split(v, ",")
		}
	}
	for _, cf := range configFlags {
		if f.Changed(cf.flag) {
			values[cf.key] = f.Lookup(cf.flag).Value.String()
		}
	}
	return first(c.file, a.env("FALAJ_CONFIG")), values, nil
}

func (a *app) up() *cobra.Command {
	var c configArgs
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the server with all components embedded",
		Long: "Starts Falaj in the foreground. The first start creates the data directory, the master key and an admin\n" +
			"token. The token is printed once and stored for this user's command line as a context (`falaj context`). This\n" +
			"context becomes the current one unless the user is already logged in to another server.",
		Example: "  falaj up --data ./data\n  falaj up --config /etc/falaj.yaml --store 'postgres://falaj@db/falaj?sslmode=verify-full'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			file, values, err := c.read(a, cmd.Flags())
			if err != nil {
				return err
			}
			return a.Up(cmd.Context(), file, values, a.keep)
		},
	}
	c.register(cmd.Flags())
	return cmd
}

// recoverAdmin is for an operator of the machine who lost the admin's token.
func (a *app) recoverAdmin() *cobra.Command {
	var c configArgs
	cmd := &cobra.Command{
		Use:   "recover-admin",
		Short: "Create a new token for the first administrator, while the server is stopped",
		Long: "Run on the server's machine if the token of the user admin is lost or expired and no other administrator can\n" +
			"create one. Requires access to the data directory. Previous first-run tokens are revoked. The new token is printed\n" +
			"once; `falaj login` stores it.",
		Example: "  falaj recover-admin --data ./data\n  falaj recover-admin --config /etc/falaj.yaml > token.txt",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			file, values, err := c.read(a, cmd.Flags())
			if err != nil {
				return err
			}
			secret, err := a.RecoverAdmin(cmd.Context(), file, values)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintln(a.Stdout, secret); err != nil {
				return fault.New(fault.Unavailable, "the token was created but could not be printed: %w", err).WithHint("Run the command again to create another one.")
			}
			fmt.Fprintln(a.Stderr, "This is shown once. Start the server and store it with `falaj login`.")
			return nil
		},
	}
	c.register(cmd.Flags())
	return cmd
}

// offline makes a command of a function of a configuration and a directory.
func (a *app) offline(cmd *cobra.Command, run func(ctx context.Context, file string, flags map[string]any, dir string) (string, error)) *cobra.Command {
	var c configArgs
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		file, values, err := c.read(a, cmd.Flags())
		if err != nil {
			return err
		}
		said, err := run(cmd.Context(), file, values, args[0])
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(a.Stdout, said)
		return err
	}
	c.register(cmd.Flags())
	return cmd
}

func (a *app) doctor() *cobra.Command {
	var c configArgs
	cmd := &cobra.Command{
		Use:     "doctor",
		Short:   "Check this machine and the configuration, and suggest fixes",
		Example: "  falaj doctor --data ./data",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			file, values, err := c.read(a, cmd.Flags())
			if err != nil {
				return err
			}
			report, usable := a.Doctor(file, values)
			fmt.Fprint(a.Stdout, report)
			if !usable {
				return fault.New(fault.Unsupported, "this machine cannot run Falaj as configured").WithHint("See the lines marked ✗.")
			}
			return nil
		},
	}
	c.register(cmd.Flags())
	return cmd
}

func (a *app) config() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Show and check the configuration"}
	for _, sub := range []struct{ use, short string }{{"check", "Validate the configuration"}, {"show", "Show every configuration key with its effective value and meaning"}} {
		var c configArgs
		show := sub.use == "show"
		one := &cobra.Command{
			Use: sub.use, Short: sub.short, Args: cobra.NoArgs,
			Example: "  falaj config " + sub.use + " --config falaj.yaml",
			RunE: func(cmd *cobra.Command, _ []string) error {
				file, values, err := c.read(a, cmd.Flags())
				if err != nil {
					return err
				}
				text, err := a.CheckConfig(file, values)
				if err != nil {
					return err
				}
				if show {
					fmt.Fprint(a.Stdout, text)
					return nil
				}
				a.say("The configuration is valid.")
				return nil
			},
		}
		c.register(one.Flags())
		cmd.AddCommand(one)
	}
	return cmd
}

func (a *app) login() *cobra.Command {
	var browser bool
	cmd := &cobra.Command{
		Use:   "login",
		Short: "Log in to a server and store the access token for this user",
		Long: "Where the server has an identity provider, the login is in the browser: the command prints a link, and opens it where\n" +
			"it can. Otherwise the token is read from standard input or FALAJ_TOKEN, never from an argument. The token is verified\n" +
			"with the server and stored in the user's configuration directory (mode 0600), as the current context; --context names\n" +
			"the context. Contexts of other servers are kept. The context's project is that of --project, or of a token that is\n" +
			"bound to one.",
		Example: "  falaj login --server https://falaj.example:7070\n  falaj login --server https://falaj.example:7070 --project nyc < token.txt",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&browser, "browser", false, "log in by the browser, also where the server has no identity provider")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		named, _ := a.logins().find(a.contextNamed()) // one that is there is renewed
		server := first(a.server, a.env("FALAJ_URL"), named.Server, "http://127.0.0.1:7070")
		var options []client.Option
		ca := a.ca
		if ca != "" {
			var err error
			if ca, err = filepath.Abs(ca); err != nil { // commands are run elsewhere, too
				return err
			}
			options = append(options, client.WithCA(ca))
		}
		token, err := a.newToken(cmd.Context(), server, browser, options)
		if err != nil {
			return err
		}
		c, err := client.New(server, token, options...)
		if err != nil {
			return err
		}
		var who client.Object
		if err := c.Do(cmd.Context(), http.MethodGet, "/api/v1/whoami", nil, &who); err != nil {
			return err
		}
		bound := who.Text("project")
		if bound != "" && a.project != "" && a.project != bound {
			return usage("--project is %s, but the token is bound to project %s; use a token of project %s, or leave --project out", a.project, bound, a.project)
		}
		l, p := a.logins(), first(a.project, bound)
		l.use(credentials{Name: first(a.contextNamed(), contextName(server)), Server: server, Token: token, Project: p, CA: ca})
		if err := a.store(l); err != nil {
			return err
		}
		in := ""
		if p != "" {
			in = " Project: " + p + "."
		}
		a.say("Logged in to %s as %s.%s", server, first(who.Text("name"), who.Text("id")), in)
		return nil
	}
	return cmd
}

// newToken is the token that a login is with: a given one, or by the browser.
func (a *app) newToken(ctx context.Context, server string, browser bool, options []client.Option) (string, error) {
	token := a.env("FALAJ_TOKEN")
	if token != "" && !browser {
		return token, nil
	}
	if browser || a.terminal() {
		c, err := client.New(server, "", options...)
		if err != nil {
			return "", err
		}
		providers, err := providersOf(ctx, c)
		if refused, ok := errors.AsType[*client.Error](err); ok && !browser && (refused.Status == http.StatusUnauthorized || refused.Status == http.StatusNotFound) {
			err = nil // a server of an earlier release, or a gateway
		}
		if err != nil {
			return "", err
		}
		if browser || len(providers) > 0 {
			return a.browserLogin(ctx, c, server)
		}
		fmt.Fprint(a.Stderr, "Access token: ")
	}
	line, _ := bufio.NewReader(a.Stdin).ReadString('\n')
	if token = strings.TrimSpace(line); token == "" {
		return "", usage("no token on standard input")
	}
	return token, nil
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Example: "  falaj version\n  falaj version -o json",
		RunE: func(*cobra.Command, []string) error {
			platform := runtime.GOOS + "/" + runtime.GOARCH
			said := "falaj " + a.Version
			if a.Commit != "" {
				said += fmt.Sprintf("\ncommit %s of %s", a.Commit, a.Built)
			}
			return a.sayOr(map[string]string{"version": a.Version, "commit": a.Commit, "built": a.Built, "go": runtime.Version(), "platform": platform},
				"%s\n%s, %s", said, runtime.Version(), platform)
		},
	}
}

// child is the hidden entry of processes that Falaj starts of itself.
func (a *app) child() *cobra.Command {
	return &cobra.Command{
		Use: "child MODE", Hidden: true, Args: cobra.MinimumNArgs(1), DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			return a.Child(args[0], args[1:], a.Stdin, a.out)
		},
	}
}
