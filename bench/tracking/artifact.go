package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
)

// pattern is a file that no disk has to hold and nothing can compress away.
type pattern struct {
	left int64
	seed uint64
}

func (p *pattern) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(b)), p.left))
	for i := range b[:n] {
		p.seed = p.seed*6364136223846793005 + 1442695040888963407
		b[i] = byte(p.seed >> 56)
	}
	p.left -= int64(n)
	return n, nil
}

// artifact sends a large file up and down.
func (b *bench) artifact(ctx context.Context, _ string, _ size, ours, theirs *side) error {
	size := int64(800 << 20)
	if b.Quick {
		size = 8 << 20
	}
	sides := []*side{ours}
	if theirs != nil {
		sides = append(sides, theirs)
	}
	up, down, grown := map[*side][]float64{}, map[*side][]float64{}, map[*side]float64{}
	for round := range min(b.Rounds, 3) {
		for _, s := range sides {
			c := s.caller(fmt.Sprintf("artifact-%d", round))
			c.http.Timeout = 10 * time.Minute
			run, err := c.newRun(ctx, b.cases[0])
			if err != nil {
				return err
			}
			path := "/api/2.0/mlflow-artifacts/artifacts/1/" + run + "/artifacts/big.bin"
			stop := s.watch()
			for _, way := range []string{http.MethodPut, http.MethodGet} {
				began := time.Now()
				if err := c.carry(ctx, way, path, size); err != nil {
					return err
				}
				speed := float64(size) / (1 << 20) / time.Since(began).Seconds()
				if way == http.MethodPut {
					up[s] = append(up[s], speed)
				} else {
					down[s] = append(down[s], speed)
				}
			}
			grown[s] = max(grown[s], stop())
			req := request{Name: "delete", Method: http.MethodDelete, Path: path}
			if _, _, err := c.ask(ctx, req, "", ""); err != nil {
				b.Say("%v", err)
			}
		}
	}
	add := func(name, unit, better string, aim *harness.Aim, value func(*side) float64) {
		row := harness.Row{Name: fmt.Sprintf("artifact of %d MiB: %s", size>>20, name), Unit: unit, Better: better, Ours: harness.Value(value(ours)), Aim: aim, Note: b.absent}
		if theirs != nil {
			row.Theirs, row.Peer = harness.Value(value(theirs)), "`mlflow server`, which does not encrypt"
		}
		b.Add(row)
	}
	add("up", "MiB/s", harness.Higher, nil, func(s *side) float64 { return harness.Median(up[s]) })
	add("down", "MiB/s", harness.Higher, nil, func(s *side) float64 { return harness.Median(down[s]) })
	add("RssAnon grows by at most", "MiB", harness.Lower, &harness.Aim{Value: harness.Value(64)}, func(s *side) float64 { return grown[s] })
	return nil
}

func (c *caller) carry(ctx context.Context, method, path string, size int64) error {
	var body io.Reader
	if method == http.MethodPut {
		body = &pattern{left: size, seed: 1}
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, body)
	if err != nil {
		return err
	}
	if body != nil {
		req.ContentLength = size
		req.Header.Set("Content-Type", "application/octet-stream")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || method == http.MethodGet && n != size) {
		err = fmt.Errorf("%s %s: %s, %d bytes", method, path, resp.Status, n)
	}
	return err
}

// watch looks at a side's memory until it is stopped, and gives by how much it grew.
func (s *side) watch() (stop func() float64) {
	before, most := s.anon(), 0.0
	end := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			most = max(most, s.anon())
			select {
			case <-end:
				return
			case <-tick.C:
			}
		}
	})
	return func() float64 {
		close(end)
		wait.Wait()
		return max(most-before, 0)
	}
}
