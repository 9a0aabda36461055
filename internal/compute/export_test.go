package compute

import "time"

// SetOverdue changes how long compute leaves an overdue workload to its engine.
func (s *Service) SetOverdue(d time.Duration) { s.overdue = d }
