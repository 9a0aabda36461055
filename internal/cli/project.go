package cli

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
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
		Long: "Usage is the stored size of the files of datasets, artifacts, models, checkpoints and sources, and of the logs of\n" +
			"ended jobs. The quota is spec.quota of the project's manifest; spec.quota.kinds limits individual kinds.",
		Example: "  falaj project usage flights\n  falaj project usage flights -o json",
		RunE: func(command *cobra.Command, args []string) error {
			c, project, err := a.connection(args)
			if err != nil {
				return err
			}
			path := "/api/v1/projects/" + url.PathEscape(project) + "/usage"
			if a.output != "table" {
				var o client.Object
				if err := c.Do(command.Context(), http.MethodGet, path, nil, &o); err != nil {
					return err
				}
				return a.printOne(o)
			}
			var all struct {
				Quota struct {
					storageQuota
					Kinds map[string]storageQuota
				}
				usedStorage
				Kinds []usedStorage
			}
			if err := c.Do(command.Context(), http.MethodGet, path, nil, &all); err != nil {
				return err
			}
			for kind := range all.Quota.Kinds {
				if !slices.ContainsFunc(all.Kinds, func(u usedStorage) bool { return u.Kind == kind }) {
					all.Kinds = append(all.Kinds, usedStorage{Kind: kind})
				}
			}
			slices.SortFunc(all.Kinds, func(a, b usedStorage) int { return cmp.Compare(a.Kind, b.Kind) })
			all.Kind = "all"
			rows := make([]client.Object, 0, len(all.Kinds)+2)
			for _, u := range append(all.Kinds, all.usedStorage) {
				row := client.Object{"kind": u.Kind, "bytes": resource.Bytes(u.Bytes).Words(), "files": strconv.FormatInt(u.Objects, 10)}
				if of, ok := all.Quota.Kinds[u.Kind]; ok {
					row["byte_quota"], row["file_quota"] = of.words()
				}
				rows = append(rows, row)
			}
			quota := client.Object{"kind": "quota"}
			quota["bytes"], quota["files"] = all.Quota.words()
			columns := []column{{"KIND", "kind"}, {"STORED", "bytes"}, {"FILES", "files"}}
			if len(all.Quota.Kinds) > 0 {
				columns = append(columns, column{"QUOTA", "byte_quota"}, column{"FILE QUOTA", "file_quota"})
			}
			return a.print(append(rows, quota), columns)
		},
	}
}

// storageQuota is a quota, of a project or of a kind.
type storageQuota struct {
	Bytes   resource.Bytes
	Objects int64
}

func (q storageQuota) words() (bytes, files string) {
	bytes, files = "no limit", "no limit"
	if q.Bytes > 0 {
		bytes = q.Bytes.Words()
	}
	if q.Objects > 0 {
		files = strconv.FormatInt(q.Objects, 10)
	}
	return bytes, files
}

// connection is to the server, for the project that an argument names, or else the flag.
func (a *app) connection(args []string) (c *client.Client, project string, err error) {
	if len(args) == 0 {
		return a.in()
	}
	c, err = a.connect()
	return c, args[0], err
}
