package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
	"github.com/spf13/cobra"
)

// sourceAt is where manifests of a kind name the code of their jobs.
var sourceAt = map[string][]string{"Job": {"spec", "source"}, "Sweep": {"spec", "job", "source"}}

// withSources packs and uploads the directories that manifests of jobs and sweeps
// name as their source, beside the manifest, and puts their digests there, because the
// server reads no files of its users. All else is sent as it stands.
func (a *app) withSources(cmd *cobra.Command, manifests []byte, from string) ([]byte, error) {
	if !bytes.Contains(manifests, []byte("source")) {
		return manifests, nil
	}
	named := a.project
	defer func() { a.project = named }()
	parts := separator.Split(string(manifests), -1)
	for i, part := range parts {
		var doc struct{ Kind, Name, Project string }
		if yaml.Unmarshal([]byte(part), &doc) != nil || sourceAt[doc.Kind] == nil {
			continue // the server says what is wrong with it, and where
		}
		dir := directoryAt(part, sourceAt[doc.Kind])
		if dir == nil {
			continue
		}
		a.project = first(named, doc.Project)
		digest, err := a.sourceBeside(cmd, from, dir.Value)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", strings.ToLower(doc.Kind), doc.Name, err)
		}
		if parts[i] = putAt(part, dir, digest); parts[i] == "" {
			return nil, usage("%s %s: write its source in one line, as `source: src`", strings.ToLower(doc.Kind), doc.Name)
		}
	}
	return []byte(strings.Join(parts, "---")), nil
}

// directoryAt is the word at a path of a document, unless it is a digest.
func directoryAt(document string, path []string) *token.Token {
	file, err := parser.ParseBytes([]byte(document), 0)
	if err != nil || len(file.Docs) == 0 {
		return nil
	}
	node := bare(file.Docs[0].Body)
	for _, key := range path {
		m, ok := node.(ast.MapNode)
		if !ok {
			return nil
		}
		node = nil
		for entries := m.MapRange(); entries.Next(); {
			if entries.Key().GetToken().Value == key {
				node = bare(entries.Value())
			}
		}
	}
	word, ok := node.(*ast.StringNode)
	if !ok || !isDirectory(word.Value) {
		return nil
	}
	return word.GetToken()
}

// bare is a node without its anchor and tag.
func bare(node ast.Node) ast.Node {
	for {
		switch n := node.(type) {
		case *ast.AnchorNode:
			node = n.Value
		case *ast.TagNode:
			node = n.Value
		default:
			return node
		}
	}
}

// isDirectory says whether a source is one, and no digest of an archive.
func isDirectory(source string) bool { return source != "" && !strings.HasPrefix(source, "sha256:") }

// putAt replaces a word of a document, or gives "" where it is not found as it is read.
func putAt(document string, word *token.Token, with string) string {
	lines := strings.SplitAfter(document, "\n")
	if word.Position.Line < 1 || word.Position.Line > len(lines) {
		return ""
	}
	line := []rune(lines[word.Position.Line-1])
	if word.Position.Column < 1 || word.Position.Column > len(line) {
		return ""
	}
	before, rest := string(line[:word.Position.Column-1]), string(line[word.Position.Column-1:])
	for _, quote := range []string{"", `"`, "'"} {
		if after, ok := strings.CutPrefix(rest, quote+word.Value+quote); ok {
			lines[word.Position.Line-1] = before + with + after
			return strings.Join(lines, "")
		}
	}
	return ""
}

// sourceBeside uploads a directory that a manifest names, and gives its digest.
func (a *app) sourceBeside(cmd *cobra.Command, manifest, dir string) (string, error) {
	if !filepath.IsAbs(dir) && manifest != "-" {
		dir = filepath.Join(filepath.Dir(manifest), dir)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "", usage("its source %q is neither a directory beside the manifest nor the digest of an uploaded archive", dir)
	}
	spec := map[string]any{}
	if err := a.snapshot(cmd, dir, "", false, spec); err != nil {
		return "", err
	}
	return fmt.Sprint(spec["source"]), nil
}
