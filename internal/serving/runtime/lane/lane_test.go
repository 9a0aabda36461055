package lane

import (
	"bytes"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// all has a tensor of each datatype, and some of unusual shapes.
var all = []runtime.Tensor{
	{Name: "BOOL", Datatype: runtime.Bool, Shape: []int64{2}, Data: []bool{true, false}},
	{Name: "UINT8", Datatype: runtime.Uint8, Shape: []int64{3}, Data: []uint8{1, 2, 255}},
	{Name: "UINT16", Datatype: runtime.Uint16, Shape: []int64{1, 2}, Data: []uint16{1, 65535}},
	{Name: "UINT32", Datatype: runtime.Uint32, Shape: []int64{1}, Data: []uint32{math.MaxUint32}},
	{Name: "UINT64", Datatype: runtime.Uint64, Shape: []int64{1}, Data: []uint64{math.MaxUint64}},
	{Name: "INT8", Datatype: runtime.Int8, Shape: []int64{1}, Data: []int8{-128}},
	{Name: "INT16", Datatype: runtime.Int16, Shape: []int64{1}, Data: []int16{-1}},
	{Name: "INT32", Datatype: runtime.Int32, Shape: []int64{1}, Data: []int32{math.MinInt32}},
	{Name: "INT64", Datatype: runtime.Int64, Shape: []int64{2, 2}, Data: []int64{1, 2, 3, math.MinInt64}},
	{Name: "FP16", Datatype: runtime.FP16, Shape: []int64{1}, Data: []uint16{0x3c00}},
	{Name: "BF16", Datatype: runtime.BF16, Shape: []int64{1}, Data: []uint16{0x3f80}},
	{Name: "FP32", Datatype: runtime.FP32, Shape: []int64{2}, Data: []float32{1.5, float32(math.Inf(1))}},
	{Name: "FP64", Datatype: runtime.FP64, Shape: []int64{1}, Data: []float64{math.Pi}},
	{Name: "BYTES", Datatype: runtime.Bytes, Shape: []int64{4}, Data: []string{"", "a\x00b", "نخلة", ""}},
	{Name: "scalar", Datatype: runtime.FP32, Shape: []int64{}, Data: []float32{2}},
	{Name: "nothing", Datatype: runtime.FP32, Shape: []int64{0, 3}, Data: []float32{}},
	{Name: "no words", Datatype: runtime.Bytes, Shape: []int64{0}, Data: []string{}},
	{Name: "deep", Datatype: runtime.Uint8, Shape: slices.Repeat([]int64{1}, runtime.MaxRank), Data: []uint8{7}},
}

func specs(tensors []runtime.Tensor) []runtime.Spec {
	out := make([]runtime.Spec, len(tensors))
	for i, t := range tensors {
		out[i] = runtime.Spec{Name: t.Name, Datatype: t.Datatype}
	}
	return out
}

// pair is a lane with both of its sides.
func pair(tb testing.TB, size int) (*Memory, *Lane, *Place) {
	tb.Helper()
	m, err := New(1, size)
	if err != nil {
		tb.Fatal(err)
	}
	fd, err := unix.Dup(int(m.File().Fd()))
	if err != nil {
		tb.Fatal(err)
	}
	places, err := Open(os.NewFile(uintptr(fd), "lanes"), 1, size)
	if err != nil {
		tb.Fatal(err)
	}
	l := m.Lend()
	tb.Cleanup(func() {
		m.Back(l)
		m.Close()
		_ = unix.Munmap(places[0].mem)
	})
	return m, l, places[0]
}

func waits(tb testing.TB, l *Lane) {
	tb.Helper()
	for {
		done, err := l.Wait()
		if err != nil {
			tb.Fatal(err)
		}
		if done {
			return
		}
	}
}

// TestRound: what is asked arrives, and what is answered, whatever it is, again and again.
func TestRound(t *testing.T) {
	_, l, p := pair(t, 1<<16)
	meta := runtime.Metadata{Inputs: specs(all), Outputs: specs(all)}
	wanted := make([]int, len(all))
	var names []string
	for i := range wanted {
		wanted[i] = len(all) - 1 - i // in another order than the model's
		names = append(names, all[wanted[i]].Name)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			q, ok := p.Next(meta)
			if !ok {
				return
			}
			if !reflect.DeepEqual(q.Inputs, all) || !slices.Equal(q.Wanted, names) {
				t.Errorf("asked %+v of %v", q.Inputs, q.Wanted)
			}
			out := slices.Clone(q.Inputs)
			slices.Reverse(out)
			if !p.Answer(q, out) {
				t.Error("it does not fit")
				p.Elsewhere()
			}
		}
	}()
	want := slices.Clone(all)
	slices.Reverse(want)
	for id := range uint64(100) {
		if !l.Ask(id, all, wanted) {
			t.Fatal("it was not asked")
		}
		waits(t, l)
		got, elsewhere, err := l.Answer(specs(want))
		if err != nil || elsewhere || !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, %v, %v", got, elsewhere, err)
		}
	}
	p.Stop()
	<-served
}

// TestTooLarge: what does not fit is not asked, and not answered.
func TestTooLarge(t *testing.T) {
	_, l, p := pair(t, 1<<14)
	meta := runtime.Metadata{Inputs: specs(all[:1]), Outputs: specs(all[:1])}
	big := runtime.Tensor{Datatype: runtime.Uint8, Shape: []int64{1 << 14}, Data: make([]uint8, 1<<14)}
	many := make([]runtime.Tensor, runtime.MaxPorts)
	for i := range many {
		many[i] = all[0]
	}
	for name, in := range map[string][]runtime.Tensor{
		"elements": {big}, "words": {{Datatype: runtime.Bytes, Shape: []int64{1}, Data: []string{string(make([]byte, 1<<14))}}}, "descriptions": many,
		"another type":  {{Datatype: runtime.FP32, Shape: []int64{1}, Data: []int64{1}}},
		"another shape": {{Datatype: runtime.Int64, Shape: []int64{2}, Data: []int64{1}}},
		"no data":       {{Datatype: runtime.Int64, Shape: []int64{0}}},
		"dimensions":    {{Datatype: runtime.Uint8, Shape: slices.Repeat([]int64{1}, runtime.MaxRank+1), Data: []uint8{1}}},
	} {
		if l.Ask(1, in, []int{0}) {
			t.Errorf("%s was asked", name)
		}
	}
	if l.Ask(1, all[:1], make([]int, runtime.MaxPorts)) {
		t.Error("all outputs were asked for")
	}
	if !l.Ask(2, all[:1], []int{0}) {
		t.Fatal("what fits was not asked")
	}
	q, _ := p.Next(meta)
	if p.Answer(q, []runtime.Tensor{big}) {
		t.Error("it was answered")
	}
	p.Elsewhere()
	waits(t, l)
	if out, elsewhere, err := l.Answer(meta.Outputs); out != nil || !elsewhere || err != nil {
		t.Errorf("%v, %v, %v", out, elsewhere, err)
	}
}

// forge writes an answer as its own side would, but for what change does to it.
func forge(l *Lane, out []runtime.Tensor, change func(mem []byte, answer int)) {
	at := l.answer + headSize
	putTensors(l.mem, at, at+TensorSize*len(out), out)
	put64(l.mem, l.answer, l.id)
	put32(l.mem, l.answer+8, l.turn)
	put32(l.mem, l.answer+12, Answered)
	change(l.mem, l.answer)
	atomic.StoreUint32(word(l.mem, answeredAt), l.turn)
}

// TestForged: an answer with anything in it that is not what was asked is refused whole.
func TestForged(t *testing.T) {
	const first = headSize
	two := []runtime.Tensor{
		{Name: "x", Datatype: runtime.Int64, Shape: []int64{2}, Data: []int64{1, 2}},
		{Name: "s", Datatype: runtime.Bytes, Shape: []int64{2}, Data: []string{"ab", "cd"}},
		{Name: "b", Datatype: runtime.Bool, Shape: []int64{1}, Data: []bool{true}},
	}
	u32 := func(at int, v uint32) func([]byte, int) {
		return func(mem []byte, answer int) { put32(mem, answer+at, v) }
	}
	u64 := func(at int, v uint64) func([]byte, int) {
		return func(mem []byte, answer int) { put64(mem, answer+at, v) }
	}
	begins := func(i int, v uint64) func([]byte, int) {
		return func(mem []byte, answer int) { put64(mem, int(get64(mem, answer+first+TensorSize+8))+8*i, v) }
	}
	for name, change := range map[string]func(mem []byte, answer int){
		"another run's":           u64(0, 99),
		"another turn's":          u32(8, 0),
		"no outcome":              u32(12, 2),
		"another datatype":        u32(first, 1),
		"a datatype there is not": u32(first, 1<<31),
		"too many dimensions":     u32(first+4, runtime.MaxRank+1),
		"other dimensions":        u32(first+4, 2),
		"before the lane":         u64(first+8, math.MaxUint64),
		"behind the lane":         u64(first+8, 1<<16),
		"across the end":          u64(first+8, 1<<16-8),
		"a size that overflows":   u64(first+16, math.MaxUint64-8),
		"a size of more":          u64(first+16, 24),
		"a size of less":          u64(first+16, 8),
		"a count of more":         u64(first+24, 3),
		"a negative dimension":    u64(first+32, math.MaxUint64),
		"a huge dimension":        u64(first+32, runtime.MaxElements+1),
		"more words than bytes": func(mem []byte, a int) {
			put64(mem, a+first+TensorSize+24, 1<<20)
			put64(mem, a+first+TensorSize+32, 1<<20)
		},
		"a word that begins late":    begins(0, 1),
		"a word behind the words":    begins(1, 5),
		"words backwards":            func(mem []byte, a int) { begins(0, 3)(mem, a); begins(1, 2)(mem, a) },
		"a bool that is neither":     func(mem []byte, a int) { mem[get64(mem, a+first+2*TensorSize+8)] = 2 },
		"tensors that share a place": func(mem []byte, a int) { u64(first+16, 1<<16-1)(mem, a); u64(first+8, 0)(mem, a) },
	} {
		t.Run(name, func(t *testing.T) {
			_, l, _ := pair(t, 1<<16)
			if !l.Ask(1, nil, []int{0, 1, 2}) {
				t.Fatal("not asked")
			}
			forge(l, two, func([]byte, int) {})
			if out, _, err := l.Answer(specs(two)); err != nil || !reflect.DeepEqual(out, two) {
				t.Fatalf("unchanged it is %+v, %v", out, err)
			}
			forge(l, two, change)
			if out, elsewhere, err := l.Answer(specs(two)); err == nil || out != nil || elsewhere {
				t.Errorf("got %+v, %v", out, elsewhere)
			}
		})
	}
}

// TestOverlap: tensors that all lie at one place are not together more than the lane.
func TestOverlap(t *testing.T) {
	_, l, _ := pair(t, 1<<20)
	const n = 64
	out := make([]runtime.Tensor, n)
	for i := range out {
		out[i] = runtime.Tensor{Name: strconv.Itoa(i), Datatype: runtime.Uint8, Shape: []int64{1}, Data: []uint8{1}}
	}
	l.Ask(1, nil, make([]int, n))
	forge(l, out, func(mem []byte, answer int) {
		for i := range n {
			d := answer + headSize + i*TensorSize
			put64(mem, d+8, 0)
			put64(mem, d+16, 1<<19)
			put64(mem, d+24, 1<<19)
			put64(mem, d+32, 1<<19)
		}
	})
	if _, _, err := l.Answer(specs(out)); err == nil {
		t.Error("32 MiB came out of a lane of one")
	}
}

// TestWaiting: a side that counts on, wakes for nothing or is gone holds nobody.
func TestWaiting(t *testing.T) {
	t.Run("counts on", func(t *testing.T) {
		_, l, _ := pair(t, 1<<16)
		l.Ask(1, nil, []int{0})
		atomic.StoreUint32(word(l.mem, answeredAt), l.turn+1)
		if done, err := l.Wait(); done || err == nil {
			t.Errorf("%v, %v", done, err)
		}
	})
	t.Run("wakes for nothing", func(t *testing.T) {
		_, l, p := pair(t, 1<<16)
		l.Ask(1, nil, []int{0})
		end, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			for {
				select {
				case <-end:
					return
				default:
					wake(word(p.mem, answeredAt))
				}
			}
		}()
		for {
			if _, err := l.Wait(); err != nil { // a machine that is busy may be slow to be woken so often
				break
			}
		}
		close(end)
		<-ended
	})
	t.Run("is gone", func(t *testing.T) {
		m, l, _ := pair(t, 1<<16)
		l.Ask(1, nil, []int{0})
		m.Close()
		if done, err := l.Wait(); done || err != nil {
			t.Errorf("%v, %v", done, err)
		}
		if m.Lend() != nil {
			t.Error("there are lanes of a process that is gone")
		}
	})
}

// TestSealed: nobody can make the memory smaller, which would end who reads it, or larger.
func TestSealed(t *testing.T) {
	m, l, _ := pair(t, 1<<16)
	fd := int(m.File().Fd())
	for _, size := range []int64{0, 1 << 15, 1 << 20} {
		if err := unix.Ftruncate(fd, size); err == nil {
			t.Errorf("it has %d bytes now", size)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err == nil {
		t.Error("others can seal it")
	}
	// What was taken out of it is zeros.
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<16); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(l.mem, make([]byte, 1<<16)) {
		t.Error("it is not zero")
	}
}

// TestTrim: what one large run used is given back; what runs usually use is kept.
func TestTrim(t *testing.T) {
	m, err := New(1, 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	run := func(n int) int64 {
		l := m.Lend()
		if !l.Ask(1, []runtime.Tensor{{Datatype: runtime.Uint8, Shape: []int64{int64(n)}, Data: bytes.Repeat([]byte{1}, n)}}, nil) {
			t.Fatal("not asked")
		}
		atomic.StoreUint32(word(l.mem, answeredAt), l.turn)
		m.Back(l)
		var about unix.Stat_t
		if err := unix.Fstat(int(m.File().Fd()), &about); err != nil {
			t.Fatal(err)
		}
		return about.Blocks * 512
	}
	if got := run(4 << 20); got > 1<<20 {
		t.Errorf("%d bytes are kept of a run that was much larger than before", got)
	}
	for range 20 {
		run(4 << 20)
	}
	if got := run(4 << 20); got < 4<<20 {
		t.Errorf("%d bytes are kept where runs have 4 MiB", got)
	}
}

// FuzzAnswer: whatever is in the memory, reading it ends, with an error or with tensors of
// what was asked for, which together are no larger than the lane.
func FuzzAnswer(f *testing.F) {
	const size = 1 << 14
	asked := []runtime.Tensor{all[8], all[13], all[0], all[11]}
	m, err := New(1, size)
	if err != nil {
		f.Fatal(err)
	}
	l := m.Lend()
	l.Ask(1, nil, make([]int, len(asked)))
	forge(l, asked, func([]byte, int) {})
	f.Add(slices.Clone(l.mem[l.answer:l.answer+4096]), uint16(0))
	f.Add([]byte("garbage"), uint16(40))
	f.Fuzz(func(t *testing.T, said []byte, at uint16) {
		_, l, _ := pair(t, size)
		l.Ask(1, nil, make([]int, len(asked)))
		forge(l, asked, func(mem []byte, answer int) { copy(mem[min(answer+int(at), size):], said) })
		waits(t, l)
		out, elsewhere, err := l.Answer(specs(asked))
		if err != nil || elsewhere {
			if out != nil {
				t.Errorf("%+v beside %v", out, err)
			}
			return
		}
		total := 0
		for i, got := range out {
			n, err := runtime.Elements(got.Shape)
			if err != nil || got.Datatype != asked[i].Datatype || got.Name != asked[i].Name || reflect.TypeOf(got.Data) != reflect.TypeOf(asked[i].Data) || reflect.ValueOf(got.Data).Len() != n {
				t.Errorf("%+v, %v", got, err)
			}
			if words, ok := got.Data.([]string); ok {
				for _, w := range words {
					total += len(w)
				}
				continue
			}
			b, _ := view(got.Datatype, got.Data)
			total += len(b)
		}
		if total > size {
			t.Errorf("%d bytes of a lane of %d", total, size)
		}
	})
}

// TestOpen: a process opens what was made for it, and nothing else.
func TestOpen(t *testing.T) {
	for _, bad := range [][2]int{{0, 4096}, {1, 0}, {1, 4095}, {MaxLanes + 1, 4096}, {1, 2 * maxSize}} {
		if _, err := New(bad[0], bad[1]); err == nil {
			t.Errorf("made %d of %d", bad[0], bad[1])
		}
	}
	m, err := New(2, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, bad := range [][2]int{{1, 4096}, {2, 8192}, {0, 4096}, {-1, 4096}} {
		fd, err := unix.Dup(int(m.File().Fd()))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(os.NewFile(uintptr(fd), "lanes"), bad[0], bad[1]); err == nil {
			t.Errorf("opened %d of %d", bad[0], bad[1])
		}
	}
}

func BenchmarkRound(b *testing.B) {
	_, l, p := pair(b, 1<<16)
	in := []runtime.Tensor{all[11]}
	meta := runtime.Metadata{Inputs: specs(in), Outputs: specs(in)}
	go func() {
		for {
			q, ok := p.Next(meta)
			if !ok {
				return
			}
			p.Answer(q, q.Inputs)
		}
	}()
	defer p.Stop()
	for b.Loop() {
		l.Ask(1, in, []int{0})
		waits(b, l)
		if _, _, err := l.Answer(meta.Outputs); err != nil {
			b.Fatal(err)
		}
	}
}
