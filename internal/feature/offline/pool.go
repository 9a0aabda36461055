package offline

import "sync"

// leastShare is what a join gets where others have the rest: it spills the more.
const leastShare = 32 << 20

// Pool is the memory shared by the joins of a server. The nil Pool grants every request.
type Pool struct {
	mu   sync.Mutex
	left int64
}

// NewPool returns a pool of the given number of bytes.
func NewPool(bytes int64) *Pool { return &Pool{left: bytes} }

// take gives up to half of what is left, but never less than leastShare: nobody
// waits for memory that another join holds. Give it back once; more is harmless.
func (p *Pool) take(want int64) (got int64, give func()) {
	if p == nil {
		return want, func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	got = min(want, max(p.left/2, leastShare))
	p.left -= got
	return got, sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.left += got
	})
}
