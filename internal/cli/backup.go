package cli

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

const backupsPath = "/api/v1/backups"

func (a *app) backup() *cobra.Command {
	cmd := a.offline(&cobra.Command{
		Use:   "backup DIR",
		Short: "Copy metadata, online features and objects into a directory",
		Long: "Everything is of one moment: the metadata, the online features, the logs and the objects, also those in a\n" +
			"bucket. With DIR, the installation of a server that is stopped: the directory is made, or empty, and is whole\n" +
			"when the command says so. A server that runs is asked by `falaj backup make NAME`. A backup that was\n" +
			"interrupted cannot be restored, and is made anew by the same command. It has the master key, if no\n" +
			"passphrase seals it: keep it as you keep that.",
		Example: "  falaj backup make 2026-11-23\n  falaj backup /mnt/backup/2026-11-23 --config /etc/falaj.yaml",
	}, a.Backup)
	var begin bool
	mk := &cobra.Command{
		Use: "make NAME", Short: "Have the running server make a backup of itself",
		Long: "Into the directory NAME below `backup.dir` of its configuration. Everything that was acknowledged up to the\n" +
			"moment that the backup is of is in it; the server goes on meanwhile.",
		Example: "  falaj backup make 2026-11-23\n  falaj backup make nightly-17 --no-wait", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			var b client.Object
			if err := c.Do(cmd.Context(), http.MethodPost, backupsPath, map[string]any{"name": args[0]}, &b); err != nil {
				return err
			}
			if !begin {
				if b, err = a.awaitBackup(cmd.Context(), c, args[0]); err != nil {
					return err
				}
			}
			if a.output != "table" {
				return a.printOne(b)
			}
			if begin {
				a.say("The server makes backup %s: falaj backup list", args[0])
				return nil
			}
			a.say("Backed up %s files and %s objects, %s: %s, of %s, sequence %s", first(b.Text("files"), "0"), first(b.Text("objects"), "0"), sized(b.Text("bytes")), b.Text("name"), b.Text("of"), b.Text("sequence"))
			a.say("Its digest, for falaj restore --digest: %s", b.Text("digest"))
			return nil
		},
	}
	mk.Flags().BoolVar(&begin, "no-wait", false, "return when it is begun, not when it is done")
	cmd.AddCommand(mk, &cobra.Command{
		Use: "list", Short: "List the backups that the server has made of itself", Example: "  falaj backup list", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all := []client.Object{}
			if err := c.List(cmd.Context(), backupsPath, nil, func(o client.Object) error {
				all = append(all, o)
				return nil
			}); err != nil {
				return err
			}
			if a.output == "table" {
				for _, b := range all {
					if n := b.Text("bytes"); n != "" {
						b["size"] = sized(n)
					}
				}
			}
			return a.print(all, []column{{"NAME", "name"}, {"STATE", "state"}, {"OF", "of"}, {"SEQUENCE", "sequence"}, {"SIZE", "size"}, {"ERROR", "error"}})
		},
	}, &cobra.Command{
		Use: "stop NAME", Short: "Stop the making of a backup", Example: "  falaj backup stop 2026-11-23", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			var b client.Object
			if err := c.Do(cmd.Context(), http.MethodPost, backupsPath+"/"+url.PathEscape(args[0])+"/stop", nil, &b); err != nil {
				return err
			}
			return a.sayOr(b, "Backup %s is %s.", args[0], b.Text("state"))
		},
	})
	return cmd
}

// sized is a number of bytes for people.
func sized(bytes string) string {
	n, err := strconv.ParseInt(first(bytes, "0"), 10, 64)
	if err != nil {
		return bytes + " bytes"
	}
	return resource.Bytes(n).Words()
}

// awaitBackup asks until it is made, and says how far it is.
func (a *app) awaitBackup(ctx context.Context, c *client.Client, name string) (b client.Object, err error) {
	for told := time.Now(); ; {
		b = nil
		if err := a.await(ctx, c, backupsPath+"/"+url.PathEscape(name), &b); err != nil {
			return b, err
		}
		switch b.Text("state") {
		case "whole":
			return b, nil
		case "making":
		case "interrupted":
			return b, fault.New(fault.Unavailable, "the server was stopped before backup %s was whole", name).WithHint("Make it again: falaj backup make %s", name)
		default:
			return b, fault.New(fault.Unavailable, "backup %s was not made: %s", name, plain(b.Text("error"))).WithHint("Nothing of it is left. Make it again: falaj backup make %s", name)
		}
		if time.Since(told) > 2*time.Second {
			told = time.Now()
			a.note("%s files, %s objects, %s", first(b.Text("files"), "0"), first(b.Text("objects"), "0"), sized(b.Text("bytes")))
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return b, err
		}
	}
}

func (a *app) restore() *cobra.Command {
	var takeBucket bool
	var digest string
	cmd := a.offline(&cobra.Command{
		Use:   "restore DIR",
		Short: "Put a backup back, and compare every byte with its digest",
		Long: "Into an empty data directory, whose objects go where the configuration says: into the data directory, or\n" +
			"a bucket. An erasure ledger that is there stays, so that persons who were erased since are erased again\n" +
			"when the server starts. One that was interrupted is run again; no server starts before. The bucket of the\n" +
			"installation that was backed up is refused: its server may be running.",
		Example: "  falaj restore /mnt/backup/2026-11-23 --config /etc/falaj.yaml",
	}, func(ctx context.Context, file string, flags map[string]any, dir string) (string, error) {
		return a.Restore(ctx, file, flags, dir, digest, takeBucket)
	})
	cmd.Flags().BoolVar(&takeBucket, "take-bucket", false, "take the bucket of the installation that was backed up, whose server is gone for good")
	cmd.Flags().StringVar(&digest, "digest", "", "refuse a backup with another digest than the one that was printed when it was made")
	return cmd
}
