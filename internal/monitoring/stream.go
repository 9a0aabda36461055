package monitoring

import (
	"cmp"
	"slices"

	"github.com/falaj-ml/falaj/internal/drift"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
)

// Bounds of the detectors.
const (
	maxStreams    = 64  // versions, live and replayed, that are followed at once
	maxDetections = 100 // of a window
)

// streamKey is a stream of scores: one version's, live or replayed.
type streamKey struct {
	Version int64
	Replay  bool
}

// stream follows the scores of one version, across windows. Only the detectors
// that the manifest names are there.
type stream struct {
	adwin *drift.ADWIN
	page  *drift.PageHinkley
}

func newStream(names []string) *stream {
	s := &stream{}
	if slices.Contains(names, "adwin") {
		s.adwin = drift.NewADWIN(0)
	}
	if slices.Contains(names, "page_hinkley") {
		s.page = drift.NewPageHinkley(0, 0)
	}
	return s
}

// feed gives a record's scores to the detectors of its version. What a shadow
// says is said to nobody, and not followed.
func (p *panes) feed(r *prediction.Record) (found []Detection) {
	if len(p.detectors) == 0 || r.Shadow {
		return nil
	}
	k := streamKey{r.Version, r.Replay}
	s := p.streams[k]
	if s == nil {
		if len(p.streams) >= maxStreams {
			delete(p.streams, p.streamKeys()[0])
		}
		s = newStream(p.detectors)
		p.streams[k] = s
	}
	for _, v := range r.Scores {
		if s.adwin != nil && s.adwin.Update(v) {
			found = append(found, Detection{Detector: "adwin", At: r.At.UTC()})
		}
		if s.page != nil && s.page.Update(v) {
			found = append(found, Detection{Detector: "page_hinkley", At: r.At.UTC()})
		}
	}
	return found
}

// streamKeys are the streams, the oldest version first.
func (p *panes) streamKeys() []streamKey {
	keys := make([]streamKey, 0, len(p.streams))
	for k := range p.streams {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b streamKey) int {
		return cmp.Or(cmp.Compare(a.Version, b.Version), cmp.Compare(side(a.Replay), side(b.Replay)))
	})
	return keys
}

// storedStream is the form of a stream in the database.
type storedStream struct {
	Key         streamKey
	ADWIN, Page []byte
}

func (p *panes) encodeStreams() (out []storedStream, err error) {
	for _, k := range p.streamKeys() {
		one := storedStream{Key: k}
		if a := p.streams[k].adwin; a != nil {
			if one.ADWIN, err = a.MarshalBinary(); err != nil {
				return nil, err
			}
		}
		if ph := p.streams[k].page; ph != nil {
			if one.Page, err = ph.MarshalBinary(); err != nil {
				return nil, err
			}
		}
		out = append(out, one)
	}
	return out, nil
}

// decodeStreams goes on with the detectors that the manifest still names.
func (p *panes) decodeStreams(stored []storedStream) error {
	if len(p.detectors) == 0 {
		return nil
	}
	for _, one := range stored {
		s := newStream(p.detectors)
		if s.adwin != nil && len(one.ADWIN) > 0 {
			if err := s.adwin.UnmarshalBinary(one.ADWIN); err != nil {
				return err
			}
		}
		if s.page != nil && len(one.Page) > 0 {
			if err := s.page.UnmarshalBinary(one.Page); err != nil {
				return err
			}
		}
		p.streams[one.Key] = s
	}
	return nil
}
