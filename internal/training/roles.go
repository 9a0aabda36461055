package training

import (
	"maps"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/worker/launch"
)

// Role is some workers of a gang that are alike. All roles start together, in one
// pool, and find each other; one that fails ends the attempt.
type Role struct {
	Name      string            `json:"name" doc:"Role passed to the program: chief, worker, ps and evaluator for tensorflow; any name for other frameworks"`
	Workers   int               `json:"workers,omitempty" doc:"Number of workers; default 1"`
	Resources resource.Amount   `json:"resources,omitzero" doc:"Resources of each worker; default the job's; cpu and memory default separately"`
	Command   []string          `json:"command,omitempty" doc:"Program and arguments; default the job's command"`
	Env       map[string]string `json:"env,omitempty" doc:"Environment variables, which override the job's"`
	Until     Until             `json:"until,omitempty" doc:"end: these workers do not exit on their own, such as parameter servers, and are stopped when all others have ended; default for ps of tensorflow"`
}

// Until says when workers are over.
type Until string

// UntilEnd is of workers that are stopped when all others have ended. Empty is of
// those that end by themselves.
const UntilEnd Until = "end"

// parameterServer is TensorFlow's role that waits for ever.
const parameterServer = "ps"

// inRoles is how many workers the roles have.
func (s Spec) inRoles() (n int) {
	for _, r := range s.Roles {
		n += max(r.Workers, 1)
	}
	return n
}

// rolesCommand reports that the job needs no command, since each role has its own.
func (s Spec) rolesCommand() bool {
	for _, r := range s.Roles {
		if len(r.Command) == 0 {
			return false
		}
	}
	return len(s.Roles) > 0
}

// validRoles refuses roles that make no sense. Error: fault.Invalid.
func (s Spec) validRoles() error {
	if len(s.Roles) == 0 {
		return nil
	}
	switch {
	case !s.Workers.IsZero():
		return fault.New(fault.Invalid, "spec.roles: set either workers or roles, not both").
			WithHint("Set the number of workers in each role. Elastic ranges need a job without roles.")
	case s.Parallel != (Parallel{}):
		return fault.New(fault.Invalid, "spec.parallel: not supported with roles, because parallelism needs identical workers").
			WithHint("Remove spec.parallel.")
	}
	roles := make([]launch.Role, len(s.Roles))
	for i, r := range s.completeRoles() {
		if r.Until != UntilEnd && r.Until != "" {
			return fault.New(fault.Invalid, "spec.roles.%.40s.until: unknown value %.40q", r.Name, string(r.Until)).
				WithHint("Set end for workers that are stopped when all others have ended, or omit until.")
		}
		if err := errorsFirst(r.Resources.Validate(), validCommand("command of role "+r.Name, r.Command), validEnv(r.Env)); err != nil {
			return err
		}
		if len(r.Command) > 0 && r.Command[0] == "" {
			return fault.New(fault.Invalid, "spec.roles.%.40s.command: the program is empty", r.Name)
		}
		roles[i] = launch.Role{Name: r.Name, Workers: r.Workers, Serves: r.Until == UntilEnd}
	}
	if err := launch.CheckRoles(s.Framework, roles); err != nil {
		return fault.New(fault.Invalid, "%w", err)
	}
	if n := s.inRoles(); n > launch.MaxWorkers {
		return fault.New(fault.Invalid, "spec.roles: %d workers in total; the limit is %d", n, launch.MaxWorkers)
	}
	return nil
}

// completeRoles fills in the defaults.
func (s Spec) completeRoles() []Role {
	if len(s.Roles) == 0 {
		return nil
	}
	out := make([]Role, len(s.Roles))
	for i, r := range s.Roles {
		if r.Workers == 0 {
			r.Workers = 1
		}
		if r.Resources.IsZero() {
			r.Resources = s.Resources
		}
		if r.Resources.CPU == 0 {
			r.Resources.CPU = s.Resources.CPU
		}
		if r.Resources.Memory == 0 {
			r.Resources.Memory = s.Resources.Memory
		}
		if r.Until == "" && s.Framework == launch.TensorFlow && r.Name == parameterServer {
			r.Until = UntilEnd
		}
		out[i] = r
	}
	return out
}

// asked is what the roles ask of the scheduler.
func (s Spec) asked() []scheduler.Role {
	var out []scheduler.Role
	for _, r := range s.Roles {
		out = append(out, scheduler.Role{Name: r.Name, Workers: r.Workers, Request: r.Resources})
	}
	return out
}

// largest is the most of each part that a worker asks for.
func (s Spec) largest() resource.Amount {
	w := scheduler.Workload{Request: s.Resources, Roles: s.asked()}
	return w.Largest()
}

// launched is what the workers of each role run.
func (s Spec) launched(env environment.Usable, d dirs, p compute.Pool) ([]launch.Role, error) {
	var out []launch.Role
	for _, r := range s.Roles {
		l := launch.Role{Name: r.Name, Workers: r.Workers, Serves: r.Until == UntilEnd, Env: s.threads(r.Resources)}
		for name := range l.Env { // a pool's, an environment's or a job's own come first
			for _, own := range []map[string]string{env.Env, p.Env, s.Env} {
				if v, given := own[name]; given {
					l.Env[name] = v
				}
			}
		}
		maps.Copy(l.Env, r.Env)
		if len(r.Command) > 0 {
			var err error
			if l.Command, err = command(Spec{Command: r.Command}, env, d, p.Remote || env.Image != ""); err != nil {
				return nil, fault.Wrap(err, "role %s", r.Name)
			}
		}
		out = append(out, l)
	}
	return out, nil
}
