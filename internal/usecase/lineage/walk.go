package lineage

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/training"
)

// maxList bounds each list that a walk over lineage reads: the newest jobs and
// versions of models, and the first views, services and deployments.
const maxList = 1000

// walk has the steps of one walk over features, jobs, models and deployments. It reads each
// list once, at the first step that needs it.
type walk struct {
	*Service
	p project.Name

	may         map[policy.Action]bool
	views       []feature.View
	bundles     []feature.ServiceDefinition
	jobs        []training.Job
	models      []registry.Version
	deployments []serving.Deployment
	read        map[string][]string // dataset versions, by view version
	passed      map[string]bool     // IDs of the objects that the walk down came through
	whole       map[string]bool     // IDs of views and services of which all that was made counts, not only what was made of passed versions
	listed      bool
	more        bool
}

// Objects implements openlineage.Config.Objects: the features, jobs, models and deployments
// of a project that the caller of each step may read.
func (s *Service) Objects(p project.Name) openlineage.Objects {
	return &walk{
		Service: s, p: p, may: map[policy.Action]bool{}, read: map[string][]string{}, passed: map[string]bool{}, whole: map[string]bool{},
	}
}

// The actions that a walk asks for, and the kinds of their objects.
const (
	readFeature    = feature.ActionRead
	readJob        = training.ActionRead
	readModel      = registry.ActionRead
	readDeployment = policy.Action("deployment.read")
)

// permitted asks without a record, so that a walk refuses nobody on the record for
// what was not asked for.
func (l *walk) permitted(ctx context.Context, action policy.Action) (bool, error) {
	if may, asked := l.may[action]; asked {
		return may, nil
	}
	kind, _, _ := strings.Cut(string(action), ".")
	may, err := l.Authorizer.Permits(ctx, action, policy.Object{Project: string(l.p), Kind: kind})
	l.may[action] = may
	return may, err
}

// unseen reports whether something is not there for the caller.
func unseen(err error) bool {
	return fault.Is(err, fault.NotFound) || fault.Is(err, fault.PermissionDenied)
}

// list reads the lists that the caller may see.
func (l *walk) list(ctx context.Context) (err error) {
	if l.listed {
		return nil
	}
	ask := func(action policy.Action, read func() (int, error)) {
		if err != nil {
			return
		}
		var may bool
		if may, err = l.permitted(ctx, action); err != nil || !may {
			return
		}
		n, rerr := read()
		if !unseen(rerr) {
			err = rerr
		}
		l.more = l.more || n >= maxList
	}
	ask(readFeature, func() (n int, err error) {
		l.views, err = l.Features.Definitions.Views(ctx, l.p, "", maxList)
		return len(l.views), err
	})
	ask(readFeature, func() (n int, err error) {
		l.bundles, err = l.Features.Definitions.ServiceDefinitions(ctx, l.p, "", maxList)
		return len(l.bundles), err
	})
	ask(readJob, func() (n int, err error) {
		l.jobs, _, err = l.Training.List(ctx, l.p, training.Filter{Limit: maxList})
		return len(l.jobs), err
	})
	ask(readModel, func() (n int, err error) {
		l.models, _, err = l.Registry.SearchVersions(ctx, l.p, registry.Search{Max: maxList})
		return len(l.models), err
	})
	ask(readDeployment, func() (n int, err error) {
		l.deployments, err = l.Serving.List(ctx, string(l.p), "", maxList)
		return len(l.deployments), err
	})
	l.listed = err == nil
	return err
}

// Object implements openlineage.Objects.
func (l *walk) Object(ctx context.Context, kind openlineage.Kind, name string) (openlineage.Object, error) {
	o, err := l.object(ctx, kind, name)
	l.whole[o.ID()] = true // the lineage begins there
	return o, err
}

func (l *walk) object(ctx context.Context, kind openlineage.Kind, name string) (openlineage.Object, error) {
	switch kind {
	case openlineage.ViewKind:
		v, err := l.Features.Definitions.View(ctx, l.p, name)
		return viewObject(v), err
	case openlineage.ServiceKind:
		b, err := l.Features.Definitions.ServiceDefinition(ctx, l.p, name)
		return serviceObject(b), err
	case openlineage.JobKind:
		j, err := l.Training.One(ctx, l.p, training.JobID(name))
		return jobObject(j), err
	case openlineage.ModelKind:
		m, err := l.model(ctx, name)
		return modelObject(m), err
	case openlineage.DeploymentKind:
		d, err := l.Serving.One(ctx, string(l.p), name)
		return deploymentObject(d), err
	case openlineage.DatasetKind: // whose lineage begins by its ref
	}
	return openlineage.Object{}, fault.New(fault.Invalid, "kind %q has no lineage", kind)
}

// model finds "delay@3", "delay@champion" or the newest "delay".
func (l *walk) model(ctx context.Context, name string) (registry.Version, error) {
	base, version, given := registry.SplitRef(name)
	if !given {
		version = "latest"
	}
	v, err := l.Registry.Version(ctx, l.p, base, version)
	if given && fault.Is(err, fault.NotFound) { // a name may have an @ of its own
		if whole, e := l.Registry.Version(ctx, l.p, name, "latest"); e == nil {
			return whole, nil
		}
	}
	return v, err
}

// Step implements openlineage.Objects.
func (l *walk) Step(ctx context.Context, kind openlineage.Kind, name string, up bool) (openlineage.Step, error) {
	var out openlineage.Step
	if err := l.list(ctx); err != nil {
		return out, err
	}
	out.More = l.more
	if !up {
		l.passed[openlineage.Object{Kind: kind, Name: name}.ID()] = true
	}
	var err error
	switch s := (&stepper{l, &out}); {
	case kind == openlineage.DatasetKind && up:
		if err = s.maker(ctx, name); err == nil || unseen(err) {
			err = s.set(ctx, name)
		}
	case kind == openlineage.DatasetKind:
		s.readers(ctx, name)
	case kind == openlineage.ViewKind && up:
		err = s.sources(ctx, name)
	case kind == openlineage.ViewKind:
		err = s.users(ctx, name)
	case kind == openlineage.ServiceKind && up:
		err = s.selected(ctx, name)
	case kind == openlineage.ServiceKind:
		err = s.servedBy(ctx, name)
	case kind == openlineage.JobKind && up:
		err = s.inputs(ctx, name)
	case kind == openlineage.JobKind:
		s.made(name)
	case kind == openlineage.ModelKind && up:
		err = s.origin(ctx, name)
	case kind == openlineage.ModelKind:
		s.deployed(name)
	case kind == openlineage.DeploymentKind && up:
		err = s.serves(ctx, name)
	}
	if unseen(err) { // it went, or is hidden, since it was named
		err = nil
	}
	return out, err
}

// stepper puts one step together.
type stepper struct {
	*walk
	out *openlineage.Step
}

func (s *stepper) edge(from, to openlineage.Object) {
	s.out.Edges = append(s.out.Edges, [2]openlineage.Object{from, to})
}

// from is an edge to what the walk goes on from, up; to is one down.
func (s *stepper) from(o, of openlineage.Object) {
	s.edge(o, of)
	s.out.Follow = append(s.out.Follow, o)
}

func (s *stepper) to(of, o openlineage.Object) {
	s.edge(of, o)
	s.out.Follow = append(s.out.Follow, o)
}

// maker is the job that left the rows of a version. What it read leads on to the models
// that it had.
func (s *stepper) maker(ctx context.Context, name string) error {
	ref, err := dataset.ParseRef(name)
	if err != nil {
		return err
	}
	if may, err := s.permitted(ctx, readJob); err != nil || !may {
		return err
	}
	v, err := s.Datasets.Version(ctx, s.p, ref)
	if err != nil || v.Lineage.Producer == nil || v.Lineage.Producer.Kind != "job" {
		return err
	}
	j, err := s.Training.One(ctx, s.p, training.JobID(v.Lineage.Producer.ID))
	if err == nil {
		s.from(jobObject(j), datasetObject(v.Ref().String()))
	}
	return err
}

// set is how a training set came from its views; what it was made of is followed as
// its parents are. The views are those that were read then, over what they read
// then, so the walk does not go on from them to what they read now.
func (s *stepper) set(ctx context.Context, ref string) error {
	if may, err := s.permitted(ctx, readFeature); err != nil || !may {
		return err
	}
	t, err := s.Features.OfflineReads.TrainingSet(ctx, s.p, ref)
	if err != nil {
		return err
	}
	return s.joined(ctx, t, func(openlineage.Object) bool { return true })
}

// wasPassed reports whether the walk down came through an object.
func (s *stepper) wasPassed(o openlineage.Object) bool { return s.passed[o.ID()] }

// leadsTo reports whether a training set of a view or service was made of what the walk
// came from: of any version where the lineage began at the view or service, else of a
// dataset version on the way. Its views may read other versions now.
func (s *stepper) leadsTo(of openlineage.Object, t feature.TrainingSet) bool {
	return s.whole[of.ID()] || slices.ContainsFunc(t.Views, func(u feature.UsedView) bool {
		return (of.Kind != openlineage.ViewKind || u.View == of.Name) &&
			slices.ContainsFunc(u.Inputs, func(in feature.InputRef) bool { return s.wasPassed(datasetObject(in.Dataset)) })
	})
}

// joined are the edges of a training set that begin at objects that are shown.
func (s *stepper) joined(ctx context.Context, t feature.TrainingSet, shown func(openlineage.Object) bool) error {
	made, err := s.madeOf(ctx, t)
	if err != nil {
		return err
	}
	var bundle openlineage.Object
	if t.Service != "" {
		b, err := s.Features.Definitions.ServiceDefinition(ctx, s.p, t.Service)
		if err != nil {
			return err
		}
		bundle = serviceObject(b)
	}
	set := openlineage.Object{Kind: openlineage.DatasetKind, Name: t.Dataset, Columns: openlineage.Columns{}}
	for _, c := range t.Computed {
		if _, name, ok := strings.Cut(c.Feature, ":"); ok && t.Service != "" {
			set.Columns[c.Column] = []openlineage.Source{fieldOf(bundle, name)}
		}
	}
	views := make([]openlineage.Object, len(t.Views))
	for i, u := range t.Views {
		v, err := s.Features.Definitions.View(ctx, s.p, u.View)
		if err != nil {
			return err
		}
		views[i] = viewObject(v)
		views[i].Columns = made[u.View]
		for _, f := range u.Features {
			set.Columns[f.Column] = []openlineage.Source{fieldOf(views[i], f.Feature)}
			if t.Service != "" {
				set.Columns[f.Column] = []openlineage.Source{fieldOf(bundle, v.Name+":"+f.Feature)}
			}
		}
		for _, in := range u.Inputs {
			if o := datasetObject(in.Dataset); shown(o) && shown(views[i]) {
				s.edge(o, views[i])
			}
		}
	}
	for _, v := range views {
		if !shown(v) {
			continue
		}
		if t.Service == "" {
			s.edge(v, set)
		} else {
			s.edge(v, bundle)
		}
	}
	if t.Service != "" {
		s.edge(bundle, set)
	}
	return nil
}

// madeOf says what the features of a training set's views were made of: the columns
// of the datasets, followed through their SQL when the set was joined.
func (s *stepper) madeOf(ctx context.Context, t feature.TrainingSet) (map[string]openlineage.Columns, error) {
	ref, err := dataset.ParseRef(t.Dataset)
	if err != nil {
		return nil, err
	}
	v, err := s.Datasets.Version(ctx, s.p, ref)
	if err != nil {
		return nil, err
	}
	out := map[string]openlineage.Columns{}
	for _, u := range t.Views {
		c := dataset.Columns{}
		for _, f := range u.Features {
			c[f.Feature] = slices.DeleteFunc(slices.Clone(v.Lineage.Columns[f.Column]), func(o dataset.ColumnSource) bool {
				return !slices.ContainsFunc(u.Inputs, func(in feature.InputRef) bool { return in.Dataset == o.Ref })
			})
		}
		out[u.View] = openlineage.MadeOf(s.p, c)
	}
	return out, nil
}

// readers are the views, jobs and models that read a dataset version. Training sets
// are its descendants, and found as such.
func (s *stepper) readers(ctx context.Context, ref string) {
	of := datasetObject(ref)
	for _, v := range s.views {
		for _, in := range s.reads(ctx, v) {
			if in == ref {
				s.to(of, viewObject(v))
			}
		}
	}
	for _, j := range s.jobs {
		if slices.ContainsFunc(j.Inputs, func(in training.Input) bool { return in.Dataset() == ref }) {
			s.to(of, jobObject(j))
		}
	}
	for _, m := range s.models {
		if slices.Contains(m.Datasets, ref) && !s.known(m.Job) {
			s.to(of, modelObject(m))
		}
	}
}

// known reports whether a job is one of those that the caller sees.
func (s *stepper) known(job string) bool {
	return slices.ContainsFunc(s.jobs, func(j training.Job) bool { return string(j.ID) == job })
}

// reads are the dataset versions that a view reads: what is online was made of them,
// or they are what would be read now.
func (s *stepper) reads(ctx context.Context, v feature.View) (refs []string) {
	if known, ok := s.read[v.Ref()]; ok {
		return known
	}
	defer func() { s.read[v.Ref()] = refs }()
	if f, err := s.Features.Materialisation.Freshness(ctx, s.p, v.Ref()); err == nil && len(f.Inputs) > 0 {
		for _, in := range f.Inputs {
			refs = append(refs, in.Dataset)
		}
		return refs
	}
	declared := slices.Sorted(maps.Values(v.Source.Inputs))
	if v.Source.Dataset != "" {
		declared = []string{v.Source.Dataset}
	}
	for _, d := range declared {
		ref, err := dataset.ParseRef(d)
		if err != nil {
			continue
		}
		if ref.Number == 0 {
			one, err := s.Datasets.One(ctx, s.p, ref.Name)
			if err != nil || one.Accepted == 0 {
				continue
			}
			ref.Number = one.Accepted
		}
		refs = append(refs, ref.String())
	}
	return refs
}

// sources are the dataset versions that a view reads.
func (s *stepper) sources(ctx context.Context, ref string) error {
	v, err := s.Features.Definitions.View(ctx, s.p, ref)
	if err != nil {
		return err
	}
	of := viewObject(v)
	reads := s.reads(ctx, v)
	if v.Source.Dataset == "" {
		// What SQL makes of columns is known where somebody joined it.
		l, err := s.Features.Definitions.Lineage(ctx, s.p, ref)
		if err != nil {
			return err
		}
		for _, t := range l.TrainingSets[:min(1, len(l.TrainingSets))] {
			made, err := s.madeOf(ctx, t)
			if err != nil && !unseen(err) {
				return err
			}
			of.Columns = made[v.Ref()]
		}
	} else if len(reads) == 1 {
		name, _, _ := strings.Cut(reads[0], "@")
		of.Columns = declaredColumns(s.p, v, name)
	}
	for _, r := range reads {
		s.from(datasetObject(r), of)
	}
	return nil
}

// declaredColumns are what the features of a view over a dataset are made of.
func declaredColumns(p project.Name, v feature.View, name string) openlineage.Columns {
	c := dataset.Columns{}
	add := func(field, column, how string) {
		if column != "" {
			c[field] = append(c[field], dataset.ColumnSource{Ref: name, Column: column, How: how})
		}
	}
	for _, a := range v.Aggregations {
		add(a.Name, a.Column, "aggregation")
	}
	for _, f := range v.Features {
		if len(v.Aggregations) == 0 {
			add(f.Name, f.Name, "identity")
		}
		for _, k := range v.Keys {
			add(f.Name, k.Name, "join")
		}
		add(f.Name, v.Timestamp, "join")
	}
	return openlineage.MadeOf(p, c)
}

// users are the services and training sets that have a view's features.
func (s *stepper) users(ctx context.Context, ref string) error {
	v, err := s.Features.Definitions.View(ctx, s.p, ref)
	if err != nil {
		return err
	}
	of := viewObject(v)
	l, err := s.Features.Definitions.Lineage(ctx, s.p, ref)
	if err != nil {
		return err
	}
	services := map[string]bool{}
	for _, b := range s.bundles {
		if selects(b, v.Ref()) {
			services[b.Ref()] = true
		}
	}
	for _, d := range s.deployments {
		if d.FeatureSet != nil && slices.ContainsFunc(d.FeatureSet.Features, func(f string) bool { return strings.HasPrefix(f, v.Ref()+":") }) {
			services[d.FeatureSet.Ref] = true
		}
	}
	for _, t := range l.TrainingSets {
		if !s.leadsTo(of, t) {
			continue
		}
		if t.Service != "" {
			services[t.Service] = true
			continue
		}
		if err := s.joined(ctx, t, s.wasPassed); err != nil && !unseen(err) {
			return err
		}
		s.out.Follow = append(s.out.Follow, datasetObject(t.Dataset))
	}
	for _, name := range slices.Sorted(maps.Keys(services)) {
		b, err := s.Features.Definitions.ServiceDefinition(ctx, s.p, name)
		if unseen(err) {
			continue
		}
		if err != nil {
			return err
		}
		service := serviceObject(b)
		s.whole[service.ID()] = s.whole[service.ID()] || s.whole[of.ID()]
		s.to(of, service)
	}
	return nil
}

// selects reports whether a service has features of a view version, or uses them.
func selects(b feature.ServiceDefinition, view string) bool {
	return slices.ContainsFunc(slices.Concat(b.Selected, b.Used), func(f string) bool { return strings.HasPrefix(f, view+":") })
}

// viewsOf are the versions of the views that a service has features of.
func viewsOf(b feature.ServiceDefinition) []string {
	seen := map[string]bool{}
	for _, f := range slices.Concat(b.Selected, b.Used) {
		view, _, _ := strings.Cut(f, ":")
		seen[view] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// selected are the views of a service.
func (s *stepper) selected(ctx context.Context, ref string) error {
	b, err := s.Features.Definitions.ServiceDefinition(ctx, s.p, ref)
	if err != nil {
		return err
	}
	for _, name := range viewsOf(b) {
		v, err := s.Features.Definitions.View(ctx, s.p, name)
		if err != nil {
			return err
		}
		s.from(viewObject(v), serviceObject(b))
	}
	return nil
}

// servedBy are the training sets and deployments of a service.
func (s *stepper) servedBy(ctx context.Context, ref string) error {
	b, err := s.Features.Definitions.ServiceDefinition(ctx, s.p, ref)
	if err != nil {
		return err
	}
	of := serviceObject(b)
	for _, view := range viewsOf(b)[:1] { // a training set of it is one of each of its views
		l, err := s.Features.Definitions.Lineage(ctx, s.p, view)
		if err != nil {
			return err
		}
		for _, t := range l.TrainingSets {
			if t.Service != b.Ref() || !s.leadsTo(of, t) {
				continue
			}
			if err := s.joined(ctx, t, s.wasPassed); err != nil && !unseen(err) {
				return err
			}
			s.out.Follow = append(s.out.Follow, datasetObject(t.Dataset))
		}
	}
	for _, d := range s.deployments {
		if d.FeatureSet != nil && d.FeatureSet.Ref == b.Ref() {
			s.to(of, deploymentObject(d))
		}
	}
	return nil
}

// inputs are the dataset versions that a job reads.
func (s *stepper) inputs(ctx context.Context, id string) error {
	j, err := s.Training.One(ctx, s.p, training.JobID(id))
	if err != nil {
		return err
	}
	models, err := s.permitted(ctx, readModel)
	if err != nil {
		return err
	}
	for _, in := range j.Inputs {
		if model := in.Model(); model != "" {
			if !models {
				continue
			}
			if m, err := s.model(ctx, model); err == nil {
				s.from(modelObject(m), jobObject(j))
			} else if !unseen(err) {
				return err
			}
			continue
		}
		if _, err := dataset.ParseRef(in.Dataset()); err == nil { // else it is no dataset
			s.from(datasetObject(in.Dataset()), jobObject(j))
		}
	}
	return nil
}

// made are the models of a job, and its version of a dataset.
func (s *stepper) made(id string) {
	for _, j := range s.jobs {
		if string(j.ID) == id && j.Dataset != "" {
			s.to(jobObject(j), datasetObject(j.Dataset))
		}
		for _, m := range s.models {
			if string(j.ID) == id && m.Job == id {
				s.to(jobObject(j), modelObject(m))
			}
		}
	}
}

// origin is what made a model: its job, or what it was made of.
func (s *stepper) origin(ctx context.Context, name string) error {
	m, err := s.model(ctx, name)
	if err != nil {
		return err
	}
	of := modelObject(m)
	if may, err := s.permitted(ctx, readJob); err != nil {
		return err
	} else if m.Job != "" && may {
		j, err := s.Training.One(ctx, s.p, training.JobID(m.Job))
		if err == nil {
			s.from(jobObject(j), of)
			return s.parents(ctx, m, &j)
		}
		if !unseen(err) {
			return err
		}
	}
	for _, ref := range m.Datasets {
		s.from(datasetObject(ref), of)
	}
	return s.parents(ctx, m, nil)
}

// parents are the versions that a model was made from, without those that its job read:
// they lead to the job.
func (s *stepper) parents(ctx context.Context, m registry.Version, job *training.Job) error {
	for _, name := range m.Parents {
		if job != nil && readsModel(*job, name) {
			continue
		}
		p, err := s.model(ctx, name)
		if unseen(err) {
			continue
		}
		if err != nil {
			return err
		}
		s.from(modelObject(p), modelObject(m))
	}
	return nil
}

func readsModel(j training.Job, name string) bool {
	return slices.ContainsFunc(j.Inputs, func(in training.Input) bool { return in.Model() == name })
}

// deployed are the deployments of a model, the jobs that read it, and the versions that
// were made from it otherwise, such as copies.
func (s *stepper) deployed(name string) {
	for _, m := range s.models {
		for _, child := range s.models {
			if m.String() != name || !slices.Contains(child.Parents, name) {
				continue
			}
			if !slices.ContainsFunc(s.jobs, func(j training.Job) bool { return string(j.ID) == child.Job && readsModel(j, name) }) {
				s.to(modelObject(m), modelObject(child))
			}
		}
		for _, j := range s.jobs {
			if m.String() == name && readsModel(j, name) {
				s.to(modelObject(m), jobObject(j))
			}
		}
		for _, d := range s.deployments {
			if m.String() == name && slices.Contains(targets(d), m.String()) {
				s.to(modelObject(m), deploymentObject(d))
			}
		}
	}
}

// targets are the versions of models that a deployment asks: of its own, and of those that
// are its steps.
func targets(d serving.Deployment) []string {
	out := []string{d.Model + "@" + strconv.FormatInt(d.Version, 10)}
	for _, t := range d.Trials {
		out = append(out, d.Model+"@"+strconv.FormatInt(t.Version, 10))
	}
	for _, m := range d.Steps {
		if ref := m.Model + "@" + strconv.FormatInt(m.Version, 10); !slices.Contains(out, ref) {
			out = append(out, ref)
		}
	}
	return out
}

// serves are the models and features of a deployment.
func (s *stepper) serves(ctx context.Context, name string) error {
	d, err := s.Serving.One(ctx, string(s.p), name)
	if err != nil {
		return err
	}
	of := deploymentObject(d)
	may, err := s.permitted(ctx, readModel)
	if err != nil {
		return err
	}
	for _, t := range targets(d) {
		m, err := s.model(ctx, t)
		if err == nil && may {
			s.from(modelObject(m), of)
		} else if !unseen(err) && err != nil {
			return err
		}
	}
	if may, err = s.permitted(ctx, readFeature); err != nil || !may || d.FeatureSet == nil {
		return err
	}
	b, err := s.Features.Definitions.ServiceDefinition(ctx, s.p, d.FeatureSet.Ref)
	if err == nil {
		s.from(serviceObject(b), of)
	}
	return err
}

func datasetObject(ref string) openlineage.Object {
	return openlineage.Object{Kind: openlineage.DatasetKind, Name: ref}
}

func viewObject(v feature.View) openlineage.Object {
	o := openlineage.Object{Kind: openlineage.ViewKind, Name: v.Ref(), Digest: v.Digest}
	for _, f := range v.Features {
		o.Fields = append(o.Fields, openlineage.Field{Name: f.Name, Type: f.Type})
	}
	return o
}

// serviceObject names the features of a service as a deployment does: "weather:temp".
func serviceObject(b feature.ServiceDefinition) openlineage.Object {
	o := openlineage.Object{Kind: openlineage.ServiceKind, Name: b.Ref(), Digest: b.Digest, Columns: openlineage.Columns{}}
	for _, f := range b.Selected {
		view, name, _ := strings.Cut(f, ":")
		bare, _, _ := strings.Cut(view, "@")
		o.Fields = append(o.Fields, openlineage.Field{Name: bare + ":" + name})
		o.Columns[bare+":"+name] = []openlineage.Source{fieldOf(openlineage.Object{Kind: openlineage.ViewKind, Name: view}, name)}
	}
	for _, c := range b.Computed {
		o.Fields = append(o.Fields, openlineage.Field{Name: c.Name, Type: c.Type})
	}
	return o
}

func jobObject(j training.Job) openlineage.Object {
	return openlineage.Object{Kind: openlineage.JobKind, Name: string(j.ID), State: string(j.State), Digest: j.Digest, By: j.Name}
}

func modelObject(m registry.Version) openlineage.Object {
	return openlineage.Object{Kind: openlineage.ModelKind, Name: m.String(), Digest: m.Digest, By: strings.Join(m.Aliases, ", ")}
}

func deploymentObject(d serving.Deployment) openlineage.Object {
	o := openlineage.Object{Kind: openlineage.DeploymentKind, Name: d.Name, State: string(d.State)}
	if d.Spec.Features == nil || d.FeatureSet == nil {
		return o
	}
	o.Columns = openlineage.Columns{}
	bundle := openlineage.Object{Kind: openlineage.ServiceKind, Name: d.FeatureSet.Ref}
	for _, c := range d.Spec.Features.Columns {
		o.Fields = append(o.Fields, openlineage.Field{Name: c})
		o.Columns[c] = []openlineage.Source{fieldOf(bundle, c)}
	}
	return o
}

// fieldOf is a column of an object that another column is.
func fieldOf(o openlineage.Object, field string) openlineage.Source {
	return openlineage.Source{Name: openlineage.Name{Name: o.ID()}, Field: field, Kind: "DIRECT", Subtype: "IDENTITY"}
}
