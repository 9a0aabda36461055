// Package probe is what `falaj pool doctor` runs on a pool's nodes: a program
// of one static file that looks around where a job's worker stands, talks to
// the other workers, and prints what it found as one line of JSON.
//
// It finds its world as every job does: RANK, WORLD_SIZE, MASTER_ADDR and
// MASTER_PORT, FALAJ_URL, FALAJ_SCRATCH_DIR.
package probe

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/machine"
)

// Mode is the worker's argument that means this program.
const Mode = "probe"

// Mark begins the line with the report.
const Mark = "probe: "

// Limits of what is tried.
const (
	meetTime = 60 * time.Second // for the other workers to come
	talkTime = 60 * time.Second // for all exchanges with one of them
	pings    = 200
	bulk     = 32 << 20 // bytes, each way
	numbers  = 1 << 18  // of the collective
	diskSize = 32 << 20
)

// Report is what one worker found. Rates are bytes a second.
type Report struct {
	Worker int               `json:"worker"`
	Of     int               `json:"of"`
	Node   string            `json:"node"`
	Facts  map[string]string `json:"facts"`
	// Threads, Memory in bytes and GPUs are what pools say of their nodes in numbers.
	// GPUs are those that NVIDIA's driver holds, whether or not this job may use them.
	Threads int   `json:"threads"`
	Memory  int64 `json:"memory"`
	GPUs    int   `json:"gpus"`
	Disk    *Disk `json:"disk,omitempty"`
	API     *API  `json:"api,omitempty"`
	// Peers are what the first worker found of the others.
	Peers []Peer `json:"peers,omitempty"`
	// Sum tells that the collective gave every worker the right numbers.
	Sum   bool     `json:"sum"`
	Wrong []string `json:"wrong,omitempty"`
}

// Disk is how fast the scratch directory is, with every byte synced.
type Disk struct {
	Write float64 `json:"write"`
	Free  uint64  `json:"free"`
}

// API is how far Falaj's own API is.
type API struct {
	RoundTrip time.Duration `json:"round_trip_ns"` // the best of a few
	Skew      time.Duration `json:"skew_ns"`       // this clock before the server's; to a second
}

// Peer is what the first worker found of another.
type Peer struct {
	Worker    int           `json:"worker"`
	RoundTrip time.Duration `json:"round_trip_ns"` // the median
	Send      float64       `json:"send"`
	Receive   float64       `json:"receive"`
	Skew      time.Duration `json:"skew_ns"` // its clock before ours
}

// Main looks, prints and returns the exit code: 0 unless the workers could not
// talk to each other.
func Main(environ []string, stdout io.Writer) int {
	env := map[string]string{}
	for _, kv := range environ {
		name, v, _ := strings.Cut(kv, "=")
		env[name] = v
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	r := look(ctx, env)
	b, err := json.Marshal(r)
	if err != nil {
		return 2
	}
	fmt.Fprintf(stdout, "%s%s\n", Mark, b)
	if !r.Sum {
		return 1
	}
	return 0
}

func look(ctx context.Context, env map[string]string) Report {
	r := Report{Of: 1}
	number := func(name string, into *int) {
		if v := env[name]; v != "" {
			n, err := strconv.Atoi(v)
			if err != nil {
				r.wrong("%s is %q", name, v)
			}
			*into = n
		}
	}
	number("RANK", &r.Worker)
	number("WORLD_SIZE", &r.Of)
	facts := machine.Read("/")
	r.Facts, r.Threads, r.Memory = facts.Labels(), facts.CPU.Threads, int64(facts.Memory)
	gpus, _ := filepath.Glob("/proc/driver/nvidia/gpus/*")
	r.GPUs = len(gpus)
	r.Node, _ = os.Hostname()
	r.meet(ctx, env) // first: the others wait
	r.disk(env)
	r.api(ctx, env["FALAJ_URL"])
	return r
}

func (r *Report) wrong(format string, args ...any) {
	r.Wrong = append(r.Wrong, fmt.Sprintf(format, args...))
}

func (r *Report) disk(env map[string]string) {
	dir := env["FALAJ_SCRATCH_DIR"]
	if dir == "" {
		dir = os.TempDir()
	}
	d, err := disk(dir)
	if err != nil {
		r.wrong("the scratch directory cannot be written: %v", err)
		return
	}
	r.Disk = &d
}

func disk(dir string) (d Disk, err error) {
	path := filepath.Join(dir, "probe")
	f, err := os.Create(path)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(path)) }()
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i % 251) // not what a disk could leave out
	}
	began := time.Now()
	for range diskSize / len(block) {
		if _, err := f.Write(block); err != nil {
			return d, err
		}
	}
	if err := f.Sync(); err != nil {
		return d, err
	}
	d.Write = diskSize / time.Since(began).Seconds()
	d.Free = free(dir)
	return d, nil
}

func (r *Report) api(ctx context.Context, url string) {
	if url == "" {
		r.wrong("FALAJ_URL is not set: the engine gives workers no way to the API")
		return
	}
	client := &http.Client{Timeout: 10 * time.Second}
	a := API{RoundTrip: time.Hour}
	for range 5 {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/healthz", nil)
		if err != nil {
			r.wrong("FALAJ_URL is %q: %v", url, err)
			return
		}
		began := time.Now()
		resp, err := client.Do(req)
		if err != nil {
			r.wrong("Falaj's API cannot be reached from the node: %v", err)
			return
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
		_ = resp.Body.Close()
		took := time.Since(began)
		at, err := http.ParseTime(resp.Header.Get("Date"))
		if took < a.RoundTrip {
			a.RoundTrip = took
			if err == nil { // it says whole seconds: the middle of that second
				a.Skew = began.Add(took / 2).Sub(at.Add(500 * time.Millisecond)).Round(time.Second)
			}
		}
	}
	r.API = &a
}

// meet has the first worker talk to each of the others.
func (r *Report) meet(ctx context.Context, env map[string]string) {
	if r.Of <= 1 {
		r.Sum = true
		return
	}
	host, port := env["MASTER_ADDR"], env["MASTER_PORT"]
	if host == "" || port == "" {
		r.wrong("MASTER_ADDR and MASTER_PORT are not set: the workers do not have each other's addresses")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, meetTime)
	defer cancel()
	var err error
	if r.Worker == 0 {
		err = r.first(ctx, port)
	} else {
		err = r.other(ctx, net.JoinHostPort(host, port))
	}
	if err != nil {
		r.wrong("worker %d at %s: %v", r.Worker, net.JoinHostPort(host, port), err)
	}
	r.Sum = err == nil
}

// first takes the connections of all others, then measures each alone.
func (r *Report) first(ctx context.Context, port string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", ":"+port)
	if err != nil {
		return fmt.Errorf("its port cannot be opened: %w", err)
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	others := map[int]*line{}
	defer func() {
		for _, c := range others {
			_ = c.Close()
		}
	}()
	for len(others) < r.Of-1 {
		c, err := l.Accept()
		if err != nil {
			return fmt.Errorf("%d of %d other workers joined within %s: %w", len(others), r.Of-1, meetTime, err)
		}
		_ = c.SetDeadline(time.Now().Add(meetTime))
		var hello [4]byte
		if _, err := io.ReadFull(c, hello[:]); err != nil {
			_ = c.Close() // somebody who scans ports
			continue
		}
		k := int(binary.BigEndian.Uint32(hello[:]))
		if k <= 0 || k >= r.Of || others[k] != nil {
			_ = c.Close()
			continue
		}
		others[k] = &line{Conn: c, in: bufio.NewReaderSize(c, 1<<20)}
	}
	sum := make([]uint64, numbers)
	add(sum, 0)
	for k := 1; k < r.Of; k++ {
		_ = others[k].SetDeadline(time.Now().Add(talkTime))
		p, err := measure(others[k])
		if err != nil {
			return fmt.Errorf("communicating with worker %d: %w", k, err)
		}
		p.Worker = k
		r.Peers = append(r.Peers, p)
	}
	for k := 1; k < r.Of; k++ {
		_ = others[k].SetDeadline(time.Now().Add(talkTime))
		theirs := make([]uint64, numbers)
		if err := binary.Read(others[k].in, binary.LittleEndian, theirs); err != nil {
			return fmt.Errorf("receiving the numbers of worker %d: %w", k, err)
		}
		for i, v := range theirs {
			sum[i] += v
		}
	}
	for k := 1; k < r.Of; k++ {
		if err := binary.Write(others[k], binary.LittleEndian, sum); err != nil {
			return fmt.Errorf("sending the sum to worker %d: %w", k, err)
		}
	}
	return check(sum, r.Of)
}

// line is a connection and what was read from it ahead.
type line struct {
	net.Conn
	in *bufio.Reader
}

// measure asks; the other side is answer.
func measure(c *line) (p Peer, err error) {
	trips := make([]time.Duration, pings)
	best := time.Hour
	var b [8]byte
	for i := range trips {
		began := time.Now()
		if _, err := c.Write(b[:1]); err != nil {
			return p, err
		}
		if _, err := io.ReadFull(c.in, b[:]); err != nil {
			return p, err
		}
		trips[i] = time.Since(began)
		if trips[i] < best {
			best = trips[i]
			theirs := time.Unix(0, int64(binary.BigEndian.Uint64(b[:]))) //nolint:gosec // A time.
			p.Skew = theirs.Sub(began.Add(trips[i] / 2))
		}
	}
	slices.Sort(trips)
	p.RoundTrip = trips[pings/2]
	block := make([]byte, 1<<20)
	began := time.Now()
	for range bulk / len(block) {
		if _, err := c.Write(block); err != nil {
			return p, err
		}
	}
	if _, err := io.ReadFull(c.in, b[:1]); err != nil { // when all has come
		return p, err
	}
	p.Send = bulk / time.Since(began).Seconds()
	began = time.Now()
	if _, err := c.Write(b[:1]); err != nil {
		return p, err
	}
	if _, err := io.CopyN(io.Discard, c.in, bulk); err != nil {
		return p, err
	}
	p.Receive = bulk / time.Since(began).Seconds()
	return p, nil
}

// other dials the first worker until it is there, and answers it.
func (r *Report) other(ctx context.Context, addr string) error {
	var d net.Dialer
	retry := time.NewTicker(100 * time.Millisecond)
	defer retry.Stop()
	c, err := d.DialContext(ctx, "tcp", addr)
	for err != nil {
		select {
		case <-retry.C:
			c, err = d.DialContext(ctx, "tcp", addr)
		case <-ctx.Done():
			return fmt.Errorf("the first worker was not reached within %s: %w", meetTime, err)
		}
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(meetTime + time.Duration(r.Of)*talkTime))
	var hello [4]byte
	binary.BigEndian.PutUint32(hello[:], uint32(r.Worker)) //nolint:gosec // A worker's number.
	if _, err := c.Write(hello[:]); err != nil {
		return err
	}
	if err := answer(c); err != nil {
		return fmt.Errorf("communicating with the first worker: %w", err)
	}
	sum := make([]uint64, numbers)
	add(sum, r.Worker)
	if err := binary.Write(c, binary.LittleEndian, sum); err != nil {
		return fmt.Errorf("sending numbers to the first worker: %w", err)
	}
	if err := binary.Read(c, binary.LittleEndian, sum); err != nil {
		return fmt.Errorf("receiving the sum: %w", err)
	}
	return check(sum, r.Of)
}

func answer(c net.Conn) error {
	var b [8]byte
	for range pings {
		if _, err := io.ReadFull(c, b[:1]); err != nil {
			return err
		}
		binary.BigEndian.PutUint64(b[:], uint64(time.Now().UnixNano()))
		if _, err := c.Write(b[:]); err != nil {
			return err
		}
	}
	if _, err := io.CopyN(io.Discard, c, bulk); err != nil {
		return err
	}
	if _, err := c.Write(b[:1]); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, b[:1]); err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for range bulk / len(block) {
		if _, err := c.Write(block); err != nil {
			return err
		}
	}
	return nil
}

// add puts a worker's numbers into a sum.
func add(sum []uint64, worker int) {
	for i := range sum {
		sum[i] += uint64(worker+1) * uint64(i+1) //nolint:gosec // Both are small.
	}
}

// check compares a sum with what all workers' numbers make.
func check(sum []uint64, workers int) error {
	want := make([]uint64, len(sum))
	for k := range workers {
		add(want, k)
	}
	if !slices.Equal(sum, want) {
		return errors.New("the sum of all workers' numbers is wrong: the data changed in transit")
	}
	return nil
}
