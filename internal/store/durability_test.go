package store_test

import (
	"bufio"
	"context"
	"database/sql"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest/powercut"
)

// A write of these tests is a row and an entry of a stream, so that a half of
// one would be seen.
var writeSchema = store.Migrations{Name: "w", FS: fstest.MapFS{"00001_w.sql": {Data: []byte(
	"-- +goose Up\nCREATE TABLE w_row (id BIGINT PRIMARY KEY, filler TEXT NOT NULL);\n")}}}

func write(ctx context.Context, db *store.DB, id int64) error {
	return db.Update(ctx, strconv.FormatInt(id%3, 10), func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.NewRaw(`INSERT INTO w_row (id, filler) VALUES (?, ?)`, id, fmt.Sprintf("%0*d", id*37%3000, id)).Exec(ctx)
		if err != nil {
			return err
		}
		return tx.Append(ctx, "w", "", "w.written", []byte(strconv.FormatInt(id, 10)))
	})
}

// verify opens the database after a crash and returns the ids that are there.
func verify(t *testing.T, path string) map[int64]bool {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{URL: "sqlite://" + path, Migrations: []store.Migrations{writeSchema}})
	if err != nil {
		t.Fatalf("open after the crash: %v", err)
	}
	defer db.Close()
	var ids []int64
	var check string
	err = db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		if err := tx.NewRaw(`PRAGMA integrity_check`).Scan(ctx, &check); err != nil {
			return err
		}
		return tx.NewRaw(`SELECT id FROM w_row`).Scan(ctx, &ids)
	})
	if err != nil || check != "ok" {
		t.Fatalf("read after the crash: %s, %v", check, err)
	}
	rows := make(map[int64]bool, len(ids))
	for _, id := range ids {
		rows[id] = true
	}
	entries := 0
	for at := (store.Position{}); ; {
		records, next, err := db.ReadStream(t.Context(), "w", at, 10000)
		if err != nil {
			t.Fatal(err)
		}
		if len(records) == 0 {
			break
		}
		at = next
		for _, r := range records {
			id, err := strconv.ParseInt(string(r.Body), 10, 64)
			if err != nil || !rows[id] {
				t.Errorf("the entry of write %s is there and its row is not", r.Body)
			}
			entries++
		}
	}
	if entries != len(rows) {
		t.Errorf("%d rows and %d entries", len(rows), entries)
	}
	return rows
}

var crashChild = flag.String("store.crash", "", "be the process that TestKill kills: the database to write to")

// TestKill kills a writing process thirty times at random moments. Whatever it
// acknowledged is there afterwards, and no half of a write.
func TestKill(t *testing.T) {
	if *crashChild != "" {
		killMe(t, *crashChild)
		return
	}
	path := filepath.Join(t.TempDir(), "falaj.db")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	acknowledged := map[int64]bool{}
	for range 30 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKill$", "-store.crash="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		stop, err := cmd.StdinPipe() // ends with us, so that the child does
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n, last := 0, r.IntN(300); lines.Scan(); n++ {
			id, err := strconv.ParseInt(lines.Text(), 10, 64)
			if err != nil {
				t.Fatalf("the child says %q", lines.Text())
			}
			acknowledged[id] = true
			if n == last {
				_ = cmd.Process.Kill() // what it acknowledged until it is dead is still read
			}
		}
		_ = stop.Close()
		_ = cmd.Wait()
	}
	rows := verify(t, path)
	for id := range acknowledged {
		if !rows[id] {
			t.Errorf("write %d was acknowledged and is lost", id)
		}
	}
	if len(acknowledged) < 100 {
		t.Errorf("only %d writes were acknowledged; the test shows nothing", len(acknowledged))
	}
	t.Logf("%d writes acknowledged, %d there", len(acknowledged), len(rows))
}

// killMe writes until it is killed, and says what is acknowledged.
func killMe(t *testing.T, path string) {
	t.Helper()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = syscallKillSelf()
	}()
	db, err := store.Open(t.Context(), store.Config{URL: "sqlite://" + path, Migrations: []store.Migrations{writeSchema}})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				id := rand.Int64N(1 << 40)
				if err := write(t.Context(), db, id); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				mu.Lock()
				fmt.Fprintln(os.Stdout, id)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func syscallKillSelf() error {
	p, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	return p.Kill()
}

// acknowledgedAt is a write and the length of the log when it was acknowledged.
type acknowledgedAt struct {
	id int64
	at int
}

// TestPowerCut records what SQLite writes and syncs while concurrent writers
// commit, checkpoints included, and then cuts the power at many points: after
// every kind of step, with none, all or a random part of the unsynced sectors on
// the disk. Whatever was acknowledged by then is there.
func TestPowerCut(t *testing.T) {
	dir := t.TempDir()
	stop, err := powercut.Record(dir)
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(t.Context(), store.Config{URL: "sqlite://" + filepath.Join(dir, "falaj.db"), Migrations: []store.Migrations{writeSchema}})
	if err != nil {
		t.Fatal(err)
	}
	created := powercut.Len()
	var mu sync.Mutex
	var acks []acknowledgedAt
	var wg sync.WaitGroup
	for w := range int64(4) {
		wg.Go(func() {
			for i := range int64(900) { // enough for a checkpoint and what follows it
				id := 4*i + w
				if err := write(t.Context(), db, id); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				mu.Lock()
				acks = append(acks, acknowledgedAt{id, powercut.Len()})
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	log := powercut.Log()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	stop()
	checkpoints := 0
	var during []int // steps of checkpoints, where the database file itself is written
	for i, op := range log[created:] {
		if op.File == "falaj.db" {
			during = append(during, created+i+1)
			if op.Kind == powercut.Sync {
				checkpoints++
			}
		}
	}
	if checkpoints == 0 {
		t.Fatal("no checkpoint took place; write more")
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d, %d steps, %d checkpoints", seed, len(log), checkpoints)
	points := []int{len(log)}
	for range 13 {
		points = append(points, acks[r.IntN(len(acks))].at, created+r.IntN(len(log)-created), during[r.IntN(len(during))])
	}
	for i, point := range points {
		survives := []powercut.Survival{powercut.Nothing, powercut.Chance(r), powercut.Everything, powercut.Chance(r)}[i%4]
		if lost := lostAfter(t, log[:point], survives, acks); len(lost) > 0 {
			t.Errorf("power cut after step %d: %d acknowledged writes are lost, first %v", point, len(lost), lost[0])
		}
	}
}

// lostAfter cuts the power and lists the acknowledged writes that are gone.
func lostAfter(t *testing.T, log []powercut.Op, survives powercut.Survival, acks []acknowledgedAt) (lost []int64) {
	t.Helper()
	dir := t.TempDir()
	if err := powercut.Crash(log, survives, dir); err != nil {
		t.Fatal(err)
	}
	rows := verify(t, filepath.Join(dir, "falaj.db"))
	for _, a := range acks {
		if a.at <= len(log) && !rows[a.id] {
			lost = append(lost, a.id)
		}
	}
	return lost
}

// TestPowerCutFindsLosses shows that the test above would fail: with
// synchronous=NORMAL, SQLite's usual advice for WAL, acknowledged writes are lost.
func TestPowerCutFindsLosses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "falaj.db")
	db, err := store.Open(t.Context(), store.Config{URL: "sqlite://" + path, Migrations: []store.Migrations{writeSchema}})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	base, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	stop, err := powercut.Record(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	raw, err := sql.Open("sqlite3", "file:"+path+"?_journal_mode=WAL&_synchronous=NORMAL")
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	var acks []acknowledgedAt
	for id := range int64(20) {
		_, err := raw.ExecContext(t.Context(), `BEGIN; INSERT INTO w_row VALUES (?1, ''); INSERT INTO store_stream (stream, at, project, kind, body)
			VALUES ('w', 0, '', '', CAST(?1 AS TEXT)); COMMIT`, id, id)
		if err != nil {
			t.Fatal(err)
		}
		acks = append(acks, acknowledgedAt{id, powercut.Len() + 2})
	}
	log := append([]powercut.Op{{File: "falaj.db", Data: base}, {Kind: powercut.Sync, File: "falaj.db"}}, powercut.Log()...)
	if lost := lostAfter(t, log, powercut.Nothing, acks); len(lost) == 0 {
		t.Error("without syncs nothing is lost: the test of power cuts sees nothing")
	}
}
