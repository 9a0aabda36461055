package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
)

// flow is what came of requests without pause.
type flow struct {
	cpu      float64 // of the server and its processes, in µs a request
	p50, p99 float64 // µs
	rate     float64 // requests a second
	failed   int     // requests that were not answered with 200
}

// patience bounds what a server takes beyond the time of a measurement.
const patience = 2 * time.Minute

// closed sends whole requests of HTTP/1.1 to a server for a time, on a number of
// connections, on each the next when the answer is there.
func closed(ctx context.Context, s *harness.Server, request []byte, connections int, span time.Duration) (flow, error) {
	lines := make([]net.Conn, 0, connections)
	defer func() {
		for _, l := range lines {
			_ = l.Close()
		}
	}()
	for range connections {
		l, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", strings.TrimPrefix(s.URL, "http://"))
		if err != nil {
			return flow{}, err
		}
		lines = append(lines, l)
		if err := l.SetDeadline(time.Now().Add(span + patience)); err != nil {
			return flow{}, err
		}
	}
	before, err := harness.TreeCPUSeconds(s.PID())
	if err != nil {
		return flow{}, err
	}
	times, refused, fails := make([][]float64, connections), make([]int, connections), make([]error, connections)
	var all sync.WaitGroup
	began := time.Now()
	for c, l := range lines {
		all.Go(func() {
			in := bufio.NewReaderSize(l, 16<<10)
			for len(times[c]) == 0 || time.Since(began) < span && ctx.Err() == nil {
				asked := time.Now()
				code, err := exchange(l, in, request)
				if err != nil {
					fails[c] = err
					return
				}
				if code != http.StatusOK {
					refused[c]++
				}
				times[c] = append(times[c], float64(time.Since(asked))/float64(time.Microsecond))
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	after, err := harness.TreeCPUSeconds(s.PID())
	if err := errors.Join(err, ctx.Err(), errors.Join(fails...)); err != nil {
		return flow{}, err
	}
	each := slices.Concat(times...)
	f := flow{cpu: (after - before) * 1e6 / float64(len(each)), rate: float64(len(each)) / took.Seconds(), p50: harness.Quantile(each, 0.5), p99: harness.Quantile(each, 0.99)}
	for _, n := range refused {
		f.failed += n
	}
	return f, nil
}

func exchange(out io.Writer, in *bufio.Reader, request []byte) (code int, err error) {
	if _, err := out.Write(request); err != nil {
		return 0, err
	}
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// request is a whole request of HTTP/1.1.
func request(s *harness.Server, path, header string, body []byte) []byte {
	text := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n%s\r\n", path, strings.TrimPrefix(s.URL, "http://"), len(body), header)
	return append(text, body...)
}
