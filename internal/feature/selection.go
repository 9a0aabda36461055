package feature

import (
	"context"
	"encoding/binary"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/feature/window"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Selection asks for features: by a feature service, or one by one.
type Selection struct {
	Service  string   `json:"service,omitempty" doc:"Feature service, such as delay or delay@2"`
	Features []string `json:"features,omitempty" doc:"Features, such as weather:temp; instead of service"`
	// FullNames makes the output names view__feature.
	FullNames bool `json:"full_feature_names,omitempty" doc:"Name the columns view__feature instead of feature"`
	// Purpose is what the features are read for.
	Purpose string `json:"purpose,omitempty" maxLength:"63" doc:"Purpose of the read, if the views name purposes; or the header Falaj-Purpose"`
}

func (s Selection) validate() error {
	switch {
	case s.Service == "" && len(s.Features) == 0:
		return fault.New(fault.Invalid, "no features are requested").WithHint("Request a feature service, or features such as weather:temp.")
	case s.Service != "" && len(s.Features) > 0:
		return fault.New(fault.Invalid, "set either a feature service or features, not both").WithHint("Remove one of them.")
	case len(s.Features) > maxSelected:
		return fault.New(fault.Invalid, "%d features are over the limit of %d", len(s.Features), maxSelected)
	}
	return nil
}

// picked is a view version with the features wanted of it.
type picked struct {
	view     View
	windows  *window.Plan // nil without aggregations
	types    []value.Type // of all features of the view
	features []int        // into view.Features, in the order asked for
	order    []int        // place of each in the whole selection
	names    []string     // "weather@2:temp", beside features
}

// ofView is a view of which nothing is picked yet.
func ofView(v View) picked { return picked{view: v, windows: v.windows(), types: v.featureTypes()} }

// add picks a feature of the view, for a place in the whole selection.
func (o *picked) add(feature, place int) {
	o.features, o.order = append(o.features, feature), append(o.order, place)
	o.names = append(o.names, o.view.Ref()+":"+o.view.Features[feature].Name)
}

// pick resolves features to versions of views, grouped by view in the order of
// first mention.
func (s *core) pick(ctx context.Context, tx *store.Tx, p project.Name, features []string) ([]picked, error) {
	var out []picked
	at := map[string]int{} // by view ref as given
	next := 0
	for _, text := range features {
		f, err := naming.ParseFeature(text)
		if err != nil {
			return nil, err
		}
		i, known := at[f.View]
		if !known {
			d, err := s.find(ctx, tx, p, ViewKind, f.View)
			if err != nil {
				return nil, err
			}
			i = slices.IndexFunc(out, func(o picked) bool { return o.view.Ref() == d.Ref() })
			if i < 0 {
				v, err := d.view()
				if err != nil {
					return nil, err
				}
				out = append(out, ofView(v))
				i = len(out) - 1
			}
			at[f.View] = i
		}
		o := &out[i]
		wanted := make([]int, 0, 1)
		if f.Feature == "" {
			for n := range o.view.Features {
				wanted = append(wanted, n)
			}
		} else {
			n := o.view.feature(f.Feature)
			if n < 0 {
				names := make([]string, len(o.view.Features))
				for i := range names {
					names[i] = o.view.Features[i].Name
				}
				return nil, fault.New(fault.NotFound, "feature view %s has no feature %q%s", o.view.Ref(), clip(f.Feature), nearest(f.Feature, names)).
					WithHint("Its features are %s.", clipList(names))
			}
			wanted = append(wanted, n)
		}
		for _, n := range wanted {
			if slices.Contains(o.features, n) {
				return nil, fault.New(fault.Invalid, "duplicate feature %s:%s", o.view.Ref(), o.view.Features[n].Name)
			}
			o.add(n, next)
			next++
		}
	}
	if next > maxSelected {
		return nil, fault.New(fault.Invalid, "%d features are over the limit of %d", next, maxSelected)
	}
	return out, nil
}

// plan is a resolved selection, with what the online store holds of its views.
type plan struct {
	views   []picked
	online  []Online // beside views; the zero Online where there is none
	names   []string // output columns, in the order asked for, then those computed
	types   []string // beside names
	service string   // "delay@2", or empty

	// Of the features that are read from views, the first visible ones are in names;
	// the others are read for computed, which is nil when nothing is.
	visible, read int
	computed      *computed

	purpose   string      // of the service
	protected []protected // columns that not everybody sees
}

// resolve makes the plan of a selection.
func (s *core) resolve(ctx context.Context, p project.Name, sel Selection) (*plan, error) {
	if err := sel.validate(); err != nil {
		return nil, err
	}
	return s.plans.get(p, sel, func() (*plan, error) {
		pl := &plan{}
		err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
			*pl = plan{}
			features, bundle := sel.Features, ServiceDefinition{}
			if sel.Service != "" {
				d, err := s.find(ctx, tx, p, ServiceKind, sel.Service)
				if err != nil {
					return err
				}
				b, err := d.service()
				if err != nil {
					return err
				}
				features, pl.service = b.Selected, d.Ref()
				bundle = b
			}
			var err error
			if pl.views, err = s.pick(ctx, tx, p, slices.Concat(features, bundle.Used)); err != nil {
				return err
			}
			for _, v := range pl.views {
				pl.read += len(v.features)
			}
			pl.visible = pl.read - len(bundle.Used)
			pl.purpose = bundle.Purpose
			if pl.computed, err = s.compiled.get(bundle, pl.views); err != nil {
				return err
			}
			pl.protected = pl.protections()
			for _, v := range pl.views {
				o, err := s.onlineStore.Online(ctx, tx, p, v.view.Name, v.view.Version)
				if err != nil && !fault.Is(err, fault.NotFound) {
					return err
				}
				pl.online = append(pl.online, o)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		return pl, pl.name(sel.FullNames)
	})
}

// name gives the output columns their names.
func (pl *plan) name(full bool) error {
	pl.names, pl.types = make([]string, pl.visible), make([]string, pl.visible)
	taken := map[string]string{}
	for _, v := range pl.views {
		for i, f := range v.features {
			if v.order[i] >= pl.visible {
				continue
			}
			name := v.view.Features[f].Name
			if full {
				name = naming.FullColumn(v.view.Name + ":" + name)
			}
			if other, ok := taken[name]; ok {
				return fault.New(fault.Invalid, "features of %s and %s have the same name %q", other, v.view.Ref(), name).
					WithHint("Request full feature names, and only one version of each view.")
			}
			taken[name] = v.view.Ref()
			pl.names[v.order[i]], pl.types[v.order[i]] = name, v.view.Features[f].Type
		}
	}
	if pl.computed != nil {
		for _, f := range pl.computed.fields {
			name := f.name
			if full {
				name = naming.FullColumn(pl.computed.service + ":" + name)
			}
			pl.names, pl.types = append(pl.names, name), append(pl.types, f.typ.String())
		}
	}
	return nil
}

// column is the name of a feature that is read: its own in the output, or one for
// the time until what is computed from it is there.
func (pl *plan) column(order int) string {
	if order < pl.visible {
		return pl.names[order]
	}
	return "falaj input " + strconv.Itoa(order)
}

// refs are the view versions.
func (pl *plan) refs() []string {
	refs := make([]string, len(pl.views))
	for i, v := range pl.views {
		refs[i] = v.view.Ref()
	}
	return refs
}

// joinKeys are those of the views, each once, in their order.
func (pl *plan) joinKeys() []string {
	var keys []string
	for _, v := range pl.views {
		for _, k := range v.view.Keys {
			if !slices.Contains(keys, k.Name) {
				keys = append(keys, k.Name)
			}
		}
	}
	return keys
}

// planCache keeps plans for a moment, so that an online read costs no query of
// the database. Definitions never change; what a plan may miss for at most
// planAge, and only when another process made it, is a moved alias or a
// materialisation's new label.
type planCache struct {
	now func() time.Time
	// bridges says that a plan of that time stands in while the database is away.
	bridges func(read time.Time) bool

	mu    sync.Mutex
	epoch int
	plans map[string]cachedPlan // by selectionKey
	key   []byte                // of the last question
}

// selectionKey appends what the plan of a selection follows from: that is not what it
// is read for.
func selectionKey(dst []byte, p project.Name, sel Selection) []byte {
	text := func(s string) {
		dst = binary.AppendUvarint(dst, uint64(len(s)))
		dst = append(dst, s...)
	}
	full := byte(0)
	if sel.FullNames {
		full = 1
	}
	dst = append(dst, full)
	text(string(p))
	text(sel.Service)
	for _, f := range sel.Features {
		text(f)
	}
	return dst
}

type cachedPlan struct {
	plan *plan
	read time.Time // real time, as of bridges
	age  time.Time // by now
}

const (
	planAge  = time.Second
	maxPlans = 1000
)

func newPlanCache(now func() time.Time, bridges func(time.Time) bool) *planCache {
	return &planCache{now: now, bridges: bridges, plans: map[string]cachedPlan{}}
}

// forget drops all plans: something they are made of has changed.
func (c *planCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	clear(c.plans)
}

func (c *planCache) get(p project.Name, sel Selection, build func() (*plan, error)) (*plan, error) {
	c.mu.Lock()
	c.key = selectionKey(c.key[:0], p, sel)
	hit, ok := c.plans[string(c.key)]
	epoch := c.epoch
	c.mu.Unlock()
	if ok && (c.now().Before(hit.age.Add(planAge)) || c.bridges(hit.read)) {
		return hit.plan, nil
	}
	read := time.Now()
	pl, err := build()
	if err != nil && ok && c.bridges(hit.read) {
		return hit.plan, nil
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.epoch == epoch { // nothing changed while it was built
		if len(c.plans) >= maxPlans {
			clear(c.plans)
		}
		c.plans[string(selectionKey(nil, p, sel))] = cachedPlan{pl, read, c.now()}
	}
	return pl, nil
}
