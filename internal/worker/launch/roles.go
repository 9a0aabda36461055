package launch

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Role is some workers of a gang that run the same.
type Role struct {
	Name    string `json:"name"`
	Workers int    `json:"workers"`
	// Command in place of the gang's; empty is that one.
	Command []string `json:"command,omitempty"`
	// Env comes after the workers' own.
	Env map[string]string `json:"env,omitempty"`
	// Serves is true of workers that do not end by themselves, such as parameter
	// servers: they are stopped when all others have ended, and how they end then
	// says nothing.
	Serves bool `json:"serves,omitempty"`
}

// MaxRoles of a gang.
const MaxRoles = 32

// evaluator is TensorFlow's type of a worker that is in no cluster.
const evaluator = "evaluator"

// TensorFlowRoles are the types that TF_CONFIG knows.
var TensorFlowRoles = []string{"chief", "worker", "ps", evaluator}

// roleRE is of names that variables and flags can carry; made when it is asked for,
// since the worker starts several times for each job.
var roleRE = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z][a-z0-9-]{0,29}$`)
})

// HasRoles reports whether a framework's workers may differ, and why not.
func (f Framework) HasRoles() (why string, ok bool) {
	switch f {
	case Horovod, MPI, XGBoost, LightGBM:
		return "all of its processes do the same", false
	default:
		return "", true
	}
}

// Role gives the role of a worker, and which of that it is; false without roles.
func (s Spec) Role(index int) (r Role, i int, ok bool) {
	for _, r := range s.Roles {
		if index < r.Workers {
			return r, index, true
		}
		index -= r.Workers
	}
	return Role{}, 0, false
}

// Serves reports that a worker runs until the others have ended.
func (s Spec) Serves(index int) bool {
	r, _, _ := s.Role(index)
	return r.Serves
}

// CheckRoles says what is wrong with the roles of a framework.
func CheckRoles(f Framework, roles []Role) error {
	if len(roles) == 0 {
		return nil
	}
	if why, ok := f.HasRoles(); !ok {
		return fmt.Errorf("framework %s has no roles: %s", f, why)
	}
	if len(roles) > MaxRoles {
		return fmt.Errorf("%d roles are more than %d", len(roles), MaxRoles)
	}
	ends := false
	for i, r := range roles {
		switch {
		case !roleRE().MatchString(r.Name):
			return fmt.Errorf("role %.40q is not a name of lower-case letters, digits and hyphens", r.Name)
		case slices.ContainsFunc(roles[:i], func(o Role) bool { return o.Name == r.Name }):
			return fmt.Errorf("duplicate role %s", r.Name)
		case r.Workers < 1 || r.Workers > MaxWorkers:
			return fmt.Errorf("role %s has %d workers, which are not between 1 and %d", r.Name, r.Workers, MaxWorkers)
		case f == TensorFlow && !slices.Contains(TensorFlowRoles, r.Name):
			return fmt.Errorf("TF_CONFIG has no role %s, only %s", r.Name, strings.Join(TensorFlowRoles, ", "))
		case f == TensorFlow && r.Workers > 1 && (r.Name == "chief" || r.Name == evaluator):
			return fmt.Errorf("TF_CONFIG has at most one %s, not %d", r.Name, r.Workers)
		case r.Serves && f != TensorFlow && f.orPlain() != Plain:
			return fmt.Errorf("role %s cannot run until the end under %s, whose processes end together", r.Name, f)
		}
		ends = ends || !r.Serves
	}
	if !ends {
		return errors.New("all roles run until the end, so none would end")
	}
	return nil
}

func (s Spec) checkRoles(workers int) error {
	if len(s.Roles) == 0 {
		return nil
	}
	if err := CheckRoles(s.Framework, s.Roles); err != nil {
		return err
	}
	sum := 0
	for _, r := range s.Roles {
		sum += r.Workers
	}
	if sum != workers {
		return fmt.Errorf("the roles have %d workers and the gang %d", sum, workers)
	}
	return nil
}

// inRole is what the processes of a gang with roles find besides: their role, and
// where those of each are.
func (g gang) inRole() map[string]string {
	r, i, ok := g.Role(g.index)
	if !ok {
		return nil
	}
	env := map[string]string{"FALAJ_ROLE": r.Name, "FALAJ_ROLE_INDEX": strconv.Itoa(i), "FALAJ_ROLE_WORKERS": strconv.Itoa(r.Workers)}
	first := 0
	for _, of := range g.Roles {
		peers := make([]string, of.Workers)
		for k := range peers {
			peers[k] = g.roster[first+k].endpoint()
		}
		first += of.Workers
		env["FALAJ_PEERS_"+strings.ToUpper(strings.ReplaceAll(of.Name, "-", "_"))] = strings.Join(peers, ",")
	}
	for name, v := range r.Env {
		if _, ours := env[name]; !ours {
			env[name] = v
		}
	}
	return env
}
