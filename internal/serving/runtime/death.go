package runtime

import "time"

// Death is why a model's process ended although nobody asked it to.
type Death struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"` // such as "killed by SIGSEGV"; it holds nothing that the process printed
	// Child numbers the place of the process: those that are started in place of one
	// another have the same number. 0: it had none yet.
	Child uint64 `json:"-"`
}

// DeathError is in the chain of the error of a load whose process died.
type DeathError struct{ Death }

func (e DeathError) Error() string { return e.Reason }
