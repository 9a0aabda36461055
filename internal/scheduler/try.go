package scheduler

import (
	"slices"
	"time"
)

// Forecast is what would become of a work that nobody submitted yet.
type Forecast struct {
	Place *Placement // that it would get now; nil when it would wait
	Wait  Wait       // why, when it would
	Rooms []Room     // the pools that may take it, cheapest first
}

// Room is what a pool has for a work.
type Room struct {
	Pool    string
	Workers int       // that have room now, beside what is kept for others, of those that it would get
	At      time.Time // when the least of them have it at the latest, by the time-outs of what runs and were nobody before it; zero is unknown
	Price   float64   // of an hour, all workers
}

// Try tells what a work would get, as things stood after the last step. It takes
// nothing.
func (s *State) Try(work Work) Forecast {
	var f Forecast
	if s.top == nil {
		f.Wait = Wait{Reasons: []Reason{{Step: "admit", Code: NoSuch, Text: "there are no pools"}}}
		return f
	}
	w := &waiter{Work: work, hurries: work.urgent(s.now)}
	var sizes map[ID]int
	if s.policy == Goodput { // with it in its place in line
		at, _ := slices.BinarySearchFunc(s.top.line.works, w, s.rank)
		sizes = s.sizesOf(slices.Insert(slices.Clone(s.top.line.works), at, w))
	}
	for _, q := range s.keeping { // what is kept for those who wait is not for this one
		q.use(q.mine, 1)
		defer q.use(q.mine, -1)
	}
	k := s.know(w)
	most := 0
	if k.never == "" && !w.NotBefore.After(s.now) && !k.queue.stopped {
		most = s.allowed(w)
	}
	if most >= w.least() {
		most = s.sized(w, most, func() map[ID]int { return sizes })
	}
	for _, p := range k.pools {
		room := Room{Pool: p.Name, Price: price(&w.Work, p, w.least())}
		var rows []int
		if most >= w.least() {
			rows = p.room(w, most, s.now)
		}
		switch room.Workers = len(rows); {
		case rows == nil:
			room.At = s.vacate(p, w).at
		case f.Place == nil:
			f.Place = &Placement{Work: w.ID, Pool: p.Name, Workers: len(rows), Nodes: p.nodes(rows), Passed: k.refused}
			fallthrough
		default:
			room.At, room.Price = s.now, price(&w.Work, p, len(rows))
		}
		f.Rooms = append(f.Rooms, room)
	}
	if f.Place == nil {
		f.Wait = s.why(w)
	}
	return f
}
