package training

// Family is the family of a job.
func (j Job) FamilyName() string { return j.family() }

// SettingOf is what of a specification changes the work of a step.
func SettingOf(s Spec) string { return s.setting("steps") }

// Wake asks the loop to check waiting jobs soon.
func (s *Execution) Wake() { s.signal() }
