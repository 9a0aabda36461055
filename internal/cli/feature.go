package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

func (a *app) featureDiff() *cobra.Command {
	return &cobra.Command{
		Use: "diff A B", Short: "Compare two versions of a feature view or service", Args: cobra.ExactArgs(2),
		Long: "Each argument is NAME, the newest version, or NAME@VERSION or NAME@ALIAS. The applied specifications are compared,\n" +
			"not their authors and times.",
		Example: "  falaj feature diff weather@1 weather -p nyc\n  falaj feature diff delay@prod delay@3 -p nyc",
		RunE: func(cmd *cobra.Command, args []string) error {
			kind := "feature-views"
			first, err := a.definition(cmd, kind, args[0])
			if missing(err) {
				kind = "feature-services"
				if first, err = a.definition(cmd, kind, args[0]); missing(err) {
					return fault.New(fault.NotFound, "feature view or service %q not found", args[0]).
						WithHint("List versions with falaj feature versions NAME.")
				}
			}
			if err != nil {
				return err
			}
			second, err := a.definition(cmd, kind, args[1])
			if err != nil {
				return err
			}
			changes := differences(first, second)
			names := [2]string{versionOf(first), versionOf(second)}
			if len(changes) == 0 && a.output == "table" {
				a.say("%s and %s are the same", names[0], names[1])
				return nil
			}
			return a.printWhole(changes, []column{{"WHAT", "what"}, {names[0], "a"}, {names[1], "b"}})
		},
	}
}

func (a *app) definition(cmd *cobra.Command, kind, ref string) (o client.Object, err error) {
	err = a.call(cmd, http.MethodGet, nil, &o, kind, ref)
	return o, err
}

func missing(err error) bool {
	refused, ok := errors.AsType[*client.Error](err)
	return ok && refused.Kind == fault.NotFound.String()
}

func versionOf(o client.Object) string { return o.Text("name") + "@" + o.Text("version") }

// differences lists where two definitions are not the same, by the path of what
// differs: "features.temp.type".
func differences(a, b client.Object) []client.Object {
	left, right := map[string]string{}, map[string]string{}
	flatten("", map[string]any(a), left)
	flatten("", map[string]any(b), right)
	all := maps.Clone(left)
	maps.Copy(all, right)
	out := []client.Object{}
	for _, path := range slices.Sorted(maps.Keys(all)) {
		switch path { // who applied it, and when
		case "version", "digest", "created_at", "created_by", "project", "name":
			continue
		}
		if left[path] != right[path] {
			out = append(out, client.Object{"what": path, "a": left[path], "b": right[path]})
		}
	}
	return out
}

// flatten writes the leaves of a JSON value. What has a name is told apart by it,
// so that a feature that moved has not changed.
func flatten(path string, v any, out map[string]string) {
	under := func(part string) string { return strings.TrimPrefix(path+"."+part, ".") }
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			flatten(under(k), x, out)
		}
	case client.Object:
		flatten(path, map[string]any(v), out)
	case []any:
		for i, x := range v {
			part := strconv.Itoa(i + 1)
			if m, ok := x.(map[string]any); ok {
				if name, ok := m["name"].(string); ok {
					m = maps.Clone(m)
					delete(m, "name")
					part, x = name, m
					out[under(part)] = "there"
				}
			} else if text, ok := x.(string); ok {
				part, x = text, "there"
			}
			flatten(under(part), x, out)
		}
	case nil:
	case string:
		out[path] = v
	default:
		b, err := json.Marshal(v)
		if err != nil {
			b = fmt.Append(nil, v)
		}
		out[path] = string(b)
	}
}
