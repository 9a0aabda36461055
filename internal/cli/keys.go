package cli

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

// key shows and destroys the keys of a project.
func (a *app) key() *cobra.Command {
	cmd := &cobra.Command{Use: "key", Aliases: []string{"keys"}, Short: "List and destroy the encryption keys of a project"}
	list := &cobra.Command{
		Use: "list", Short: "List the keys; key material is never printed", Example: "  falaj key list -p nyc", Args: cobra.NoArgs,
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
		Use: "destroy [OWNER]", Short: "Destroy a key permanently (crypto-shredding)",
		Long: "Makes all data sealed by the key unreadable for this installation, including copies of the encrypted objects. A\n" +
			"backup of the database still contains the key, sealed by the master key: both together can decrypt the data\n" +
			"until the backup is destroyed too. OWNER is the owner shown by `falaj key list`; --all selects every key of the\n" +
			"project. Confirm with --confirm: the owner, or the project's name with --all.",
		Example: "  falaj key destroy dataset/weather --confirm dataset/weather -p nyc\n  falaj key destroy --all --confirm nyc -p nyc",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) == 1) {
				return usage("set either OWNER or --all")
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
	destroy.Flags().StringVar(&confirm, "confirm", "", "confirmation: the owner, or the project's name with --all")
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
		Use: "reseal", Short: "Reseal the master key with a new passphrase",
		Long: "Run on the server's machine while the server is stopped. The configured passphrase must open the current key.\n" +
			"Start the server with the new passphrase file afterwards. Copies of the old master.key can still be opened with\n" +
			"the old passphrase.",
		Example: "  falaj key reseal --data ./data --key-passphrase-file old.txt --to new.txt", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (to == "") != bare {
				return usage("set --to to the file of the new passphrase, or --bare to remove it")
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
	cmd.Flags().BoolVar(&bare, "bare", false, "store the key without a passphrase, in a file readable only by the server's user")
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
