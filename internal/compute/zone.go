package compute

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
)

// A zone is where the machine is. This file is the one place that decides in which zone
// work runs and what its machine is called: by the machine, and not by what a manifest
// says. Of the server's machine the server knows it (Config.Zone); of others it is the
// operator who says it, in the pool's manifest.

// here reports that the work of an engine's pools runs on the server's machine. Of an
// engine that is not configured nothing is known, and nothing is placed there.
func (s *Service) here(engineName string) bool {
	e, ok := s.cfg.Engines[engineName]
	return ok && !e.Remote
}

// simulates reports a cloud whose nodes are the server's machine. Other provisioners
// bring machines of their own, in the zone of the pool.
func simulates(e *Elastic) bool { return e != nil && e.Provisioner == simulatedCloud }

// misplaced says why nothing may be placed in a pool of this zone; empty when it may.
func (s *Service) misplaced(zone residency.Zone, engineName string, elastic *Elastic) string {
	if !s.here(engineName) || elastic != nil || zone == s.cfg.Zone {
		return ""
	}
	return fmt.Sprintf("engine %s runs workloads on the server's machine, which is in %s, not in %s", engineName, s.cfg.Zone, zone)
}

// checkZone refuses a manifest whose zone is not that of the machine. Error: fault.Invalid.
func (s *Service) checkZone(spec PoolSpec) error {
	why := s.misplaced(spec.Zone, spec.Engine, spec.Elastic)
	if why == "" {
		return nil
	}
	return fault.New(fault.Invalid, "zone: %s", why).
		WithHint("Set zone to %s, or omit it. For a pool in %s, configure an engine with nodes there (slurm, kube or ray, under engines) and set it as the pool's engine.", s.cfg.Zone, spec.Zone)
}

// locate says of a pool where its machines are, and whether its zone is wrong.
func (s *Service) locate(p *Pool) {
	p.MachineZone, p.Misplaced = p.Zone, s.misplaced(p.Zone, p.Engine, p.Elastic)
	if s.here(p.Engine) && (p.Elastic == nil || simulates(p.Elastic)) {
		p.MachineZone = s.cfg.Zone
	}
}

// Zones are those that data must be permitted in to be in the pool: its own, and that of
// its machines, where a simulated cloud is said to be elsewhere.
func (p Pool) Zones() []residency.Zone {
	if p.MachineZone == "" || p.MachineZone == p.Zone {
		return []residency.Zone{p.Zone}
	}
	return []residency.Zone{p.Zone, p.MachineZone}
}

// Allows reports whether data with this label is allowed in the pool.
func (p Pool) Allows(l residency.Label) bool {
	_, outside := residency.Outside(l.Zones(), p.Zones()...)
	return !outside
}

// NotOpen says why nothing may start in the pool now; empty when it is open.
func (p Pool) NotOpen() string { return cmp.Or(p.Closed, p.Misplaced) }

// machine is what records call the machines of a workload: that of the server, or the
// nodes that have its workers, as the engine calls them.
func (s *Service) machine(p Pool, nodes []string) string {
	if s.here(p.Engine) && (p.Elastic == nil || simulates(p.Elastic)) {
		return s.cfg.Machine
	}
	return machines(nodes)
}

// maxNamed bounds the machines that a record names: an audit entry has 64 KiB, and the
// workload keeps all of its nodes.
const maxNamed = 100

// machines are nodes, each once, in order.
func machines(nodes []string) string {
	names := slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == "" })
	slices.Sort(names)
	names = slices.Compact(names)
	if more := len(names) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}
