package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/bench/harness"
)

// delivery measures a sealed training set on its way to pandas, by the Python
// package over Arrow Flight: the server and the client have a core each.
func (b *bench) delivery(ctx context.Context) error {
	rows, two := 1_000_000, []string{windows[0].name, windows[1].name}
	if b.Quick {
		rows = 20_000
	}
	peer, reason := b.StartPeer(ctx, "bench-feast", "bench/features/feast.txt", nil, "-c", "print('ready')")
	row := harness.Row{
		Name: "a sealed training set by Flight to pandas", Unit: "rows/CPU-s", Better: harness.Higher, Aim: &harness.Aim{Value: harness.Value(120_000)},
		Note: reason,
	}
	if peer == nil {
		b.Add(row)
		return nil
	}
	peer.Stop()
	schema := task{Views: two}.setSchema()
	path := filepath.Join(b.Dir, "set.parquet")
	made := make([]any, len(schema))
	if err := write([]string{path}, schema, rows, func(r *array.RecordBuilder, i int) {
		made[0], made[1], made[2] = int64(i), int64(firstRide+i), int64(noise(i)*zones)
		for c := 3; c < len(made); c++ {
			made[c] = noise(i*len(made) + c)
		}
		values(r, made...)
	}); err != nil {
		return err
	}
	on, mine := cores()
	server, err := b.Up(ctx, filepath.Join(b.Dir, "delivery"), on)
	if err != nil {
		return err
	}
	defer func() { _ = server.Stop() }()
	s := &site{bench: b, ours: server}
	if s.client, err = server.Client(); err != nil {
		return err
	}
	if _, err := s.client.Apply(ctx, "", []byte(wideManifests+"---\n{api_version: falaj/v1, kind: Dataset, name: set, project: bench, spec: {}}\n"), false); err != nil {
		return err
	}
	if err := s.importFile(ctx, "set", path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	var rates, walls []float64
	for range b.Rounds {
		cmd := exec.CommandContext(ctx, filepath.Join(b.Root, ".tmp", "venv", "bench-feast", "bin", "python"), "bench/features/delivery.py")
		cmd.Dir = b.Root
		cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(b.Root, "sdk", "python"), "FALAJ_URL="+server.URL, "FALAJ_TOKEN="+server.Token, "FALAJ_PROJECT=bench")
		before, err := harness.CPUSeconds(server.PID())
		if err != nil {
			return err
		}
		var text []byte
		if err := harness.StartOn(mine, func() (err error) { text, err = cmd.Output(); return err }); err != nil {
			return err
		}
		after, err := harness.CPUSeconds(server.PID())
		if err != nil {
			return err
		}
		var c cost
		if err := json.Unmarshal(text, &c); err != nil {
			return err
		}
		if c.Rows != int64(rows) {
			return fmt.Errorf("%d rows came of %d", c.Rows, rows)
		}
		rates, walls = append(rates, float64(rows)/(c.CPU+after-before)), append(walls, float64(rows)/c.Seconds)
	}
	row.Ours = harness.Value(harness.Median(rates))
	row.Note = fmt.Sprintf("%d columns; of the CPU time of both, decryption and the data frame included; %.0f rows/s by the clock", len(schema), harness.Median(walls))
	b.Add(row)
	return nil
}
