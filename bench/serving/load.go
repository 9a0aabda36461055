package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/bench/harness"
)

// target is requests to a server, of equal size and asked in turn.
type target struct {
	on       *harness.Server
	side     string // whose
	address  string
	requests [][]byte
}

// line is a connection, which has one request at a time.
type line struct {
	net.Conn

	in *bufio.Reader
	at atomic.Int64 // which request it has
}

// patience bounds what a server takes beyond the time of a measurement.
const patience = 2 * time.Minute

func (t *target) dial(ctx context.Context, span time.Duration) (*line, error) {
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", t.address)
	if err != nil {
		return nil, err
	}
	return &line{Conn: conn, in: bufio.NewReaderSize(conn, 16<<10)}, conn.SetDeadline(time.Now().Add(span + patience))
}

// receive reads an answer to its end.
func (l *line) receive(keep io.Writer) (http.Header, error) {
	resp, err := http.ReadResponse(l.in, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return nil, fmt.Errorf("%s: %s", resp.Status, text)
	}
	_, err = io.Copy(keep, resp.Body)
	return resp.Header, err
}

// once asks the first request.
func (t *target) once(ctx context.Context) ([]float32, error) {
	l, err := t.dial(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if _, err := l.Write(t.requests[0]); err != nil {
		return nil, err
	}
	var body bytes.Buffer
	header, err := l.receive(&body)
	if err != nil {
		return nil, err
	}
	return numbers(header, body.Bytes())
}

// flow is what came of requests without pause.
type flow struct {
	perSecond, perCPU float64 // requests a second of time, and of CPU of the server
	own               float64 // share of its core that asking took
}

// closed asks for a time on a number of connections, on each the next request when
// the answer is there; each asks at least once.
func (t *target) closed(ctx context.Context, connections int, span time.Duration) (flow, error) {
	lines := make([]*line, 0, connections)
	defer func() {
		for _, l := range lines {
			_ = l.Close()
		}
	}()
	for range connections {
		l, err := t.dial(ctx, span)
		if err != nil {
			return flow{}, err
		}
		lines = append(lines, l)
	}
	before, err := harness.TreeCPUSeconds(t.on.PID())
	if err != nil {
		return flow{}, err
	}
	mine := ownTime()
	var done atomic.Int64
	fails := make([]error, connections)
	var all sync.WaitGroup
	began := time.Now()
	for c, l := range lines {
		all.Go(func() {
			for n := 0; n < 1 || time.Since(began) < span && ctx.Err() == nil; n++ {
				if _, fails[c] = l.Write(t.requests[(c+n)%len(t.requests)]); fails[c] == nil {
					_, fails[c] = l.receive(io.Discard)
				}
				if fails[c] != nil {
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	took := time.Since(began).Seconds()
	mine = ownTime() - mine
	after, err := harness.TreeCPUSeconds(t.on.PID())
	n := float64(done.Load())
	for _, failed := range slices.Concat(fails, []error{err, ctx.Err()}) {
		if failed != nil {
			return flow{}, failed
		}
	}
	return flow{perSecond: n / took, perCPU: n / (after - before), own: mine / took}, nil
}

// ownTime is the CPU time of this process.
func ownTime() float64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// maxLines bounds the connections of open.
const maxLines = 512

// open asks at fixed times, whether or not the answers before have come, and gives
// the times from when each was due to the end of its answer.
func (t *target) open(ctx context.Context, rate float64, span time.Duration) ([]time.Duration, error) {
	n := max(int(rate*span.Seconds()), 10)
	due, times, fails := make([]time.Time, n), make([]time.Duration, n), make([]error, n)
	free, ended := make(chan *line, maxLines), make(chan struct{}, n)
	var failed atomic.Bool
	read := func(l *line) {
		for {
			_, err := l.receive(io.Discard)
			i := l.at.Swap(-1)
			if i < 0 {
				return // nothing was asked: it was closed
			}
			times[i], fails[i] = time.Since(due[i]), err
			if err != nil {
				failed.Store(true)
				_ = l.Close()
				ended <- struct{}{}
				return
			}
			free <- l
			ended <- struct{}{}
		}
	}
	var lines []*line
	var readers sync.WaitGroup
	defer func() {
		for _, l := range lines {
			_ = l.Close()
		}
		readers.Wait()
	}()
	next := func() (*line, error) {
		select {
		case l := <-free:
			return l, nil
		default:
		}
		if len(lines) == maxLines {
			select {
			case l := <-free:
				return l, nil
			case <-time.After(patience):
				return nil, errors.New("no answer came")
			}
		}
		l, err := t.dial(ctx, span)
		if err != nil {
			return nil, err
		}
		l.at.Store(-1)
		lines = append(lines, l)
		readers.Go(func() { read(l) })
		return l, nil
	}
	// The thread that asks sleeps by itself: timers of the runtime are up to a millisecond late.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }()
	began, asked := time.Now().Add(time.Millisecond), 0
	for ; asked < n && !failed.Load() && ctx.Err() == nil; asked++ {
		due[asked] = began.Add(time.Duration(float64(asked) / rate * float64(time.Second)))
		for wait := time.Until(due[asked]); wait > 0; wait = time.Until(due[asked]) {
			pause := unix.NsecToTimespec(int64(min(wait, 100*time.Millisecond)))
			_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &pause, nil)
		}
		l, err := next()
		if err != nil {
			return nil, err
		}
		l.at.Store(int64(asked))
		if _, err := l.Write(t.requests[asked%len(t.requests)]); err != nil {
			return nil, err
		}
	}
	for range asked { // each connection has a deadline
		<-ended
	}
	return times, errors.Join(errors.Join(fails...), ctx.Err())
}
