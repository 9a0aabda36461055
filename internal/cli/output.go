package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"go.yaml.in/yaml/v3"

	"github.com/falaj-ml/falaj/client"
)

// column is one column of a table: its heading and the dotted path of its value.
type column struct{ head, path string }

// print writes objects in the chosen format.
func (a *app) print(objects []client.Object, columns []column) error {
	return a.printTable(objects, columns, cell)
}

// printWhole is print with whole words and digests, however long they are.
func (a *app) printWhole(objects []client.Object, columns []column) error {
	return a.printTable(objects, columns, wholeCell)
}

func (a *app) printTable(objects []client.Object, columns []column, cell func(o client.Object, path string) string) error {
	switch a.output {
	case "json":
		return a.printJSON(objects)
	case "yaml":
		return a.printYAML(objects)
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 4, 2, ' ', 0)
	heads := make([]string, len(columns))
	for i, c := range columns {
		heads[i] = c.head
	}
	fmt.Fprintln(w, strings.Join(heads, "\t"))
	for _, o := range objects {
		cells := make([]string, len(columns))
		for i, c := range columns {
			cells[i] = cell(o, c.path)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}

func cell(o client.Object, path string) string {
	return clipped(wholeCell(o, path))
}

// clipped shortens a text for a table, with a mark.
func clipped(v string) string {
	if len(v) > 60 {
		return strings.ToValidUTF8(v[:57], "") + "…"
	}
	return v
}

func wholeCell(o client.Object, path string) string {
	v := o.Text(path)
	if m, ok := o[path].(map[string]any); ok && path == "metrics" {
		v = measured(m)
	}
	if t, err := time.Parse(time.RFC3339Nano, v); err == nil {
		if t.IsZero() {
			return "-"
		}
		return t.Local().Format("2006-01-02 15:04:05")
	}
	if v = plain(v); v == "" {
		return "-"
	}
	return v
}

// measured is the latest of a run's metrics by name, in few digits.
func measured(metrics map[string]any) string {
	said := make([]string, 0, len(metrics))
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		v := fmt.Sprint(metrics[name])
		if f, err := strconv.ParseFloat(v, 64); err == nil && !math.IsInf(f, 0) {
			v = significant(f, 4)
		}
		said = append(said, name+"="+v)
	}
	return strings.Join(said, " ")
}

// significant is a statistic with n significant digits, but all digits of its whole part:
// 1364363.326 in 4 digits is 1364363.
func significant(v float64, n int) string {
	if size := math.Abs(v); size >= 1 && size < 1e15 {
		n = max(n, len(strconv.FormatFloat(math.Round(size), 'f', 0, 64)))
	}
	return strconv.FormatFloat(v, 'g', n, 64)
}

// printOne writes one object: JSON, YAML, or YAML-like lines for people.
func (a *app) printOne(v any) error {
	if a.output == "json" {
		return a.printJSON(v)
	}
	return a.printYAML(v)
}

func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.Stdout)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func (a *app) printYAML(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	n, err := yamlOf(d)
	if err != nil {
		return err
	}
	e := yaml.NewEncoder(a.Stdout)
	e.SetIndent(2)
	e.CompactSeqIndent()
	return errors.Join(e.Encode(n), e.Close())
}

// yamlOf is the next value of JSON as YAML, its fields in the order in which they stand.
func yamlOf(d *json.Decoder) (*yaml.Node, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	delim, nested := t.(json.Delim)
	if !nested {
		n := &yaml.Node{}
		if number, ok := t.(json.Number); ok {
			n.Kind, n.Value = yaml.ScalarNode, number.String()
			return n, nil
		}
		err := n.Encode(t)
		if text, ok := t.(string); ok && strings.ContainsFunc(text, obeyed) {
			n.Style = yaml.DoubleQuotedStyle // in which the escapes of visible mean the same
		}
		return n, err
	}
	n := &yaml.Node{Kind: yaml.SequenceNode}
	if delim == '{' {
		n.Kind = yaml.MappingNode
	}
	for d.More() {
		item, err := yamlOf(d) // in a mapping a key, then its value
		if err != nil {
			return nil, err
		}
		n.Content = append(n.Content, item)
	}
	if len(n.Content) == 0 {
		n.Style = yaml.FlowStyle
	}
	_, err = d.Token() // the end
	return n, err
}

// sayOr says it to people, or writes the object for programs.
func (a *app) sayOr(o any, format string, args ...any) error {
	if a.output != "table" {
		return a.printOne(o)
	}
	a.say(format, args...)
	return nil
}

func (a *app) say(format string, args ...any) { fmt.Fprintf(a.Stdout, format+"\n", args...) }

// terminal reports whether progress may be drawn on stderr.
func (a *app) terminal() bool {
	return isTerminal(a.screen) && a.env("TERM") != "dumb" && a.env("CI") == ""
}

// progress wraps a reader of known size with a bar on terminals; done ends it.
func (a *app) progress(what string, size int64, r io.Reader) (wrapped io.Reader, done func()) {
	if !a.terminal() || size <= 0 {
		return r, func() {}
	}
	p := mpb.New(mpb.WithOutput(a.screen), mpb.WithWidth(40))
	bar := p.AddBar(size,
		mpb.PrependDecorators(decor.Name(plain(what)+" "), decor.CountersKibiByte("% .1f / % .1f")),
		mpb.AppendDecorators(decor.OnComplete(decor.AverageETA(decor.ET_STYLE_GO), "checking")))
	return bar.ProxyReader(r), func() {
		bar.Abort(false)
		p.Wait()
	}
}

// keys lists a map's keys in order, for messages.
func keys[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for k := range m {
		names = append(names, k)
	}
	slices.Sort(names)
	return names
}
