package cli

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

func (a *app) search() *cobra.Command {
	return &cobra.Command{
		Use: "search WORD…", Short: "Find objects by name, owner, tag, column or lineage", Args: cobra.MinimumNArgs(1),
		Long: "Finds objects that match all words in their name, description, owner, tags, columns or upstream lineage. A\n" +
			"prefix restricts a word to one field: name:, kind:, owner:, tag:, column:, description: or from:. Only objects\n" +
			"you have permission to see are found.",
		Example: "  falaj search delay -p nyc\n  falaj search column:temp kind:feature_view -p nyc\n  falaj search from:weather owner:alice -p nyc -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			for i, word := range args {
				field, text, split := strings.Cut(word, ":")
				switch {
				case !strings.Contains(word, " "):
				case split && !strings.Contains(field, " "):
					args[i] = field + `:"` + text + `"`
				default:
					args[i] = `"` + word + `"`
				}
			}
			path, err := a.inProjectPath("search")
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			found := []client.Object{}
			if err := c.List(cmd.Context(), path, url.Values{"q": {strings.Join(args, " ")}}, func(o client.Object) error {
				if a.output == "table" {
					o["matches"] = foundIn(o)
				}
				found = append(found, o)
				return nil
			}); err != nil {
				return err
			}
			return a.print(found, []column{{"KIND", "kind"}, {"NAME", "name"}, {"OWNER", "owner"}, {"FOUND IN", "matches"}, {"DESCRIPTION", "description"}})
		},
	}
}

// foundIn says where the words are, but for the name, which stands beside.
func foundIn(o client.Object) string {
	list, _ := o["matches"].([]any)
	var out []string
	for _, m := range list {
		if m, ok := m.(map[string]any); ok && m["field"] != "name" && m["field"] != "description" {
			out = append(out, fmt.Sprintf("%v %v", m["field"], m["value"]))
		}
	}
	return strings.Join(out, ", ")
}
