package cli

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

// credentials are a login, a context as kubectl calls it: which server, as whom, and the
// project to act in.
type credentials struct {
	Name    string `json:"name,omitempty"`
	Server  string `json:"server"`
	Token   string `json:"token"`
	Project string `json:"project,omitempty"`
	CA      string `json:"ca,omitempty"`
}

// logins are all contexts of a user: the current one, and the others.
type logins struct {
	credentials
	Others []credentials `json:"contexts,omitempty"`
}

// all lists the contexts, the current one first.
func (l *logins) all() []credentials {
	if l.Server == "" && l.Token == "" {
		return l.Others
	}
	return append([]credentials{l.credentials}, l.Others...)
}

// find is the context of a name.
func (l *logins) find(name string) (credentials, error) {
	var names []string
	for _, c := range l.all() {
		if c.Name == name {
			return c, nil
		}
		names = append(names, c.Name)
	}
	hint := "Create one with `falaj login --context " + fault.ShellWord(name) + "`."
	if len(names) > 0 {
		hint = "There are " + strings.Join(names, ", ") + ". " + hint
	}
	return credentials{}, fault.New(fault.NotFound, "context %q not found", name).WithHint("%s", hint)
}

// use makes a context the current one.
func (l *logins) use(c credentials) {
	rest := slices.DeleteFunc(l.all(), func(o credentials) bool { return o.Name == c.Name })
	*l = logins{credentials: c, Others: rest}
}

// add keeps a context beside the current one.
func (l *logins) add(c credentials) {
	l.Others = append(slices.DeleteFunc(l.Others, func(o credentials) bool { return o.Name == c.Name }), c)
}

// remove forgets a context. Without a current one, the next command asks for one.
func (l *logins) remove(name string) {
	rest := slices.DeleteFunc(l.all(), func(o credentials) bool { return o.Name == name })
	if l.Name == name {
		l.credentials = credentials{}
	} else if len(rest) > 0 {
		rest = rest[1:]
	}
	l.Others = rest
}

// contextName is how the context of a server is called that has no other name.
func contextName(server string) string {
	if u, err := url.Parse(server); err == nil && u.Host != "" {
		return u.Host
	}
	return server
}

func (a *app) credentialsPath() string {
	dir := a.env("XDG_CONFIG_HOME")
	if dir == "" {
		dir = filepath.Join(a.env("HOME"), ".config")
	}
	return filepath.Join(dir, "falaj", "credentials.json")
}

// maxCredentials bounds the file of contexts, in bytes.
const maxCredentials = 4 << 20

// readPrivate reads the file of contexts, which has tokens. One that others may read is made
// private. Error: fault.Invalid for what is no plain file of the user, or is too large: what
// another user wrote may name another server for a token.
func (a *app) readPrivate(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe in its place is not waited for
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular() || info.Size() > maxCredentials:
		return nil, fault.New(fault.Invalid, "%s is not a valid contexts file", path).WithHint("Remove it, and log in again: falaj login")
	case known && os.Geteuid() != 0 && owner.Uid != 0 && int(owner.Uid) != os.Geteuid():
		return nil, fault.New(fault.Invalid, "%s belongs to another user (%d)", path, owner.Uid).WithHint("Remove it, and log in again: falaj login")
	case info.Mode().Perm()&0o077 != 0 && known && int(owner.Uid) != os.Geteuid():
		a.note("others may read the tokens in %s (mode %04o); its owner can change that", path, info.Mode().Perm())
	case info.Mode().Perm()&0o077 != 0:
		if err := f.Chmod(0o600); err != nil {
			return nil, fault.New(fault.Invalid, "others may read the tokens in %s (mode %04o): %w", path, info.Mode().Perm(), err).WithHint("Run: chmod 0600 %s", fault.ShellWord(path))
		}
		a.note("others could read the tokens in %s (mode %04o); it is private now", path, info.Mode().Perm())
	}
	return io.ReadAll(io.LimitReader(f, maxCredentials))
}

func (a *app) logins() *logins {
	l := &logins{}
	b, err := a.readPrivate(a.credentialsPath())
	if err == nil {
		_ = json.Unmarshal(b, l) // a broken file is as good as none; login writes a new one
	} else if !errors.Is(err, fs.ErrNotExist) && !a.unreadable {
		a.unreadable = true // it is read several times
		a.note("contexts are not used: %v. %s", err, fault.HintOf(err))
	}
	if l.Name == "" && l.Server != "" {
		l.Name = contextName(l.Server)
	}
	return l
}

func (a *app) store(l *logins) error {
	path := a.credentialsPath()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	b, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	// A file of its own: one of a known name could be a link that somebody made before.
	tmp, err := os.CreateTemp(filepath.Dir(path), "credentials-*.tmp") // for the user alone
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = tmp.Write(b)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// stored is the context of a command: the named one, that of the named server, or the
// current one.
func (a *app) stored() credentials {
	l := a.logins()
	if name := a.contextNamed(); name != "" {
		c, _ := l.find(name) // it was looked for before the command ran
		return c
	}
	server := first(a.server, a.env("FALAJ_URL"))
	if server == "" || server == l.Server {
		return l.credentials
	}
	for _, c := range l.Others {
		if c.Server == server {
			return c
		}
	}
	return credentials{}
}

func (a *app) contextNamed() string { return first(a.context, a.env("FALAJ_CONTEXT")) }

// keep stores the first token of a server that was started here. The login of another
// server stays in use.
func (a *app) keep(server, token, ca string) error {
	if a.env("HOME") == "" && a.env("XDG_CONFIG_HOME") == "" {
		// A service account: nobody's command line.
		return fault.New(fault.Unsupported, "neither HOME nor XDG_CONFIG_HOME is set")
	}
	c, l := credentials{Name: contextName(server), Server: server, Token: token, CA: ca}, a.logins()
	if l.Server == "" || l.Server == server {
		l.use(c)
		return a.store(l)
	}
	l.add(c)
	if err := a.store(l); err != nil {
		return err
	}
	a.say("The command line stays with %s. This server is the context %s: falaj context use %s", l.Server, c.Name, c.Name)
	return nil
}

func (a *app) contexts() *cobra.Command {
	cmd := &cobra.Command{
		Use: "context", Aliases: []string{"contexts"}, Short: "Switch between the servers you are logged in to",
		Long: "`falaj login` and the first `falaj up` of a server store a context: the server, the token, the certificate\n" +
			"authority and the project. One context is current; --context or FALAJ_CONTEXT selects another for one command.",
	}
	cmd.AddCommand(a.contextList(), a.contextUse(), a.contextDelete())
	return cmd
}

func (a *app) contextList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List contexts", Args: cobra.NoArgs, Example: "  falaj context list",
		RunE: func(*cobra.Command, []string) error {
			l := a.logins()
			all := l.all()
			slices.SortFunc(all, func(x, y credentials) int { return strings.Compare(x.Name, y.Name) })
			objects := []client.Object{}
			for _, c := range all {
				current := ""
				if c.Name == l.Name {
					current = "*"
				}
				objects = append(objects, client.Object{"current": current, "name": c.Name, "server": c.Server, "project": c.Project})
			}
			return a.print(objects, []column{{"CURRENT", "current"}, {"NAME", "name"}, {"SERVER", "server"}, {"PROJECT", "project"}})
		},
	}
}

func (a *app) contextUse() *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Set the current context", Args: cobra.ExactArgs(1), Example: "  falaj context use falaj.example:7070",
		ValidArgsFunction: a.completeContext,
		RunE: func(_ *cobra.Command, args []string) error {
			l := a.logins()
			c, err := l.find(args[0])
			if err != nil {
				return err
			}
			l.use(c)
			if err := a.store(l); err != nil {
				return err
			}
			return a.sayOr(map[string]string{"name": c.Name, "server": c.Server, "project": c.Project}, "Commands go to %s.", c.Server)
		},
	}
}

func (a *app) contextDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME", Short: "Delete a context; its token stays valid", Args: cobra.ExactArgs(1), Example: "  falaj context delete 127.0.0.1:7171",
		ValidArgsFunction: a.completeContext,
		RunE: func(_ *cobra.Command, args []string) error {
			l := a.logins()
			c, err := l.find(args[0])
			if err != nil {
				return err
			}
			l.remove(c.Name)
			if err := a.store(l); err != nil {
				return err
			}
			return a.sayOr(map[string]string{"name": c.Name, "server": c.Server}, "%s is forgotten.", c.Name)
		},
	}
}

func (a *app) completeContext(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, c := range a.logins().all() {
		names = append(names, c.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
