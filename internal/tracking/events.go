package tracking

// Names of the events that tracking publishes.
const (
	EventRunCreated         = "run.created"
	EventRunFinished        = "run.finished"
	EventRunDeleted         = "run.deleted"
	EventLoggedModelReady   = "logged_model.ready"
	EventLoggedModelDeleted = "logged_model.deleted"
)

// RunEvent is the body of the run events.
type RunEvent struct {
	Run        RunID        `json:"run"`
	Experiment ExperimentID `json:"experiment"`
	Status     RunStatus    `json:"status"`
	Job        string       `json:"job,omitempty"`
	Attempt    string       `json:"attempt,omitempty"`
}

// LoggedModelEvent is the body of the logged model events.
type LoggedModelEvent struct {
	Model LoggedModelID `json:"model"`
	Run   RunID         `json:"run,omitempty"`
}
