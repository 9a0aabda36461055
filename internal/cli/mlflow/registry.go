package mlflow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/client"
)

// name is what a model is called in a request.
type name struct {
	Name string `json:"name"`
	From string `json:"renamed_from,omitempty"`
}

// late is a version that was made from one that has not come yet.
type late struct {
	m Registered
	v Version
}

// bringRegistry brings registered models, their versions and then their aliases. Versions that
// were made from a version that has not come yet are tried again at the end.
func (i *importer) bringRegistry(ctx context.Context) error {
	var all []Registered
	err := i.source.Registered(ctx, func(m Registered) error {
		m.Tags = i.valid("registered_model", m.Name, m.Tags)
		if slices.ContainsFunc(m.Tags, func(t [2]string) bool { return t[0] == "mlflow.prompt.is_prompt" && strings.EqualFold(t[1], "true") }) {
			if !i.part() {
				i.report.Models.Skipped++
				i.skip("registered_model", m.Name, errors.New("it is a prompt; the registry keeps models"))
			}
			return nil
		}
		all = append(all, m)
		return nil
	})
	if err != nil {
		return err
	}
	if i.known, err = i.registered(ctx); err != nil {
		return err
	}
	i.renamed(all)
	i.cameVersions, i.uris = map[string]bool{}, i.byURI()
	var again []late
	var came []Registered
	for _, m := range all {
		wanted, out := i.ofPart(m)
		if len(wanted) == 0 && i.part() && (len(m.Versions) > 0 || len(i.opts.Experiments) > 0) {
			continue
		}
		result, err := i.register(ctx, "registered_model", m.Name, "/model", i.modelBody(m))
		i.report.Models.add(result)
		if err != nil {
			return err
		}
		if result == "refused" {
			for _, v := range m.Versions {
				i.leaveOut(m, v, errors.New("its registered model was not imported"))
			}
			continue
		}
		for _, v := range out {
			i.leaveOut(m, v, errors.New("its run is not in the part that was asked for"))
		}
		for _, v := range wanted {
			late, err := i.version(ctx, m, v)
			if err != nil {
				return err
			}
			again = append(again, late...)
		}
		came = append(came, m)
	}
	for _, l := range again {
		if !i.cameVersions[origin(l.v.Source)] { // as when it was deleted there: the copy's files are still where they were
			files := l.v
			files.Source = ""
			if source, elsewhere := i.sourceOf(files, i.uris); elsewhere == nil {
				l.v = i.from(versionName(l.m, l.v), l.v, source)
			}
		}
		if err := i.sendVersion(ctx, l.m, l.v); err != nil {
			return err
		}
	}
	for _, m := range came {
		if err := i.aliases(ctx, m); err != nil {
			return err
		}
		i.deletedVersions(m)
	}
	i.deletedModels(all)
	return nil
}

func versionName(m Registered, v Version) string { return m.Name + "@" + strconv.Itoa(v.Number) }

func (i *importer) leaveOut(m Registered, v Version, why error) {
	i.report.Versions.Skipped++
	i.skip("model_version", versionName(m, v), why)
}

// ofPart divides the versions of a model into those of the part that was asked for and the
// others. What came at an earlier import is of it.
func (i *importer) ofPart(m Registered) (wanted, others []Version) {
	for _, v := range m.Versions {
		if i.part() && !i.inPart(m, v) {
			others = append(others, v)
			continue
		}
		wanted = append(wanted, v)
	}
	return wanted, others
}

func (i *importer) inPart(m Registered, v Version) bool {
	if known, ok := i.known[i.nameOf(m)]; ok && known.versions[v.Number] {
		return true
	}
	if v.Run != "" {
		return i.runs[v.Run].Run != ""
	}
	source, err := i.sourceOf(v, i.uris)
	if err != nil {
		return len(i.opts.Experiments) == 0
	}
	if m := sourceModel.FindStringSubmatch(source); m != nil && i.models[m[1]].Model != "" {
		return true
	}
	return i.cameVersions[origin(source)] || len(i.opts.Experiments) == 0
}

// version brings a version, or gives it back where it was made from one that has not come yet.
func (i *importer) version(ctx context.Context, m Registered, v Version) ([]late, error) {
	v.Tags = i.valid("model_version", versionName(m, v), v.Tags)
	source, err := i.sourceOf(v, i.uris)
	if err != nil {
		i.leaveOut(m, v, err)
		return nil, nil
	}
	if versionSource.MatchString(source) {
		return []late{{m, v}}, nil
	}
	return nil, i.sendVersion(ctx, m, i.from(versionName(m, v), v, source))
}

// sendVersion sends a version.
func (i *importer) sendVersion(ctx context.Context, m Registered, v Version) error {
	result, err := i.register(ctx, "model_version", versionName(m, v), "/version", struct {
		Model name `json:"model"`
		Version
		Origin string `json:"origin"`
		DryRun bool   `json:"dry_run,omitempty"`
	}{name{m.Name, i.renames[m.Name]}, v, i.origin, i.opts.DryRun})
	i.report.Versions.add(result)
	came := result != "refused"
	i.cameVersions[versionName(m, v)] = came
	for _, alias := range v.Aliases {
		i.cameVersions[m.Name+"@"+alias] = came
	}
	i.opts.Progress("model versions", int64(i.report.Versions.All()), 0)
	return err
}

func (i *importer) modelBody(m Registered) any {
	return struct {
		Registered
		From   string `json:"renamed_from,omitempty"`
		Origin string `json:"origin"`
		DryRun bool   `json:"dry_run,omitempty"`
	}{m, i.renames[m.Name], i.origin, i.opts.DryRun}
}

// aliases brings the aliases of a model, whose versions have come. A model counts as updated
// where only they changed.
func (i *importer) aliases(ctx context.Context, m Registered) error {
	type alias struct {
		Alias   string `json:"alias"`
		Version int    `json:"version"`
	}
	all := []alias{}
	for _, v := range m.Versions {
		for _, a := range v.Aliases {
			all = append(all, alias{a, v.Number})
		}
	}
	before := i.results[m.Name]
	result, err := i.register(ctx, "registered_model", m.Name, "/aliases", struct {
		Model   name    `json:"model"`
		Aliases []alias `json:"aliases"`
		DryRun  bool    `json:"dry_run,omitempty"`
	}{name{m.Name, i.renames[m.Name]}, all, i.opts.DryRun})
	if before == "unchanged" && result == "updated" {
		i.report.Models.Unchanged--
		i.report.Models.Updated++
	}
	return err
}

// registeredBefore is a registered model that an earlier import brought.
type registeredBefore struct {
	created  int64
	origin   string
	versions map[int]bool
}

// registered asks for the registered models and versions that came before.
func (i *importer) registered(ctx context.Context) (map[string]registeredBefore, error) {
	out := map[string]registeredBefore{}
	err := i.target.Client.List(ctx, i.target.path("/models"), nil, func(o client.Object) error {
		version, err := strconv.Atoi(o.Text("version"))
		if err != nil {
			return err
		}
		created, err := strconv.ParseInt(o.Text("creation_timestamp"), 10, 64)
		if err != nil {
			return err
		}
		m, ok := out[o.Text("name")]
		if !ok {
			m = registeredBefore{versions: map[int]bool{}}
		}
		if m.versions[version] = true; version == 0 {
			m.created, m.origin = created, o.Text("origin")
		}
		out[o.Text("name")] = m
		return nil
	})
	return out, err
}

// renamed finds models that were renamed in the source: of those that came before one alone
// has their creation time, and the source has no model of its name and time any more.
func (i *importer) renamed(all []Registered) {
	i.renames = map[string]string{}
	there := map[string]int64{}
	times := map[int64]int{}
	for _, m := range all {
		there[m.Name] = m.Created
		times[m.Created]++
	}
	gone := map[int64][]string{}
	for name, m := range i.known {
		if created, ok := there[name]; m.origin == i.origin && m.origin != "" && (!ok || created != m.created) {
			gone[m.created] = append(gone[m.created], name)
		}
	}
	for _, m := range all {
		if known, ok := i.known[m.Name]; ok && known.created == m.Created || m.Created == 0 {
			continue
		}
		if from := gone[m.Created]; len(from) == 1 && times[m.Created] == 1 {
			i.renames[m.Name] = from[0]
		}
	}
}

// nameOf is the name with which a model came before.
func (i *importer) nameOf(m Registered) string {
	return cmp.Or(i.renames[m.Name], m.Name)
}

// deletedVersions tells of versions that came before and are not in the source any more.
func (i *importer) deletedVersions(m Registered) {
	known := i.known[i.nameOf(m)]
	if known.origin != i.origin || i.origin == "" {
		return
	}
	for _, v := range m.Versions {
		delete(known.versions, v.Number)
	}
	for _, n := range slices.Sorted(maps.Keys(known.versions)) {
		if n > 0 {
			i.differs("model_version", m.Name+"@"+strconv.Itoa(n), "it was deleted in the source and stays in Falaj: delete it here if nothing needs it")
		}
	}
}

// deletedModels tells of models that came before and are not in the source any more.
func (i *importer) deletedModels(all []Registered) {
	if i.part() || i.origin == "" {
		return
	}
	there := map[string]bool{}
	for _, m := range all {
		there[i.nameOf(m)] = true
	}
	for _, name := range slices.Sorted(maps.Keys(i.known)) {
		if !there[name] && i.known[name].origin == i.origin {
			i.differs("registered_model", name, "it was deleted in the source and stays in Falaj: delete it here if nothing needs it")
		}
	}
}

// from is a version with the source that it has here.
func (i *importer) from(name string, v Version, source string) Version {
	if source != v.Source {
		i.differs("model_version", name, "its source is %s here, and was %s", source, v.Source)
		v.Source = source
	}
	return v
}

// origin is the version that another was copied from, "delay@3", by its source.
func origin(source string) string {
	m := versionSource.FindStringSubmatch(source)
	if m == nil {
		return ""
	}
	return m[1] + "@" + m[2][1:]
}

// byURI are the places that came, by where their artifacts are at the source.
func (i *importer) byURI() map[string]Place {
	out := make(map[string]Place, len(i.models))
	for _, p := range i.models {
		out[strings.TrimSuffix(p.URI, "/")] = p
	}
	return out
}

var (
	ownSource     = regexp.MustCompile(`^(runs:/+[0-9a-zA-Z_]+(/.*)?|models:/+m-[0-9a-f]{32}|models:/+m_[0-9A-Z]{26})$`)
	versionSource = regexp.MustCompile(`^models:/+([^/]+?)(/[0-9]+|@[^@/]+)$`)
	sourceModel   = regexp.MustCompile(`^(?:models:/+|mlflow-artifacts:/+[0-9]+/models/)(m[-_][0-9a-zA-Z]+)(?:/.*)?$`)
	proxied       = regexp.MustCompile(`^mlflow-artifacts:/+[0-9]+/([0-9a-f]{32}|run_[0-9A-Z]{26}|models/m-[0-9a-f]{32})/artifacts(/.*)?$`)
)

// sourceOf is where the files of a version are here.
func (i *importer) sourceOf(v Version, models map[string]Place) (string, error) {
	if v.Status != "" && v.Status != "READY" {
		return "", fmt.Errorf("it is not ready (%s) and has no files to sign", v.Status)
	}
	for _, at := range []string{v.Source, v.Storage} {
		switch {
		case at == "":
			continue
		case ownSource.MatchString(at), versionSource.MatchString(at), proxied.MatchString(at):
			return at, nil
		}
		at = strings.TrimSuffix(at, "/")
		if p, ok := models[at]; ok {
			return "models:/" + p.Model, nil
		}
		if p, ok := i.runs[v.Run]; ok && v.Run != "" {
			if rest, within := strings.CutPrefix(at, strings.TrimSuffix(p.URI, "/")+"/"); within {
				return "runs:/" + p.Run + "/" + rest, nil
			}
		}
	}
	return "", fmt.Errorf("its source %s is not in the artifacts of a run or logged model that was imported", clip(v.Source))
}

// register sends a registered model, a version or aliases.
func (i *importer) register(ctx context.Context, kind, name, to string, body any) (string, error) {
	var answer struct {
		Result string   `json:"result"`
		Lost   []string `json:"lost"`
	}
	err := i.target.Client.Do(ctx, http.MethodPost, i.target.path(to), body, &answer)
	if err != nil {
		if fatal(ctx, err) {
			return "refused", err
		}
		i.skip(kind, name, err)
		return "refused", nil
	}
	for _, lost := range answer.Lost {
		i.skip("part of "+kind, name, errors.New(lost))
	}
	if kind == "registered_model" {
		i.results[name] = cmp.Or(i.results[name], answer.Result)
	}
	return answer.Result, nil
}
