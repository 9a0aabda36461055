package erasure

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/governance/privacy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/usecase/backups"
)

// The kinds of places that no participant of an erasure searches by rows. Texts are
// searched for the person's key; of files, logs, checkpoints, sketches and backups the
// certificate says that they were not searched, because their form is not known or they
// cannot be changed. TestEveryPlaceIsKnown compares covered with all tables and objects.
const (
	inScripts     = "job scripts"
	inSources     = "job sources"
	inLogs        = "job logs"
	inParams      = "parameters"
	inNotes       = "notes"
	inArtifacts   = "artifacts"
	inCheckpoints = "checkpoints"
	inWindows     = "monitor windows"
	inLabels      = "labels"
	inBackups     = "backups"
)

// text is a kind of place whose texts are searched for the person's key.
type text struct {
	kind string
	at   store.Mention
	tool string // with %s for the name
}

const ofModel = "SELECT m.project, 'model ' || m.name AS name, "

// texts are all of them. What jobs have to say is in scripts.
var texts = []text{
	{inParams, store.Mention{Table: "tracking_param", Column: "value", By: "'run ' || run"}, "MLflow's client: delete_run, then falaj run prune"},
	{inParams, store.Mention{Table: "(SELECT m.project, p.model, p.value FROM tracking_model_param p JOIN tracking_model m ON m.id = p.model)", Column: "value", By: "'logged model ' || model"}, "MLflow's client: delete_logged_model"},
	{inParams, store.Mention{Table: "tuning_distribution", Column: "distribution", By: "'study ' || CAST(study AS TEXT)"}, "falaj delete sweep"},
	{inParams, store.Mention{Table: "tuning_sweep", Column: "body", By: "'sweep ' || name"}, "falaj delete sweep"},
	{inNotes, store.Mention{Table: "tracking_run", Column: "name", By: "'run ' || id"}, "MLflow's client: update_run"},
	{inNotes, store.Mention{Table: "tracking_tag", Column: "value", By: "'run ' || run"}, "MLflow's client: delete_tag"},
	{inNotes, store.Mention{Table: "tracking_experiment", Column: "name", By: "'experiment ' || CAST(id AS TEXT)"}, "MLflow's client: rename_experiment"},
	{inNotes, store.Mention{Table: "tracking_experiment_tag", Column: "value", By: "'experiment ' || CAST(experiment AS TEXT)"}, "MLflow's client: delete_experiment_tag"},
	{inNotes, store.Mention{Table: "tracking_dataset", Column: "source", By: "'experiment ' || CAST(experiment AS TEXT)"}, "MLflow's client: delete_run, then falaj run prune"},
	{inNotes, store.Mention{Table: "tracking_dataset", Column: "profile", By: "'experiment ' || CAST(experiment AS TEXT)"}, "MLflow's client: delete_run, then falaj run prune"},
	{inNotes, store.Mention{Table: "tracking_model", Column: "name", By: "'logged model ' || id"}, "MLflow's client: delete_logged_model"},
	{inNotes, store.Mention{Table: "(SELECT m.project, g.model, g.value FROM tracking_model_tag g JOIN tracking_model m ON m.id = g.model)", Column: "value", By: "'logged model ' || model"}, "MLflow's client: delete_logged_model_tag"},
	{inNotes, store.Mention{Table: "registry_model", Column: "description", By: "'model ' || name"}, "MLflow's client: update_registered_model"},
	{inNotes, store.Mention{Table: "(" + ofModel + "g.value FROM registry_model_tag g JOIN registry_model m ON m.id = g.model)", Column: "value", By: "name"}, "MLflow's client: delete_registered_model_tag"},
	{inNotes, store.Mention{Table: "registry_version", Column: "description", By: "'model ' || model_name || '@' || CAST(number AS TEXT)"}, "MLflow's client: update_model_version"},
	{inNotes, store.Mention{Table: "(" + ofModel + "g.value FROM registry_version_tag g JOIN registry_model m ON m.id = g.model)", Column: "value", By: "name"}, "MLflow's client: delete_model_version_tag"},
	{inNotes, store.Mention{Table: "(" + ofModel + "g.comment FROM registry_approval g JOIN registry_model m ON m.id = g.model)", Column: "comment", By: "name"}, ""},
	{inNotes, store.Mention{Table: "tuning_study", Column: "name", By: "'study ' || CAST(id AS TEXT)"}, "falaj delete sweep"},
	{inNotes, store.Mention{Table: "tuning_study_attribute", Column: "value", By: "'study ' || CAST(study AS TEXT)"}, "falaj delete sweep"},
	{inNotes, store.Mention{Table: "tuning_trial_attribute", Column: "value", By: "'trial ' || CAST(trial AS TEXT)"}, "falaj delete sweep"},
	{inNotes, store.Mention{Table: "feature_definition", Column: "body", By: "'feature definition ' || name || '@' || CAST(version AS TEXT)"}, "falaj apply -f, with another definition"},
	{inNotes, store.Mention{Table: "dataset_dataset", Column: "doc", By: "'dataset ' || name"}, "falaj apply -f, with another specification"},
	{inNotes, store.Mention{Table: "(SELECT project, name, number, doc FROM dataset_version WHERE state <> 'deleted')", Column: "doc", By: "'dataset ' || name || '@' || CAST(number AS TEXT)"}, "falaj delete dataset"},
	{inNotes, store.Mention{Table: "ingestion_source", Column: "doc", By: "'source ' || name"}, "falaj apply -f, with another specification"},
	{inNotes, store.Mention{Table: "serving_deployment", Column: "spec", By: "'deployment ' || name"}, "falaj apply -f, with another specification"},
	{inNotes, store.Mention{Table: "serving_act", Column: "reason", By: "'deployment ' || deployment"}, "falaj delete deployment"},
	{inNotes, store.Mention{Table: "serving_rollout", Column: "reason", By: "'deployment ' || deployment"}, "falaj delete deployment"},
	{inNotes, store.Mention{Table: "monitoring_monitor", Column: "spec", By: "'monitor ' || name"}, "falaj apply -f, with another specification"},
	{inNotes, store.Mention{Table: "gateway", Column: "spec", By: "'gateway ' || name"}, "falaj apply -f, with another specification"},
	{inNotes, store.Mention{Table: "request", Column: "reason", By: "'request ' || id"}, ""},
	{inNotes, store.Mention{Table: "openlineage_run", Column: "doc", By: "'lineage of run ' || id"}, ""},
	{inNotes, store.Mention{Table: "openlineage_thing", Column: "doc", By: "'lineage of ' || name"}, ""},
	{inLogs, store.Mention{Table: "(SELECT j.project, a.job, a.body FROM training_attempt a JOIN training_job j ON j.id = a.job)", Column: "body", By: "'job ' || job"}, "falaj job redact"},
	{inWindows, store.Mention{Table: "(SELECT m.project, m.name, w.result FROM monitoring_window w JOIN monitoring_monitor m ON m.id = w.monitor_id)", Column: "result", By: "'monitor ' || name"}, "falaj delete monitor"},
	{inLabels, store.Mention{Table: "label_label", Column: "id", By: "'deployment ' || deployment"}, "falaj delete deployment"},
	{inLabels, store.Mention{Table: "label_label", Column: "label_values", By: "'deployment ' || deployment"}, "falaj delete deployment"},
}

// Texts are searched only for keys that are not in every text.
const leastText = 4

// maxNamed bounds the places of a kind that a certificate names.
const maxNamed = 200

// Remaining implements privacy.Config.Beyond. It returns the places in which a person may remain after the participants searched:
// texts that contain its key, and data derived from its rows that cannot be searched.
func (s *Service) Remaining(ctx context.Context, of privacy.Subject, f privacy.Found) (left []privacy.Unsearched, kinds []string, err error) {
	l := leftovers{s: s, p: project.Name(of.Project), had: map[string]bool{}, named: map[string]int{}}
	refs, err := s.datasets().named(ctx, l.p, f)
	if err != nil {
		return nil, nil, err
	}
	for _, ref := range refs {
		l.had[ref] = true
	}
	values, known := of.Values()
	err = s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		l.out, l.named = nil, map[string]int{}
		jobs, err := l.jobs(ctx, tx)
		if err != nil {
			return err
		}
		if known && !slices.ContainsFunc(values, func(v string) bool { return utf8.RuneCountInString(v) < leastText }) {
			if err := l.texts(ctx, tx, values, jobs); err != nil {
				return err
			}
			kinds = []string{inScripts, inParams, inNotes}
		} else if some, err := s.Tracking.AnyRun(ctx, tx, l.p); err != nil || some || len(jobs) > 0 {
			if err != nil {
				return err
			}
			why := fmt.Sprintf("a key of fewer than %d characters is in too many texts", leastText)
			if !known {
				why = "after a restore only the pseudonym of the person is known"
			}
			l.add(inNotes, "scripts, parameters and notes", why, "falaj search")
		}
		if len(f.Places)+len(f.Deleted)+len(refs) == 0 {
			return nil // nobody was found, so nothing was made of the person's rows
		}
		if err := l.made(ctx, tx, jobs); err != nil {
			return err
		}
		return l.watched(ctx, tx)
	})
	if err != nil {
		return nil, nil, err
	}
	if len(f.Places)+len(f.Deleted) > 0 {
		err = l.backups()
	}
	l.rest()
	return l.out, kinds, err
}

// leftovers collects these places.
type leftovers struct {
	s     *Service
	p     project.Name
	had   map[string]bool // dataset versions that had rows of the person, or perhaps had
	out   []privacy.Unsearched
	named map[string]int // how many of a kind there are
}

func (l *leftovers) add(kind, name, reason, tool string) {
	if l.named[kind]++; l.named[kind] <= maxNamed {
		l.out = append(l.out, privacy.Unsearched{Kind: kind, Name: name, Reason: reason, Tool: tool})
	}
}

// rest says how many are not named.
func (l *leftovers) rest() {
	for _, kind := range slices.Sorted(maps.Keys(l.named)) {
		if more := l.named[kind] - maxNamed; more > 0 {
			l.out = append(l.out, privacy.Unsearched{Kind: kind, Name: fmt.Sprintf("%d more", more), Reason: fmt.Sprintf("the certificate names %d of a kind", maxNamed)})
		}
	}
}

// jobs are those of the project, the oldest first.
func (l *leftovers) jobs(ctx context.Context, tx *store.Tx) (all []training.Job, err error) {
	const page = 1000
	for before := training.JobID(""); ; {
		some, err := l.s.Training.JobsIn(ctx, tx, l.p, training.Filter{Limit: page, Before: before})
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
		if len(some) < page {
			slices.Reverse(all)
			return all, nil
		}
		before = some[len(some)-1].ID
	}
}

// texts finds the person's key, as words, in what people wrote.
func (l *leftovers) texts(ctx context.Context, tx *store.Tx, values []string, jobs []training.Job) error {
	seen := func(kind, by, tool string) {
		u := privacy.Unsearched{Kind: kind, Name: by, Reason: "the person's key is in its text, which is not changed automatically", Tool: tool, Seen: true}
		if !slices.Contains(l.out, u) {
			l.out = append(l.out, u)
		}
	}
	for _, t := range texts {
		for _, word := range slices.Compact([]string{values[0], quoted(values[0])}) {
			if err := store.Mentions(ctx, tx, t.at, string(l.p), word, func(by, text string) {
				if saysAll(plainText(text), values) {
					seen(t.kind, by, t.tool)
				}
			}); err != nil {
				return err
			}
		}
	}
	for _, j := range jobs {
		if saysAll(j.Texts(), values) {
			seen(inScripts, "job "+string(j.ID), "falaj job redact "+string(j.ID)+" --text -")
		}
	}
	return nil
}

// plainText is a text, or the texts in a JSON document, a line each: its numbers are
// sizes, times and counts, in which a key would be found by chance.
func plainText(text string) string {
	var doc any
	if !strings.HasPrefix(text, "{") && !strings.HasPrefix(text, "[") || json.Unmarshal([]byte(text), &doc) != nil {
		return text
	}
	var lines []string
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case string:
			lines = append(lines, v)
		case []any:
			for _, x := range v {
				walk(x)
			}
		case map[string]any:
			for _, k := range slices.Sorted(maps.Keys(v)) {
				walk(v[k])
			}
		}
	}
	walk(doc)
	return strings.Join(lines, "\n")
}

// quoted is a value as JSON has it, without the quotes.
func quoted(v string) string {
	b, err := json.Marshal(v)
	if err != nil || len(b) < 2 {
		return v
	}
	return string(b[1 : len(b)-1])
}

// saysAll reports whether a text has each of the values as a word.
func saysAll(text string, values []string) bool {
	for _, v := range values {
		if !says(text, v) {
			return false
		}
	}
	return len(values) > 0
}

func says(text, word string) bool {
	part := func(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }
	for from := 0; word != ""; {
		i := strings.Index(text[from:], word)
		if i < 0 {
			return false
		}
		i += from
		before, _ := utf8.DecodeLastRuneInString(text[:i])
		after, _ := utf8.DecodeRuneInString(text[i+len(word):])
		if (i == 0 || !part(before)) && (i+len(word) == len(text) || !part(after)) {
			return true
		}
		from = i + 1
	}
	return false
}

// reads reports whether a job could read one of the versions: as its data, as a table
// in any version, or by a model.
func (l *leftovers) reads(j training.Job) bool {
	for _, in := range j.Inputs {
		if l.had[in.Dataset()] || slices.ContainsFunc(in.Datasets, func(ref string) bool { return l.had[ref] }) {
			return true
		}
	}
	for _, in := range j.Tables {
		ref, err := dataset.ParseRef(in.Dataset())
		if err != nil {
			continue
		}
		for had := range l.had {
			if name, _, _ := strings.Cut(had, "@"); name == ref.Name {
				return true
			}
		}
	}
	return false
}

// made names what jobs and runs left that could read the person's rows, and the files of
// runs of which nobody knows what they read.
func (l *leftovers) made(ctx context.Context, tx *store.Tx, jobs []training.Job) error {
	could := map[string]bool{}
	for _, j := range jobs {
		from, _, _ := strings.Cut(j.Spec.Resume, "/")
		if !l.reads(j) && !could[from] {
			continue
		}
		id := string(j.ID)
		could[id] = true
		if j.Attempts == 0 {
			continue
		}
		l.add(inLogs, id, "its output is not searched; the job could read the person's rows", "falaj job logs "+id+", falaj job redact "+id+" --text -")
		kept, err := l.s.Checkpoints.KeptBy(ctx, tx, id)
		if err != nil {
			return err
		}
		for _, c := range kept {
			l.add(inCheckpoints, id+"/"+c.Name, "the format of its files is unknown; the job could read the person's rows", "falaj job checkpoint delete "+id+" "+c.ID)
		}
	}
	sources := 0
	for _, j := range jobs {
		if j.Spec.Source != "" {
			sources++
		}
	}
	if sources > 0 {
		l.add(inSources, fmt.Sprintf("uploaded code of %d jobs", sources), "archives are not searched", "falaj job describe JOB names the archive")
	}
	holders, err := l.s.Tracking.Holders(ctx, tx, l.p)
	if err != nil {
		return err
	}
	others, files := 0, int64(0)
	for _, h := range holders {
		n := h.Files - h.Logs
		switch {
		case n == 0:
		case could[h.Job]:
			l.add(inArtifacts, h.Owner, fmt.Sprintf("the format of its %d files is unknown; job %s, which wrote them, could read the person's rows", n, h.Job), "MLflow's client: list_artifacts, delete_artifacts")
		default:
			others, files = others+1, files+n
		}
	}
	if others > 0 {
		l.add(inArtifacts, fmt.Sprintf("%d files of %d other runs", files, others), "their format is unknown; according to the lineage they were not derived from the person's rows", "MLflow's client: list_artifacts, delete_artifacts")
	}
	return nil
}

// watched names the monitors that keep distributions of columns.
func (l *leftovers) watched(ctx context.Context, tx *store.Tx) error {
	names, err := l.s.Monitoring.Keeping(ctx, tx, string(l.p))
	for _, name := range names {
		l.add(inWindows, "monitor "+name, "its windows and baseline keep distributions and frequent values of columns, not rows", "falaj delete monitor "+name)
	}
	return err
}

// backups names those that may have the person still.
func (l *leftovers) backups() error {
	dir := l.s.Backups
	if dir == "" {
		return nil
	}
	all, err := backups.In(dir, "")
	if err != nil {
		return err
	}
	for _, b := range all {
		of := "unknown time"
		if !b.Of.IsZero() {
			of = b.Of.UTC().Format("2006-01-02 15:04 UTC")
		}
		l.add(inBackups, b.Name, "it was made at "+of+"; a restore erases the person again, and until then its holder can read it with the master key", "remove the directory "+b.Name+" in backup.dir when its time has come")
	}
	return nil
}
