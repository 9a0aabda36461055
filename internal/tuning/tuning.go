// Package tuning keeps studies and their trials: what was tried, with which
// parameters, and how well it did. The rules are those of Optuna's own storages,
// so that its samplers and pruners work on a study kept here.
//
// tuning.go has the nouns, distribution.go what a parameter may be, studies.go the
// rules, store.go what they need of a database, service.go the only way in: who may,
// what is audited, and in which transaction. To people a study is a sweep.
package tuning

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
)

// StudyID numbers the studies of a project from 1; none is given twice.
type StudyID int64

// TrialID numbers the trials of a project from 1; none is given twice. Who sees a
// trial could see every smaller number before it, so that "greater than the last I
// saw" misses none.
type TrialID int64

// Direction is what makes an objective better.
type Direction string

// The directions.
const (
	Minimize Direction = "minimize"
	Maximize Direction = "maximize"
)

// State is where a trial stands.
type State string

// The states. A trial begins Running, or Waiting when somebody put it in the queue.
const (
	Waiting  State = "waiting"
	Running  State = "running"
	Complete State = "complete"
	Pruned   State = "pruned"
	Failed   State = "fail"
)

// Finished reports whether the trial has ended and takes no more changes.
func (s State) Finished() bool { return s == Complete || s == Pruned || s == Failed }

func (s State) known() bool {
	return slices.Contains([]State{Waiting, Running, Complete, Pruned, Failed}, s)
}

// Scope tells the attributes of users from those of samplers and pruners.
type Scope string

// The scopes.
const (
	User   Scope = "user"
	System Scope = "system"
)

// Attributes are JSON texts by key, kept as they came: Python writes NaN, which Go's
// JSON does not read.
type Attributes map[string]string

// Feasible reports whether a trial whose system attributes these are satisfies all of its
// constraints, as Optuna has them: a list under "constraints", or a number under
// "constraints:NAME" for each. What is above zero violates it, and so does what is no number.
func (a Attributes) Feasible() bool {
	satisfied := func(text string) bool {
		x, err := strconv.ParseFloat(strings.TrimSpace(text), 64) // Python writes NaN and Infinity as Go reads them
		return err == nil && x <= 0
	}
	for key, value := range a {
		if strings.HasPrefix(key, Constraints+":") && !satisfied(value) {
			return false
		}
	}
	list := strings.TrimSpace(a[Constraints])
	if list == "" || list == "null" {
		return true
	}
	list, opened := strings.CutPrefix(list, "[")
	list, closed := strings.CutSuffix(list, "]")
	if !opened || !closed {
		return false
	}
	for text := range strings.SplitSeq(list, ",") {
		if !satisfied(text) && strings.TrimSpace(list) != "" {
			return false
		}
	}
	return true
}

// Constraints is the system attribute in which Optuna keeps a trial's constraints, or with a
// colon begins one for each.
const Constraints = "constraints"

// JobAttribute is the system attribute of a trial that a client of Optuna in a job runs: the
// job's identifier, in JSON. Trials of sweeps have falaj:job instead: a sweep ends them.
const JobAttribute = "falaj:client_job"

// Study is a search for good parameters.
type Study struct {
	Project    project.Name
	ID         StudyID
	Name       string
	Directions []Direction // one for each objective
	Owner      string
	Created    time.Time
	User       Attributes
	System     Attributes
	// Request is the key of the request that made it, so that its repetition gets
	// the same study. Empty: the client has none.
	Request string
	// Residency and Classification are the narrowest of the jobs that wrote to it.
	Residency      residency.Label // nil is {home}
	Classification string          // public internal confidential restricted; empty is internal
}

// Param is a parameter of a trial.
type Param struct {
	Value        float64 // a number, or the index of a choice
	Distribution Distribution
}

// Trial is one try.
type Trial struct {
	ID           TrialID
	Study        StudyID
	Number       int64 // in its study, from 0 without gaps
	State        State
	Values       []float64 // one for each direction when it is Complete
	Started      time.Time // zero while it waits
	Completed    time.Time // zero until it has finished
	Params       map[string]Param
	User         Attributes
	System       Attributes
	Intermediate map[int64]float64 // by step
	// Made and Moved are the keys of the requests that made it and that moved it
	// last, so that their repetition changes nothing. Empty: the client has none.
	Made, Moved string
}
