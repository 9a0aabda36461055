package config

import (
	"fmt"
	"net/url"
	"reflect"
	"strings"

	"github.com/agnivade/levenshtein"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

type field struct {
	key   string
	value any
	doc   string
}

// fields flattens the configuration into dotted keys, in the order of the type.
func fields(c Config) []field {
	var out []field
	var walk func(v reflect.Value, prefix string)
	walk = func(v reflect.Value, prefix string) {
		for i := range v.NumField() {
			f := v.Type().Field(i)
			key := prefix + f.Tag.Get("koanf")
			if f.Type.Kind() == reflect.Struct {
				walk(v.Field(i), key+".")
				continue
			}
			out = append(out, field{key: key, value: v.Field(i).Interface(), doc: f.Tag.Get("doc")})
		}
	}
	walk(reflect.ValueOf(c), "")
	return out
}

// text is the value as it is shown: what a list holds, with commas.
func (f field) text() string {
	if list, ok := f.value.([]string); ok {
		return strings.Join(list, ",")
	}
	if engines, ok := f.value.(map[string]Engine); ok {
		return entriesText(engines, func(e Engine) (text, key string) { return e.Kind, "kind" })
	}
	if entries, ok := f.value.([]InProcess); ok {
		return inProcessText(entries)
	}
	if remotes, ok := f.value.(map[string]Remote); ok {
		return entriesText(remotes, nil)
	}
	if providers, ok := f.value.(map[string]Provider); ok {
		return entriesText(providers, nil)
	}
	return withoutPassword(fmt.Sprint(f.value))
}

// withoutPassword is a URL as it may be shown: store.url and online.url can hold a password.
func withoutPassword(s string) string {
	if !strings.Contains(s, "://") {
		return s
	}
	u, err := url.Parse(s)
	if err != nil {
		return "(no URL)" // and where its password ends is not known
	}
	if q := u.Query(); q.Has("password") || q.Has("sslpassword") {
		for _, name := range []string{"password", "sslpassword"} {
			if q.Has(name) {
				q.Set(name, "xxxxx")
			}
		}
		u.RawQuery = q.Encode()
	}
	return u.Redacted()
}

// variable is the environment variable that sets the key; empty where only the
// file can.
func (f field) variable() string {
	switch f.value.(type) {
	case map[string]Engine, map[string]Remote, map[string]Provider, []InProcess:
		return ""
	}
	return "FALAJ_" + strings.ToUpper(strings.ReplaceAll(f.key, ".", "_"))
}

// Reference is the table of docs/reference/config.md.
func Reference() string {
	var b strings.Builder
	b.WriteString("| key | variable | default | meaning |\n|---|---|---|---|\n")
	initial, _ := Load("", nil, nil) // the defaults are valid
	for _, f := range fields(initial) {
		value := f.text()
		if value != "" {
			value = "`" + value + "`"
		}
		name := f.variable()
		if name != "" {
			name = "`" + name + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.key, name, value, f.doc)
	}
	return b.String()
}

func knownKeys() []string {
	var keys []string
	for _, f := range fields(Config{}) {
		keys = append(keys, f.key)
	}
	return keys
}

func (c Config) sizes() error {
	for name, v := range map[string]string{
		"limits.upload": c.Limits.Upload, "limits.body": c.Limits.Body, "limits.requests": c.Limits.Requests, "limits.answer": c.Limits.Answer, "limits.free": c.Limits.Free, "limits.sql_memory": c.Limits.SQLMemory, "limits.sql_disk": c.Limits.SQLDisk,
		"limits.checkpoint": c.Limits.Checkpoint, "limits.body_rate": c.Limits.BodyRate, "limits.garbage": c.Limits.Garbage, "predictions.max_bytes": c.Predictions.MaxBytes,
		"jobs.disk.scratch": c.Jobs.Disk.Scratch, "jobs.disk.output": c.Jobs.Disk.Output, "jobs.disk.checkpoints": c.Jobs.Disk.Checkpoints, "jobs.disk.logs": c.Jobs.Disk.Logs,
		"jobs.disk.project": c.Jobs.Disk.Project,
		"images.max_bytes":  c.Images.MaxBytes, "serving.memory": c.Serving.Memory, "serving.process_memory": c.Serving.Process,
	} {
		if v == "" && (strings.HasPrefix(name, "serving.") || name == "limits.requests") {
			continue
		}
		if n, err := resource.ParseBytes(v); err != nil || n < 0 || (n == 0 && name != "limits.body_rate" && name != "limits.free" && name != "limits.garbage" && name != "jobs.disk.project") {
			return fault.New(fault.Invalid, "%s: %q is not a size such as 64MiB", name, v)
		}
	}
	return nil
}

// Bytes reads a size that Validate has seen.
func Bytes(s size) int64 {
	n, _ := resource.ParseBytes(s)
	return int64(n)
}

func nearest(name string, names []string) string {
	best, distance := "", 4
	for _, n := range names {
		if d := levenshtein.ComputeDistance(name, n); d < distance {
			best, distance = n, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}
