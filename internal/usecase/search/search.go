// Package search finds objects of all kinds in a project by words: of their names,
// descriptions, owners, tags, columns and lineage. It reads lines out of indexes of the
// database: the texts that objects are found by. Only those objects are read whose line has
// the words, and those decide. So no index can show what its reader may not see, or lag
// behind: a line is written with its object.
package search

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tink-crypto/tink-go/v2/aead/subtle"
	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/tuning/sweep"
)

// Bounds of one search.
const (
	maxScan     = 5000 // objects that one answer inspects; then it gives a token to resume
	pageSize    = 200  // of them that are read at a time
	lineagePage = 20   // external jobs and datasets that are read at a time: with all their facets
	maxTime     = 20 * time.Second
	maxWords    = 10
)

// Service searches the objects of these services.
type Service struct {
	Authorizer interface {
		policy.Authorizer
		policy.Permitter
	}
	Pages        Pages
	Datasets     *dataset.Definitions
	Features     feature.Services
	Registry     *registry.Models
	Serving      *serving.Deployments
	Monitoring   *monitoring.Service
	Ingestion    *ingestion.Service
	Training     *training.Jobs
	Environments *environment.Service
	Experiments  *tracking.Experiments
	Sweeps       *sweep.Service
	Lineage      *openlineage.Service
	// Names are the names of accounts by id that the caller may know.
	Names func(ctx context.Context, p project.Name, ids ...string) (map[string]string, error)
}

// Hit is an object that was found.
type Hit struct {
	Kind        string  `json:"kind"`
	Name        string  `json:"name"`
	Description string  `json:"description,omitempty"`
	Owner       string  `json:"owner,omitempty" doc:"Owner; a name if the caller may see it"`
	Matches     []Match `json:"matches" doc:"Fields that match"`
}

// Match is a field in which a word was found.
type Match struct {
	Field string `json:"field" enum:"name,description,owner,tag,column,from"`
	Value string `json:"value"`
}

// thing is an object to be looked at.
type thing struct {
	Hit
	after  string // the place after it
	object policy.Object
	owner  string // id
	texts  []Match
	// more are texts that cost another question, asked only for "from:" words.
	more func(context.Context) ([]Match, error)
}

// kindOfThings is a list that is searched.
type kindOfThings struct {
	name   string // of the kind
	action policy.Action
	policy string // kind of the policy's objects
	// list gives things after a place, limit at most, how many were inspected for them, and
	// the place to go on; empty at the end.
	list lister
}

// lister is a list of a kind, as kindOfThings has it.
type lister func(ctx context.Context, f *finder, after string, limit int) (things []thing, seen int, next string, err error)

// findBy is a list of the objects that find gives.
func findBy[T any](kind string, find func(ctx context.Context, f *finder, after string, limit int, may func(store.Line) (bool, error)) (store.Found[T], error), thingOf func(f *finder, x T) thing) lister {
	return func(ctx context.Context, f *finder, after string, limit int) ([]thing, int, string, error) {
		found, err := find(ctx, f, after, limit, func(l store.Line) (bool, error) {
			if l.More {
				return true, nil
			}
			t := thing{Hit: Hit{Name: l.Key}, owner: l.Owner, texts: matchesOf(l.Fields)}
			var err error
			if t.Owner, err = f.ownerOf(ctx, t.owner); err != nil {
				return false, err
			}
			_, all := t.matches(f.words, kind, t.all())
			return all, nil
		})
		things := make([]thing, len(found.Objects))
		for i, x := range found.Objects {
			things[i] = thingOf(f, x)
		}
		return things, found.Seen, found.Next, err
	}
}

func matchesOf(fields []store.Field) []Match {
	out := make([]Match, len(fields))
	for i, f := range fields {
		out[i] = Match{f.Name, f.Value}
	}
	return out
}

// kinds are every kind, in the order of the answer.
func (s Service) kinds() []kindOfThings {
	return []kindOfThings{
		{"dataset", dataset.ActionRead, "dataset", s.datasets()},
		{"feature_view", feature.ActionRead, "feature", s.views()},
		{"feature_service", feature.ActionRead, "feature", s.featureServices()},
		{"entity", feature.ActionRead, "feature", s.entities()},
		{"model", "model.read", "model", s.models()},
		{"deployment", "deployment.read", "deployment", s.deployments()},
		{"monitor", "monitor.read", "monitor", s.monitors()},
		{"source", "source.read", "source", s.sources()},
		{"job", "job.read", "job", s.jobs()},
		{"environment", "environment.read", "environment", s.environments()},
		{"experiment", "run.read", "experiment", s.experiments()},
		{"sweep", sweep.ActionRead, "sweep", s.sweeps()},
		{"lineage", dataset.ActionRead, "dataset", s.lineage()},
	}
}

// word is a part of a query: in this field, or in any.
type word struct{ field, text string }

// wordsOf reads "delay owner:alice column:temp". A word in quotes may hold spaces.
func wordsOf(q string) ([]word, error) {
	var out []word
	for rest := strings.TrimSpace(q); rest != ""; rest = strings.TrimSpace(rest) {
		var w word
		if field, text, ok := strings.Cut(rest, ":"); ok && slices.Contains([]string{"name", "kind", "owner", "tag", "column", "description", "from"}, field) {
			w.field, rest = field, text
		}
		if after, quoted := strings.CutPrefix(rest, `"`); quoted {
			w.text, rest, _ = strings.Cut(after, `"`)
		} else if at := strings.IndexByte(rest, ' '); at >= 0 {
			w.text, rest = rest[:at], rest[at:]
		} else {
			w.text, rest = rest, ""
		}
		if w.text = strings.ToLower(w.text); w.text == "" {
			return nil, fault.New(fault.Invalid, "q: the search term after %q is empty", w.field+":")
		}
		out = append(out, w)
	}
	if len(out) == 0 || len(out) > maxWords {
		return nil, fault.New(fault.Invalid, "q: %d words; use 1 to %d", len(out), maxWords).
			WithHint("Search for words such as temp, owner:alice, tag:team=ops, column:temp, from:weather or kind:model.")
	}
	return out, nil
}

// matches are the fields in which the words are; every word must be in one.
func (t thing) matches(words []word, kind string, texts []Match) (found []Match, all bool) {
	for _, w := range words {
		if w.field == "kind" {
			if w.text != kind {
				return nil, false
			}
			continue
		}
		in := false
		for _, m := range texts {
			if (w.field == "" || w.field == m.Field) && strings.Contains(strings.ToLower(m.Value), w.text) {
				in = true
				if !slices.Contains(found, m) && len(found) < 20 {
					found = append(found, m)
				}
			}
		}
		if !in {
			return nil, false
		}
	}
	return found, true
}

// cursor is where a search resumes. Its token is sealed: it may hold the name of an object
// that the caller may not see.
type cursor struct {
	Kind  int    `json:"k"`
	After string `json:"a"`
}

// Pages seals the page tokens of searches.
type Pages struct{ seal tink.AEAD }

// SealPages seals page tokens with a key that all servers of the installation share; without
// keys, with one that lasts as long as the process.
func SealPages(k *keys.Service) Pages {
	var key []byte
	if k != nil {
		key = k.Lasting("page tokens of searches")
	} else { // a server without keys, such as that of the API description
		key = make([]byte, 32)
		_, _ = rand.Read(key) // never fails
	}
	seal, _ := subtle.NewAESGCM(key) // a key of 32 bytes is valid
	return Pages{seal}
}

// token is a page token for one project.
func (s Service) token(c cursor, p project.Name) (string, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	b, err = s.Pages.seal.Encrypt(b, []byte(p))
	return base64.RawURLEncoding.EncodeToString(b), err
}

// resume reads a page token.
func (s Service) resume(token string, p project.Name) (at cursor, err error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		b, err = s.Pages.seal.Decrypt(b, []byte(p))
	}
	if err != nil || json.Unmarshal(b, &at) != nil || at.Kind < 0 || at.Kind >= len(s.kinds()) {
		return cursor{}, fault.New(fault.Invalid, "page_token is invalid")
	}
	return at, nil
}

// Find gives objects of a project that have all words of a query and that the caller may see,
// size at most, and the token of the next page; empty at the end. Errors: fault.Invalid for a
// query or a token that is none; fault.PermissionDenied for a caller who may list no kind.
func (s Service) Find(ctx context.Context, p project.Name, query string, size int, token string) (hits []Hit, next string, err error) {
	ctx, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	words, err := wordsOf(query)
	if err != nil {
		return nil, "", err
	}
	var at cursor
	if token != "" {
		if at, err = s.resume(token, p); err != nil {
			return nil, "", err
		}
	}
	if size == 0 {
		size = 100
	}
	f := finder{s: s, p: p, words: words, left: maxScan, size: size}
	next, err = f.run(ctx, at)
	if err == nil && !f.may && token == "" { // as lists do, to whom may list nothing
		err = s.Authorizer.Allow(ctx, dataset.ActionRead, policy.Object{Project: string(p), Kind: "dataset"})
	}
	return f.hits, next, err
}

// finder is one search.
type finder struct {
	s     Service
	p     project.Name
	words []word
	left  int // objects that may still be looked at
	size  int
	may   bool // see any kind of object
	hits  []Hit
	names map[string]string // of owners seen so far, by id; those without a name by id as well
}

// run looks from a place on, and gives the token of the place where it stopped.
func (f *finder) run(ctx context.Context, at cursor) (next string, err error) {
	f.names = map[string]string{}
	kinds := f.s.kinds()
	for ; at.Kind < len(kinds); at = (cursor{Kind: at.Kind + 1}) {
		k := kinds[at.Kind]
		if asked := slices.IndexFunc(f.words, func(w word) bool { return w.field == "kind" }); asked >= 0 && f.words[asked].text != k.name {
			continue
		}
		may, err := f.s.Authorizer.Permits(ctx, k.action, policy.Object{Project: string(f.p), Kind: k.policy})
		if err != nil {
			return "", err
		}
		if !may && (k.name != "dataset" || !identity.From(ctx).Narrowed()) { // a token that names datasets lists those
			continue
		}
		f.may = true
		for {
			limit := min(pageSize, f.size-len(f.hits)+pageSize/10)
			things, seen, next, err := k.list(ctx, f, at.After, limit)
			if fault.Is(err, fault.PermissionDenied) {
				break
			}
			if err != nil {
				return "", err
			}
			for _, t := range things {
				if err := f.look(ctx, k, t); err != nil {
					return "", err
				}
				f.left--
				if at.After = cmp.Or(t.after, at.After); t.after != "" && f.done() {
					return f.s.token(at, f.p)
				}
			}
			if at.After = next; next == "" {
				break
			}
			if f.left -= seen - len(things); f.done() {
				return f.s.token(at, f.p)
			}
		}
		if f.done() && at.Kind+1 < len(kinds) {
			return f.s.token(cursor{Kind: at.Kind + 1}, f.p)
		}
	}
	return "", nil
}

// done reports whether the page is full, or enough was looked at.
func (f *finder) done() bool { return f.left <= 0 || len(f.hits) >= f.size }

// look keeps a thing that has the words, if the caller may see it.
func (f *finder) look(ctx context.Context, k kindOfThings, t thing) (err error) {
	if t.Owner, err = f.ownerOf(ctx, t.owner); err != nil {
		return err
	}
	texts := t.all()
	if t.more != nil && f.asks("from") {
		more, err := t.more(ctx)
		if err != nil && !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.PermissionDenied) {
			return err
		}
		texts = append(texts, more...)
	}
	found, all := t.matches(f.words, k.name, texts)
	if !all {
		return nil
	}
	t.object.Project, t.object.Kind = string(f.p), k.policy
	if t.object.Name == "" {
		t.object.Name = t.Name
	}
	may, err := f.s.Authorizer.Permits(ctx, k.action, t.object)
	if err != nil || !may {
		return err
	}
	t.Kind, t.Matches = k.name, found
	if t.Matches == nil {
		t.Matches = []Match{}
	}
	f.hits = append(f.hits, t.Hit)
	return nil
}

// all are the texts of a thing, without those that cost another question.
func (t thing) all() []Match {
	texts := append(slices.Clone(t.texts), Match{"name", t.Name}, Match{"description", t.Description})
	if t.owner != "" {
		texts = append(texts, Match{"owner", t.Owner}, Match{"owner", t.owner})
	}
	return slices.DeleteFunc(texts, func(m Match) bool { return m.Value == "" })
}

// ownerOf is the name of an owner, or its id where the caller may not know or it has none.
func (f *finder) ownerOf(ctx context.Context, owner string) (string, error) {
	if _, seen := f.names[owner]; !seen && owner != "" {
		names, err := f.s.Names(ctx, f.p, owner)
		if err != nil {
			return "", err
		}
		f.names[owner] = names[owner]
	}
	return cmp.Or(f.names[owner], owner), nil
}

// asks reports whether the query has words of a field.
func (f *finder) asks(field string) bool {
	return slices.ContainsFunc(f.words, func(w word) bool { return w.field == field })
}

func (s Service) datasets() lister {
	return findBy("dataset", func(ctx context.Context, f *finder, after string, limit int, may func(store.Line) (bool, error)) (store.Found[dataset.Dataset], error) {
		return s.Datasets.Find(ctx, f.p, f.asks("from"), after, limit, may)
	}, func(f *finder, d dataset.Dataset) thing {
		t := thing{Hit: Hit{Name: d.Name, Description: d.Spec.Description}, after: d.Name, owner: d.Owner, texts: matchesOf(d.SearchFields()), object: policy.Object{
			Owner: d.Owner, Classification: string(d.Spec.Classification), Residency: d.Spec.Residency,
		}}
		if d.Latest > 0 {
			t.more = func(ctx context.Context) ([]Match, error) {
				v, err := s.Datasets.Version(ctx, f.p, dataset.Ref{Name: d.Name, Number: d.Latest})
				return matchesOf(v.Lineage.SearchFields()), err
			}
		}
		return t
	})
}

func (s Service) views() lister {
	return findBy("feature_view", func(ctx context.Context, f *finder, after string, limit int, may func(store.Line) (bool, error)) (store.Found[feature.View], error) {
		return s.Features.Definitions.FindViews(ctx, f.p, after, limit, may)
	}, func(_ *finder, v feature.View) thing {
		return thing{Hit: Hit{Name: v.Name, Description: v.Description}, after: v.Name, owner: v.CreatedBy, texts: matchesOf(v.SearchFields())}
	})
}

func (s Service) featureServices() lister {
	return findBy("feature_service", func(ctx context.Context, f *finder, after string, limit int, may func(store.Line) (bool, error)) (store.Found[feature.ServiceDefinition], error) {
		return s.Features.Definitions.FindServiceDefinitions(ctx, f.p, after, limit, may)
	}, func(_ *finder, b feature.ServiceDefinition) thing {
		return thing{Hit: Hit{Name: b.Name, Description: b.Description}, after: b.Name, owner: b.CreatedBy, texts: matchesOf(b.SearchFields())}
	})
}

func (s Service) entities() lister {
	return findBy("entity", func(ctx context.Context, f *finder, after string, limit int, may func(store.Line) (bool, error)) (store.Found[feature.Entity], error) {
		return s.Features.Definitions.FindEntities(ctx, f.p, after, limit, may)
	}, func(_ *finder, e feature.Entity) thing {
		return thing{Hit: Hit{Name: e.Name, Description: e.Description}, after: e.Name, owner: e.CreatedBy, texts: matchesOf(e.SearchFields())}
	})
}

func (s Service) models() lister {
	return findBy("model", func(ctx context.Context, f *finder, after string, limit int, may func(store.Line) (bool, error)) (store.Found[registry.Model], error) {
		return s.Registry.FindModels(ctx, f.p, after, limit, may)
	}, func(_ *finder, m registry.Model) thing {
		return thing{Hit: Hit{Name: m.Name, Description: m.Description}, after: m.Name, owner: m.Owner, texts: matchesOf(m.SearchFields())}
	})
}

func (s Service) deployments() lister {
	return findBy("deployment", func(ctx context.Context, f *finder, after string, limit int, may func(store.Line) (bool, error)) (store.Found[serving.Deployment], error) {
		return s.Serving.Find(ctx, string(f.p), after, limit, may)
	}, func(_ *finder, d serving.Deployment) thing {
		return thing{Hit: Hit{Name: d.Name}, after: d.Name, owner: d.Owner, texts: matchesOf(d.SearchFields())}
	})
}

func (s Service) monitors() lister {
	return findBy("monitor", func(ctx context.Context, f *finder, after string, limit int, may func(store.Line) (bool, error)) (store.Found[monitoring.Monitor], error) {
		return s.Monitoring.Find(ctx, string(f.p), after, limit, may)
	}, func(_ *finder, m monitoring.Monitor) thing {
		return thing{Hit: Hit{Name: m.Name}, after: m.Name, owner: m.By.ID, texts: matchesOf(m.SearchFields())}
	})
}

func (s Service) sources() lister {
	return findBy("source", func(ctx context.Context, f *finder, after string, limit int, may func(store.Line) (bool, error)) (store.Found[ingestion.Source], error) {
		return s.Ingestion.Find(ctx, f.p, after, limit, may)
	}, func(_ *finder, src ingestion.Source) thing {
		return thing{Hit: Hit{Name: src.Name, Description: src.Spec.Description}, after: src.Name, owner: src.Owner, texts: matchesOf(src.SearchFields())}
	})
}

func (s Service) jobs() lister {
	return findBy("job", func(ctx context.Context, f *finder, after string, limit int, may func(store.Line) (bool, error)) (store.Found[training.Job], error) {
		return s.Training.Find(ctx, f.p, after, limit, may)
	}, func(_ *finder, j training.Job) thing {
		t := thing{Hit: Hit{Name: string(j.ID), Description: j.Name}, after: string(j.ID), owner: j.By.ID, texts: []Match{{"name", j.Name}}}
		for _, in := range j.Inputs {
			t.texts = append(t.texts, Match{"from", in.Dataset() + in.Model()})
		}
		return t
	})
}

func (s Service) environments() lister {
	return findBy("environment", func(ctx context.Context, f *finder, after string, limit int, may func(store.Line) (bool, error)) (store.Found[environment.Environment], error) {
		return s.Environments.Find(ctx, f.p, after, limit, may)
	}, func(_ *finder, e environment.Environment) thing {
		return thing{Hit: Hit{Name: e.Name}, after: e.Name}
	})
}

func (s Service) experiments() lister {
	return findBy("experiment", func(ctx context.Context, f *finder, after string, limit int, may func(store.Line) (bool, error)) (store.Found[tracking.Experiment], error) {
		return s.Experiments.FindExperiments(ctx, f.p, after, limit, may)
	}, func(_ *finder, e tracking.Experiment) thing {
		return thing{Hit: Hit{Name: e.Name}, after: e.SearchKey(), texts: matchesOf(tracking.TagFields(e.Tags...))}
	})
}

func (s Service) sweeps() lister {
	return findBy("sweep", func(ctx context.Context, f *finder, after string, limit int, may func(store.Line) (bool, error)) (store.Found[sweep.Sweep], error) {
		return s.Sweeps.Find(ctx, f.p, after, limit, may)
	}, func(_ *finder, w sweep.Sweep) thing {
		return thing{Hit: Hit{Name: w.Name}, after: strconv.FormatInt(int64(w.Study), 10), owner: w.By.ID, texts: matchesOf(w.SearchFields()), object: policy.Object{
			Owner: w.By.ID, Classification: string(w.Classification), Residency: w.Residency,
		}}
	})
}

// lineage are external jobs and datasets. The columns of Falaj's own datasets are found
// with those, by whoever may see them.
func (s Service) lineage() lister {
	return findBy("lineage", func(ctx context.Context, f *finder, after string, limit int, may func(store.Line) (bool, error)) (store.Found[openlineage.Thing], error) {
		return s.Lineage.Find(ctx, f.p, after, min(limit, lineagePage), may)
	}, func(_ *finder, t openlineage.Thing) thing {
		return thing{Hit: Hit{Name: t.Name.Name, Description: t.About()}, after: openlineage.After(t), texts: matchesOf(t.SearchFields()), object: policy.Object{Name: "*"}}
	})
}
