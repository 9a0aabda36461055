package redis

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/redis/rueidis"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// Copies in Feast's layout: a hash for each entity, under its serialized key (version
// 3) and the project's name. Of each view it has the values, under the murmur hash of
// "view:feature", the time, under "_ts:view", and, which Feast passes over, under
// "_falaj:view" the whole stamp, the table that wrote it and the fields of its values:
// those of a view before had others. Source: Feast 0.67,
// feast/infra/online_stores/redis.py and feast/infra/key_encoding_utils.py.
//
// Beside them, under the prefix: for each row that was copied, of which view and where to
// (c:ROW), the rows of a table (ct:TABLE), the tables of a view (cv:PROJECT/VIEW) and the
// views of a project (cp:PROJECT), so that they are found to be removed, also when the
// key that names rows was destroyed. That is written before the copy, so that no copy
// is without it.

var _ online.Copier = (*DB)(nil)

// Types of values in Feast's keys.
const (
	feastString    = 2
	feastInt64     = 4
	feastTimestamp = 8
)

// Copies implements online.Copier.
func (d *DB) Copies() bool { return d.feast }

func (d *DB) copied(row online.RowKey) string      { return d.prefix + "c:" + string(row[:]) }
func (d *DB) copies(key online.TableKey) string    { return d.prefix + "ct:" + string(key[:]) }
func (d *DB) viewsOf(project string) string        { return d.prefix + "cp:" + project }
func (d *DB) tablesOf(project, view string) string { return d.prefix + "cv:" + project + "/" + view }

func mark(view string) string { return "_falaj:" + view }
func at(view string) string   { return "_ts:" + view }

// stampText is in decimal, so that the order of texts is that of times in every locale
// of Redis.
func stampText(s online.Stamp) string {
	return fmt.Sprintf("%020d%020d", uint64(s.Event)^1<<63, uint64(s.Created)^1<<63) //nolint:gosec // the bits are meant
}

// storeCopy sets the fields of a view unless newer ones are there. ARGV are fields and
// values; the first is the mark, of a stamp (40 bytes), a table (16) and fields (4 each).
//
//nolint:dupword // Lua ends blocks so
var storeCopy = rueidis.NewLuaScript(`
local old = redis.call('HGET', KEYS[1], ARGV[1])
if old then
  if string.sub(old, 1, 40) > string.sub(ARGV[2], 1, 40) then return 0 end
  for i = 57, #old, 4 do redis.call('HDEL', KEYS[1], string.sub(old, i, i + 3)) end
end
for i = 1, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
return 1`)

// dropCopy removes the fields of a view if this table wrote them, and the hash with
// the last view. ARGV are the names of mark and time, and the table.
var dropCopy = rueidis.NewLuaScript(`
local old = redis.call('HGET', KEYS[1], ARGV[1])
if not old or string.sub(old, 41, 56) ~= ARGV[3] then return 0 end
for i = 57, #old, 4 do redis.call('HDEL', KEYS[1], string.sub(old, i, i + 3)) end
redis.call('HDEL', KEYS[1], ARGV[1], ARGV[2])
return 1`)

// Copy implements online.Copier.
func (d *DB) Copy(ctx context.Context, s online.Shape, copies []online.Copy) error {
	if len(copies) == 0 {
		return nil
	}
	names := make([]string, len(s.Features))
	for i, f := range s.Features {
		names[i] = hashed(s.View + ":" + f)
	}
	wrote := hex.EncodeToString(s.Table[:]) + strings.Join(names, "")

	// 1. Where they go.
	var list []rueidis.Completed
	keys := make([]string, len(copies))
	rows := make([]string, len(copies))
	for i, c := range copies {
		key, err := feastKey(s, c.Key)
		if err != nil {
			return err
		}
		keys[i], rows[i] = key, string(c.Row[:])
		list = append(list, d.client.B().Set().Key(d.copied(c.Row)).Value(s.View+"\x00"+key).Build())
	}
	for part := range slices.Chunk(rows, pipeline) {
		list = append(list, d.client.B().Sadd().Key(d.copies(s.Table)).Member(part...).Build())
	}
	list = append(list, d.client.B().Sadd().Key(d.viewsOf(s.Project)).Member(s.View).Build(),
		d.client.B().Sadd().Key(d.tablesOf(s.Project, s.View)).Member(string(s.Table[:])).Build())
	if err := d.all(ctx, list); err != nil {
		return err
	}

	// 2. The values.
	scripts := make([]rueidis.LuaExec, len(copies))
	for i, c := range copies {
		args := append(make([]string, 0, 4+2*len(names)), mark(s.View), stampText(c.Stamp)+wrote, at(s.View), timestamp(c.Stamp.Event))
		for n, v := range c.Values {
			args = append(args, names[n], feastValue(v))
		}
		scripts[i] = rueidis.LuaExec{Keys: []string{keys[i]}, Args: args}
	}
	return d.run(ctx, storeCopy, scripts)
}

func (d *DB) run(ctx context.Context, script *rueidis.Lua, all []rueidis.LuaExec) error {
	for part := range slices.Chunk(all, pipeline) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		for _, r := range script.ExecMulti(ctx, d.client, part...) {
			if err := r.Error(); err != nil {
				cancel()
				return away(err)
			}
		}
		cancel()
	}
	return nil
}

// DropCopiesOf implements online.Copier.
func (d *DB) DropCopiesOf(ctx context.Context, project, view string) error {
	views := []string{view}
	if view == "" {
		var err error
		if views, err = d.listed(ctx, d.viewsOf(project)); err != nil {
			return err
		}
	}
	for _, v := range views {
		tables, err := d.listed(ctx, d.tablesOf(project, v))
		if err != nil {
			return err
		}
		for _, t := range tables {
			var table online.TableKey
			copy(table[:], t)
			if err := d.dropCopies(ctx, table); err != nil {
				return err
			}
		}
		if err := d.all(ctx, []rueidis.Completed{
			d.client.B().Unlink().Key(d.tablesOf(project, v)).Build(), d.client.B().Srem().Key(d.viewsOf(project)).Member(v).Build(),
		}); err != nil {
			return err
		}
	}
	return nil
}

// dropCopies removes the copies of a table.
func (d *DB) dropCopies(ctx context.Context, table online.TableKey) error {
	for removed := false; ; {
		results, err := d.do(ctx, []rueidis.Completed{d.client.B().Srandmember().Key(d.copies(table)).Count(pipeline).Build()})
		if err != nil {
			return err
		}
		members, err := results[0].AsStrSlice()
		if err != nil {
			return away(err)
		}
		if len(members) == 0 {
			if !removed {
				return nil
			}
			return d.rewrite(ctx)
		}
		rows := make([]online.RowKey, len(members))
		for i, m := range members {
			copy(rows[i][:], m)
		}
		some, err := d.removeCopies(ctx, rows)
		if err != nil {
			return err
		}
		removed = removed || some
	}
}

// removeCopies removes the copies of rows, and then what says where they are. Also where
// none are made any more: those of before may be there.
func (d *DB) removeCopies(ctx context.Context, rows []online.RowKey) (removed bool, err error) {
	for part := range slices.Chunk(rows, pipeline) {
		ask := make([]rueidis.Completed, len(part))
		for i, row := range part {
			ask[i] = d.client.B().Get().Key(d.copied(row)).Build()
		}
		answers, err := d.ask(ctx, ask)
		if err != nil {
			return false, err
		}
		var drops []rueidis.LuaExec
		var unlisted []rueidis.Completed
		for i, row := range part {
			table := tableOf(row)
			if view, key, ok := strings.Cut(answers[i], "\x00"); ok {
				drops = append(drops, rueidis.LuaExec{Keys: []string{key}, Args: []string{mark(view), at(view), hex.EncodeToString(table[:])}})
				unlisted = append(unlisted, d.client.B().Unlink().Key(d.copied(row)).Build())
			}
			unlisted = append(unlisted, d.client.B().Srem().Key(d.copies(table)).Member(string(row[:])).Build())
		}
		if err := d.run(ctx, dropCopy, drops); err != nil {
			return false, err
		}
		removed = removed || len(drops) > 0
		if err := d.all(ctx, unlisted); err != nil {
			return false, err
		}
	}
	return removed, nil
}

func tableOf(row online.RowKey) online.TableKey {
	return online.TableKey(row[:len(online.TableKey{})])
}

// listed are the members of a set.
func (d *DB) listed(ctx context.Context, key string) ([]string, error) {
	results, err := d.do(ctx, []rueidis.Completed{d.client.B().Smembers().Key(key).Build()})
	if err != nil {
		return nil, err
	}
	out, err := results[0].AsStrSlice()
	return out, away(err)
}

// rewrite asks Redis to write its append-only file anew, without what was removed: the
// copies were in it in the clear. One that is being written already is left.
func (d *DB) rewrite(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := d.client.Do(ctx, d.client.B().Bgrewriteaof().Build()).Error()
	if said, ok := rueidis.IsRedisErr(err); ok && strings.Contains(said.Error(), "in progress") {
		return nil
	}
	return away(err)
}

// ask gets texts; what is not there is empty.
func (d *DB) ask(ctx context.Context, commands []rueidis.Completed) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	out := make([]string, len(commands))
	for i, r := range d.client.DoMulti(ctx, commands...) {
		text, err := r.ToString()
		if err != nil && !rueidis.IsRedisNil(err) {
			return nil, away(err)
		}
		out[i] = text
	}
	return out, nil
}

// feastKey is Feast's serialization of an entity key, version 3, and the project.
func feastKey(s online.Shape, key []value.Value) (string, error) {
	order := make([]int, len(key))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(s.JoinKeys[a], s.JoinKeys[b]) })
	u32 := func(b []byte, n int) []byte { return binary.LittleEndian.AppendUint32(b, uint32(n)) } //nolint:gosec // lengths and types
	b := u32(nil, len(key))
	for _, i := range order {
		name := s.JoinKeys[i]
		b = append(u32(u32(b, feastString), len(name)), name...)
	}
	for _, i := range order {
		switch v := key[i]; v.Type() {
		case value.String:
			b = append(u32(u32(b, feastString), len(v.Str())), v.Str()...)
		case value.Int64:
			b = binary.LittleEndian.AppendUint64(u32(u32(b, feastInt64), 8), uint64(v.Int())) //nolint:gosec // the bits are meant
		case value.Timestamp:
			b = binary.LittleEndian.AppendUint64(u32(u32(b, feastTimestamp), 8), uint64(seconds(v.Int()))) //nolint:gosec // the bits are meant
		default:
			return "", fmt.Errorf("a join key of type %s has no place in Feast's layout", v.Type())
		}
	}
	return string(append(b, s.Project...)), nil
}

// feastValue is a feast.types.Value; empty for NULL, and for what is of another type.
func feastValue(v value.Value) string {
	if v.IsNull() {
		return ""
	}
	var b []byte
	varint := func(field protowire.Number, n uint64) {
		b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
	}
	switch v.Type() {
	case value.String:
		b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), v.Str())
	case value.Int64:
		varint(4, uint64(v.Int())) //nolint:gosec // the bits are meant
	case value.Float64:
		b = protowire.AppendFixed64(protowire.AppendTag(b, 5, protowire.Fixed64Type), math.Float64bits(v.Float()))
	case value.Bool:
		varint(7, protowire.EncodeBool(v.Bool()))
	case value.Timestamp:
		varint(8, uint64(seconds(v.Int()))) //nolint:gosec // the bits are meant
	case value.Int32, value.Float32: // NULL, as lists and vectors are
	}
	return string(b)
}

// seconds are those of microseconds, rounded down.
func seconds(micros int64) int64 {
	s := micros / 1e6
	if micros%1e6 < 0 {
		s--
	}
	return s
}

// timestamp is a google.protobuf.Timestamp.
func timestamp(micros int64) string {
	s := seconds(micros)
	var b []byte
	if s != 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), uint64(s)) //nolint:gosec // the bits are meant
	}
	if nanos := (micros - s*1e6) * 1000; nanos != 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(nanos)) //nolint:gosec // less than a second
	}
	return string(b)
}

// hashed is murmur3_32 of a text, as four bytes, the lowest first.
func hashed(text string) string {
	const c1, c2 = 0xcc9e2d51, 0x1b873593
	b, h := []byte(text), uint32(0)
	mix := func(k uint32) uint32 { return bits.RotateLeft32(k*c1, 15) * c2 }
	n := len(b) &^ 3
	for i := 0; i < n; i += 4 {
		h = bits.RotateLeft32(h^mix(binary.LittleEndian.Uint32(b[i:])), 13)*5 + 0xe6546b64
	}
	if rest := b[n:]; len(rest) > 0 {
		var k uint32
		for i, c := range rest {
			k |= uint32(c) << (8 * i)
		}
		h ^= mix(k)
	}
	h ^= uint32(len(b)) //nolint:gosec // of a name
	h ^= h >> 16
	h *= 0x85ebca6b
	h ^= h >> 13
	h *= 0xc2b2ae35
	h ^= h >> 16
	return string(binary.LittleEndian.AppendUint32(nil, h))
}
