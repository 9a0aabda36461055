// Package privacy erases persons: everywhere that Falaj keeps rows of them, with
// evidence, and again after a restore of a backup that still had them.
//
// # Map
//
//   - privacy.go: Erasure, Subject, and Participant, which is what a place that
//     keeps rows of persons implements; usecase/erasure lists them.
//   - Service (service.go) is the only way in: Request asks, RunOnce does what is asked for,
//     Recover does it again after a restore; conclude decides between done and done in part.
//   - ledger.go is the record that outlives a restore: a file outside of what is
//     backed up. store.go says what the service needs from a database; privacysql
//     implements that.
//
// # Life of an erasure
//
//	requested ──prepared, in the ledger──▶ erasing ──nothing is found any more──▶ done
//	                                                                          ├──▶ done in part
//	                                                                          └──▶ not found
//
// Each step may be done again, so a crash at any moment is resumed by the next
// round. An erasure ends when every participant, asked once more, finds nothing. It is
// done only if no place is left that was not searched; else it is done in part, and
// names each of these with the reason and the tool for it. Where nobody by the key was
// ever seen, the state is not found: the key may be mistyped.
//
// # What is kept of the person
//
// A pseudonym: HMAC-SHA-256 of the entity and its key under a key derived from the
// master key, which no restore changes. The key itself is kept, sealed, only until
// the erasure is done, and then scrubbed from the database. Neither the audit log,
// nor the ledger, nor the certificate has it. A holder of the master key can test
// whether a guessed key was erased; no other party can.
//
// # What the caller owes
//
// Recover has to return before any request is answered. The ledger has to be kept where
// a restore of the data directory does not bring an older one back.
package privacy

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// ID identifies an erasure: "ers_01J…".
type ID string

// State of an erasure.
type State string

// The states.
const (
	Requested State = "requested" // on record; nothing was removed
	Erasing   State = "erasing"
	Done      State = "done"         // every place was searched
	InPart    State = "done_in_part" // Unsearched names the places that were not
	NotFound  State = "not_found"    // nobody by this key was ever seen
)

// Ended reports whether nothing more will happen.
func (s State) Ended() bool { return s == Done || s == InPart || s == NotFound }

// Erasure is the request to erase one person, what became of it, and, once it is
// done, the certificate. It names the person by the pseudonym only.
type Erasure struct {
	ID        ID     `json:"id"`
	Project   string `json:"project"`
	Entity    string `json:"entity"`
	Pseudonym string `json:"pseudonym" doc:"HMAC of the entity and its key: equal for the same person; the key cannot be derived from it"`
	State     State  `json:"state" enum:"requested,erasing,done,done_in_part,not_found" doc:"done: every place was searched. done_in_part: see unsearched. not_found: the key was never found, so check it"`
	Reason    string `json:"reason" doc:"Reason, with the reference of the request, such as a ticket number; must not name the person"`
	// Restored says that a backup had brought the person back.
	Restored    bool         `json:"restored,omitempty" doc:"A restored backup contained the person, who was erased again"`
	RequestedBy string       `json:"requested_by"`
	RequestedAt time.Time    `json:"requested_at"`
	Deadline    time.Time    `json:"deadline" doc:"Time by which it must be done"`
	DoneAt      time.Time    `json:"done_at,omitzero"`
	Late        bool         `json:"late,omitempty" doc:"It was done after the deadline"`
	Places      []Place      `json:"places" doc:"Removed rows, by place"`
	Deleted     []Place      `json:"deleted,omitempty" doc:"Versions with rows of the person that were deleted earlier; data derived from them may remain"`
	Searched    []string     `json:"searched,omitempty" doc:"Kinds of places that were searched"`
	Unsearched  []Unsearched `json:"unsearched,omitempty" doc:"Places that were not searched, or where the person may remain"`
	Models      []string     `json:"models,omitempty" doc:"Model versions that were trained on rows of the person; they are flagged"`
	Note        string       `json:"note,omitempty" doc:"What to do if the key was never found"`
	Trouble     string       `json:"trouble,omitempty" doc:"Why it is not done yet; it is retried"`
	Ledger      int64        `json:"ledger,omitempty" doc:"Number of its line in the erasure ledger"`
	LedgerHash  string       `json:"ledger_hash,omitempty" doc:"Digest of that line and all previous lines"`
}

// Place is where rows of the person were.
type Place struct {
	Kind string `json:"kind" doc:"datasets, online features, predictions …"`
	Name string `json:"name" doc:"Such as orders@3"`
	Rows int64  `json:"rows" doc:"Rows of the person"`
	// Into is what stands for it now; empty where only the rows went.
	Into string `json:"into,omitempty" doc:"What replaces it, such as orders@5"`
	Note string `json:"note,omitempty"`
}

// Unsearched is a place that was not searched for the person, or in which the person
// may remain.
type Unsearched struct {
	Kind   string `json:"kind" doc:"artifacts, checkpoints, job logs, backups …"`
	Name   string `json:"name" doc:"Such as sums@4, or the ID of a run or job"`
	Reason string `json:"reason"`
	Tool   string `json:"tool,omitempty" doc:"Command that searches or removes it"`
	// Seen says that the key was found in it as text.
	Seen bool `json:"seen,omitempty" doc:"It contains the person's key as text"`
}

// UnmarshalJSON implements json.Unmarshaler: certificates of earlier releases have the
// names only.
func (u *Unsearched) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, &u.Name)
	}
	type plain Unsearched
	return json.Unmarshal(b, (*plain)(u))
}

// Found is what a participant knows of a person.
type Found struct {
	Places     []Place
	Deleted    []Place // had rows of the person when they were deleted
	Unsearched []Unsearched
	Models     []string // trained on rows of the person
}

// Participant is a place that keeps rows of persons. Its methods may be called
// again after a crash, and after they failed.
type Participant interface {
	// Kind is what its places are called: "datasets".
	Kind() string
	// Find says where the person is, and changes nothing.
	Find(ctx context.Context, s Subject) (Found, error)
	// Erase removes the person and returns when nothing of it can be read, nor is in
	// a file. done is called for each place, before what it has goes or when that can
	// still be told after a crash; of several counts of a place the largest stays.
	Erase(ctx context.Context, s Subject, done func(Found) error) error
}

// Preparer is a Participant that will need to know what the others remove.
type Preparer interface {
	// Prepare gives what it needs to remember until the erasure is done, which is
	// kept sealed; and tokens: opaque names under which it would find the person
	// without knowing the key, which the ledger keeps.
	Prepare(ctx context.Context, s Subject) (memo []byte, tokens []string, err error)
}

// Where is by which columns persons of an entity are found. Nothing of it is of a
// person.
type Where struct {
	Keys []string `json:"keys,omitempty"` // join keys of the entity
	// Columns have the join keys, in the order of Keys, by dataset.
	Columns map[string][]string `json:"columns,omitempty"`
}

// Subject is the person to be erased.
type Subject struct {
	Erasure ID // empty when somebody only looks
	Project string
	Entity  string

	values    []string // empty after a restore: only the pseudonym is known
	pseudonym [sha256.Size]byte
	key       []byte
	memo      map[string][]byte
	tokens    []string
	where     Where
	asked     time.Time
}

// Is reports whether the values of the entity's join keys, in their order and as
// text, are the person's.
func (s Subject) Is(values []string) bool {
	if len(s.values) > 0 {
		return slices.Equal(s.values, values)
	}
	return pseudonym(s.key, s.Project, s.Entity, values) == s.pseudonym
}

// Values are those of the person; ok is false after a restore, when only Is knows.
func (s Subject) Values() (values []string, ok bool) { return s.values, len(s.values) > 0 }

// Pseudonym is that of the person: see Pseudonym of Service.
func (s Subject) Pseudonym() [sha256.Size]byte { return s.pseudonym }

// Memo is what the participant of a kind prepared.
func (s Subject) Memo(kind string) []byte { return s.memo[kind] }

// Tokens are what the preparers of the erasure gave the ledger.
func (s Subject) Tokens() []string { return s.tokens }

// Where is by which columns the person was found when it was erased first; empty when
// somebody only looks. A restored backup may be older than the entity, its views and
// what datasets say.
func (s Subject) Where() Where { return s.where }

// Asked is when the erasure was requested; zero for a search only.
func (s Subject) Asked() time.Time { return s.asked }

// pseudonym names a person. Lengths keep what stands beside each other apart.
func pseudonym(key []byte, project, entity string, values []string) (p [sha256.Size]byte) {
	m := hmac.New(sha256.New, key)
	var n [8]byte
	for _, s := range append([]string{"falaj person 1", project, entity}, values...) {
		binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
		m.Write(n[:])
		m.Write([]byte(s))
	}
	m.Sum(p[:0])
	return p
}

func parsePseudonym(text string) (p [sha256.Size]byte, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(p) {
		return p, fault.New(fault.Internal, "a pseudonym is damaged")
	}
	copy(p[:], b)
	return p, nil
}
