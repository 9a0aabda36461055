package change

import (
	"cmp"
	"slices"

	"github.com/falaj-ml/falaj/internal/drift"
)

// maxStreams is how many versions, live and replayed, are followed at once.
const maxStreams = 64

// The detectors that a manifest may name.
const (
	adwin       = "adwin"
	pageHinkley = "page_hinkley"
)

// Detectors are their names.
func Detectors() []string { return []string{adwin, pageHinkley} }

// Stream names a stream of scores: one version's, live or replayed.
type Stream struct {
	Version int64
	Replay  bool
}

// Streams follow the scores of versions with the detectors that a manifest names.
type Streams struct {
	detectors []string
	followed  map[Stream]*stream
}

// NewStreams follows nothing yet; without detectors, it never does.
func NewStreams(detectors []string) *Streams {
	return &Streams{detectors: detectors, followed: map[Stream]*stream{}}
}

// stream follows the scores of one version, across windows. Only the detectors
// that the manifest names are there.
type stream struct {
	adwin *drift.ADWIN
	page  *drift.PageHinkley
}

func newStream(names []string) *stream {
	s := &stream{}
	if slices.Contains(names, adwin) {
		s.adwin = drift.NewADWIN(0)
	}
	if slices.Contains(names, pageHinkley) {
		s.page = drift.NewPageHinkley(0, 0)
	}
	return s
}

// Feed gives the scores of a record to the detectors of its stream, and returns the detectors
// that found a change, in order.
func (s *Streams) Feed(of Stream, scores []float64) (found []string) {
	if len(s.detectors) == 0 {
		return nil
	}
	at := s.followed[of]
	if at == nil {
		if len(s.followed) >= maxStreams {
			delete(s.followed, s.keys()[0])
		}
		at = newStream(s.detectors)
		s.followed[of] = at
	}
	for _, v := range scores {
		if at.adwin != nil && at.adwin.Update(v) {
			found = append(found, adwin)
		}
		if at.page != nil && at.page.Update(v) {
			found = append(found, pageHinkley)
		}
	}
	return found
}

// keys are the streams, the oldest version first.
func (s *Streams) keys() []Stream {
	keys := make([]Stream, 0, len(s.followed))
	for k := range s.followed {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b Stream) int {
		return cmp.Or(cmp.Compare(a.Version, b.Version), cmp.Compare(side(a.Replay), side(b.Replay)))
	})
	return keys
}

// Stored is the form of a stream in the database.
type Stored struct {
	Key         Stream
	ADWIN, Page []byte
}

// Encode gives the streams in their stored form.
func (s *Streams) Encode() (out []Stored, err error) {
	for _, k := range s.keys() {
		one := Stored{Key: k}
		if a := s.followed[k].adwin; a != nil {
			if one.ADWIN, err = a.MarshalBinary(); err != nil {
				return nil, err
			}
		}
		if ph := s.followed[k].page; ph != nil {
			if one.Page, err = ph.MarshalBinary(); err != nil {
				return nil, err
			}
		}
		out = append(out, one)
	}
	return out, nil
}

// Decode resumes the detectors that the manifest still names.
func (s *Streams) Decode(stored []Stored) error {
	if len(s.detectors) == 0 {
		return nil
	}
	for _, one := range stored {
		at := newStream(s.detectors)
		if at.adwin != nil && len(one.ADWIN) > 0 {
			if err := at.adwin.UnmarshalBinary(one.ADWIN); err != nil {
				return err
			}
		}
		if at.page != nil && len(one.Page) > 0 {
			if err := at.page.UnmarshalBinary(one.Page); err != nil {
				return err
			}
		}
		s.followed[one.Key] = at
	}
	return nil
}

func side(replay bool) int {
	if replay {
		return 1
	}
	return 0
}
