package trackingtest

import (
	"strings"

	"pgregory.net/rapid"
)

// Filters draws texts that look like filters of MLflow's searches: most of them
// are, some are nearly.
func Filters() *rapid.Generator[string] {
	key := rapid.OneOf(
		rapid.SampledFrom([]string{
			"name", "status", "run_id", "run_name", "start_time", "end_time", "user_id", "artifact_uri", "creation_time", "last_update_time", "experiment_id",
			"model_type", "creation_timestamp", "last_updated_timestamp", "source_run_id", "version_number", "source_path", "created", "`run name`", "metrics.a", "metrics.`a b`", "params.\"x\"", "params.x", "tags.t",
			"tag.`mlflow.runName`", "datasets.name", "dataset.context", "attributes.name", "attribute.name", "attr.status", "foo", "foo.bar", "metrics.'a'", "params.?", "tags.`%s`", "tags.$1", "metrics.a;b", "tags.`a``b`",
		}),
		rapid.Map(rapid.String(), func(s string) string { return "tags.`" + strings.ReplaceAll(s, "`", "") + "`" }),
	)
	op := rapid.SampledFrom([]string{"=", "!=", ">", ">=", "<", "<=", "LIKE", "ILIKE", "like", "IN", "NOT IN", "IS NULL", "IS NOT NULL", "==", "~", "NOT LIKE", ""})
	text := rapid.Map(rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"%", "_", "[", "*?", `\`, "a%b_c", "'; DROP TABLE tracking_run; --", "?", "$1", "?0", "{}", "\x00", "É"})),
		func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" })
	value := rapid.OneOf(text, text, rapid.SampledFrom([]string{
		"1", "-1.5", "1e308", "1e400", "9223372036854775808", "0x1", "NaN", "Infinity", ".5", "5.", "\"quoted\"", "bare", "()", "('a')", "('a','b')", "('a',)", "(1)", "", "'", "NULL", "1 2",
	}), rapid.Map(rapid.SliceOfN(text, 0, 5), func(list []string) string { return "(" + strings.Join(list, ", ") + ")" }))
	comparison := rapid.Custom(func(t *rapid.T) string {
		o := op.Draw(t, "operator")
		if strings.HasPrefix(o, "IS") {
			return key.Draw(t, "key") + " " + o
		}
		space := rapid.SampledFrom([]string{" ", "", "\n"}).Draw(t, "space")
		return key.Draw(t, "key") + space + o + space + value.Draw(t, "value")
	})
	return rapid.Custom(func(t *rapid.T) string {
		joint := rapid.SampledFrom([]string{" AND ", " and ", " AND ", " OR ", " "}).Draw(t, "joint")
		return strings.Join(rapid.SliceOfN(comparison, 0, 4).Draw(t, "comparisons"), joint)
	})
}

// Orders draws texts that look like clauses of order_by.
func Orders() *rapid.Generator[[]string] {
	clause := rapid.Custom(func(t *rapid.T) string {
		key := rapid.SampledFrom([]string{"name", "start_time", "metrics.a", "metrics.`a b`", "params.x", "tags.t", "status", "creation_time", "creation_timestamp", "last_updated_timestamp", "version_number", "run_id", "foo", "tags.`'`", "?", "name;"}).Draw(t, "key")
		return key + rapid.SampledFrom([]string{"", " ASC", " DESC", " desc", " UP", "--"}).Draw(t, "direction")
	})
	return rapid.SliceOfN(clause, 0, 3)
}
