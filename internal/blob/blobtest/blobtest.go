// Package blobtest has what tests of objects share: Run, the suite that every
// blob.Driver passes; Memory, a driver without a disk; Failing, a driver that
// breaks where it is told to; NewSealer, keys without a key ring.
package blobtest

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/streamingaead"
	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Memory is a driver that keeps objects in memory. The zero value is ready.
type Memory struct {
	mu      sync.Mutex
	objects map[blob.Key][]byte
}

var _ blob.Driver = (*Memory)(nil)

// Put stores body.
func (m *Memory) Put(ctx context.Context, key blob.Key, body io.Reader) error {
	b, err := io.ReadAll(body)
	if err != nil {
		return fault.Wrap(err, "read the body")
	}
	if ctx.Err() != nil {
		return fault.New(fault.Timeout, "the writing was stopped: %w", context.Cause(ctx))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.objects == nil {
		m.objects = map[blob.Key][]byte{}
	}
	m.objects[key] = b
	return nil
}

type object struct{ *bytes.Reader }

func (object) Close() error { return nil }

// Open opens an object.
func (m *Memory) Open(_ context.Context, key blob.Key) (blob.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.objects[key]
	if !ok {
		return nil, fault.New(fault.NotFound, "there is no object %s", key)
	}
	return object{bytes.NewReader(b)}, nil
}

// Delete removes an object.
func (m *Memory) Delete(_ context.Context, key blob.Key) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, key)
	return nil
}

// List yields keys.
func (m *Memory) List(ctx context.Context, prefix blob.Key, yield func(blob.Key) error) error {
	m.mu.Lock()
	var all []blob.Key
	for k := range m.objects {
		if strings.HasPrefix(string(k), string(prefix)) {
			all = append(all, k)
		}
	}
	m.mu.Unlock()
	slices.Sort(all)
	for _, k := range all {
		if ctx.Err() != nil {
			return fault.New(fault.Timeout, "the list was stopped: %w", context.Cause(ctx))
		}
		if err := yield(k); err != nil {
			return err
		}
	}
	return nil
}

// Failing is a driver whose puts fail with Err once they have read After bytes.
type Failing struct {
	blob.Driver
	After int64
	Err   error
}

// Put reads After bytes and fails.
func (f Failing) Put(ctx context.Context, key blob.Key, body io.Reader) error {
	return f.Driver.Put(ctx, key, io.MultiReader(io.LimitReader(body, f.After), broken{f.Err}))
}

type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

// Sealer makes keys for scopes and keeps them in memory. Use NewSealer.
type Sealer struct {
	mu        sync.Mutex
	aeads     map[[2]string]tink.AEAD
	streaming map[[2]string]tink.StreamingAEAD
}

var _ blob.Sealer = (*Sealer)(nil)

// NewSealer makes a Sealer.
func NewSealer() *Sealer {
	return &Sealer{aeads: map[[2]string]tink.AEAD{}, streaming: map[[2]string]tink.StreamingAEAD{}}
}

// AEAD gives the scope's AES-256-GCM.
func (s *Sealer) AEAD(_ context.Context, project, owner string) (tink.AEAD, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := [2]string{project, owner}
	if a, ok := s.aeads[at]; ok {
		return a, nil
	}
	h, err := keyset.NewHandle(aead.AES256GCMKeyTemplate())
	if err != nil {
		return nil, err
	}
	s.aeads[at], err = aead.New(h)
	return s.aeads[at], err
}

// StreamingAEAD gives the scope's AES-256-GCM-HKDF.
func (s *Sealer) StreamingAEAD(_ context.Context, project, owner string) (tink.StreamingAEAD, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := [2]string{project, owner}
	if a, ok := s.streaming[at]; ok {
		return a, nil
	}
	h, err := keyset.NewHandle(streamingaead.AES256GCMHKDF1MBKeyTemplate())
	if err != nil {
		return nil, err
	}
	s.streaming[at], err = streamingaead.New(h)
	return s.streaming[at], err
}
