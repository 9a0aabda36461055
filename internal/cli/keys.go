package cli

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

// key shows and destroys the keys of a project.
func (a *app) key() *cobra.Command {
	cmd := &cobra.Command{Use: "key", Aliases: []string{"keys"}, Short: "List the keys that seal a project's data, and destroy them"}
	list := &cobra.Command{
		Use: "list", Short: "List which keys exist, never the keys", Example: "  falaj key list -p nyc", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, c, err := a.keyPath()
			if err != nil {
				return err
			}
			var objects []client.Object
			if err := c.List(cmd.Context(), path, nil, func(o client.Object) error {
				objects = append(objects, o)
				return nil
			}); err != nil {
				return err
			}
			return a.print(objects, []column{{"ID", "id"}, {"OWNER", "owner"}, {"STATE", "state"}, {"CREATED", "created_at"}, {"DESTROYED", "destroyed_at"}})
		},
	}
	var confirm string
	var all bool
	destroy := &cobra.Command{
		Use: "destroy [OWNER]", Short: "Destroy a key for ever, and with it all that it sealed",
		Long: "Erases what the key sealed: this installation cannot read it again, nor can a copy of the encrypted\n" +
			"objects be read. A backup of the database still has the key, sealed by the master key: who holds both\n" +
			"can read on until the backup is destroyed too. OWNER is as `falaj key list` shows it; --all is every\n" +
			"key of the project. Say what you mean twice: --confirm repeats the owner, or the project's name for all.",
		Example: "  falaj key destroy dataset/weather --confirm dataset/weather -p nyc\n  falaj key destroy --all --confirm nyc -p nyc",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) == 1) {
				return usage("name one OWNER, or give --all")
			}
			path, c, err := a.keyPath()
			if err != nil {
				return err
			}
			body := map[string]string{"confirm": confirm}
			what := "every key of the project"
			if !all {
				body["owner"], what = args[0], "key "+args[0]
			}
			if err := c.Do(cmd.Context(), http.MethodPost, path+"/destroy", body, nil); err != nil {
				return err
			}
			a.say("%s destroyed", what)
			return nil
		},
	}
	destroy.Flags().StringVar(&confirm, "confirm", "", "the owner once more, or the project's name with --all")
	destroy.Flags().BoolVar(&all, "all", false, "every key of the project")
	cmd.AddCommand(list, destroy, a.reseal())
	return cmd
}

// reseal changes the passphrase of the master key.
func (a *app) reseal() *cobra.Command {
	var c configArgs
	var to string
	var bare bool
	cmd := &cobra.Command{
		Use: "reseal", Short: "Seal the master key by another passphrase",
		Long: "For the operator of the machine, while the server is stopped. The passphrase that seals the key now is\n" +
			"the configured one. Start the server with the new file afterwards. Copies of the old master.key still\n" +
			"open with the old passphrase.",
		Example: "  falaj key reseal --data ./data --key-passphrase-file old.txt --to new.txt", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (to == "") != bare {
				return usage("give the file of the new passphrase with --to, or --bare for none")
			}
			file, values, err := c.read(a, cmd.Flags())
			if err != nil {
				return err
			}
			if err := a.Reseal(file, values, to); err != nil {
				return err
			}
			if bare {
				a.say("The master key is a plain file now. Start the server without a passphrase file.")
				return nil
			}
			a.say("The master key is sealed by the new passphrase. Start the server with --key-passphrase-file %s.", to)
			return nil
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "file of the new passphrase")
	cmd.Flags().BoolVar(&bare, "bare", false, "leave the key unsealed, in a file that only the server's user may read")
	c.register(cmd.Flags())
	return cmd
}

func (a *app) keyPath() (string, *client.Client, error) {
	p, err := a.inProject()
	if err != nil {
		return "", nil, err
	}
	c, err := a.connect()
	return "/api/v1/projects/" + url.PathEscape(p) + "/keys", c, err
}
