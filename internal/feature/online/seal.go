package online

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"

	"github.com/falaj-ml/falaj/internal/fault"
)

// A value is sealed in one of two formats. Which one follows from the subkey, so that
// what an older release wrote is read as it was:
//
//	subkey 0  nonce(12) ‖ GCM(packed); bound to row ‖ stamp ‖ key
//	others    2 ‖ subkey(4) ‖ nonce(12) ‖ GCM(packed ‖ key ‖ len(key)(4)); bound to 2 ‖ subkey ‖ row ‖ stamp
//
// The second has the entity's key inside, so that a row can be moved to another
// subkey by who does not know whose it is.
const (
	withKey    = 2 // the format
	nonceSize  = 12
	lengthSize = 4
)

// sealer makes the opaque form of a table's rows under one subkey. It lives for one
// operation, so that a destroyed key stops working at once. Not safe for concurrent use.
type sealer struct {
	of     *derived
	table  TableKey
	header []byte // of a value; empty for subkey 0
	mac    hash.Hash
	aead   cipher.AEAD
	sum    []byte
	aad    []byte
	plain  []byte
}

// derived are the keys of a table's rows under one subkey, and sealers made of them that
// are idle: to make one takes longer than to read a row. Nobody gets one before the ring
// has given the very same keys again.
type derived struct {
	at   tableSubkey
	uses [2]string // of the ring's keys
	keys [2][]byte // for names and for values
	idle []*sealer
}

// tableSubkey is a table under one subkey.
type tableSubkey struct {
	project, view, generation string
	version, subkey           int
}

// Bounds of what is kept of sealers: how many tables, and how many sealers of each.
const (
	maxDerived = 1000
	maxIdle    = 8
)

func (s *Store) sealer(ctx context.Context, table Table, subkey int) (*sealer, error) {
	at := tableSubkey{table.Project, table.View, table.Generation, table.Version, subkey}
	s.mu.Lock()
	d := s.derived[at]
	s.mu.Unlock()
	known := d != nil
	if !known {
		d = &derived{at: at}
		for i, use := range []string{"key", "value"} {
			d.uses[i] = fmt.Sprintf("online/%s/v%d", use, table.Version)
			if table.Generation != "" {
				d.uses[i] += "/" + table.Generation
			}
			if subkey > 0 {
				d.uses[i] += fmt.Sprintf("/k%d", subkey)
			}
		}
	}
	var keys [2][]byte
	for i, use := range d.uses {
		var err error
		if keys[i], err = s.keys.DataKey(ctx, table.Project, table.owner(), use); err != nil {
			s.mu.Lock()
			delete(s.derived, at)
			s.mu.Unlock()
			return nil, fault.Wrap(err, "opening the key of view %s", table.View)
		}
	}
	s.mu.Lock()
	if known && bytes.Equal(d.keys[0], keys[0]) && bytes.Equal(d.keys[1], keys[1]) {
		if n := len(d.idle) - 1; n >= 0 {
			sl := d.idle[n]
			d.idle = d.idle[:n]
			s.mu.Unlock()
			return sl, nil
		}
	} else {
		d = &derived{at: at, uses: d.uses, keys: keys}
		if s.derived == nil || len(s.derived) >= maxDerived {
			s.derived = map[tableSubkey]*derived{}
		}
		s.derived[at] = d
	}
	s.mu.Unlock()
	return d.sealer()
}

// leave gives a sealer back that is not used any more.
func (s *Store) leave(sl *sealer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.derived[sl.of.at] == sl.of && len(sl.of.idle) < maxIdle {
		sl.of.idle = append(sl.of.idle, sl)
	}
}

func (d *derived) sealer() (*sealer, error) {
	block, err := aes.NewCipher(d.keys[1])
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	sl := &sealer{of: d, mac: hmac.New(sha256.New, d.keys[0]), aead: aead}
	if d.at.subkey > 0 {
		sl.header = binary.BigEndian.AppendUint32([]byte{withKey}, uint32(d.at.subkey)) //nolint:gosec // subkeys are counted from 0
	}
	sl.mac.Write([]byte("table"))
	copy(sl.table[:], sl.mac.Sum(nil))
	return sl, nil
}

// row is the opaque key of an entity.
func (s *sealer) row(key []byte) RowKey {
	var row RowKey
	copy(row[:], s.table[:])
	s.mac.Reset()
	s.mac.Write([]byte("row"))
	s.mac.Write(key)
	s.sum = s.mac.Sum(s.sum[:0])
	copy(row[len(s.table):], s.sum)
	return row
}

// bind is what a value is sealed to: its place, its time and, unless that is inside,
// its entity.
func (s *sealer) bind(key []byte, row RowKey, stamp Stamp) []byte {
	s.aad = append(append(s.aad[:0], s.header...), row[:]...)
	s.aad = binary.BigEndian.AppendUint64(s.aad, uint64(stamp.Event))   //nolint:gosec // the bits are meant
	s.aad = binary.BigEndian.AppendUint64(s.aad, uint64(stamp.Created)) //nolint:gosec // the bits are meant
	if len(s.header) == 0 {
		s.aad = append(s.aad, key...)
	}
	return s.aad
}

func (s *sealer) version(r *Row) (Version, error) {
	v := Version{Row: s.row(r.Key), Stamp: Stamp{Event: r.Event, Created: r.Created}}
	plain := r.Packed
	if len(s.header) > 0 {
		s.plain = append(append(s.plain[:0], r.Packed...), r.Key...)
		s.plain = binary.BigEndian.AppendUint32(s.plain, uint32(len(r.Key))) //nolint:gosec // a key is small
		plain = s.plain
	}
	start := len(s.header) + nonceSize
	v.Sealed = append(make([]byte, 0, start+len(plain)+s.aead.Overhead()), s.header...)[:start]
	nonce := v.Sealed[len(s.header):]
	if _, err := rand.Read(nonce); err != nil {
		return v, err
	}
	v.Sealed = s.aead.Seal(v.Sealed, nonce, plain, s.bind(r.Key, v.Row, v.Stamp))
	return v, nil
}

// open gives the packed row of an entity, in dst if that has the room.
func (s *sealer) open(dst, key []byte, row RowKey, stamp Stamp, sealed []byte) ([]byte, error) {
	plain, err := s.unseal(dst, key, row, stamp, sealed)
	if err != nil || len(s.header) == 0 {
		return plain, err
	}
	packed, own, err := apart(plain)
	if err == nil && !bytes.Equal(own, key) {
		err = errDamaged()
	}
	return packed, err
}

// opened opens a version without knowing whose it is; the sealer's subkey is not 0.
func (s *sealer) opened(v Version) (key, packed []byte, err error) {
	plain, err := s.unseal(nil, nil, v.Row, v.Stamp, v.Sealed)
	if err != nil {
		return nil, nil, err
	}
	packed, key, err = apart(plain)
	if err == nil && s.row(key) != v.Row {
		err = errDamaged()
	}
	return key, packed, err
}

func (s *sealer) unseal(dst, key []byte, row RowKey, stamp Stamp, sealed []byte) ([]byte, error) {
	start := len(s.header) + nonceSize
	if len(sealed) < start+s.aead.Overhead() || !bytes.Equal(sealed[:len(s.header)], s.header) {
		return nil, errDamaged()
	}
	plain, err := s.aead.Open(dst, sealed[len(s.header):start], sealed[start:], s.bind(key, row, stamp))
	if err != nil {
		return nil, errDamaged()
	}
	return plain, nil
}

// apart divides what was sealed with its key.
func apart(plain []byte) (packed, key []byte, err error) {
	end := len(plain) - lengthSize
	if end < 0 {
		return nil, nil, errDamaged()
	}
	n := int(binary.BigEndian.Uint32(plain[end:]))
	if n > end {
		return nil, nil, errDamaged()
	}
	return plain[:end-n], plain[end-n : end], nil
}

func errDamaged() error {
	return fault.New(fault.Internal, "a stored feature row cannot be decrypted: it is corrupt or was moved").
		WithHint("Materialise the view again.")
}
