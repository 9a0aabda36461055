package cli

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/resource"
)

func (a *app) projects() *cobra.Command {
	cmd := &cobra.Command{Use: "project", Aliases: []string{"projects"}, Short: "Show projects: stored bytes and quota"}
	cmd.AddCommand(a.projectUsage())
	return cmd
}

// usedStorage is what is stored, of a project or of a kind.
type usedStorage struct {
	Kind           string
	Bytes, Objects int64
}

func (a *app) projectUsage() *cobra.Command {
	return &cobra.Command{
		Use: "usage [PROJECT]", Short: "Show what a project stores, by kind, and its quota", Args: cobra.MaximumNArgs(1),
		Long: "Files of datasets, artifacts, models, checkpoints, sources and logs of jobs that have ended count, as they are stored.\n" +
			"The quota is spec.quota of the project's manifest.",
		Example: "  falaj project usage flights\n  falaj project usage flights -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, project, err := a.connection(args)
			if err != nil {
				return err
			}
			path := "/api/v1/projects/" + url.PathEscape(project) + "/usage"
			if a.output != "table" {
				var o client.Object
				if err := c.Do(cmd.Context(), http.MethodGet, path, nil, &o); err != nil {
					return err
				}
				return a.printOne(o)
			}
			var all struct {
				Quota struct {
					Bytes   resource.Bytes
					Objects int64
				}
				usedStorage
				Kinds []usedStorage
			}
			if err := c.Do(cmd.Context(), http.MethodGet, path, nil, &all); err != nil {
				return err
			}
			all.Kind = "all"
			rows := make([]client.Object, 0, len(all.Kinds)+2)
			for _, u := range append(all.Kinds, all.usedStorage) {
				rows = append(rows, client.Object{"kind": u.Kind, "bytes": resource.Bytes(u.Bytes).Words(), "files": strconv.FormatInt(u.Objects, 10)})
			}
			quota := client.Object{"kind": "quota", "bytes": "no limit", "files": "no limit"}
			if all.Quota.Bytes > 0 {
				quota["bytes"] = all.Quota.Bytes.Words()
			}
			if all.Quota.Objects > 0 {
				quota["files"] = strconv.FormatInt(all.Quota.Objects, 10)
			}
			return a.print(append(rows, quota), []column{{"KIND", "kind"}, {"STORED", "bytes"}, {"FILES", "files"}})
		},
	}
}

// connection is to the server, for the project that an argument names, or else the flag.
func (a *app) connection(args []string) (c *client.Client, project string, err error) {
	if len(args) == 0 {
		return a.in()
	}
	c, err = a.connect()
	return c, args[0], err
}
