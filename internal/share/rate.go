package share

import (
	"container/list"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Rate describes a Limiter.
type Rate struct {
	Name  string        // as Limits.Name
	Every time.Duration // a key gets one token so often
	Burst int           // tokens that a key has at most, and at first
	Keys  int           // keys that are remembered; 65,536
}

// Limiter is a rate per key, such as an address or a principal: a token bucket
// each. It remembers at most Rate.Keys keys; when all of them are in use, further
// keys share one bucket, so that many keys do not bring more than Keys buckets.
// Safe for concurrent use.
type Limiter struct {
	r     Rate
	usage *usage
	start time.Time // of the monotonic clock

	mu     sync.Mutex
	keys   map[string]*bucket
	old    list.List // of *bucket, the longest unused first
	others bucket    // of keys that are not remembered
}

// bucket has its tokens as the time at which it is full again.
type bucket struct {
	key  string
	at   *list.Element
	full time.Duration
}

// NewLimiter makes a limiter.
func NewLimiter(r Rate) *Limiter {
	if r.Keys <= 0 {
		r.Keys = 1 << 16
	}
	r.Burst, r.Every = max(r.Burst, 1), max(r.Every, 1)
	return &Limiter{r: r, usage: usageOf(r.Name), start: time.Now(), keys: map[string]*bucket{}}
}

// Take takes a token of the key; otherwise it says after how long there is one.
// Error: fault.Exhausted.
func (l *Limiter) Take(key string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Since(l.start)
	b := l.bucket(key, now, true)
	if wait := l.lacks(b, now); wait > 0 {
		return l.refuse(key, wait)
	}
	b.full = max(b.full, now) + l.r.Every
	l.usage.granted.Add(1)
	return nil
}

// Check is Take that takes nothing: it reports whether the key has a token. Where
// only failures count, Check stands before the attempt and Take after a failure.
func (l *Limiter) Check(key string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Since(l.start)
	if wait := l.lacks(l.bucket(key, now, false), now); wait > 0 {
		return l.refuse(key, wait)
	}
	return nil
}

// Len is how many keys are remembered.
func (l *Limiter) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.keys)
}

// lacks is how long the bucket has no token.
func (l *Limiter) lacks(b *bucket, now time.Duration) time.Duration {
	if b == nil {
		return 0
	}
	return b.full + l.r.Every - now - time.Duration(l.r.Burst)*l.r.Every
}

// bucket is that of the key. One that is full is as good as a new one and is
// forgotten first.
func (l *Limiter) bucket(key string, now time.Duration, add bool) *bucket {
	if b := l.keys[key]; b != nil {
		l.old.MoveToBack(b.at)
		return b
	}
	if oldest := l.old.Front(); oldest != nil && len(l.keys) >= l.r.Keys {
		b := oldest.Value.(*bucket)
		if b.full > now {
			return &l.others
		}
		if add {
			l.old.Remove(oldest)
			delete(l.keys, b.key)
		}
	}
	if !add {
		return nil
	}
	b := &bucket{key: key}
	b.at = l.old.PushBack(b)
	l.keys[key] = b
	return b
}

func (l *Limiter) refuse(key string, wait time.Duration) error {
	return Refused(l.r.Name, fmt.Sprintf("%s asks more often than every %s", key, l.r.Every), "Ask again later.", wait)
}

// AddressKey is the key of a remote address: an IPv4 address, or the /64 network of
// an IPv6 address, which one machine has for itself.
func AddressKey(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return remote
	}
	ip = ip.Unmap().WithZone("")
	if ip.Is6() {
		if p, err := ip.Prefix(64); err == nil {
			return p.String()
		}
	}
	return ip.String()
}
