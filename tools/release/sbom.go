package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sbom writes one bill of materials: the modules file of cyclonedx-gomod, joined with the
// packages of the console's lock file that are shipped, the packages of a base image, and
// single parts.
func sbom(out, version string, at time.Time, modules, lock, packages string, parts []string) error {
	f, err := os.Open(modules)
	if err != nil {
		return err
	}
	defer f.Close()
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(f, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		return fmt.Errorf("%s: %w", modules, err)
	}
	if bom.Metadata == nil || bom.Metadata.Component == nil || bom.Components == nil {
		return fmt.Errorf("%s names no program or no modules", modules)
	}
	bom.Metadata.Timestamp = at.Format(time.RFC3339)
	bom.Metadata.Component.Version = version
	all := *bom.Components
	console, err := npm(lock)
	if err != nil {
		return err
	}
	debian, err := deb(packages)
	if err != nil {
		return err
	}
	all = slices.Concat(all, console, debian)
	for _, p := range parts {
		c, err := part(p)
		if err != nil {
			return err
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b cdx.Component) int { return strings.Compare(a.PackageURL, b.PackageURL) })
	bom.Components = &all
	w, err := os.Create(out)
	if err != nil {
		return err
	}
	e := cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true)
	return errors.Join(e.EncodeVersion(&bom, cdx.SpecVersion1_6), w.Close())
}

// part is a component of its package URL: pkg:TYPE/NAME@VERSION.
func part(purl string) (cdx.Component, error) {
	rest, ok := strings.CutPrefix(purl, "pkg:")
	plain, _, _ := strings.Cut(rest, "?")
	name, version, both := strings.Cut(plain, "@")
	if !ok || !both || version == "" || !strings.Contains(name, "/") {
		return cdx.Component{}, fmt.Errorf("%q is no package URL with a version", purl)
	}
	return cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: purl, Name: path.Base(name), Version: version, PackageURL: purl}, nil
}

// npm are the packages of a lock file that the console's bundle may hold.
func npm(file string) ([]cdx.Component, error) {
	if file == "" {
		return nil, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var lock struct {
		Packages map[string]struct {
			Version, License string
			Dev              bool
		}
	}
	if err := json.Unmarshal(b, &lock); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var all []cdx.Component
	for at, p := range lock.Packages {
		_, name, ok := strings.Cut(at, "node_modules/")
		if !ok || p.Dev {
			continue // the console itself, or what only builds it
		}
		if i := strings.LastIndex(name, "node_modules/"); i >= 0 {
			name = name[i+len("node_modules/"):]
		}
		c, err := part("pkg:npm/" + strings.Replace(name, "@", "%40", 1) + "@" + p.Version)
		if err != nil {
			return nil, err
		}
		c.Name = name
		if p.License != "" {
			c.Licenses = &cdx.Licenses{{Expression: p.License}}
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s names no package that is shipped", file)
	}
	return all, nil
}

// deb are the packages of a list with NAME VERSION ARCH in each line.
func deb(file string) ([]cdx.Component, error) {
	if file == "" {
		return nil, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all []cdx.Component
	for line := range strings.Lines(string(b)) {
		words := strings.Fields(line)
		if len(words) != 3 {
			return nil, fmt.Errorf("%s: %q is not NAME VERSION ARCH", file, line)
		}
		c, err := part("pkg:deb/debian/" + words[0] + "@" + strings.ReplaceAll(words[1], "+", "%2B") + "?arch=" + words[2])
		if err != nil {
			return nil, err
		}
		c.Version = words[1]
		all = append(all, c)
	}
	return all, nil
}
