package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/yamldoc"
)

// maxSecret is the most bytes that a value of a secret may have.
const maxSecret = 64 << 10

// withSecrets puts what `file` and `stdin` of Secret manifests name into them,
// because the server reads no files of its users. Manifests without are sent as
// they stand.
func (a *app) withSecrets(manifests []byte, from string) ([]byte, error) {
	if !bytes.Contains(manifests, []byte("Secret")) {
		return manifests, nil
	}
	// Other documents are left as they are written: `python: 3.10` is not 3.1.
	parts := separator.Split(string(manifests), -1)
	for i, part := range parts {
		doc := asMapping(part)
		if doc["kind"] != "Secret" {
			continue // the server says what is wrong with it, and where
		}
		filled, err := a.fillSecret(doc, from)
		if err != nil {
			return nil, err
		}
		if !filled {
			continue
		}
		b, err := json.Marshal(doc)
		if err != nil {
			return nil, usage("%s cannot be sent: %v", from, err)
		}
		parts[i] = "\n" + string(b) + strings.Repeat("\n", max(1, strings.Count(part, "\n")-1)) // lines keep their numbers
	}
	return []byte(strings.Join(parts, "---")), nil
}

// asMapping is a document of YAML, nil when it is not one mapping.
func asMapping(document string) map[string]any {
	nodes, err := yamldoc.Documents([]byte(document))
	if err != nil || len(nodes) != 1 {
		return nil
	}
	v, err := yamldoc.Value(nodes[0])
	if err != nil {
		return nil
	}
	mapping, _ := v.(map[string]any)
	return mapping
}

// separator is the line between documents.
var separator = regexp.MustCompile(`(?m)^---`)

// fillSecret reports whether there was anything to read.
func (a *app) fillSecret(doc map[string]any, from string) (filled bool, err error) {
	spec, _ := doc["spec"].(map[string]any)
	values, _ := spec["values"].(map[string]any)
	piped := false
	for key, v := range values {
		value, _ := v.(map[string]any)
		if len(value) != 1 {
			continue // the server says what is wrong with it
		}
		var in io.Reader
		if path, ok := value["file"].(string); ok {
			if !filepath.IsAbs(path) && from != "-" {
				path = filepath.Join(filepath.Dir(from), path)
			}
			f, err := os.Open(path)
			if err != nil {
				return false, usage("secret %v, spec.values.%s: %v", doc["name"], key, err)
			}
			defer f.Close()
			in = f
		} else if value["stdin"] == true {
			if piped || from == "-" {
				return false, usage("secret %v, spec.values.%s: standard input is read once, and not when the manifest comes from there", doc["name"], key)
			}
			piped, in = true, a.Stdin
		} else {
			continue
		}
		b, err := io.ReadAll(io.LimitReader(in, maxSecret+2))
		if err != nil {
			return false, usage("secret %v, spec.values.%s: %v", doc["name"], key, err)
		}
		b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
		if len(b) == 0 || len(b) > maxSecret || !utf8.Valid(b) {
			return false, usage("secret %v, spec.values.%s: the value must be 1 to %d bytes of text", doc["name"], key, maxSecret)
		}
		values[key], filled = map[string]any{"value": string(b)}, true
	}
	return filled, nil
}
