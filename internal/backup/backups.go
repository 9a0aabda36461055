package backup

import "time"

// State of a backup.
type State string

// The states.
const (
	Making      State = "making"
	Whole       State = "whole"
	Failed      State = "failed"      // in this process; nothing of it is left
	Interrupted State = "interrupted" // the server was killed; what is left goes when the next one is made
)

// Backup is one that a server makes of itself, or has made.
type Backup struct {
	Name     string    `json:"name"`
	State    State     `json:"state" enum:"making,whole,failed,interrupted"`
	Of       time.Time `json:"of,omitzero" doc:"Time of the consistent snapshot"`
	Sequence string    `json:"sequence,omitempty" doc:"Position of the database's last entry in the snapshot: everything acknowledged up to it is in the backup"`
	Version  string    `json:"version,omitempty" doc:"Release of Falaj that created the backup"`
	Digest   string    `json:"digest,omitempty" doc:"SHA-256 of its manifest, for falaj restore --digest"`
	Files    int       `json:"files,omitempty"`
	Objects  int       `json:"objects,omitempty"`
	Bytes    int64     `json:"bytes,omitempty" doc:"Copied so far"`
	By       string    `json:"by,omitempty"`
	Begun    time.Time `json:"begun_at,omitzero"`
	Error    string    `json:"error,omitempty"` // why it failed; of a whole one, why that is not in the audit log
}
