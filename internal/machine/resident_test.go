package machine

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

var mapped = flag.String("machine.mapped", "", "be the process that TestResident starts: the file to map")

const shared = 64 << 20

// TestResident: what three processes share counts once, what each has alone counts for each.
func TestResident(t *testing.T) {
	if *mapped != "" {
		f, err := os.Open(*mapped)
		if err != nil {
			t.Fatal(err)
		}
		b, err := syscall.Mmap(int(f.Fd()), 0, shared, syscall.PROT_READ, syscall.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		own := make([]byte, 32<<20)
		sum := byte(0)
		for i := 0; i < shared; i += os.Getpagesize() {
			sum += b[i]
			own[i%len(own)] = 1
		}
		_, _ = fmt.Fprintln(os.Stdout, "mapped", sum)
		_, _ = os.Stdin.Read(own[:1]) // until the parent closes it
		return
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, make([]byte, shared), 0o600); err != nil {
		t.Fatal(err)
	}
	of := map[int]int64{}
	for range 3 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestResident$", "-machine.mapped="+file)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", cmd.Process.Pid))
		if err != nil {
			t.Skipf("this kernel has no proportional figures: %v", err)
		}
		of[cmd.Process.Pid], _ = parseRollup(string(b))
	}
	var sum int64
	for _, n := range of {
		sum += n
	}
	var r Resident
	got := r.Together(of)
	if least, most := int64(shared+3*32<<20), sum-2*shared+16<<20; got < least || got > most {
		t.Errorf("%d MiB together, not %d to %d; %d MiB when pages are added up", got>>20, least>>20, most>>20, sum>>20)
	}
	if again := r.Together(of); again != got {
		t.Errorf("then %d", again)
	}
	one := map[int]int64{os.Getpid(): shared}
	if got := r.Together(one); got != shared {
		t.Errorf("of one process: %d", got)
	}
	of[1<<30] = shared // has ended meanwhile
	if got := new(Resident).Together(of); got < 2*shared {
		t.Errorf("with one that has ended: %d", got)
	}
}

func TestParseRollup(t *testing.T) {
	for _, c := range []struct {
		text       string
		all, share int64
	}{
		{"", 0, 0},
		{"00400000-7ffe00000000 ---p 00000000 00:00 0 [rollup]\nRss:   1024 kB\nPss:    512 kB\nPss_Anon: 12 kB\n", 1 << 20, 512 << 10},
		{"Rss: x kB\nPss: 1 MB\nPss: 2\n", 0, 0},
	} {
		if all, share := parseRollup(c.text); all != c.all || share != c.share {
			t.Errorf("%q: %d, %d", c.text, all, share)
		}
	}
}
