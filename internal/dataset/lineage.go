package dataset

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Node is a version in a lineage graph, with its upstream versions. A version that is reached
// more than once is spelled out the first time; later nodes have its name and digest only, and
// Repeated set.
type Node struct {
	Ref      string    `json:"ref"` // "weather@3"
	ID       VersionID `json:"id"`
	State    State     `json:"state"`
	Rows     int64     `json:"rows"`
	Digest   string    `json:"digest"`
	Source   *Source   `json:"source,omitempty"`
	Producer *Producer `json:"producer,omitempty"`
	Parents  []Node    `json:"parents,omitempty"`
	Repeated bool      `json:"repeated,omitempty"`
	Deleted  string    `json:"deleted,omitempty"` // of a version that is: when, and by whom
}

// ways are what ColumnSource.How may be.
var ways = []string{"identity", "transformation", "aggregation", "conditional", "join", "filter", "group_by", "sort", "window"}

// columnsFrom names the tables of a query by their versions. It comes from a process
// that a query may have taken over, so only what was handed to it is believed.
func columnsFrom(made child.SQLColumns, inputs []input) Columns {
	if !made.Known {
		return nil
	}
	given := map[string]input{}
	for _, in := range inputs {
		given[in.name] = in
	}
	named := func(from []child.SQLSource) []ColumnSource {
		out := make([]ColumnSource, 0, len(from))
		for _, s := range from {
			if in, ok := given[strings.ToLower(s.Table)]; ok && slices.Contains(in.columns, s.Column) && slices.Contains(ways, s.How) {
				out = append(out, ColumnSource{Ref: in.version.Ref().String(), Column: s.Column, How: s.How})
			}
		}
		return out
	}
	c := Columns{}
	for _, column := range made.Columns {
		if column.Name == AllRows {
			return nil
		}
		c[column.Name] = named(column.From)
	}
	if rows := named(made.Rows); len(rows) > 0 {
		c[AllRows] = rows
	}
	return c
}

// maxColumnSources bounds what is kept of columns: of a wider version, or one made in
// more ways, it is not known what its columns are made of.
const maxColumnSources = 20_000

func (c Columns) bounded() Columns {
	n := 0
	for _, from := range c {
		if n += 1 + len(from); n > maxColumnSources {
			return nil
		}
	}
	return c
}

// maxNodes bounds a graph.
const maxNodes = 10_000

// LineageReads answers what a version was made of, what was made of it, and which version stands
// for one that a redaction replaced. Its callers are the HTTP API, features, ingestion, erasure,
// and deployments, which look for the training set of a model.
type LineageReads struct {
	*core
	definitions *Definitions
}

// Graph follows a version's lineage up to the digests of the files. Needs
// dataset.read on the version; its ancestors, deleted ones too, are named with
// their digests. Error: fault.TooLarge over 10,000 nodes.
func (s *LineageReads) Graph(ctx context.Context, p project.Name, ref Ref) (Node, error) {
	v, err := s.find(ctx, ActionRead, p, ref)
	if err != nil {
		return Node{}, err
	}
	var root Node
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		g := grower{s: s.core, tx: tx, seen: map[VersionID]bool{}}
		root, err = g.node(ctx, v)
		return err
	})
	return root, err
}

type grower struct {
	s     *core
	tx    *store.Tx
	seen  map[VersionID]bool
	nodes int
}

// node spells a version out. Parents are older than what was made of them, so
// this ends.
func (g *grower) node(ctx context.Context, v Version) (Node, error) {
	if g.nodes++; g.nodes > maxNodes {
		return Node{}, fault.New(fault.TooLarge, "the lineage has more than %d versions", maxNodes).WithHint("Request the lineage of one of its parents.")
	}
	n := Node{Ref: v.Ref().String(), ID: v.ID, State: v.State, Rows: v.Rows, Digest: v.ContentDigest}
	if v.State == Deleted {
		n.Deleted = strings.TrimSpace(v.deletion())
	}
	if g.seen[v.ID] {
		n.Repeated = true
		return n, nil
	}
	g.seen[v.ID] = true
	n.Source, n.Producer = v.Lineage.Source, v.Lineage.Producer
	for _, parent := range v.Lineage.Parents {
		pv, err := g.s.cfg.Store.VersionByID(ctx, g.tx, v.Project, parent.ID)
		if err != nil {
			return Node{}, fault.Wrap(err, "parent %s of %s", parent.Ref, n.Ref)
		}
		if pv.ContentDigest != parent.ContentDigest {
			return Node{}, fmt.Errorf("the digest of %s differs from the one in the lineage of %s", parent.Ref, n.Ref)
		}
		pn, err := g.node(ctx, pv)
		if err != nil {
			return Node{}, err
		}
		n.Parents = append(n.Parents, pn)
	}
	return n, nil
}

// Descendants lists the versions that were made directly from a version, oldest
// first, at most 1,000. Needs dataset.read.
func (s *LineageReads) Descendants(ctx context.Context, p project.Name, ref Ref) (vs []Version, err error) {
	v, err := s.find(ctx, ActionRead, p, ref)
	if err != nil {
		return nil, err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		vs, err = s.cfg.Store.Children(ctx, tx, v.ID, 1000)
		return err
	})
	if err != nil {
		return nil, err
	}
	return vs, s.openStatistics(ctx, pointers(vs)...)
}

// Standing follows redactions: the version that stands for one now.
func (s *LineageReads) Standing(ctx context.Context, p project.Name, ref Ref) (Ref, error) {
	for ref.Number > 0 {
		v, err := s.definitions.Version(ctx, p, ref)
		if err != nil || v.State != Deleted || v.RedactedBy == 0 {
			return ref, err
		}
		ref.Number = v.RedactedBy
	}
	return ref, nil
}

// StoodFor lists the versions that one stands for, through every redaction, the last
// one first: what was made of these was made of its rows, and more.
func (s *LineageReads) StoodFor(ctx context.Context, p project.Name, ref Ref) (was []Ref, err error) {
	for { // of a deleted dataset, too
		v, err := s.definitions.Version(ctx, p, ref)
		if err != nil || v.Redacts == 0 {
			return was, err
		}
		ref.Number = v.Redacts
		was = append(was, ref)
	}
}

// StandIns lists the versions that have stood for one since, through every redaction,
// the first one first. It asks for no permission, as Persons. Error: fault.NotFound.
func (s *LineageReads) StandIns(ctx context.Context, tx *store.Tx, p project.Name, ref Ref) (since []Ref, err error) {
	d, err := s.cfg.Store.Dataset(ctx, tx, p, ref.Name) // deleted or not
	if err != nil {
		return nil, err
	}
	for {
		v, err := s.cfg.Store.Version(ctx, tx, d.ID, ref.Number)
		if err != nil || v.RedactedBy == 0 {
			return since, err
		}
		ref.Number = v.RedactedBy
		since = append(since, ref)
	}
}
