package simulate

import "slices"

// demotion is the service after which a job drops to the second queue: 16
// GPU-hours.
const demotion = 16 * 3600

// tiresias is least attained service with two queues (Gu et al., NSDI 2019), as
// the simulator of Pollux has it:
//
//  1. A job joins the first queue when it is submitted. When its executed time
//     times its replicas reaches 16 GPU-hours, it drops to the end of the second,
//     and never returns.
//  2. Both queues are walked in the order of arrival in them. Each job gets its
//     whole request while GPUs last; one that does not fit is skipped.
//  3. Jobs that continue keep their placement.
//
// With several types of GPU it takes the first that fits; see most.
type tiresias struct {
	queue    [2][]int
	known    map[int]bool
	executed map[int]int // seconds
	last     int         // when Plan was called
	running  map[int]Placement
}

func newTiresias() *tiresias {
	return &tiresias{known: map[int]bool{}, executed: map[int]int{}}
}

func (t *tiresias) Plan(now int, nodes []Node, jobs []Job) map[int]Placement {
	by := make(map[int]Job, len(jobs))
	for _, j := range jobs {
		by[j.ID] = j
		if !t.known[j.ID] {
			t.known[j.ID] = true
			t.queue[0] = append(t.queue[0], j.ID)
		}
	}
	gone := func(id int) bool { _, ok := by[id]; return !ok }
	t.queue[0] = slices.DeleteFunc(t.queue[0], gone)
	t.queue[1] = slices.DeleteFunc(t.queue[1], gone)
	for _, j := range jobs {
		if _, ran := t.running[j.ID]; !ran {
			continue
		}
		t.executed[j.ID] += now - t.last
		if i := slices.Index(t.queue[0], j.ID); i >= 0 && t.executed[j.ID]*j.Replicas >= demotion {
			t.queue[0] = slices.Delete(t.queue[0], i, i+1)
			t.queue[1] = append(t.queue[1], j.ID)
		}
	}
	var order []Job
	for _, q := range t.queue {
		for _, id := range q {
			order = append(order, by[id])
		}
	}
	t.last, t.running = now, most(nodes, order, false)
	return t.running
}

func (*tiresias) Batch(j Job) int { return j.Batch }
