package probe

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// TestMeet has three workers find and measure each other.
func TestMeet(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	api := httptest.NewServer(nil)
	t.Cleanup(api.Close)
	const n = 3
	out := make([]bytes.Buffer, n)
	codes := make([]int, n)
	var all sync.WaitGroup
	for k := range n {
		all.Go(func() {
			codes[k] = Main([]string{
				"RANK=" + strconv.Itoa(k), "WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port,
				"FALAJ_URL=" + api.URL, "FALAJ_SCRATCH_DIR=" + t.TempDir(),
			}, &out[k])
		})
	}
	all.Wait()
	for k := range n {
		text, ok := strings.CutPrefix(out[k].String(), Mark)
		var r Report
		if err := json.Unmarshal([]byte(text), &r); !ok || err != nil || codes[k] != 0 {
			t.Fatalf("code %d, %q, %v", codes[k], out[k].String(), err)
		}
		if !r.Sum || len(r.Wrong) > 0 || r.Worker != k || r.Disk == nil || r.Disk.Write <= 0 || r.API == nil || r.API.RoundTrip <= 0 {
			t.Errorf("%+v", r)
		}
		if k > 0 {
			continue
		}
		if len(r.Peers) != n-1 {
			t.Fatalf("%+v", r.Peers)
		}
		for i, p := range r.Peers {
			if p.Worker != i+1 || p.RoundTrip <= 0 || p.Send <= 0 || p.Receive <= 0 {
				t.Errorf("%+v", p)
			}
		}
	}
}

func TestWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, env := range map[string][]string{
		"MASTER_ADDR":          {"RANK=1", "WORLD_SIZE=2"},
		"FALAJ_URL":            {},
		"scratch directory":    {"FALAJ_SCRATCH_DIR=/nonexistent"},
		"cannot be reached":    {"FALAJ_URL=http://127.0.0.1:1"},
		`WORLD_SIZE is "many"`: {"WORLD_SIZE=many"},
	} {
		var out bytes.Buffer
		code := Main(env, &out)
		var r Report
		if err := json.Unmarshal(bytes.TrimPrefix(out.Bytes(), []byte(Mark)), &r); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.Join(r.Wrong, "\n"), name) || (code == 0) != r.Sum {
			t.Errorf("%s: code %d, %q", name, code, r.Wrong)
		}
	}
	sum := make([]uint64, 4)
	add(sum, 0)
	add(sum, 1)
	if err := check(sum, 2); err != nil {
		t.Error(err)
	}
	sum[3]++
	if err := check(sum, 2); err == nil {
		t.Error("a sum that is wrong")
	}
}
