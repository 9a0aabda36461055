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
		Short: "Create and list backups",
		Long: "A backup is a consistent snapshot of the metadata, the online features, the logs and the objects, including\n" +
			"objects in a bucket. With DIR, the command backs up the installation of a stopped server: DIR must be empty\n" +
			"or not exist. The backup is complete when the command succeeds. `falaj backup make NAME` backs up a running server. An\n" +
			"interrupted backup cannot be restored; run the same command again. A backup contains the master key. Unless a\n" +
			"passphrase seals the key, protect the backup as you protect the key.",
		Example: "  falaj backup make 2026-11-23\n  falaj backup /mnt/backup/2026-11-23 --config /etc/falaj.yaml",
	}, a.Backup)
	var begin bool
	mk := &cobra.Command{
		Use: "make NAME", Short: "Create a backup of the running server",
		Long: "The backup is written to the directory NAME below `backup.dir` of the server's configuration. It contains every\n" +
			"write acknowledged before its snapshot; the server keeps serving meanwhile.",
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
	mk.Flags().BoolVar(&begin, "no-wait", false, "return once the backup has started, without waiting for it to finish")
	cmd.AddCommand(mk, &cobra.Command{
		Use: "list", Short: "List the backups of the server", Example: "  falaj backup list", Args: cobra.NoArgs,
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
		Use: "stop NAME", Short: "Stop a running backup", Example: "  falaj backup stop 2026-11-23", Args: cobra.ExactArgs(1),
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
			return b, fault.New(fault.Unavailable, "the server was stopped before backup %s was whole", name).WithHint("Run it again: falaj backup make %s", name)
		default:
			return b, fault.New(fault.Unavailable, "backup %s failed: %s", name, plain(b.Text("error"))).WithHint("Nothing of it is left. Run it again: falaj backup make %s", name)
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
		Short: "Restore a backup and verify every byte against its digest",
		Long: "Restores a backup into an empty data directory. Objects are restored to where the configuration stores them: the data\n" +
			"directory or a bucket. An existing erasure ledger is kept, so that persons erased after the backup are erased\n" +
			"again when the server starts. Run an interrupted restore again; the server refuses to start until it completes.\n" +
			"The bucket of the backed-up installation is rejected, because its server may still be running.",
		Example: "  falaj restore /mnt/backup/2026-11-23 --config /etc/falaj.yaml",
	}, func(ctx context.Context, file string, flags map[string]any, dir string) (string, error) {
		return a.Restore(ctx, file, flags, dir, digest, takeBucket)
	})
	cmd.Flags().BoolVar(&takeBucket, "take-bucket", false, "restore into the bucket of the backed-up installation, whose server is permanently stopped")
	cmd.Flags().StringVar(&digest, "digest", "", "required digest, as printed when the backup was made; any other backup is rejected")
	return cmd
}
