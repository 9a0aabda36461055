package serving

// Unloaded is a version that a deployment would answer with, and that is not in memory:
// nobody asks for it, or it could not be loaded yet.
type Unloaded struct {
	Project, Model string
	Version        int64
	// Environment is what the manifest says that it runs in, NAME or NAME@DIGEST, else
	// what it ran in when it was in memory. Empty, it runs in the one that the version was
	// made in, if it is Python; Known says that it is not.
	Environment string
	Known       bool
}

// Unloaded lists them: what they need to be loaded is still to be there then.
func (s *Service) Unloaded() (all []Unloaded) {
	for k, t := range *s.tables.Load() {
		for _, w := range t.wanted {
			if t.holding(w) != nil || w.how.runtime.Remote.Name != "" {
				continue
			}
			d := Unloaded{Project: k.project, Model: t.deployment.Spec.Model, Version: w.version, Environment: w.how.runtime.Python.Environment}
			for _, x := range t.unloaded {
				if x.is(w) && d.Environment == "" {
					d.Environment, d.Known = x.environment, true
				}
			}
			all = append(all, d)
		}
	}
	return all
}
