package openlineage

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Limits of a graph.
const (
	maxDepth = 50
	maxNodes = 2000
	maxBytes = 16 << 20 // of what nodes say; behind that they are named only
)

// Ask selects the root of the graph. Exactly one of Ref and Name is set.
type Ask struct {
	Project  project.Name
	Ref      string // a dataset of Falaj's: "weather@3"
	Kind     Kind   // of Name
	Name     Name   // of others; without a namespace, of an object of Falaj's
	Up, Down bool   // upstream, downstream; neither means both
	Depth    int    // steps from there, where a job is one; 0 is 20, at most 50
}

// Graph is the lineage around an object. Edges follow the direction of the data.
type Graph struct {
	Root  string `json:"root"`
	Nodes []Node `json:"nodes"`
	Edges []Edge `json:"edges"`
	More  bool   `json:"more,omitempty" doc:"The graph is truncated"`
}

// Node is a dataset, a job, or another object of Falaj's.
type Node struct {
	ID        string      `json:"id"`
	Kind      Kind        `json:"kind"`
	Namespace string      `json:"namespace"`
	Name      string      `json:"name"`
	Foreign   bool        `json:"foreign,omitempty" doc:"An external system reported it"`
	State     string      `json:"state,omitempty"`
	Digest    string      `json:"digest,omitempty"`
	By        string      `json:"by,omitempty" doc:"What created this version in Falaj"`
	Fields    []Field     `json:"fields,omitempty"`
	LastRun   *RunRecord  `json:"last_run,omitempty" doc:"Last run of an external job"`
	File      string      `json:"file,omitempty" doc:"Name of the imported file"`
	Columns   Columns     `json:"columns,omitempty" doc:"Column lineage, where known"`
	ref       dataset.Ref // of one of ours
	at        int         // steps from the root
	parents   []dataset.Ref
	known     bool // of one of ours: it was found, and may be seen
}

// Edge is a step of data from one node to another.
type Edge struct {
	From string `json:"from"`
	To   string `json:"to"`
	Run  string `json:"run,omitempty"`
}

// Around follows lineage from a dataset or job, or another object of Falaj's: over
// versions of datasets, features, jobs, models and deployments, and what others
// told. Needs dataset.read: of the project for what others told, and of each
// of Falaj's datasets; one that may not be seen is named, as lineage names
// ancestors, and not followed. Other objects that may not be seen are left out.
// Errors: fault.NotFound for a root that is not known.
func (s *Service) Around(ctx context.Context, a Ask) (Graph, error) {
	if err := s.cfg.Authorizer.Allow(ctx, dataset.ActionRead, policy.Object{Project: string(a.Project), Kind: "dataset"}); err != nil {
		return Graph{}, err
	}
	if !a.Up && !a.Down {
		a.Up, a.Down = true, true
	}
	if a.Depth <= 0 {
		a.Depth = 20
	}
	a.Depth = min(a.Depth, maxDepth)
	w := walk{s: s, p: a.Project, nodes: map[string]*Node{}, edges: map[Edge]bool{}}
	if s.cfg.Objects != nil {
		w.objects = s.cfg.Objects(a.Project)
	}
	var root *Node
	var err error
	switch {
	case a.Ref != "":
		ref, perr := dataset.ParseRef(a.Ref)
		if perr != nil {
			return Graph{}, perr
		}
		v, verr := s.cfg.Datasets.Definitions.Version(ctx, a.Project, ref)
		if verr != nil {
			return Graph{}, verr
		}
		root = w.version(v)
	case a.Name.Namespace == "" && a.Kind != DatasetKind && w.objects != nil:
		o, oerr := w.objects.Object(ctx, a.Kind, a.Name.Name)
		if oerr != nil {
			return Graph{}, oerr
		}
		root, err = w.object(ctx, o)
	default:
		root, err = w.root(ctx, a.Kind, a.Name)
	}
	if err != nil {
		return Graph{}, err
	}
	for _, up := range []bool{true, false} {
		if up && a.Up || !up && a.Down {
			if err := w.follow(ctx, root, up, a.Depth); err != nil {
				return Graph{}, err
			}
		}
	}
	return w.graph(root), nil
}

// walk is a graph in the making.
type walk struct {
	s     *Service
	p     project.Name
	nodes map[string]*Node
	order []*Node
	edges map[Edge]bool
	bytes int // that the nodes take
	more  bool

	objects Objects // may be nil
}

func (w *walk) root(ctx context.Context, kind Kind, n Name) (*Node, error) {
	var t Thing
	err := w.s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		t, err = w.s.cfg.Store.Thing(ctx, tx, w.p, kind, n)
		return err
	})
	if fault.Is(err, fault.NotFound) {
		return nil, fault.New(fault.NotFound, "no OpenLineage event names a %s %q in %q", kind, clip(n.Name), clip(n.Namespace)).
			WithHint("Search for it: falaj search %s.", fault.ShellWord(clip(n.Name)))
	}
	if err != nil {
		return nil, err
	}
	return w.thing(ctx, kind, n, t.Own)
}

// follow goes one way, nearest first.
func (w *walk) follow(ctx context.Context, root *Node, up bool, depth int) error {
	seen := map[*Node]bool{root: true}
	root.at = 0
	for queue := []*Node{root}; len(queue) > 0; queue = queue[1:] {
		n := queue[0]
		if n.at == depth {
			w.more = true
			continue
		}
		next, err := w.step(ctx, n, up)
		if err != nil {
			return err
		}
		for _, to := range next {
			if !seen[to] {
				seen[to], to.at = true, n.at+1
				queue = append(queue, to)
			}
		}
	}
	return nil
}

// step finds what is one step from a node.
func (w *walk) step(ctx context.Context, n *Node, up bool) (next []*Node, err error) {
	if n.ref.Name != "" {
		if !n.known {
			return nil, nil
		}
		if next, err = w.own(ctx, n, up); err != nil {
			return nil, err
		}
	}
	if w.objects != nil && !n.Foreign {
		more, err := w.beside(ctx, n, up)
		if next = append(next, more...); err != nil || n.Kind != DatasetKind {
			return next, err
		}
	}
	var links []Link
	err = w.s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		name := Name{n.Namespace, n.Name}
		if n.Kind == JobKind {
			links, err = w.s.cfg.Store.LinksOf(ctx, tx, w.p, name, maxLinks)
		} else {
			links, err = w.s.cfg.Store.LinksTo(ctx, tx, w.p, name, n.ref.Name, maxLinks)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	w.more = w.more || len(links) == maxLinks
	for _, l := range links {
		// Up, a dataset has the jobs that write it, and a job what it reads.
		if (n.Kind == DatasetKind) == (l.Output != up) {
			continue
		}
		var to *Node
		if n.Kind == DatasetKind {
			to, err = w.job(ctx, l.Job)
		} else {
			to, err = w.thing(ctx, DatasetKind, l.Dataset, l.Own)
		}
		if err != nil {
			return nil, err
		}
		if to == nil {
			continue
		}
		w.edge(n, to, up, l.Run)
		written := to
		if n.Kind == DatasetKind {
			written = n
		}
		if l.Output && l.Size > 0 && written.Columns == nil && (written.ref.Name == "" || written.known) {
			if err := w.columns(ctx, written, l); err != nil {
				return nil, err
			}
		}
		next = append(next, to)
	}
	return next, nil
}

// columns gives a dataset the columns that a job told of.
func (w *walk) columns(ctx context.Context, n *Node, l Link) error {
	if w.bytes += l.Size; w.bytes > maxBytes {
		w.more = true
		return nil
	}
	return w.s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		n.Columns, err = w.s.cfg.Store.Columns(ctx, tx, l)
		return err
	})
}

// beside finds what is one step from a node among Falaj's other objects.
func (w *walk) beside(ctx context.Context, n *Node, up bool) (next []*Node, err error) {
	step, err := w.objects.Step(ctx, n.Kind, n.Name, up)
	if err != nil {
		return nil, err
	}
	w.more = w.more || step.More
	for _, e := range step.Edges {
		from, err := w.object(ctx, e[0])
		if err != nil {
			return nil, err
		}
		to, err := w.object(ctx, e[1])
		if err != nil {
			return nil, err
		}
		if from != nil && to != nil {
			w.edge(from, to, false, "")
		}
	}
	for _, o := range step.Follow {
		if to := w.nodes[o.ID()]; to != nil {
			next = append(next, to)
		}
	}
	return next, nil
}

// object is the node of an object; nil when there are too many, or when no dataset
// could be called so.
func (w *walk) object(ctx context.Context, o Object) (n *Node, err error) {
	if o.Kind != DatasetKind {
		n = w.add(&Node{ID: o.ID(), Kind: o.Kind, Namespace: Namespace(w.p), Name: o.Name, State: o.State, Digest: o.Digest, By: o.By, Fields: o.Fields})
	} else if ref, perr := dataset.ParseRef(o.Name); perr == nil {
		n, err = w.look(ctx, ref)
	}
	if err != nil || n == nil || len(o.Columns) == 0 || o.Kind == DatasetKind && !n.known {
		return n, err
	}
	if w.bytes += (&Node{Columns: o.Columns}).size(); w.bytes > maxBytes {
		w.more = true
		return n, nil
	}
	columns := Columns{}
	maps.Copy(columns, n.Columns)
	for column, from := range o.Columns { // what leads to an object adds up
		for _, s := range from {
			if !slices.Contains(columns[column], s) {
				columns[column] = append(slices.Clip(columns[column]), s)
			}
		}
	}
	n.Columns = columns
	return n, nil
}

// own finds the versions that a version was made of, or that were made of it.
func (w *walk) own(ctx context.Context, n *Node, up bool) (next []*Node, err error) {
	if !up {
		made, err := w.s.cfg.Datasets.Lineage.Descendants(ctx, w.p, n.ref)
		if err != nil {
			return nil, err
		}
		for _, v := range made {
			// Asked for each: whoever may see this one may be kept from that.
			seen, err := w.look(ctx, v.Ref())
			if err != nil {
				return nil, err
			}
			if seen != nil && seen.known {
				w.edge(n, seen, up, "")
				next = append(next, seen)
			}
		}
		return next, nil
	}
	for _, ref := range n.parents {
		to, err := w.look(ctx, ref)
		if err != nil {
			return nil, err
		}
		if to != nil {
			w.edge(n, to, up, "")
			next = append(next, to)
		}
	}
	return next, nil
}

// look finds a version. One that may not be seen, or is gone with its dataset, has
// its name only.
func (w *walk) look(ctx context.Context, ref dataset.Ref) (*Node, error) {
	if n, ok := w.nodes["dataset "+ref.String()]; ok {
		return n, nil
	}
	v, err := w.s.cfg.Datasets.Definitions.Version(ctx, w.p, ref)
	switch {
	case err == nil:
		return w.version(v), nil
	case hidden(err):
		return w.named(ref), nil
	}
	return nil, err
}

// named is a version of which only the name is shown.
func (w *walk) named(ref dataset.Ref) *Node {
	return w.add(&Node{ID: "dataset " + ref.String(), Kind: DatasetKind, Namespace: Namespace(w.p), Name: ref.String(), ref: ref})
}

// hidden reports whether a version is not there for the caller.
func hidden(err error) bool {
	return fault.Is(err, fault.NotFound) || fault.Is(err, fault.PermissionDenied) || fault.Is(err, fault.Conflict) || fault.Is(err, fault.Gone)
}

func (w *walk) version(v dataset.Version) *Node {
	n := &Node{
		ID: "dataset " + v.Ref().String(), Kind: DatasetKind, Namespace: Namespace(v.Project), Name: v.Ref().String(),
		State: string(v.State), Digest: v.ContentDigest, ref: v.Ref(), known: true,
	}
	if p := v.Lineage.Producer; p != nil {
		n.By = p.String()
	}
	if v.Lineage.Source != nil {
		n.By, n.File = "import", v.Lineage.Source.Filename
	}
	n.Columns = MadeOf(v.Project, v.Lineage.Columns)
	for _, f := range v.Schema {
		n.Fields = append(n.Fields, Field{f.Name, string(f.Type)})
	}
	for _, parent := range v.Lineage.Parents {
		if ref, err := dataset.ParseRef(parent.Ref); err == nil {
			n.parents = append(n.parents, ref)
		}
	}
	return w.add(n)
}

// thing is a dataset or job that others told of; what is Falaj's own is shown as
// such, with its newest version.
func (w *walk) thing(ctx context.Context, kind Kind, n Name, own string) (*Node, error) {
	if kind == JobKind {
		return w.job(ctx, n)
	}
	if own != "" {
		ref := dataset.Ref{Name: own}
		v, err := w.s.cfg.Datasets.Definitions.Version(ctx, w.p, ref)
		switch {
		case err == nil:
			return w.version(v), nil
		case fault.Is(err, fault.PermissionDenied): // what others told of it is its columns, too
			return w.named(ref), nil
		case !hidden(err) && !fault.Is(err, fault.Invalid): // there is none, or it has no version
			return nil, err
		}
	}
	id := n.Namespace + " " + n.Name
	if node, ok := w.nodes[id]; ok {
		return node, nil
	}
	node := &Node{ID: id, Kind: DatasetKind, Namespace: n.Namespace, Name: n.Name, Foreign: true}
	err := w.s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		t, err := w.s.cfg.Store.Thing(ctx, tx, w.p, DatasetKind, n)
		node.Fields = t.Fields
		return err
	})
	if err != nil && !fault.Is(err, fault.NotFound) {
		return nil, err
	}
	return w.add(node), nil
}

func (w *walk) job(ctx context.Context, n Name) (*Node, error) {
	id := "job " + n.Namespace + " " + n.Name
	if node, ok := w.nodes[id]; ok {
		return node, nil
	}
	node := &Node{ID: id, Kind: JobKind, Namespace: n.Namespace, Name: n.Name, Foreign: true}
	err := w.s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		runs, err := w.s.cfg.Store.Runs(ctx, tx, w.p, n, 1)
		if len(runs) > 0 {
			node.LastRun, node.State = &runs[0], string(runs[0].State)
			node.LastRun.Digests = nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return w.add(node), nil
}

// add keeps a node; nil when there are too many.
func (w *walk) add(n *Node) *Node {
	if old, ok := w.nodes[n.ID]; ok {
		return old
	}
	if len(w.order) == maxNodes {
		w.more = true
		return nil
	}
	if w.bytes += n.size(); w.bytes > maxBytes {
		w.more = true
		n.Fields, n.Columns = nil, nil
		if n.LastRun != nil {
			n.LastRun.Facets = nil
		}
	}
	w.nodes[n.ID] = n
	w.order = append(w.order, n)
	return n
}

// size is about how many bytes a node takes in the answer.
func (n *Node) size() int {
	size := 2*len(n.ID) + len(n.File)
	for _, f := range n.Fields {
		size += len(f.Name) + len(f.Type) + 32
	}
	for column, from := range n.Columns {
		size += len(column)
		for _, s := range from {
			size += len(s.Namespace) + len(s.Name.Name) + len(s.Field) + 96
		}
	}
	if n.LastRun != nil {
		for name, text := range n.LastRun.Facets {
			size += len(name) + len(text)
		}
	}
	return size
}

func (w *walk) edge(from, to *Node, up bool, run string) {
	if up {
		from, to = to, from
	}
	w.edges[Edge{from.ID, to.ID, run}] = true
}

func (w *walk) graph(root *Node) Graph {
	g := Graph{Root: root.ID, Nodes: make([]Node, len(w.order)), Edges: make([]Edge, 0, len(w.edges)), More: w.more}
	for i, n := range w.order {
		g.Nodes[i] = *n
	}
	for e := range w.edges {
		g.Edges = append(g.Edges, e)
	}
	slices.SortFunc(g.Edges, func(a, b Edge) int {
		return cmp.Or(strings.Compare(a.From, b.From), strings.Compare(a.To, b.To), strings.Compare(a.Run, b.Run))
	})
	return g
}
