package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/yamldoc"
)

// sourceAt is where manifests of a kind name the code of their jobs.
var sourceAt = map[string][]string{"Job": {"spec", "source"}, "Sweep": {"spec", "job", "source"}}

// withSources packs and uploads the directories that manifests of jobs and sweeps
// name as their source, beside the manifest, and puts their digests there, because the
// server reads no files of its users. A dry run packs them and uploads nothing. All else is
// sent as it stands.
func (a *app) withSources(cmd *cobra.Command, manifests []byte, from string, dryRun bool) ([]byte, error) {
	if !bytes.Contains(manifests, []byte("source")) {
		return manifests, nil
	}
	named := a.project
	defer func() { a.project = named }()
	parts := separator.Split(string(manifests), -1)
	for i, part := range parts {
		nodes, err := yamldoc.Documents([]byte(part))
		if err != nil || len(nodes) != 1 {
			continue // the server says what is wrong with it, and where
		}
		kind, name := wordAt(nodes[0], "kind"), wordAt(nodes[0], "name")
		dir := directoryAt(nodes[0], sourceAt[kind])
		if dir == nil {
			continue
		}
		a.project = first(named, wordAt(nodes[0], "project"))
		digest, err := a.sourceBeside(cmd, from, dir.Value, dryRun)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", strings.ToLower(kind), name, err)
		}
		if parts[i] = putAt(part, dir, digest); parts[i] == "" {
			return nil, usage("%s %s: write its source in one line, as `source: src`", strings.ToLower(kind), name)
		}
	}
	return []byte(strings.Join(parts, "---")), nil
}

// directoryAt is the word at a path of a document, nil when it is no directory.
func directoryAt(document *yamldoc.Node, path []string) *yamldoc.Node {
	word := nodeAt(document, path...)
	if len(path) == 0 || word == nil || word.Kind != yaml.ScalarNode || !isDirectory(word.Value) {
		return nil
	}
	if v, err := yamldoc.Scalar(word); err != nil || v != word.Value {
		return nil // no text
	}
	return word
}

// wordAt is the text of a field, empty when there is none.
func wordAt(document *yamldoc.Node, field string) string {
	if n := nodeAt(document, field); n != nil {
		return n.Value
	}
	return ""
}

// nodeAt is the value at a path of a document.
func nodeAt(n *yamldoc.Node, path ...string) *yamldoc.Node {
	for _, key := range path {
		if n == nil || n.Kind != yaml.MappingNode {
			return nil
		}
		var found *yamldoc.Node
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				found = n.Content[i+1]
			}
		}
		n = found
	}
	return n
}

// isDirectory says whether a source is one, and no digest of an archive.
func isDirectory(source string) bool { return source != "" && !strings.HasPrefix(source, "sha256:") }

// putAt replaces a word of a document, or gives "" where it is not found as it is read.
func putAt(document string, word *yamldoc.Node, with string) string {
	lines := strings.SplitAfter(document, "\n")
	if word.Line < 1 || word.Line > len(lines) {
		return ""
	}
	line := []rune(lines[word.Line-1])
	if word.Column < 1 || word.Column > len(line) {
		return ""
	}
	before, rest := string(line[:word.Column-1]), string(line[word.Column-1:])
	for _, quote := range []string{"", `"`, "'"} {
		if after, ok := strings.CutPrefix(rest, quote+word.Value+quote); ok {
			lines[word.Line-1] = before + with + after
			return strings.Join(lines, "")
		}
	}
	return ""
}

// sourceBeside uploads a directory that a manifest names, unless it is a dry run, and gives
// its digest.
func (a *app) sourceBeside(cmd *cobra.Command, manifest, dir string, dryRun bool) (string, error) {
	if !filepath.IsAbs(dir) && manifest != "-" {
		dir = filepath.Join(filepath.Dir(manifest), dir)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "", usage("its source %q is neither a directory relative to the manifest nor the digest of an uploaded archive", dir)
	}
	if dryRun {
		h := sha256.New()
		files, err := client.Pack(dir, h)
		if err == nil && len(files) == 0 {
			err = noFiles(dir)
		}
		if err != nil {
			return "", usage("%v", err)
		}
		return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
	}
	spec := map[string]any{}
	if err := a.snapshot(cmd, dir, "", false, spec); err != nil {
		return "", err
	}
	return fmt.Sprint(spec["source"]), nil
}
