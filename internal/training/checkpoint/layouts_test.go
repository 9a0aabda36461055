package checkpoint_test

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/training/checkpoint"
	"github.com/falaj-ml/falaj/internal/worker/settled"
)

// act is one thing that a program does to its checkpoint directory, in the order in which its
// library does it.
type act func(dir string) error

// layout is how a library saves one checkpoint: its acts, and what a checkpoint holds that was
// saved to its end. Every file of save n holds the text "n:" and a fixed number of pieces.
type layout struct {
	save func(n int) []act
	// whole finds the saves that a directory has complete, by what a program would load.
	whole func(dir string) []int
}

const pieces = 3

// put writes a file in place, in pieces, each of which a kill may be the last of.
func put(name string, n int) (acts []act) {
	for i := range pieces {
		acts = append(acts, func(dir string) error {
			path := filepath.Join(dir, name)
			flags := os.O_WRONLY | os.O_CREATE | os.O_APPEND
			if i == 0 {
				flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
			}
			f, err := os.OpenFile(path, flags, 0o600)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(f, "%d:%d;", n, i); err != nil {
				return err
			}
			return f.Close()
		})
	}
	return acts
}

func mkdir(name string) act {
	return func(dir string) error { return os.MkdirAll(filepath.Join(dir, name), 0o700) }
}

func rename(from, to string) act {
	return func(dir string) error { return os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)) }
}

func remove(name string) act {
	return func(dir string) error { return os.RemoveAll(filepath.Join(dir, name)) }
}

// holds reports a file that has all of a save.
func holds(path string, n int) bool {
	b, err := os.ReadFile(path)
	var want strings.Builder
	for i := range pieces {
		fmt.Fprintf(&want, "%d:%d;", n, i)
	}
	return err == nil && string(b) == want.String()
}

// saves is more than any test makes.
const saves = 6

func wholes(ok func(n int) bool) (out []int) {
	for n := 1; n <= saves; n++ {
		if ok(n) {
			out = append(out, n)
		}
	}
	return out
}

// transformers' files of a checkpoint in the order in which Trainer._save_checkpoint writes
// them.
var trainerFiles = []string{"config.json", "model.safetensors", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"}

var layouts = map[string]layout{
	// transformers.Trainer: checkpoint-N/, file by file, in place; save_total_limit=2.
	"Hugging Face Trainer": {
		save: func(n int) []act {
			dir := fmt.Sprintf("checkpoint-%d", 100*n)
			acts := []act{mkdir(dir)}
			for _, f := range trainerFiles {
				acts = append(acts, put(filepath.Join(dir, f), n)...)
			}
			return append(acts, remove(fmt.Sprintf("checkpoint-%d", 100*(n-2))))
		},
		whole: func(dir string) []int {
			return wholes(func(n int) bool {
				for _, f := range trainerFiles {
					if !holds(filepath.Join(dir, fmt.Sprintf("checkpoint-%d", 100*n), f), n) {
						return false
					}
				}
				return true
			})
		},
	},
	// lightning.pytorch.callbacks.ModelCheckpoint(save_last=True), in place (a custom
	// CheckpointIO, or a file system without transactions).
	"Lightning in place": {
		save: func(n int) []act {
			acts := put(fmt.Sprintf("epoch=%d-step=%d.ckpt", n, 250*n), n)
			acts = append(acts, put("last.ckpt", n)...)
			return append(acts, remove(fmt.Sprintf("epoch=%d-step=%d.ckpt", n-1, 250*(n-1))))
		},
		whole: func(dir string) []int {
			return wholes(func(n int) bool { return holds(filepath.Join(dir, "last.ckpt"), n) })
		},
	},
	// The same with the local file system's transaction (cloud_io.py,
	// _atomic_save): written aside, renamed.
	"Lightning by rename": {
		save: func(n int) []act {
			acts := put(".last.ckpt.part", n)
			return append(acts, rename(".last.ckpt.part", "last.ckpt"))
		},
		whole: func(dir string) []int {
			return wholes(func(n int) bool { return holds(filepath.Join(dir, "last.ckpt"), n) })
		},
	},
	// keras.callbacks.ModelCheckpoint("{epoch:02d}.keras"): a zip, in place.
	"Keras": {
		save: func(n int) []act { return put(fmt.Sprintf("%02d.keras", n), n) },
		whole: func(dir string) []int {
			return wholes(func(n int) bool { return holds(filepath.Join(dir, fmt.Sprintf("%02d.keras", n)), n) })
		},
	},
	// keras.callbacks.BackupAndRestore: one directory, rewritten in place.
	"Keras backup": {
		save: func(n int) []act {
			return append(append([]act{mkdir("backup")}, put("backup/latest.weights.h5", n)...), put("backup/training_metadata.json", n)...)
		},
		whole: func(dir string) []int {
			return wholes(func(n int) bool {
				return holds(filepath.Join(dir, "backup/latest.weights.h5"), n) && holds(filepath.Join(dir, "backup/training_metadata.json"), n)
			})
		},
	},
	// xgboost.callback.TrainingCheckPoint(interval=1): a model file for each round, in place.
	"XGBoost": {
		save: func(n int) []act { return put(fmt.Sprintf("model_%d.ubj", n), n) },
		whole: func(dir string) []int {
			return wholes(func(n int) bool { return holds(filepath.Join(dir, fmt.Sprintf("model_%d.ubj", n)), n) })
		},
	},
	// torch.save of what belongs together into files with fixed names, in place.
	"torch.save": {
		save: func(n int) []act { return append(put("model.pt", n), put("optimizer.pt", n)...) },
		whole: func(dir string) []int {
			return wholes(func(n int) bool {
				return holds(filepath.Join(dir, "model.pt"), n) && holds(filepath.Join(dir, "optimizer.pt"), n)
			})
		},
	},
	// deepspeed's save_checkpoint: a directory, and then a file with its name.
	"DeepSpeed": {
		save: func(n int) []act {
			dir := fmt.Sprintf("global_step%d", n)
			acts := append([]act{mkdir(dir)}, put(dir+"/mp_rank_00_model_states.pt", n)...)
			acts = append(acts, put(dir+"/zero_pp_rank_0_mp_rank_00_optim_states.pt", n)...)
			return append(acts, put("latest", n)...)
		},
		whole: func(dir string) []int {
			return wholes(func(n int) bool {
				d := filepath.Join(dir, fmt.Sprintf("global_step%d", n))
				return holds(filepath.Join(dir, "latest"), n) && holds(d+"/mp_rank_00_model_states.pt", n) && holds(d+"/zero_pp_rank_0_mp_rank_00_optim_states.pt", n)
			})
		},
	},
}

// partial lists what a program would find and could not load.
func partial(l layout, dir string) (out []string) {
	_ = filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.Contains(p, "/.") {
			return err
		}
		b, _ := os.ReadFile(p)
		n := 0
		_, _ = fmt.Sscanf(string(b), "%d:", &n)
		if !holds(p, n) {
			out = append(out, filepath.Base(p))
		}
		return nil
	})
	return out
}

// TestKilledAtAnyByte kills a program at every point of its last save, in the layouts of the
// usual libraries: the next attempt, on the same machine and on another one, finds the last
// save that was at rest, whole, and nothing that is half written. The server looks while the
// program writes, as often as it likes.
func TestKilledAtAnyByte(t *testing.T) {
	t.Parallel()
	for name, l := range layouts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(1, uint64(len(name))))
			for point := range len(l.save(3)) {
				w := newWorld(t)
				w.cfg.Settle = 5 * time.Second
				w.clock = time.Now() // the kernel's times are real ones
				w.restart()
				job := w.job(t, "job_a", checkpoint.Rules{})
				run := func(acts []act) {
					for _, a := range acts {
						if err := a(w.path(job)); err != nil && !os.IsNotExist(err) {
							t.Fatal(err)
						}
						if random.IntN(4) == 0 {
							w.runOnce(t)
						}
						w.clock = w.clock.Add(time.Second)
					}
				}
				for n := 1; n <= 2; n++ {
					run(l.save(n))
					for range 8 { // it computes, and saves nothing
						w.runOnce(t)
						w.clock = w.clock.Add(2 * time.Second)
					}
				}
				run(l.save(3)[:point])
				w.Halting(job)
				for range 5 { // a busy server takes its time: what is dead does not come to rest
					w.clock = w.clock.Add(10 * time.Second)
					w.runOnce(t)
				}
				if err := w.Halted(t.Context(), job, settled.End{At: time.Now()}, true); err != nil {
					t.Fatalf("killed after %d acts: %v", point, err)
				}
				for _, elsewhere := range []bool{false, true} {
					if elsewhere {
						if err := os.RemoveAll(w.path(job)); err != nil {
							t.Fatal(err)
						}
						if err := os.Mkdir(w.path(job), 0o700); err != nil {
							t.Fatal(err)
						}
					}
					restored, err := w.Service.Restore(t.Context(), job)
					if err != nil {
						t.Fatal(err)
					}
					has := l.whole(w.path(job))
					if len(has) == 0 || has[len(has)-1] < 2 || restored.Resumes == "" {
						t.Errorf("killed after %d acts, elsewhere %v: it has %v whole, and resumes from %q; %q", point, elsewhere, has, restored.Resumes, restored.Notes)
					}
					if bad := partial(l, w.path(job)); len(bad) > 0 {
						t.Errorf("killed after %d acts, elsewhere %v: half written: %v", point, elsewhere, bad)
					}
				}
			}
		})
	}
}

// TestEndsInOrder: what a program wrote just before it left with 0 or 75 is complete, in
// every layout.
func TestEndsInOrder(t *testing.T) {
	t.Parallel()
	for name, l := range layouts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.Settle = 5 * time.Second
			w.clock = time.Now()
			w.restart()
			job := w.job(t, "job_a", checkpoint.Rules{})
			for _, a := range append(l.save(1), l.save(2)...) {
				if err := a(w.path(job)); err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
			}
			w.Halting(job)
			if err := w.Halted(t.Context(), job, settled.End{At: time.Now(), InOrder: true}, true); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(w.path(job)); err != nil {
				t.Fatal(err)
			}
			restored, err := w.Service.Restore(t.Context(), job)
			if has := l.whole(w.path(job)); err != nil || len(has) == 0 || has[len(has)-1] != 2 {
				t.Errorf("%v whole, %+v, %v; %+v", has, restored, err, w.list(t, job))
			}
		})
	}
}
