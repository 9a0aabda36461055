package card

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/falaj-ml/falaj/internal/registry"
)

// spdx are the licences that are written by their identifier; others by name, as the
// list grows and a wrong identifier makes a bill invalid.
var spdx = map[string]bool{
	"Apache-2.0": true, "MIT": true, "BSD-2-Clause": true, "BSD-3-Clause": true, "ISC": true, "MPL-2.0": true, "GPL-2.0-only": true, "GPL-3.0-only": true,
	"GPL-3.0-or-later": true, "LGPL-3.0-only": true, "AGPL-3.0-only": true, "CC-BY-4.0": true, "CC-BY-SA-4.0": true, "CC-BY-NC-4.0": true, "CC0-1.0": true, "Unlicense": true, "EPL-2.0": true,
}

// BOM is the bill of materials of a version, CycloneDX 1.6: the model with its card, its
// files, what it was trained on, and the packages that trained it. The same facts give
// the same bytes.
func BOM(f Facts) ([]byte, error) {
	c := Of(f)
	const model = "model"
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: f.Version.Updated.UTC().Format("2006-01-02T15:04:05Z"),
		Tools:     &cdx.ToolsChoice{Components: &[]cdx.Component{{Type: cdx.ComponentTypeApplication, Name: "falaj"}}},
	}
	var parts []cdx.Component
	needs := map[string][]string{} // by who needs them
	known := map[string]bool{}
	add := func(of string, part cdx.Component) bool {
		if known[part.BOMRef] { // a bill of materials names each part once
			return false
		}
		known[part.BOMRef] = true
		parts = append(parts, part)
		needs[of] = append(needs[of], part.BOMRef)
		return true
	}
	for _, file := range c.Files {
		part := cdx.Component{
			BOMRef: "file:" + file.Path, Type: cdx.ComponentTypeFile, Name: file.Path, Hashes: sha(file.Digest),
			Properties: &[]cdx.Property{{Name: "falaj:size", Value: strconv.FormatInt(file.Size, 10)}},
		}
		for _, found := range f.Content.Contents {
			if found.Path != file.Path && !strings.HasPrefix(found.Path, file.Path+"!") {
				continue
			}
			said := append([]string{found.Path + ": " + found.Format + ", " + string(found.Level)}, found.Reasons...)
			*part.Properties = append(*part.Properties, cdx.Property{Name: "falaj:content", Value: strings.Join(said, "; ")})
			for _, i := range found.Imports {
				*part.Properties = append(*part.Properties, cdx.Property{Name: "falaj:imports", Value: i})
			}
		}
		add(model, part)
	}
	var data []cdx.MLDatasetChoice
	for _, d := range c.Datasets {
		ref := "dataset:" + d.Name
		name, version, _ := strings.Cut(d.Name, "@")
		part := cdx.Component{
			BOMRef: ref, Type: cdx.ComponentTypeData, Name: name, Version: version, Hashes: sha(d.Digest),
			Data: &[]cdx.ComponentData{{Type: cdx.ComponentDataTypeDataset, Name: d.Name, Classification: d.Classification}},
		}
		var about []cdx.Property
		for _, z := range d.Residency {
			about = append(about, cdx.Property{Name: "falaj:residency", Value: string(z)})
		}
		if d.Rows > 0 {
			about = append(about, cdx.Property{Name: "falaj:rows", Value: strconv.FormatInt(d.Rows, 10)})
		}
		if len(about) > 0 {
			part.Properties = &about
		}
		if add(model, part) {
			data = append(data, cdx.MLDatasetChoice{Ref: ref})
		}
	}
	if c.EvaluationData != "" {
		data = append(data, cdx.MLDatasetChoice{ComponentData: &cdx.ComponentData{Type: cdx.ComponentDataTypeDataset, Name: "evaluation data", Description: c.EvaluationData}})
	}
	for _, p := range c.Parents {
		name, version, _ := registry.SplitRef(p)
		add(model, cdx.Component{BOMRef: "parent:" + p, Type: cdx.ComponentTypeMachineLearningModel, Name: name, Version: version})
	}
	for _, v := range c.FeatureViews {
		name, version, _ := strings.Cut(v, "@")
		add(model, cdx.Component{BOMRef: "features:" + v, Type: cdx.ComponentTypeData, Name: name, Version: version, Data: &[]cdx.ComponentData{{Type: cdx.ComponentDataTypeOther, Name: v, Description: "features"}}})
	}
	environment(f.Environment, model, add)
	about := []cdx.Property{
		{Name: "falaj:project", Value: string(f.Version.Project)},
		{Name: "falaj:digest", Value: c.Digest},
		{Name: "falaj:signature", Value: c.SignatureType},
		{Name: "falaj:signing-key", Value: c.KeyID},
		{Name: "falaj:content", Value: string(c.Content)},
		{Name: "falaj:owner", Value: c.Owner},
	}
	property := func(name, value string) {
		if value != "" {
			about = append(about, cdx.Property{Name: name, Value: value})
		}
	}
	for _, z := range c.Residency.Zones() {
		property("falaj:residency", string(z))
	}
	property("falaj:classification", c.Classification)
	property("falaj:run", c.Run)
	property("falaj:run-is", c.RunIs)
	property("falaj:job", c.Job)
	property("falaj:environment", c.Environment)
	property("falaj:policy", c.Policy)
	for _, e := range c.Erasures {
		property("falaj:erasure", e)
	}
	var from *[]cdx.ExternalReference
	if c.Code != nil {
		property("falaj:entry-point", c.Code.EntryPoint)
		property("falaj:repository", c.Code.Repository)
		property("falaj:branch", c.Code.Branch)
		property("falaj:commit", c.Code.Commit)
		from = repository(*c.Code)
	}
	for _, p := range c.Parameters {
		property("falaj:parameter:"+p.Name, p.Value)
	}
	for _, a := range c.Approvals {
		property("falaj:"+a.Verdict, a.By+" "+a.At.UTC().Format("2006-01-02T15:04:05Z"))
	}
	main := cdx.Component{
		BOMRef: model, Type: cdx.ComponentTypeMachineLearningModel, Name: c.Model, Version: strconv.Itoa(c.Version), Description: c.Description,
		Hashes: sha(c.Digest), Licenses: licences(c.License), Properties: &about, ModelCard: modelCard(c, data), ExternalReferences: from,
	}
	bom.Metadata.Component = &main
	bom.Components = &parts
	var graph []cdx.Dependency
	for _, part := range append([]cdx.Component{main}, parts...) {
		if of := needs[part.BOMRef]; len(of) > 0 || part.BOMRef == model {
			graph = append(graph, cdx.Dependency{Ref: part.BOMRef, Dependencies: &of})
		}
	}
	bom.Dependencies = &graph

	encode := func() ([]byte, error) {
		var out bytes.Buffer
		e := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON)
		e.SetPretty(true)
		err := e.EncodeVersion(bom, cdx.SpecVersion1_6)
		return out.Bytes(), err
	}
	b, err := encode()
	if err != nil {
		return nil, err
	}
	h := sha256.Sum256(b)
	h[6], h[8] = h[6]&0x0f|0x80, h[8]&0x3f|0x80 // a UUID of version 8, of our own making
	bom.SerialNumber = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
	return encode()
}

// environment adds what a model was trained in: as one part, which needs its packages.
func environment(bom *cdx.BOM, model string, add func(of string, part cdx.Component) bool) {
	if bom == nil {
		return
	}
	ref := func(part cdx.Component) string {
		return "environment:" + cmp.Or(part.BOMRef, part.PackageURL, part.Name+"@"+part.Version)
	}
	of := model
	if bom.Metadata != nil && bom.Metadata.Component != nil {
		whole := *bom.Metadata.Component
		whole.BOMRef = ref(whole)
		add(model, whole)
		of = whole.BOMRef
	}
	if bom.Components == nil {
		return
	}
	for _, part := range *bom.Components {
		part.BOMRef = ref(part)
		add(of, part)
	}
}

// repository is where the code is; nil for what is no URL, such as git@host:path.
func repository(c Code) *[]cdx.ExternalReference {
	u, err := url.Parse(c.Repository)
	if err != nil || u.Host == "" || !slices.Contains([]string{"https", "http", "ssh", "git"}, u.Scheme) {
		return nil
	}
	return &[]cdx.ExternalReference{{Type: cdx.ERTypeVCS, URL: u.String(), Comment: c.Commit}}
}

func modelCard(c Card, data []cdx.MLDatasetChoice) *cdx.MLModelCard {
	out := &cdx.MLModelCard{BOMRef: "card"}
	if len(data) > 0 || c.Task != "" || c.Architecture != "" {
		out.ModelParameters = &cdx.MLModelParameters{Task: c.Task, ArchitectureFamily: c.Architecture}
	}
	if len(data) > 0 {
		out.ModelParameters.Datasets = &data
	}
	if len(c.Metrics) > 0 {
		all := make([]cdx.MLPerformanceMetric, len(c.Metrics))
		for i, m := range c.Metrics {
			all[i] = cdx.MLPerformanceMetric{Type: m.Name, Value: m.Value}
		}
		out.QuantitativeAnalysis = &cdx.MLQuantitativeAnalysis{PerformanceMetrics: &all}
	}
	var said cdx.MLModelCardConsiderations
	some := false
	put := func(to **[]string, texts ...string) {
		var list []string
		for _, t := range texts {
			if t != "" {
				list = append(list, t)
			}
		}
		if len(list) > 0 {
			*to, some = &list, true
		}
	}
	put(&said.UseCases, c.IntendedUse)
	put(&said.TechnicalLimitations, c.Caveats, c.OutOfScope, c.Factors)
	if c.EthicalConsiderations != "" {
		said.EthicalConsiderations, some = &[]cdx.MLModelCardEthicalConsideration{{Name: c.EthicalConsiderations}}, true
	}
	if some {
		out.Considerations = &said
	}
	return out
}

func sha(digest string) *[]cdx.Hash {
	hex, ok := strings.CutPrefix(digest, "sha256:")
	if !ok || len(hex) != 64 {
		return nil
	}
	return &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex}}
}

func licences(name string) *cdx.Licenses {
	if name == "" {
		return nil
	}
	for id := range spdx {
		if strings.EqualFold(id, name) { // model hubs write them small
			return &cdx.Licenses{{License: &cdx.License{ID: id}}}
		}
	}
	return &cdx.Licenses{{License: &cdx.License{Name: name}}}
}
