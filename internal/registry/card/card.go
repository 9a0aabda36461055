// Package card writes down what is known of a version of a model: as a model card for
// people, and as a bill of materials for programs. It asks nobody; what a reader may not
// see is not among the Facts.
//
// # Map
//
//   - card.go: Facts, and the card as values.
//   - markdown.go: the card as text, with the front matter of model hubs.
//   - bom.go: CycloneDX 1.6.
package card

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/registry/scan"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// Facts are what a card is made of. What the reader may not see is left out.
type Facts struct {
	Model       registry.Model
	Owner       string // for people to read; empty: the ID
	Version     registry.Version
	Files       []registry.File
	Content     scan.Report
	Clearance   registry.Clearance
	Run         *tracking.Run // nil: none, or not to be seen
	Datasets    []Dataset
	Environment *cdx.BOM // nil: unknown, or not to be seen
}

// Dataset is a version of a dataset that a model was trained on.
type Dataset struct {
	Name           string          `json:"name" doc:"Name@version"`
	Rows           int64           `json:"rows,omitempty"`
	Digest         string          `json:"digest,omitempty" doc:"Digest of the rows"`
	Residency      residency.Label `json:"residency,omitempty" doc:"Zones in which it is allowed"`
	Classification string          `json:"classification,omitempty"`
	Hidden         bool            `json:"hidden,omitempty" doc:"Whether the card leaves out what the caller may not see"`
}

// File is a file of a version.
type File struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Digest string `json:"digest"`
}

// Pair is a name with a value.
type Pair struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Code is what a run was started from, as MLflow's clients note it.
type Code struct {
	EntryPoint string `json:"entry_point,omitempty"`
	Repository string `json:"repository,omitempty" doc:"Repository URL, without user and password"`
	Branch     string `json:"branch,omitempty"`
	Commit     string `json:"commit,omitempty"`
}

// Approval is a person's verdict.
type Approval struct {
	By      string    `json:"by"`
	Verdict string    `json:"verdict"`
	Comment string    `json:"comment,omitempty"`
	At      time.Time `json:"at"`
	Counts  bool      `json:"counts"`
}

// Card is a model card after Mitchell et al., "Model Cards for Model Reporting" (2019).
// What only people know comes from tags of the version, else of the model.
type Card struct {
	Model          string          `json:"model"`
	Version        int             `json:"version"`
	Description    string          `json:"description,omitempty"`
	Owner          string          `json:"owner"`
	CreatedAt      time.Time       `json:"created_at"`
	License        string          `json:"license,omitempty" doc:"Tag license"`
	Digest         string          `json:"digest"`
	KeyID          string          `json:"key_id" doc:"Fingerprint of the key that signed the files"`
	SignatureType  string          `json:"signature_type"`
	Files          []File          `json:"files"`
	Residency      residency.Label `json:"residency"`
	Classification string          `json:"classification,omitempty"`
	Content        scan.Level      `json:"content" doc:"Risk of loading the files"`
	ContentReasons []string        `json:"content_reasons,omitempty"`

	IntendedUse           string `json:"intended_use,omitempty" doc:"Tag card.intended_use"`
	OutOfScope            string `json:"out_of_scope,omitempty" doc:"Tag card.out_of_scope"`
	Factors               string `json:"factors,omitempty" doc:"Tag card.factors"`
	EvaluationData        string `json:"evaluation_data,omitempty" doc:"Tag card.evaluation_data"`
	EthicalConsiderations string `json:"ethical_considerations,omitempty" doc:"Tag card.ethical_considerations"`
	Caveats               string `json:"caveats,omitempty" doc:"Tag card.caveats"`
	Task                  string `json:"task,omitempty" doc:"Tag card.task, such as text-classification"`
	Architecture          string `json:"architecture,omitempty" doc:"Tag card.architecture, such as gradient boosting"`

	Run          string    `json:"run,omitempty"`
	RunIs        string    `json:"run_is,omitempty" enum:"deleted,unseen" doc:"deleted; unseen: deleted or not visible to the caller; empty: active"`
	Job          string    `json:"job,omitempty"`
	Code         *Code     `json:"code,omitempty" doc:"Source code of the run, as reported by the client"`
	Erasures     []string  `json:"erasures,omitempty" doc:"Erasures, since the training, of persons whose rows were used to train it"`
	Parameters   []Pair    `json:"parameters,omitempty"`
	Metrics      []Pair    `json:"metrics,omitempty" doc:"Latest value of each metric as text, because of NaN and infinities. The training program reported them; they are not verified"`
	Datasets     []Dataset `json:"datasets,omitempty"`
	FeatureViews []string  `json:"feature_views,omitempty"`
	Parents      []string  `json:"parents,omitempty" doc:"Model versions from which it was derived"`
	Environment  string    `json:"environment,omitempty" doc:"Digest"`
	Packages     []Pair    `json:"packages,omitempty" doc:"Packages of the locked environment, with versions"`

	Aliases   []string   `json:"aliases,omitempty"`
	Stage     string     `json:"stage,omitempty"`
	Policy    string     `json:"policy,omitempty" doc:"Policy that defines what the version needs before promotion"`
	Cleared   bool       `json:"cleared"`
	Missing   []string   `json:"missing,omitempty"`
	Approvals []Approval `json:"approvals,omitempty"`
}

const signatureType = "OpenSSF model signing v1.0, ECDSA P-256"

// Of makes the card.
func Of(f Facts) Card {
	v := f.Version
	c := Card{
		Model: v.Model, Version: v.Number, Description: cmp.Or(v.Description, f.Model.Description), Owner: cmp.Or(f.Owner, f.Model.Owner, v.Owner), CreatedAt: v.Created,
		Digest: v.Digest, KeyID: v.KeyID, SignatureType: signatureType, Residency: v.Residency, Classification: v.Classification,
		Content: f.Content.Level, Run: string(v.Run), Job: v.Job, Datasets: f.Datasets, FeatureViews: v.FeatureViews, Parents: v.Parents,
		Environment: v.Environment, Aliases: v.Aliases, Policy: f.Clearance.Policy, Cleared: f.Clearance.Cleared, Missing: f.Clearance.Missing,
	}
	if v.Stage != registry.StageNone {
		c.Stage = string(v.Stage)
	}
	for _, file := range f.Files {
		c.Files = append(c.Files, File(file))
	}
	for _, found := range f.Content.Contents {
		for _, why := range found.Reasons {
			c.ContentReasons = append(c.ContentReasons, found.Path+" "+why)
		}
	}
	tag := func(key string) string {
		for _, tags := range [][]tracking.Pair{v.Tags, f.Model.Tags} {
			for _, t := range tags {
				if t.Key == key && t.Value != "" {
					return t.Value
				}
			}
		}
		return ""
	}
	c.License = cmp.Or(tag("license"), tag("licence"))
	c.IntendedUse, c.OutOfScope, c.Factors = tag("card.intended_use"), tag("card.out_of_scope"), tag("card.factors")
	c.EvaluationData, c.EthicalConsiderations, c.Caveats = tag("card.evaluation_data"), tag("card.ethical_considerations"), tag("card.caveats")
	c.Task, c.Architecture = tag("card.task"), tag("card.architecture")
	for _, t := range v.Tags { // of the version only: the model has others
		if t.Key == registry.ErasedTag && t.Value != "" {
			c.Erasures = strings.Split(t.Value, ",")
		}
	}
	switch {
	case f.Run != nil:
		if f.Run.Stage == tracking.Deleted {
			c.RunIs = "deleted"
		}
		c.Code = codeOf(f.Run.Tags)
		for _, p := range f.Run.Params {
			c.Parameters = append(c.Parameters, Pair{p.Key, p.Value})
		}
		c.Metrics = metrics(f.Run.Metrics)
	case c.Run != "":
		c.RunIs = "unseen"
	}
	if f.Environment != nil && f.Environment.Components != nil {
		for _, p := range *f.Environment.Components {
			c.Packages = append(c.Packages, Pair{p.Name, p.Version})
		}
	}
	for _, a := range f.Clearance.Approvals {
		c.Approvals = append(c.Approvals, Approval{By: cmp.Or(a.Name, a.Principal), Verdict: string(a.Verdict), Comment: a.Comment, At: a.At, Counts: a.Counts})
	}
	return c
}

// codeOf reads the tags by which MLflow's clients say what code ran; nil: none does.
func codeOf(tags []tracking.Pair) *Code {
	var c Code
	for _, t := range tags {
		switch t.Key {
		case "mlflow.source.name":
			c.EntryPoint = t.Value
		case "mlflow.source.git.repoURL":
			c.Repository = withoutUser(t.Value)
		case "mlflow.source.git.branch":
			c.Branch = t.Value
		case "mlflow.source.git.commit":
			c.Commit = t.Value
		}
	}
	if c == (Code{}) {
		return nil
	}
	return &c
}

// withoutUser takes user and password out of a repository's address: the remote of a
// checkout by a token has the token in it.
func withoutUser(address string) string {
	scheme, rest, ok := strings.Cut(address, "://")
	if !ok {
		return address // git@host:path names no password
	}
	host, path, _ := strings.Cut(rest, "/")
	if at := strings.LastIndexByte(host, '@'); at >= 0 {
		host = host[at+1:]
	}
	return strings.TrimSuffix(scheme+"://"+host+"/"+path, "/")
}

// metrics are the latest of each name, by name.
func metrics(all []tracking.Metric) (out []Pair) {
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b tracking.Metric) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), cmp.Compare(a.At, b.At))
	})
	for i, m := range sorted {
		if i+1 == len(sorted) || sorted[i+1].Key != m.Key {
			out = append(out, Pair{m.Key, strconv.FormatFloat(m.Value, 'g', -1, 64)})
		}
	}
	return out
}
