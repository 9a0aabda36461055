package serving

// Drain waits until shadows have seen what was shown to them.
func (s *Service) Drain() { s.shadows.all.Wait() }
