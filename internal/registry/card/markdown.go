package card

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// Markdown is the card as text. Its front matter is that of model hubs.
func (c Card) Markdown() []byte {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("---")
	say("model_name: %s", quote(c.Model+" version "+strconv.Itoa(c.Version)))
	if c.License != "" {
		say("license: %s", quote(strings.ToLower(c.License)))
	}
	if c.Task != "" {
		say("pipeline_tag: %s", quote(c.Task))
	}
	list := func(key string, values []string) {
		if len(values) == 0 {
			return
		}
		say("%s:", key)
		for _, v := range values {
			say("- %s", quote(v))
		}
	}
	var datasets, names []string
	for _, d := range c.Datasets {
		datasets = append(datasets, d.Name)
	}
	for _, m := range c.Metrics {
		names = append(names, m.Name)
	}
	list("datasets", datasets)
	list("metrics", names)
	list("base_model", c.Parents)
	list("tags", c.Aliases)
	say("---\n\n# %s version %d\n", line(c.Model), c.Version)
	if c.Description != "" {
		say("%s\n", said(c.Description))
	}
	say("## Model details\n")
	rows := [][2]string{
		{"Owner", c.Owner},
		{"Registered", c.CreatedAt.UTC().Format("2006-01-02 15:04 UTC")},
		{"License", c.License},
		{"Task", c.Task},
		{"Architecture", c.Architecture},
		{"Stage", c.Stage},
		{"Aliases", strings.Join(c.Aliases, ", ")},
		{"Digest", c.Digest},
		{"Signature", c.SignatureType + ", key " + c.KeyID},
		{"May be in", c.Residency.String()},
		{"Classification", c.Classification},
		{"Made from", strings.Join(c.Parents, ", ")},
		{"Loading it", loading[string(c.Content)]},
		{"Persons erased from the training data since", strings.Join(c.Erasures, ", ")},
	}
	say("| | |\n|---|---|")
	for _, r := range rows {
		if r[1] != "" {
			say("| %s | %s |", r[0], cell(r[1]))
		}
	}
	for _, why := range c.ContentReasons {
		say("\n- %s", line(why))
	}
	written := func(title, text, tag string) {
		say("\n## %s\n", title)
		if text == "" {
			say("Not specified. Set the tag `%s` of the version or the model.", tag)
			return
		}
		say("%s", said(text))
	}
	written("Intended use", c.IntendedUse, "card.intended_use")
	if c.OutOfScope != "" {
		say("\n### Out of scope\n\n%s", said(c.OutOfScope))
	}
	written("Factors", c.Factors, "card.factors")
	say("\n## Metrics\n")
	if len(c.Metrics) > 0 {
		say("As reported by the training program; not verified.\n")
	}
	pairs(say, "Metric", "Value", c.Metrics)
	written("Evaluation data", c.EvaluationData, "card.evaluation_data")
	say("\n## Training data\n")
	if len(c.Datasets) == 0 {
		say("None is on record.")
	} else {
		say("| Dataset | Rows | May be in | Classification | Digest |\n|---|---|---|---|---|")
		for _, d := range c.Datasets {
			if d.Hidden {
				say("| %s | access denied | | | |", cell(d.Name))
				continue
			}
			say("| %s | %d | %s | %s | %s |", cell(d.Name), d.Rows, cell(d.Residency.String()), cell(d.Classification), cell(d.Digest))
		}
	}
	if len(c.FeatureViews) > 0 {
		say("\nFeatures: %s.", line(strings.Join(c.FeatureViews, ", ")))
	}
	say("\n## Training\n")
	if c.Run != "" {
		say("Run `%s`%s%s.\n", line(c.Run), map[bool]string{true: " of job `" + line(c.Job) + "`"}[c.Job != ""], runIs[c.RunIs])
	}
	if c.Code != nil {
		say("| Code | |\n|---|---|")
		for _, r := range [][2]string{{"Entry point", c.Code.EntryPoint}, {"Repository", c.Code.Repository}, {"Branch", c.Code.Branch}, {"Commit", c.Code.Commit}} {
			if r[1] != "" {
				say("| %s | %s |", r[0], cell(r[1]))
			}
		}
		say("")
	}
	pairs(say, "Parameter", "Value", c.Parameters)
	if c.Environment != "" {
		say("\nEnvironment `%s`, %d packages.", line(c.Environment), len(c.Packages))
	}
	written("Ethical considerations", c.EthicalConsiderations, "card.ethical_considerations")
	written("Caveats and recommendations", c.Caveats, "card.caveats")
	say("\n## Approvals\n")
	switch {
	case c.Policy == "":
		say("No policy requires approvals.")
	case c.Cleared:
		say("It meets all requirements of policy %s.", line(c.Policy))
	default:
		say("Policy %s has unmet requirements: %s.", line(c.Policy), line(strings.Join(c.Missing, "; ")))
	}
	for _, a := range c.Approvals {
		text := ""
		if a.Comment != "" {
			text = ": " + line(a.Comment)
		}
		if !a.Counts {
			text += " (does not count)"
		}
		say("- %s %s by %s%s", a.At.UTC().Format("2006-01-02"), a.Verdict, line(a.By), text)
	}
	say("\n## Files\n\n| Path | Bytes | Digest |\n|---|---|---|")
	for _, f := range c.Files {
		say("| %s | %d | %s |", cell(f.Path), f.Size, cell(f.Digest))
	}
	return []byte(b.String())
}

var loading = map[string]string{
	"data": "runs no code", "known": "creates objects of well-known libraries", "unknown": "creates objects of other modules",
	"code": "runs code that it contains", "danger": "may do anything",
}

var runIs = map[string]string{"deleted": ", which is deleted", "unseen": ", which does not exist or is not accessible to you"}

func pairs(say func(string, ...any), left, right string, all []Pair) {
	if len(all) == 0 {
		say("None is on record.")
		return
	}
	say("| %s | %s |\n|---|---|", left, right)
	for _, p := range all {
		say("| %s | %s |", cell(p.Name), cell(p.Value))
	}
}

// quote writes a text as YAML reads it, whatever is in it.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f || r >= 0x80 && !unicode.IsPrint(r):
			b.WriteByte(' ')
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// clean takes out what would do something to a terminal, or show a text in another order
// than it has.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case unicode.IsControl(r), r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// said is a text that people wrote, as Markdown but not as HTML, and quoted: no heading or
// open fence in it reads as a part of the card. Images are not fetched: that tells
// whoever has them who reads.
func said(s string) string {
	s = strings.NewReplacer("<", "&lt;", "![", `!\[`).Replace(strings.TrimSpace(clean(s)))
	return "> " + strings.ReplaceAll(s, "\n", "\n> ")
}

// line is a text within a line: it means nothing in Markdown.
func line(s string) string {
	s = strings.Join(strings.Fields(clean(s)), " ")
	s = strings.NewReplacer("<", "&lt;", "&", "&amp;", `\`, `\\`, "`", "\\`", "*", `\*`, "[", `\[`, "]", `\]`, "|", `\|`, "~", `\~`).Replace(s)
	return emphasis.ReplaceAllStringFunc(s, func(at string) string { return strings.ReplaceAll(at, "_", `\_`) })
}

// emphasis is what underscores do that begin a word; those within words, as in names of
// runs, do nothing.
var emphasis = regexp.MustCompile(`(?:^|[^\pL\pN])_+`)

// cell is a text within a table, cut where it would be too long to read.
func cell(s string) string {
	const most = 500
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return line(s)
}
