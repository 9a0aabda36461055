package main

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	crand "crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/feature/online"
	ours "github.com/falaj-ml/falaj/internal/feature/online/pebble"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// The least that a read can be: a loop over sorted keys of a Pebble that decrypts
// each value. The store also finds the keys by HMAC, chooses the version by time and
// decodes the row.
const (
	bareFeatures = 50
	bareBatch    = 100
	bareKey      = 32
)

// secret derives the keys of the store.
type secret struct{}

func (secret) DataKey(_ context.Context, project, owner, use string) ([]byte, error) {
	key := sha256.Sum256([]byte(project + "\x00" + owner + "\x00" + use))
	return key[:], nil
}

var bareTable = online.Table{Project: "bench", View: "wide", Version: 1}

func bareEntity(i int) []byte { return value.AppendKey(nil, value.OfInt(int64(i))) }

// bareSeal is the cipher of the loop.
func bareSeal() (cipher.AEAD, error) {
	block, err := aes.NewCipher([]byte("0123456789abcdef0123456789abcdef"))
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

func bareRowKey(i int) []byte {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(nil, uint64(i))) //nolint:gosec // not negative
	return sum[:bareKey]
}

func openBare(dir string) (*pebble.DB, error) {
	cache := pebble.NewCache(32 << 20) // this and all below as the store's
	defer cache.Unref()
	opts := &pebble.Options{Cache: cache, FormatMajorVersion: pebble.FormatTableFormatV6, MemTableSize: 8 << 20, Logger: quiet{}}
	for i := range opts.Levels {
		l := &opts.Levels[i]
		l.FilterPolicy, l.FilterType, l.IndexBlockSize = bloom.FilterPolicy(10), pebble.TableFilter, 256<<10
		l.Compression = func() *sstable.CompressionProfile { return sstable.NoCompression }
	}
	return pebble.Open(filepath.Join(dir, "bare"), opts)
}

// quiet has nothing to say but the worst.
type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(string, ...any)             {}
func (quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// makeBare fills both with the same rows.
func makeBare(ctx context.Context, dir string, entities int) (err error) {
	driver, err := ours.Open(ours.Config{Dir: filepath.Join(dir, "store")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, driver.Close()) }()
	bare, err := openBare(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bare.Close()) }()
	aead, err := bareSeal()
	if err != nil {
		return err
	}
	store := online.New(driver, secret{}, online.Options{})
	row, nonce := make([]value.Value, bareFeatures), make([]byte, aead.NonceSize())
	rows, batch := make([]online.Row, 0, 5000), bare.NewBatch()
	for i := range entities {
		for f := range row {
			row[f] = value.OfFloat(noise(i*bareFeatures + f))
		}
		packed, err := value.AppendRow(nil, row)
		if err != nil {
			return err
		}
		rows = append(rows, online.Row{Key: bareEntity(i), Event: firstRide, Created: online.NoCreated, Packed: packed})
		_, _ = crand.Read(nonce) // never fails
		key := bareRowKey(i)
		if err := batch.Set(key, aead.Seal(bytes.Clone(nonce), nonce, packed, key), nil); err != nil {
			return err
		}
		if len(rows) == cap(rows) || i == entities-1 {
			if err := errors.Join(store.Write(ctx, bareTable, rows), batch.Commit(pebble.NoSync)); err != nil {
				return err
			}
			rows, batch = rows[:0], bare.NewBatch()
		}
	}
	return errors.Join(batch.Close(), bare.Flush())
}

// reads is a task: batches of random entities for some seconds.
func (t task) reads(read func(keys []int) error) (cost, error) {
	rnd := rand.New(rand.NewPCG(3, 1)) //nolint:gosec // drawn again the same
	keys, c := make([]int, bareBatch), cost{}
	for began := time.Now(); time.Since(began).Seconds() < t.Span; c.Rows += bareBatch {
		for i := range keys {
			keys[i] = rnd.IntN(t.Entities)
		}
		if err := read(keys); err != nil {
			return c, err
		}
	}
	return c, nil
}

// store reads as a server does.
func (t task) store(ctx context.Context) (c cost, err error) {
	driver, err := ours.Open(ours.Config{Dir: filepath.Join(t.Dir, "store")})
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, driver.Close()) }()
	store := online.New(driver, secret{}, online.Options{})
	types, row := slices.Repeat([]value.Type{value.Float64}, bareFeatures), make([]value.Value, bareFeatures)
	q := online.Query{Keys: make([][]byte, bareBatch)}
	return t.reads(func(keys []int) error {
		q.At = time.Now()
		for i, k := range keys {
			q.Keys[i] = bareEntity(k)
		}
		answers, err := store.Read(ctx, bareTable, q)
		if err != nil {
			return err
		}
		for i := range answers {
			if answers[i].Status != online.Present {
				return errors.New("an entity is not there")
			}
			if err := value.DecodeRow(answers[i].Packed, types, row); err != nil {
				return err
			}
		}
		return nil
	})
}

// bare is the loop.
func (t task) bare(context.Context) (c cost, err error) {
	db, err := openBare(t.Dir)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	aead, err := bareSeal()
	if err != nil {
		return c, err
	}
	sorted, packed := make([][]byte, bareBatch), []byte(nil)
	return t.reads(func(keys []int) (err error) {
		for i, k := range keys {
			sorted[i] = bareRowKey(k)
		}
		slices.SortFunc(sorted, bytes.Compare)
		it, err := db.NewIter(nil)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, it.Close()) }()
		for _, key := range sorted {
			if !it.SeekPrefixGE(key) || !bytes.Equal(it.Key(), key) {
				return errors.Join(errors.New("a key is not there"), it.Error())
			}
			sealed, err := it.ValueAndErr()
			if err != nil {
				return err
			}
			n := aead.NonceSize()
			if packed, err = aead.Open(packed[:0], sealed[:n], sealed[n:], key); err != nil {
				return err
			}
		}
		return nil
	})
}

// againstBare measures the store beside the loop.
func (b *bench) againstBare(ctx context.Context) error {
	t := task{Dir: filepath.Join(b.Dir, "bare"), Entities: 1_000_000, Span: 5}
	if b.Quick {
		t.Entities, t.Span = 2_000, 0.2
	}
	if err := os.MkdirAll(t.Dir, 0o750); err != nil {
		return err
	}
	if err := makeBare(ctx, t.Dir, t.Entities); err != nil {
		return err
	}
	each := map[string][]float64{}
	for range b.Rounds {
		for _, t.Do = range []string{"store", "bare"} {
			c, err := inProcess(ctx, t)
			if err != nil {
				return err
			}
			each[t.Do] = append(each[t.Do], float64(c.Rows)/c.CPU)
		}
	}
	b.Add(harness.Row{
		Name: "online read of 100 × 50 features, in process", Unit: "entities/CPU-s", Better: harness.Higher,
		Ours: harness.Value(harness.Median(each["store"])), Theirs: harness.Value(harness.Median(each["bare"])), Aim: &harness.Aim{Ratio: harness.Value(0.5)},
		Peer: "a loop over the sorted keys of a Pebble that decrypts each value",
		Note: "random entities; ours finds keys by HMAC, chooses versions by time and decodes the rows",
	})
	return os.RemoveAll(t.Dir)
}
