package dataset

// Names of the events that datasets publish.
const (
	EventApplied        = "dataset.applied"
	EventDeleted        = "dataset.deleted"
	EventVersionCreated = "dataset.version_created"
	EventVersionDeleted = "dataset.version_deleted"
	EventStale          = "dataset.stale"           // no version was accepted for longer than the dataset says
	EventPersonReturned = "dataset.person_returned" // a version from outside has rows of persons who were erased
)

// Event is the body of the dataset events; the version's fields are empty in
// events of the dataset itself.
type Event struct {
	Dataset ID        `json:"dataset"`
	Name    string    `json:"name"`
	Version VersionID `json:"version,omitempty"`
	Number  int64     `json:"number,omitempty"`
	State   State     `json:"state,omitempty"`
	Rows    int64     `json:"rows,omitempty"`
	Digest  string    `json:"digest,omitempty"`
	// Quarantined is the number of quarantined rows.
	Quarantined int64 `json:"quarantined,omitempty"`
}
