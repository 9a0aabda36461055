package monitoring

import (
	"bytes"
	"cmp"
	"encoding/gob"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/monitoring/change"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/sketch"
)

// Bounds of what a monitor holds in memory.
const (
	maxOpen       = 1000      // panes; when there are more, the oldest is given up
	maxHeld       = 128 << 20 // bytes of their sketches, about; the same
	maxColumns    = 512       // inputs of a pane
	maxFailures   = 20        // kinds of failure of a pane
	maxDetections = 100       // of a window
	never         = math.MinInt64 / 4
)

// monday is the first Monday after the beginning of Unix time: windows begin at
// multiples of their slide from there.
const monday = 4 * 24 * int64(time.Hour/time.Microsecond)

// layout is how records become windows, in microseconds or rows.
type layout struct {
	ByRows      bool
	Size, Slide int64
	Lateness    int64
}

func layoutOf(s Spec) (layout, error) {
	size, slide, err := s.Window.sizes()
	if err != nil {
		return layout{}, err
	}
	late, err := resource.ParseDuration(s.Lateness)
	return layout{ByRows: s.Window.Rows != 0, Size: size, Slide: slide, Lateness: late.Microseconds()}, err
}

// pane is what is kept of the records of one version in one slide of a window.
type pane struct {
	Key         WindowKey
	First, Last int64 // least and greatest time of its records
	Requests    int64
	Rows        int64
	Answered    int64 // rows that have a score
	Failed      int64
	Failures    map[string]int64
	Names       []string // of Columns, as they came
	Columns     []*sketch.Column
	Skipped     int64 // values of inputs over maxColumns
	Score       *sketch.Column
	Latency     *sketch.Latency
	Detections  []Detection
	Task        string         // of its newest answer that has one
	Top         *sketch.Column // the highest probability of each answer of several classes; nil before the first

	index map[string]int
}

func newPane(k WindowKey) *pane {
	return &pane{
		Key: k, First: math.MaxInt64, Last: math.MinInt64, Failures: map[string]int64{}, index: map[string]int{},
		Score: sketch.NewNumeric(seed(k, "")), Latency: sketch.NewLatency(),
	}
}

// seed depends on nothing but what is summarised: the same records give the same
// sketches wherever they are read.
func seed(k WindowKey, name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(k.String() + "/" + name))
	return h.Sum64()
}

func (p *pane) column(name string, kind sketch.Kind) *sketch.Column {
	if i, ok := p.index[name]; ok {
		return p.Columns[i]
	}
	if len(p.Columns) >= maxColumns {
		return nil
	}
	c := sketch.NewNumeric(seed(p.Key, name))
	if kind == sketch.Categorical {
		c = sketch.NewCategorical(seed(p.Key, name))
	}
	p.index[name] = len(p.Columns)
	p.Names, p.Columns = append(p.Names, name), append(p.Columns, c)
	return c
}

func (p *pane) add(r *prediction.Record) {
	at := r.At.UnixMicro()
	p.First, p.Last = min(p.First, at), max(p.Last, at)
	p.Requests++
	p.Rows += int64(r.Rows)
	if r.Failure != "" {
		p.Failed++
		kind := r.Failure
		if _, ok := p.Failures[kind]; !ok && len(p.Failures) >= maxFailures {
			kind = "other"
		}
		p.Failures[kind]++
	} else {
		p.Latency.Add(r.Latency)
	}
	for i := range r.Inputs {
		in := &r.Inputs[i]
		kind := sketch.Numeric
		if len(in.Texts) > 0 {
			kind = sketch.Categorical
		}
		c := p.column(in.Name, kind)
		if c == nil {
			p.Skipped += int64(len(in.Numbers) + len(in.Texts))
			continue
		}
		for _, v := range in.Numbers {
			c.Add(v)
		}
		for _, t := range in.Texts {
			c.AddText(t)
		}
	}
	for _, v := range r.Scores {
		p.Score.Add(v)
	}
	p.Answered += int64(max(len(r.Scores), len(r.Predicted)))
	if r.Task == "" {
		return
	}
	p.Task = string(r.Task)
	if len(r.Probabilities) == 0 || r.Rows == 0 {
		return
	}
	if p.Top == nil {
		p.Top = sketch.NewNumeric(seed(p.Key, "/top"))
	}
	width := len(r.Probabilities) / r.Rows
	for row := range r.Rows {
		p.Top.Add(slices.Max(r.Probabilities[row*width : (row+1)*width]))
	}
}

// merge adds what other has seen.
func (p *pane) merge(other *pane) {
	p.First, p.Last = min(p.First, other.First), max(p.Last, other.Last)
	p.Requests += other.Requests
	p.Rows += other.Rows
	p.Answered += other.Answered
	p.Failed += other.Failed
	p.Skipped += other.Skipped
	for kind, n := range other.Failures {
		p.Failures[kind] += n
	}
	for i, name := range other.Names {
		c := p.column(name, other.Columns[i].Kind())
		if c == nil || c.Merge(other.Columns[i]) != nil {
			// Of another type than before: the type that came first is tested.
			p.Skipped += int64(other.Columns[i].Rows()) //nolint:gosec // G115: counts of rows
		}
	}
	_ = p.Score.Merge(other.Score) // both are numeric
	if other.Task != "" {
		p.Task = other.Task
	}
	if other.Top != nil {
		if p.Top == nil {
			p.Top = sketch.NewNumeric(seed(p.Key, "/top"))
		}
		_ = p.Top.Merge(other.Top) // both are numeric
	}
	p.Latency.Merge(other.Latency)
	p.detected(other.Detections)
}

func (p *pane) detected(found []Detection) {
	p.Detections = append(p.Detections, found[:min(len(found), maxDetections-len(p.Detections))]...)
}

// clock is the time of one sort of traffic, live or replayed.
type clock struct {
	Mark   int64 // newest record
	Closed int64 // windows that end here or before are closed
}

// panes are the open windows of a monitor. They are a pure function of the
// layout, the records in append order, and, for live traffic, of when Tick was
// called.
type panes struct {
	layout layout
	clocks [2]clock // live, replayed
	open   map[WindowKey]*pane
	next   [2]int64            // end of the first window that can close; never is unknown
	late   map[WindowKey]int64 // not yet recorded

	streams *change.Streams

	lost int64 // panes given up because there were too many
}

func newPanes(l layout, detectors []string) *panes {
	return &panes{
		layout: l, clocks: [2]clock{{never, never}, {never, never}}, open: map[WindowKey]*pane{},
		next: [2]int64{never, never}, late: map[WindowKey]int64{},
		streams: change.NewStreams(detectors),
	}
}

func side(replay bool) int {
	if replay {
		return 1
	}
	return 0
}

// marks are the newest times: of live records, or of replays where there are no others;
// and of replays. A replay is awaited by the second: one live request would hide it in
// the first.
func (p *panes) marks() (watermark, replayed *time.Time) {
	for n, into := range []**time.Time{&watermark, &replayed} {
		if c := p.clocks[n]; c.Mark != never {
			mark := at(c.Mark)
			*into = &mark
		}
	}
	if watermark == nil {
		watermark = replayed
	}
	return watermark, replayed
}

// feed gives a record's scores to the detectors of its version. What a shadow
// says is said to nobody, and not followed.
func (p *panes) feed(r *prediction.Record) (found []Detection) {
	if r.Shadow {
		return nil
	}
	for _, detector := range p.streams.Feed(change.Stream{Version: r.Version, Replay: r.Replay}, r.Scores) {
		found = append(found, Detection{Detector: detector, At: r.At.UTC()})
	}
	return found
}

// closed is a window that came to its end.
type closed struct {
	Key      WindowKey
	From, To int64
	all      *pane
}

// Add takes a record and returns the windows that it closes, which do not have
// it, by end and version.
func (p *panes) Add(r *prediction.Record) []closed {
	found := p.feed(r)
	if p.layout.ByRows {
		return p.addByRows(r, found)
	}
	n, at := side(r.Replay), r.At.UnixMicro()
	var done []closed
	if c := &p.clocks[n]; at > c.Mark {
		c.Mark = at
		done = p.closeTo(r.Replay, at-p.layout.Lateness)
	}
	start := at - mod(at-monday, p.layout.Slide)
	for s := start; s > at-p.layout.Size; s -= p.layout.Slide {
		if s+p.layout.Size <= p.clocks[n].Closed {
			p.late[WindowKey{r.Version, r.Replay, s}]++
		}
	}
	if start+p.layout.Size <= p.clocks[n].Closed {
		return done // all its windows are closed
	}
	into := p.at(WindowKey{r.Version, r.Replay, start})
	into.add(r)
	into.detected(found)
	if first := start + p.layout.Slide; p.next[n] == never || first < p.next[n] {
		p.next[n] = max(first, p.clocks[n].Closed+1)
	}
	return done
}

func mod(a, m int64) int64 { return ((a % m) + m) % m }

func (p *panes) at(k WindowKey) *pane {
	if have, ok := p.open[k]; ok {
		return have
	}
	for len(p.open) >= maxOpen || len(p.open) > 0 && p.held() > maxHeld {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(p.open)), func(a, b WindowKey) int {
			return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Version, b.Version))
		})
		delete(p.open, oldest)
		p.lost++
	}
	made := newPane(k)
	p.open[k] = made
	return made
}

// held is about how many bytes the sketches of the open panes take, in memory and
// as they are stored.
func (p *panes) held() (n int) {
	for _, have := range p.open {
		for _, c := range have.Columns {
			n += c.Size()
		}
	}
	return n
}

// Tick closes the windows of live traffic that are over by the wall clock.
func (p *panes) Tick(now time.Time) []closed {
	if p.layout.ByRows {
		return nil
	}
	return p.closeTo(false, now.UnixMicro()-p.layout.Lateness)
}

// closeTo closes the windows that end at to or before.
func (p *panes) closeTo(replay bool, to int64) []closed {
	n := side(replay)
	c := &p.clocks[n]
	if to <= c.Closed {
		return nil
	}
	from := c.Closed
	c.Closed = to
	if p.next[n] == never || p.next[n] > to {
		return nil
	}
	size, slide := p.layout.Size, p.layout.Slide
	ends := map[WindowKey]bool{}
	p.next[n] = never
	var gone []WindowKey
	for k := range p.open {
		if k.Replay != replay {
			continue
		}
		for s := k.Start; s > k.Start-size; s -= slide {
			switch end := s + size; {
			case end > to:
				if p.next[n] == never || end < p.next[n] {
					p.next[n] = end
				}
			case end > from:
				ends[WindowKey{k.Version, replay, s}] = true
			}
		}
		if k.Start+size <= to {
			gone = append(gone, k)
		}
	}
	done := make([]closed, 0, len(ends))
	for k := range ends {
		w := closed{Key: k, From: k.Start, To: k.Start + size}
		var parts []*pane
		for s := k.Start; s < k.Start+size; s += slide {
			if part := p.open[WindowKey{k.Version, replay, s}]; part != nil {
				parts = append(parts, part)
			}
		}
		w.all = together(k, parts)
		done = append(done, w)
	}
	for _, k := range gone {
		delete(p.open, k)
	}
	sortClosed(done)
	return done
}

func sortClosed(done []closed) {
	slices.SortFunc(done, func(a, b closed) int {
		return cmp.Or(cmp.Compare(a.To, b.To), cmp.Compare(a.Key.Version, b.Key.Version), cmp.Compare(a.From, b.From))
	})
}

// together is the window made of panes; of one pane it is that pane.
func together(k WindowKey, parts []*pane) *pane {
	if len(parts) == 1 && parts[0].Key == k {
		return parts[0]
	}
	all := newPane(k)
	for _, part := range parts {
		all.merge(part)
	}
	return all
}

// addByRows fills the newest pane of the record's version; a pane is full when it
// has a slide's rows, a window when it has all its panes.
func (p *panes) addByRows(r *prediction.Record, found []Detection) []closed {
	n, at := side(r.Replay), r.At.UnixMicro()
	p.clocks[n].Mark = max(p.clocks[n].Mark, at)
	k := WindowKey{Version: r.Version, Replay: r.Replay, Start: -1}
	first := int64(math.MaxInt64)
	for have := range p.open {
		if have.Version == k.Version && have.Replay == k.Replay {
			k.Start, first = max(k.Start, have.Start), min(first, have.Start)
		}
	}
	if k.Start < 0 {
		k.Start, first = 0, 0
	}
	newest := p.at(k)
	newest.add(r)
	newest.detected(found)
	if newest.Rows < p.layout.Slide {
		return nil
	}
	p.at(WindowKey{k.Version, k.Replay, k.Start + 1}) // the next one, also so that ordinals go on
	many := p.layout.Size / p.layout.Slide
	if k.Start-first+1 < many {
		return nil
	}
	var parts []*pane
	from := k.Start - many + 1
	for s := from; s <= k.Start; s++ {
		if part := p.open[WindowKey{k.Version, k.Replay, s}]; part != nil {
			parts = append(parts, part)
		}
	}
	w := closed{Key: WindowKey{k.Version, k.Replay, from}}
	w.all = together(w.Key, parts)
	w.From, w.To = w.all.First, w.all.Last
	delete(p.open, w.Key)
	return []closed{w}
}

// paneOf is the pane in which a record of that time is, or was.
func (l layout) paneOf(version int64, replay bool, at time.Time) WindowKey {
	us := at.UnixMicro()
	return WindowKey{Version: version, Replay: replay, Start: us - mod(us-monday, l.Slide)}
}

// stored is the form of panes in the database.
type stored struct {
	Layout layout
	Clocks [2]clock
	Next   [2]int64
	Lost   int64
	Panes  []storedPane

	Streams []change.Stored
}

type storedPane struct {
	Pane    storedFacts
	Columns [][]byte
	Score   []byte
	Latency []byte
	Top     []byte
}

// storedFacts is a pane without its sketches.
type storedFacts struct {
	Key                                       WindowKey
	First, Last                               int64
	Requests, Rows, Answered, Failed, Skipped int64
	Failures                                  map[string]int64
	Names                                     []string
	Detections                                []Detection
	Task                                      string
}

// encode is the binary form, to be sealed.
func (p *panes) encode() ([]byte, error) {
	s := stored{Layout: p.layout, Clocks: p.clocks, Next: p.next, Lost: p.lost}
	for _, have := range p.open {
		one, err := have.encode()
		if err != nil {
			return nil, err
		}
		s.Panes = append(s.Panes, one)
	}
	var err error
	if s.Streams, err = p.streams.Encode(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = gob.NewEncoder(&b).Encode(s)
	return b.Bytes(), err
}

func (p *pane) encode() (storedPane, error) {
	out := storedPane{Pane: storedFacts{
		Key: p.Key, First: p.First, Last: p.Last, Requests: p.Requests, Rows: p.Rows, Answered: p.Answered, Failed: p.Failed,
		Skipped: p.Skipped, Failures: p.Failures, Names: p.Names, Detections: p.Detections, Task: p.Task,
	}}
	for _, c := range p.Columns {
		b, err := c.MarshalBinary()
		if err != nil {
			return out, err
		}
		out.Columns = append(out.Columns, b)
	}
	var err error
	if out.Score, err = p.Score.MarshalBinary(); err != nil {
		return out, err
	}
	if p.Top != nil {
		if out.Top, err = p.Top.MarshalBinary(); err != nil {
			return out, err
		}
	}
	out.Latency, err = p.Latency.MarshalBinary()
	return out, err
}

func (s storedPane) decode() (*pane, error) {
	f := s.Pane
	p := &pane{
		Key: f.Key, First: f.First, Last: f.Last, Requests: f.Requests, Rows: f.Rows, Answered: f.Answered, Failed: f.Failed,
		Skipped: f.Skipped, Failures: f.Failures, Names: f.Names, Detections: f.Detections, Task: f.Task, index: map[string]int{},
		Score: &sketch.Column{}, Latency: sketch.NewLatency(),
	}
	if p.Failures == nil {
		p.Failures = map[string]int64{}
	}
	if len(f.Names) != len(s.Columns) {
		return nil, fault.New(fault.Internal, "a pane has %d names for %s columns", len(f.Names), strconv.Itoa(len(s.Columns)))
	}
	for i, b := range s.Columns {
		c := &sketch.Column{}
		if err := c.UnmarshalBinary(b); err != nil {
			return nil, err
		}
		p.index[f.Names[i]] = i
		p.Columns = append(p.Columns, c)
	}
	if err := p.Score.UnmarshalBinary(s.Score); err != nil {
		return nil, err
	}
	if len(s.Top) > 0 {
		p.Top = &sketch.Column{}
		if err := p.Top.UnmarshalBinary(s.Top); err != nil {
			return nil, err
		}
	}
	return p, p.Latency.UnmarshalBinary(s.Latency)
}

// decodePanes reads what encode wrote. Panes of another layout are dropped, the
// clocks are kept: the manifest's windows have changed, and the first of the new
// ones may have a part of its records only.
func decodePanes(b []byte, l layout, detectors []string) (*panes, error) {
	p := newPanes(l, detectors)
	if len(b) == 0 {
		return p, nil
	}
	var s stored
	if err := gob.NewDecoder(bytes.NewReader(b)).Decode(&s); err != nil {
		return nil, fault.Wrap(err, "read open windows")
	}
	p.clocks, p.lost = s.Clocks, s.Lost
	if err := p.streams.Decode(s.Streams); err != nil {
		return nil, err
	}
	if s.Layout.ByRows != l.ByRows || s.Layout.Size != l.Size || s.Layout.Slide != l.Slide {
		return p, nil
	}
	p.next = s.Next
	for _, one := range s.Panes {
		have, err := one.decode()
		if err != nil {
			return nil, fault.Wrap(err, "read open windows")
		}
		p.open[have.Key] = have
	}
	return p, nil
}
