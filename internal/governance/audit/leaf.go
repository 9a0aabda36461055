package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/store"
)

// record is what a leaf commits to.
type record struct {
	Time   string          `json:"time"`
	Source string          `json:"source"`
	Entry  json.RawMessage `json:"entry"`
}

func newLeaf(p pending) (Leaf, error) {
	b, err := json.Marshal(record{Time: formatTime(p.at.Time()), Source: p.source, Entry: p.entry})
	if err != nil {
		return Leaf{}, err
	}
	salt := newSalt()
	l := Leaf{At: p.at, Source: p.source, Salt: salt, Record: b, Commitment: commit(salt, b)}
	var e filtered
	if err := json.Unmarshal(p.entry, &e); err != nil {
		return Leaf{}, err
	}
	e.columns(&l)
	return l, nil
}

// filtered is what the filter columns repeat of an entry.
type filtered struct {
	Actor struct {
		ID   string `json:"id"`
		Name string `json:"name"`
	} `json:"actor"`
	Project string  `json:"project"`
	Action  string  `json:"action"`
	Object  string  `json:"object"`
	Outcome Outcome `json:"outcome"`
}

// columns sets the filter columns of a leaf.
func (e filtered) columns(l *Leaf) {
	l.Project, l.ActorID, l.ActorName = column(e.Project), column(e.Actor.ID), column(e.Actor.Name)
	l.Action, l.Object, l.Outcome = column(e.Action), column(e.Object), Outcome(column(string(e.Outcome)))
}

// column is text that every database takes; the record has the original.
func column(s string) string { return strings.ReplaceAll(s, "\x00", "") }

// damage is what is wrong with a leaf's content.
type damage struct {
	what string
	// columns says that the record is what was signed, and only what repeats it differs.
	columns bool
}

// check says what of the leaf is not what its commitment binds: the record, or the
// columns that repeat it for filters. nil: all is well. A blank leaf must be named by
// an entry of an erasure, which still says when it was, what was done and by whom.
func (l Leaf) check(erased map[int64]Erased) *damage {
	if len(l.Commitment) != sha256.Size {
		return &damage{what: "its leaf was changed"}
	}
	if l.Record == nil {
		by, ok := erased[l.Index]
		switch {
		case !ok || by.By <= l.Index:
			return &damage{what: "it is blank, and no entry of an erasure names it"}
		case by.Leaf != nil && !bytes.Equal(by.Leaf, l.Commitment):
			return &damage{what: "it is blank, and its leaf differs from that of the erased entry"}
		}
		if len(l.Salt) > 0 || !l.sameColumns(l.blank(by)) || by.Time != "" && by.Time != formatTime(l.At.Time()) {
			return &damage{what: "the rest of the erased entry does not match the erasure", columns: true}
		}
		return nil
	}
	if len(l.Salt) != saltBytes || !bytes.Equal(commit(l.Salt, l.Record), l.Commitment) {
		return &damage{what: "its record differs from the signed one"}
	}
	var b record
	var e filtered
	if json.Unmarshal(l.Record, &b) != nil || json.Unmarshal(b.Entry, &e) != nil {
		return &damage{what: "its record cannot be read"}
	}
	want := l
	e.columns(&want)
	if !l.sameColumns(want) || l.Source != b.Source || formatTime(l.At.Time()) != b.Time {
		return &damage{what: "its filter columns do not match the entry", columns: true}
	}
	return nil
}

func (l Leaf) sameColumns(o Leaf) bool {
	return l.Project == o.Project && l.ActorID == o.ActorID && l.ActorName == o.ActorName &&
		l.Action == o.Action && l.Object == o.Object && l.Outcome == o.Outcome
}

// restoreColumns makes the columns repeat the record, which is what was signed.
func (l Leaf) restoreColumns() Leaf {
	var b record
	var e filtered
	if json.Unmarshal(l.Record, &b) != nil || json.Unmarshal(b.Entry, &e) != nil {
		return l
	}
	e.columns(&l)
	l.Source = b.Source
	if at, err := time.Parse(timeLayout, b.Time); err == nil {
		l.At = store.At(at)
	}
	return l
}

// blank is the leaf without its content: what an erasure leaves of it.
func (l Leaf) blank(e Erased) Leaf {
	l.Salt, l.Record, l.Object = nil, nil, ""
	l.Project, l.ActorID, l.ActorName = column(e.Project), column(e.Actor.ID), column(e.Actor.Name)
	l.Action, l.Outcome = column(e.Action), Outcome(column(string(e.Outcome)))
	return l
}

// Erased is what an entry of an erasure says of an entry that it erased. Of what was
// erased by releases before this one, only the index is known.
type Erased struct {
	Index   int64              `json:"index"`
	Leaf    []byte             `json:"leaf,omitempty"`
	Time    string             `json:"time,omitempty"`
	Actor   identity.Principal `json:"actor,omitzero"`
	Action  string             `json:"action,omitempty"`
	Outcome Outcome            `json:"outcome,omitempty"`

	Project string `json:"-"` // that of the erasure's entry
	By      int64  `json:"-"` // index of the entry that says so
	Reason  string `json:"-"`
	Lost    bool   `json:"-"` // not erased by a person: its content was destroyed, and accepted so
}

// erasedBy reads which entries an entry says were erased, or were found destroyed and
// accepted as lost.
func erasedBy(index int64, e Entry, detail json.RawMessage) []Erased {
	if e.Outcome != Done || e.Action != ActionErase && e.Action != actionAccept {
		return nil
	}
	var d struct {
		State   string            `json:"state"`
		Entries []json.RawMessage `json:"entries"`
		Lost    []json.RawMessage `json:"lost"`
	}
	if json.Unmarshal(detail, &d) != nil {
		return nil
	}
	names := d.Entries
	if e.Action == actionAccept {
		names = d.Lost
	} else if d.State != "" && d.State != string(ErasureDone) {
		return nil
	}
	all := make([]Erased, 0, len(names))
	for _, b := range names {
		var one Erased
		if json.Unmarshal(b, &one.Index) != nil && json.Unmarshal(b, &one) != nil {
			return nil
		}
		one.By, one.Reason, one.Project, one.Lost = index, e.Reason, e.Project, e.Action == actionAccept
		all = append(all, one)
	}
	return all
}

// erasedIn reads the same of a record.
func erasedIn(index int64, b []byte) []Erased {
	if !bytes.Contains(b, []byte(ActionErase)) && !bytes.Contains(b, []byte(actionAccept)) {
		return nil
	}
	var r record
	var e struct {
		Action  string          `json:"action"`
		Project string          `json:"project"`
		Outcome Outcome         `json:"outcome"`
		Reason  string          `json:"reason"`
		Detail  json.RawMessage `json:"detail"`
	}
	if json.Unmarshal(b, &r) != nil || json.Unmarshal(r.Entry, &e) != nil {
		return nil
	}
	return erasedBy(index, Entry{Action: e.Action, Project: e.Project, Outcome: e.Outcome, Reason: e.Reason}, e.Detail)
}
