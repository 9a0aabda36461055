package audit_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/store"
)

// Two tests run this binary again as a child with a role, a directory and a round.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "child-writer" {
		writer(os.Args[2], os.Args[3])
		return
	}
	if len(os.Args) == 4 && os.Args[1] == "child-full-disk" {
		fullDisk(os.Args[2])
		return
	}
	m.Run()
}

func child(t *testing.T, role, dir string, round int) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, role, dir, strconv.Itoa(round))
	cmd.Stderr = os.Stderr
	return cmd
}

func segments(t *testing.T, p *place, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(p.journalDir(), pattern))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestConcurrentRecordsShareSyncs(t *testing.T) {
	p := newPlace(t)
	j := p.journal(t)
	var wg sync.WaitGroup
	for w := range 32 {
		wg.Go(func() {
			for i := range 20 {
				if err := j.Record(t.Context(), audit.Entry{Action: fmt.Sprintf("w%d.%d", w, i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	runOnce(t, p.log(t))
	batches := map[string]bool{}
	n := 0
	for _, r := range list(t, p.service(p.log(t)), audit.Filter{Action: ""}) {
		if place, ok := strings.CutPrefix(r.Source, "journal "); ok {
			batch, _, _ := strings.Cut(place, ".")
			batches[batch] = true
			n++
		}
	}
	if n != 640 {
		t.Errorf("%d entries", n)
	}
	if len(batches) >= n/2 {
		t.Errorf("%d syncs for %d entries of 32 callers", len(batches), n)
	}
}

// A copy that is made while nothing is written has every entry that was acknowledged
// before, and is read as what a killed server left.
func TestStill(t *testing.T) {
	p := newPlace(t)
	log, j := p.log(t), p.journal(t)
	var acked atomic.Int64
	var writers sync.WaitGroup
	enough := make(chan struct{})
	for range 4 {
		writers.Go(func() {
			for {
				if err := j.Record(t.Context(), audit.Entry{Action: "read", Project: "p", Reason: strings.Repeat("x", 3000)}); err != nil {
					t.Error(err)
				}
				acked.Add(1)
				select {
				case <-enough:
					return
				default:
				}
			}
		})
	}
	for acked.Load() < 50 {
		runtime.Gosched()
	}
	copied := t.TempDir()
	before := acked.Load()
	if err := j.Still(t.Context(), func() error { return os.CopyFS(copied, os.DirFS(p.journalDir())) }); err != nil {
		t.Fatal(err)
	}
	if err := j.Still(t.Context(), func() error { return os.ErrExist }); !errors.Is(err, os.ErrExist) {
		t.Errorf("what it fails with is %v", err)
	}
	close(enough)
	writers.Wait()
	if err := errors.Join(j.Close(), os.RemoveAll(p.journalDir()), os.CopyFS(p.journalDir(), os.DirFS(copied))); err != nil {
		t.Fatal(err)
	}
	wantFault(t, j.Still(t.Context(), func() error { return nil }), fault.Unavailable, "closed")
	runOnce(t, log)
	if n := int64(len(list(t, p.service(log), audit.Filter{Project: "p"}))); n < before {
		t.Errorf("of %d entries that were acknowledged %d are there", before, n)
	}
}

func TestSegmentsRotateAndAreRemovedOnceFolded(t *testing.T) {
	p := newPlace(t)
	log, j := p.log(t), p.journal(t)
	const n = 120 // of 60 KB: more than three segments of 2 MiB
	for i := range n {
		if err := j.Record(t.Context(), audit.Entry{Action: fmt.Sprintf("a%d", i), Project: "p", Reason: strings.Repeat("x", 60_000)}); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(segments(t, p, "*.journal")); got < 4 {
		t.Errorf("%d segments", got)
	}
	if got := len(segments(t, p, "*.reserve")); got != 1 {
		t.Errorf("%d reserves", got)
	}
	runOnce(t, log)
	if got := len(segments(t, p, "*.journal")); got != 1 {
		t.Errorf("%d segments are left, want the one that is written", got)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	wantFault(t, j.Record(t.Context(), audit.Entry{}), fault.Unavailable, "closed")
	runOnce(t, log)
	if left := segments(t, p, "*"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	all := list(t, p.service(log), audit.Filter{Project: "p"})
	if len(all) != n {
		t.Fatalf("%d entries", len(all))
	}
	for i, r := range all {
		if r.Entry.Action != fmt.Sprintf("a%d", i) {
			t.Fatalf("entry %d is %s", i, r.Entry.Action)
		}
	}
}

func TestUnusedJournalLeavesNothing(t *testing.T) {
	p := newPlace(t)
	abandoned := filepath.Join(p.journalDir(), "jrn_x.reserve")
	if err := os.MkdirAll(p.journalDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(abandoned, make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.journal(t).Close(); err != nil {
		t.Fatal(err)
	}
	if left := segments(t, p, "*"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	_, err := audit.OpenJournal(audit.JournalConfig{Dir: p.journalDir(), SegmentBytes: 1})
	wantFault(t, err, fault.Invalid, "segment")
}

func TestEndedContext(t *testing.T) {
	j := newPlace(t).journal(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// It may have been synced before anybody looked; it must not hang.
	if err := j.Record(ctx, audit.Entry{Action: "a"}); err != nil {
		wantFault(t, err, fault.Unavailable, "not synced in time")
	}
	if err := j.Record(t.Context(), audit.Entry{Action: "b"}); err != nil {
		t.Error(err)
	}
}

// After a crash the end of a journal may be torn; before it, nothing may be.
func TestTornAndDamagedJournals(t *testing.T) {
	for name, tt := range map[string]struct {
		offset                  int64 // from the start of the batch counted from the end
		batch, torn, damaged, n int
	}{
		"torn":    {offset: 20, batch: 1, torn: 1, n: 4},
		"damaged": {offset: 20, batch: 3, damaged: 1, n: 4},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			j := p.journal(t)
			for i := range 5 {
				if err := j.Record(t.Context(), audit.Entry{Action: fmt.Sprintf("a%d", i), Project: "p"}); err != nil {
					t.Fatal(err)
				}
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			file := segments(t, p, "*.journal")[0]
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			at := len(b)
			for range tt.batch {
				at = bytes.LastIndex(b[:at], []byte("1BJF"))
			}
			b[int64(at)+tt.offset] ^= 0xff
			if err := os.WriteFile(file, b, 0o600); err != nil {
				t.Fatal(err)
			}
			log := p.log(t)
			f := runOnce(t, log)
			if f.Torn != tt.torn || f.Damaged != tt.damaged {
				t.Errorf("%+v", f)
			}
			if got := list(t, p.service(log), audit.Filter{Project: "p"}); len(got) != tt.n {
				t.Errorf("%s are in the log", actions(got))
			}
			if got := len(list(t, p.service(log), audit.Filter{Action: "audit.journal_damaged"})); got != tt.damaged {
				t.Errorf("%d entries tell of damage", got)
			}
			if kept := segments(t, p, "*.damaged"); len(kept) != tt.damaged || len(segments(t, p, "*.journal")) != 0 {
				t.Errorf("kept %v", kept)
			}
			if f := runOnce(t, log); f.Entries != 0 || f.Damaged != 0 {
				t.Errorf("again: %+v", f)
			}
		})
	}
}

// Killed at any moment, journal and sequencer lose nothing that was acknowledged
// and let nothing in twice.
func TestKillLosesNothing(t *testing.T) {
	dir := t.TempDir()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 2))
	acked := map[string]bool{}
	for round := range 12 {
		cmd := child(t, "child-writer", dir, round)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for range rnd.IntN(200) + 1 {
			if !lines.Scan() {
				t.Fatal("the child ended by itself")
			}
			acked[lines.Text()] = true
		}
		_ = cmd.Process.Kill()
		for lines.Scan() { // what it acknowledged before it died; a line is written whole
			acked[lines.Text()] = true
		}
		_ = cmd.Wait()
	}
	p, err := openPlace(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.db.Close() })
	log := p.log(t)
	runOnce(t, log)
	svc := p.service(log)
	seen := map[string]int{}
	sources := map[string]bool{}
	last := map[string]int{} // per round and kind of writer
	for _, r := range list(t, svc, audit.Filter{Project: "kill"}) {
		seen[r.Entry.Action]++
		if sources[r.Source] {
			t.Errorf("%s twice", r.Source)
		}
		sources[r.Source] = true
		writer, number, _ := strings.Cut(r.Entry.Action, "#")
		var n int
		if _, err := fmt.Sscan(number, &n); err != nil {
			t.Fatal(err)
		}
		if n <= last[writer] {
			t.Errorf("%s: %d after %d", writer, n, last[writer])
		}
		last[writer] = n
	}
	for a := range acked {
		if seen[a] != 1 {
			t.Errorf("%s was acknowledged and is there %d times", a, seen[a])
		}
	}
	for a, n := range seen {
		if n != 1 {
			t.Errorf("%s is there %d times", a, n)
		}
	}
	if len(acked) < 100 {
		t.Errorf("only %d were acknowledged", len(acked))
	}
	t.Logf("%d acknowledged, %d in the log", len(acked), len(seen))
	report, err := audit.Verify(bytes.NewReader(export(t, svc)), audit.VerifyOptions{PublicKey: log.PublicKey(), Checkpoints: witnessed(t, p, log)})
	if err != nil {
		t.Errorf("%+v, %v", report, err)
	}
	if left := segments(t, p, "*"); len(left) != 1 && len(left) != 0 { // a reserve of the last child
		t.Errorf("left: %v", left)
	}
}

// writer records through journal and rows, with a sequencer beside, and prints
// each entry once it is acknowledged.
func writer(dir, round string) {
	ctx := context.Background()
	p, err := openPlace(ctx, dir)
	if err != nil {
		panic(err)
	}
	j, err := audit.OpenJournal(audit.JournalConfig{Dir: p.journalDir(), SegmentBytes: 2 << 20})
	if err != nil {
		panic(err)
	}
	log, err := p.openLog(ctx)
	if err != nil {
		panic(err)
	}
	if err := log.Start(ctx); err != nil {
		panic(err)
	}
	var out sync.Mutex
	say := func(action string) {
		out.Lock()
		defer out.Unlock()
		fmt.Fprintln(os.Stdout, action)
	}
	// Small and large entries, so that segments are used up.
	reason := strings.Repeat("x", 20_000)
	for w := range 3 {
		go func() {
			for i := 1; ; i++ {
				action := fmt.Sprintf("%s journal%d#%d", round, w, i)
				if err := j.Record(ctx, audit.Entry{Project: "kill", Action: action, Reason: reason[:i%20*1000]}); err != nil {
					panic(err)
				}
				say(action)
			}
		}()
	}
	for i := 1; ; i++ {
		action := fmt.Sprintf("%s rows#%d", round, i)
		if err := p.db.Update(ctx, "kill", func(ctx context.Context, tx *store.Tx) error {
			return audit.Append(ctx, tx, audit.Entry{Project: "kill", Action: action})
		}); err != nil {
			panic(err)
		}
		say(action)
	}
}

// On a full disk (a small tmpfs in a mount namespace of the child) the reserve
// takes what must be recorded; when it is used up, Record says so; when there is
// room again, it goes on.
func TestFullDisk(t *testing.T) {
	cmd := child(t, "child-full-disk", t.TempDir(), 0)
	cmd.Stdout = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Run(); err != nil {
		t.Fatalf("child: %v", err)
	}
}

// fullDisk panics, which fails the child, when something is not as it should be.
func fullDisk(dir string) {
	fail := func(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		fail("mount: %v", err)
	}
	j, err := audit.OpenJournal(audit.JournalConfig{Dir: filepath.Join(dir, "journal"), SegmentBytes: 2 << 20})
	if err != nil {
		fail("open: %v", err)
	}
	ballast := filepath.Join(dir, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		fail("ballast: %v", err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		fail("fill the disk: %v", err)
	}
	ctx := context.Background()
	e := audit.Entry{Action: "refused", Outcome: audit.Refused, Reason: strings.Repeat("x", 4000)}
	n := 0
	for ; n < 10_000; n++ {
		if err = j.Record(ctx, e); err != nil {
			break
		}
	}
	if least := 2 * (2 << 20) / 5000; n < least {
		fail("only %d entries on a full disk, want at least %d", n, least)
	}
	if !fault.Is(err, fault.Exhausted) || fault.HintOf(err) == "" {
		fail("when the reserve is used up: %v", err)
	}
	if _, err := audit.OpenJournal(audit.JournalConfig{Dir: filepath.Join(dir, "other"), SegmentBytes: 2 << 20}); !fault.Is(err, fault.Exhausted) {
		fail("open on a full disk: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "other", "*")); err != nil || len(left) != 0 {
		fail("a failed open left %v, %v", left, err)
	}
	if err := f.Close(); err != nil {
		fail("close: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		fail("remove: %v", err)
	}
	if err := j.Record(ctx, e); err != nil {
		fail("with room again: %v", err)
	}
	if reserves, err := filepath.Glob(filepath.Join(dir, "journal", "*.reserve")); err != nil || len(reserves) != 1 {
		fail("reserves %v, %v", reserves, err)
	}
}

// What a change costs with and without its audit entry.
func BenchmarkUpdate(b *testing.B) {
	for _, audited := range []bool{false, true} {
		b.Run(fmt.Sprintf("audited=%v", audited), func(b *testing.B) {
			p, err := openPlace(b.Context(), b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			defer p.db.Close()
			if err := p.db.Update(b.Context(), "", func(ctx context.Context, tx *store.Tx) error {
				_, err := tx.NewRaw("CREATE TABLE work (n BIGINT, text TEXT)").Exec(ctx)
				return err
			}); err != nil {
				b.Fatal(err)
			}
			ctx := alice(b.Context())
			for b.Loop() {
				if err := p.db.Update(ctx, "wind", func(ctx context.Context, tx *store.Tx) error {
					if _, err := tx.NewRaw("INSERT INTO work VALUES (?, ?)", b.N, "a row of the domain").Exec(ctx); err != nil {
						return err
					}
					if !audited {
						return nil
					}
					return audit.Append(ctx, tx, audit.Entry{Project: "wind", Action: "dataset.import", Object: "dataset weather@1", Detail: map[string]any{"digest": "sha256:0123456789abcdef"}})
				}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkJournal(b *testing.B) {
	for _, writers := range []int{1, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			j, err := audit.OpenJournal(audit.JournalConfig{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer j.Close()
			ctx := alice(b.Context())
			e := audit.Entry{Project: "wind", Action: "dataset.query", Object: "dataset weather@1", Detail: map[string]any{"rows": 1000}}
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ResetTimer()
			var wg sync.WaitGroup
			for range writers {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						if err := j.Record(ctx, e); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

// BenchmarkSync is the floor of BenchmarkJournal: writing and syncing a record's
// bytes in an allocated file, one after the other.
func BenchmarkSync(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "f"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, 8<<20); err != nil {
		b.Fatal(err)
	}
	record := slices.Repeat([]byte("x"), 320)
	at := int64(0)
	for b.Loop() {
		if _, err := f.WriteAt(record, at%(8<<20-320)); err != nil {
			b.Fatal(err)
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
		at += 320
	}
}

// BenchmarkFold is what the sequencer does with 1,000 entries.
func BenchmarkFold(b *testing.B) {
	p, err := openPlace(b.Context(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer p.db.Close()
	log, err := p.openLog(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		if err := p.db.Update(alice(b.Context()), "", func(ctx context.Context, tx *store.Tx) error {
			for range 1000 {
				if err := audit.Append(ctx, tx, audit.Entry{Project: "wind", Action: "dataset.import", Object: "dataset weather@1"}); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if _, err := log.RunOnce(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
