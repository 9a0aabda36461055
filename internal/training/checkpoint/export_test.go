package checkpoint

// What tests of the inside see.
var (
	Kept  = kept
	Cut   = cut
	Label = label
)

// ChunkKeys are where the chunks of a manifest lie.
func ChunkKeys(r Record, m Manifest) []string {
	keys := make([]string, len(m.Chunks))
	for i, c := range m.Chunks {
		keys[i] = string(c.ref(r.Project).Key)
	}
	return keys
}

// Resume says that a program runs in the job's directory again.
func (s *Service) Resume(job string) { s.begun(job) }
