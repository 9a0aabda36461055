package card

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
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
	var needs []string
	add := func(part cdx.Component) {
		parts = append(parts, part)
		needs = append(needs, part.BOMRef)
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
		add(part)
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
		add(part)
		data = append(data, cdx.MLDatasetChoice{Ref: ref})
	}
	for _, p := range c.Parents {
		name, version, _ := strings.Cut(p, "@")
		add(cdx.Component{BOMRef: "parent:" + p, Type: cdx.ComponentTypeMachineLearningModel, Name: name, Version: version})
	}
	for _, v := range c.FeatureViews {
		name, version, _ := strings.Cut(v, "@")
		add(cdx.Component{BOMRef: "features:" + v, Type: cdx.ComponentTypeData, Name: name, Version: version, Data: &[]cdx.ComponentData{{Type: cdx.ComponentDataTypeOther, Name: v, Description: "features"}}})
	}
	if f.Environment != nil && f.Environment.Components != nil {
		for _, part := range *f.Environment.Components {
			part.BOMRef = "environment:" + part.BOMRef
			add(part)
		}
	}
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
	property("falaj:job", c.Job)
	property("falaj:environment", c.Environment)
	property("falaj:policy", c.Policy)
	for _, p := range c.Parameters {
		property("falaj:parameter:"+p.Name, p.Value)
	}
	for _, a := range c.Approvals {
		property("falaj:"+a.Verdict, a.By+" "+a.At.UTC().Format("2006-01-02T15:04:05Z"))
	}
	main := cdx.Component{
		BOMRef: model, Type: cdx.ComponentTypeMachineLearningModel, Name: c.Model, Version: strconv.Itoa(c.Version), Description: c.Description,
		Hashes: sha(c.Digest), Licenses: licences(c.License), Properties: &about, ModelCard: modelCard(c, data),
	}
	bom.Metadata.Component = &main
	bom.Components = &parts
	bom.Dependencies = &[]cdx.Dependency{{Ref: model, Dependencies: &needs}}

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

func modelCard(c Card, data []cdx.MLDatasetChoice) *cdx.MLModelCard {
	out := &cdx.MLModelCard{BOMRef: "card"}
	if len(data) > 0 {
		out.ModelParameters = &cdx.MLModelParameters{Datasets: &data}
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
	switch {
	case name == "":
		return nil
	case spdx[name]:
		return &cdx.Licenses{{License: &cdx.License{ID: name}}}
	}
	return &cdx.Licenses{{License: &cdx.License{Name: name}}}
}
