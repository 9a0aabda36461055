package redis

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
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
// Beside them, under the prefix: for each row that was copied, of which view, of which
// entity and where to (c:ROW), the rows of a table (ct:TABLE), the tables of a view
// (cv:PROJECT/VIEW) and the views with the version that is copied (copied), so that they are
// found to be removed, also when the key that names rows was destroyed. That is written
// before the copy, from the row up, so that no copy is without it.
//
// Others may copy while some are removed, also in other processes. Who removes takes the
// index away between two removals of the copy, who copies looks afterwards whether the
// index is there: one of them sees the other.
//
// The append-only file has what was removed in the clear until Redis has written it anew.
// That has to be asked for (rewrite), from before the index goes until a rewriting that
// began afterwards has ended.

var _ online.Copier = (*DB)(nil)

// Types of values in Feast's keys.
const (
	feastString    = 2
	feastInt32     = 3
	feastInt64     = 4
	feastTimestamp = 8
)

// Copies implements online.Copier.
func (d *DB) Copies() bool { return d.feast }

func (d *DB) copied(row online.RowKey) string   { return d.prefix + "c:" + string(row[:]) }
func (d *DB) copies(key online.TableKey) string { return d.prefix + "ct:" + string(key[:]) }
func (d *DB) tablesOf(view string) string       { return d.prefix + "cv:" + view } // PROJECT/VIEW
func (d *DB) views() string                     { return d.prefix + "copied" }
func (d *DB) rewrite() string                   { return d.prefix + "rewrite" }

func mark(view string) string { return "_falaj:" + view }
func at(view string) string   { return "_ts:" + view }

// stampText is in decimal, so that the order of texts is that of times in every locale
// of Redis.
func stampText(s online.Stamp) string {
	return fmt.Sprintf("%020d%020d", uint64(s.Event)^1<<63, uint64(s.Created)^1<<63) //nolint:gosec // the bits are meant
}

// storeCopy sets the fields of a view unless newer ones are there, of another table than
// the first of ARGV. The others are fields and values; the first is the mark, of a stamp
// (40 bytes), a table (16) and fields (4 each).
//
//nolint:dupword // Lua ends blocks so
var storeCopy = rueidis.NewLuaScript(`
local old = redis.call('HGET', KEYS[1], ARGV[2])
if old then
  if string.sub(old, 41, 56) ~= ARGV[1] and string.sub(old, 1, 40) > string.sub(ARGV[3], 1, 40) then return 0 end
  for i = 57, #old, 4 do redis.call('HDEL', KEYS[1], string.sub(old, i, i + 3)) end
end
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
return 1`)

// dropCopy removes the fields of a view if this table wrote them, and the hash with
// the last view. ARGV are the names of mark and time, and the table.
var dropCopy = rueidis.NewLuaScript(`
local old = redis.call('HGET', KEYS[1], ARGV[1])
if not old or string.sub(old, 41, 56) ~= ARGV[3] then return 0 end
for i = 57, #old, 4 do redis.call('HDEL', KEYS[1], string.sub(old, i, i + 3)) end
redis.call('HDEL', KEYS[1], ARGV[1], ARGV[2])
return 1`)

// place is where a row's copy is.
type place struct {
	row    online.RowKey
	view   string
	entity string
	key    string // Feast's
}

func (p place) String() string {
	b := append([]byte(p.view), 0)
	b = binary.AppendUvarint(b, uint64(len(p.entity)))
	return string(b) + p.entity + p.key
}

// placeOf reads what String gives.
func placeOf(row online.RowKey, text string) (place, bool) {
	view, rest, ok := strings.Cut(text, "\x00")
	n, size := binary.Uvarint([]byte(rest))
	if !ok || size <= 0 || n > uint64(len(rest)-size) { //nolint:gosec // at most len(rest)
		return place{}, false
	}
	return place{row: row, view: view, entity: rest[size : size+int(n)], key: rest[size+int(n):]}, true //nolint:gosec // as above
}

// drops are the scripts that remove the copies of places.
func drops(places []place) []rueidis.LuaExec {
	out := make([]rueidis.LuaExec, len(places))
	for i, p := range places {
		table := tableOf(p.row)
		out[i] = rueidis.LuaExec{Keys: []string{p.key}, Args: []string{mark(p.view), at(p.view), hex.EncodeToString(table[:])}}
	}
	return out
}

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
	view, version := s.Project+"/"+s.View, strconv.Itoa(s.Version)

	// 1. What another version shows, this one may hide.
	before, err := d.ask(ctx, []rueidis.Completed{d.client.B().Hget().Key(d.views()).Field(view).Build()})
	if err != nil {
		return err
	}
	if before[0] != "" && before[0] != version {
		if err := d.DropCopiesOf(ctx, s.Project, s.View); err != nil {
			return err
		}
	}

	// 2. Where they go.
	var rows []rueidis.Completed
	places := make([]place, len(copies))
	members := make([]string, len(copies))
	for i, c := range copies {
		key, err := feastKey(s, c.Key)
		if err != nil {
			return err
		}
		places[i], members[i] = place{c.Row, s.View, string(c.Entity), key}, string(c.Row[:])
		rows = append(rows, d.client.B().Set().Key(d.copied(c.Row)).Value(places[i].String()).Build())
	}
	var tables []rueidis.Completed
	for part := range slices.Chunk(members, pipeline) {
		tables = append(tables, d.client.B().Sadd().Key(d.copies(s.Table)).Member(part...).Build())
	}
	for _, list := range [][]rueidis.Completed{ // each when the one before is there
		rows, tables,
		{d.client.B().Sadd().Key(d.tablesOf(view)).Member(string(s.Table[:])).Build()},
		{d.client.B().Hset().Key(d.views()).FieldValue().FieldValue(view, version).Build()},
	} {
		if err := d.all(ctx, list); err != nil {
			return err
		}
	}

	// 3. The values.
	instead := ""
	if s.Instead != (online.TableKey{}) {
		instead = hex.EncodeToString(s.Instead[:])
	}
	scripts := make([]rueidis.LuaExec, len(copies))
	for i, c := range copies {
		args := append(make([]string, 0, 5+2*len(names)), instead, mark(s.View), stampText(c.Stamp)+wrote, at(s.View), timestamp(c.Stamp.Event))
		for n, v := range c.Values {
			args = append(args, names[n], feastValue(v))
		}
		scripts[i] = rueidis.LuaExec{Keys: []string{places[i].key}, Args: args}
	}
	if err := d.run(ctx, storeCopy, scripts); err != nil {
		return err
	}
	return d.withdraw(ctx, places)
}

// withdraw removes copies whose rows were removed while they were made.
func (d *DB) withdraw(ctx context.Context, places []place) error {
	var gone []place
	for part := range slices.Chunk(places, pipeline/2) {
		ask := make([]rueidis.Completed, 0, 2*len(part))
		for _, p := range part {
			ask = append(ask, d.client.B().Exists().Key(d.copied(p.row)).Build(),
				d.client.B().Sismember().Key(d.copies(tableOf(p.row))).Member(string(p.row[:])).Build())
		}
		results, err := d.do(ctx, ask)
		if err != nil {
			return err
		}
		for i, p := range part {
			row, err := results[2*i].AsInt64()
			listed, failed := results[2*i+1].AsInt64()
			if err := errors.Join(err, failed); err != nil {
				return away(err)
			}
			if row == 0 || listed == 0 {
				gone = append(gone, p)
			}
		}
	}
	return d.removePlaces(ctx, gone)
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

// CopiedViews implements online.Copier.
func (d *DB) CopiedViews(ctx context.Context) ([]online.CopiedView, error) {
	results, err := d.do(ctx, []rueidis.Completed{d.client.B().Hgetall().Key(d.views()).Build()})
	if err != nil {
		return nil, err
	}
	versions, err := results[0].AsStrMap()
	if err != nil {
		return nil, away(err)
	}
	views := make([]online.CopiedView, 0, len(versions))
	for name, text := range versions {
		project, view, _ := strings.Cut(name, "/")
		version, _ := strconv.Atoi(text) // 0: it is not known
		views = append(views, online.CopiedView{Project: project, View: view, Version: version})
	}
	return views, nil
}

// CopiedKeys implements online.Copier.
func (d *DB) CopiedKeys(ctx context.Context, table online.TableKey, visit func(keys [][]byte) error) error {
	for cursor := uint64(0); ; {
		results, err := d.do(ctx, []rueidis.Completed{d.client.B().Sscan().Key(d.copies(table)).Cursor(cursor).Count(pipeline).Build()})
		if err != nil {
			return err
		}
		entry, err := results[0].AsScanEntry()
		if err != nil {
			return away(err)
		}
		places, err := d.places(ctx, rowsOf(entry.Elements))
		if err != nil {
			return err
		}
		for part := range slices.Chunk(places, pipeline) {
			keys := make([][]byte, len(part))
			for i, p := range part {
				keys[i] = []byte(p.entity)
			}
			if err := visit(keys); err != nil {
				return err
			}
		}
		if cursor = entry.Cursor; cursor == 0 {
			return nil
		}
	}
}

func rowsOf(members []string) []online.RowKey {
	rows := make([]online.RowKey, len(members))
	for i, m := range members {
		copy(rows[i][:], m)
	}
	return rows
}

// places are where rows were copied to, of those that were.
func (d *DB) places(ctx context.Context, rows []online.RowKey) (found []place, err error) {
	for part := range slices.Chunk(rows, pipeline) {
		ask := make([]rueidis.Completed, len(part))
		for i, row := range part {
			ask[i] = d.client.B().Get().Key(d.copied(row)).Build()
		}
		answers, err := d.ask(ctx, ask)
		if err != nil {
			return nil, err
		}
		for i, row := range part {
			if p, ok := placeOf(row, answers[i]); ok {
				found = append(found, p)
			}
		}
	}
	return found, nil
}

// DropCopiesOf implements online.Copier.
func (d *DB) DropCopiesOf(ctx context.Context, project, view string) error {
	names := []string{project + "/" + view}
	if view == "" {
		all, err := d.CopiedViews(ctx)
		if err != nil {
			return err
		}
		names = nil
		for _, v := range all {
			if v.Project == project {
				names = append(names, v.Project+"/"+v.View)
			}
		}
	}
	for _, name := range names {
		if err := d.dropView(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (d *DB) dropView(ctx context.Context, view string) error {
	tables, err := d.listed(ctx, d.tablesOf(view))
	if err != nil {
		return err
	}
	for _, t := range tables {
		var table online.TableKey
		copy(table[:], t)
		if err := d.dropCopies(ctx, table); err != nil {
			return err
		}
		if err := d.unlist(ctx, d.client.B().Srem().Key(d.tablesOf(view)).Member(t).Build(), d.copies(table),
			d.client.B().Sadd().Key(d.tablesOf(view)).Member(t).Build()); err != nil {
			return err
		}
	}
	return d.unlist(ctx, d.client.B().Hdel().Key(d.views()).Field(view).Build(), d.tablesOf(view),
		d.client.B().Hsetnx().Key(d.views()).Field(view).Value("0").Build())
}

// unlist takes something off a list, and puts it back if its own list has members:
// somebody copies.
func (d *DB) unlist(ctx context.Context, off rueidis.Completed, own string, back rueidis.Completed) error {
	if _, err := d.do(ctx, []rueidis.Completed{off}); err != nil {
		return err
	}
	results, err := d.do(ctx, []rueidis.Completed{d.client.B().Scard().Key(own).Build()})
	if err != nil {
		return err
	}
	if n, err := results[0].AsInt64(); err != nil || n == 0 {
		return away(err)
	}
	_, err = d.do(ctx, []rueidis.Completed{back})
	return err
}

// dropCopies removes the copies of a table.
func (d *DB) dropCopies(ctx context.Context, table online.TableKey) error {
	for {
		results, err := d.do(ctx, []rueidis.Completed{d.client.B().Srandmember().Key(d.copies(table)).Count(pipeline).Build()})
		if err != nil {
			return err
		}
		members, err := results[0].AsStrSlice()
		if err != nil {
			return away(err)
		}
		if len(members) == 0 {
			return nil
		}
		if err := d.removeCopies(ctx, rowsOf(members)); err != nil {
			return err
		}
	}
}

// removeCopies removes the copies of rows, and then what says where they are. Also where
// none are made any more: those of before may be there.
func (d *DB) removeCopies(ctx context.Context, rows []online.RowKey) error {
	places, err := d.places(ctx, rows)
	if err != nil {
		return err
	}
	if err := d.removePlaces(ctx, places); err != nil {
		return err
	}
	// Those that are listed, and were never copied; who copies one meanwhile is seen, or sees it.
	copied := make(map[online.RowKey]bool, len(places))
	for _, p := range places {
		copied[p.row] = true
	}
	var rest []online.RowKey
	var off []rueidis.Completed
	for _, row := range rows {
		if !copied[row] {
			rest = append(rest, row)
			off = append(off, d.client.B().Srem().Key(d.copies(tableOf(row))).Member(string(row[:])).Build())
		}
	}
	if err := d.all(ctx, off); err != nil {
		return err
	}
	if places, err = d.places(ctx, rest); err != nil {
		return err
	}
	return d.removePlaces(ctx, places)
}

func (d *DB) removePlaces(ctx context.Context, places []place) error {
	if len(places) == 0 {
		return nil
	}
	// Asked for before, since somebody may be interrupted, and after: a rewriting that begins
	// in between has what is removed after it began.
	if err := d.rewriteAgain(ctx); err != nil {
		return err
	}
	if err := d.run(ctx, dropCopy, drops(places)); err != nil {
		return err
	}
	var off []rueidis.Completed
	for _, p := range places {
		off = append(off, d.client.B().Srem().Key(d.copies(tableOf(p.row))).Member(string(p.row[:])).Build(),
			d.client.B().Unlink().Key(d.copied(p.row)).Build())
	}
	if err := d.all(ctx, off); err != nil {
		return err
	}
	if err := d.run(ctx, dropCopy, drops(places)); err != nil {
		return err
	}
	return d.rewriteAgain(ctx)
}

// rewriteAgain has the append-only file written anew by a rewriting that begins from now on.
func (d *DB) rewriteAgain(ctx context.Context) error {
	_, err := d.do(ctx, []rueidis.Completed{d.client.B().Set().Key(d.rewrite()).Value(rand.Text()).Build()})
	return err
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
		case value.Int32:
			b = u32(u32(u32(b, feastInt32), 4), int(v.Int()))
		case value.Int64:
			b = binary.LittleEndian.AppendUint64(u32(u32(b, feastInt64), 8), uint64(v.Int())) //nolint:gosec // the bits are meant
		case value.Timestamp:
			b = binary.LittleEndian.AppendUint64(u32(u32(b, feastTimestamp), 8), uint64(seconds(v.Int()))) //nolint:gosec // the bits are meant
		default:
			return "", fmt.Errorf("the layout of Feast does not support join keys of type %s", v.Type())
		}
	}
	return string(append(b, s.Project...)), nil
}

// feastLists is how much higher the field of a list is than that of its elements.
const feastLists = 10

// feastValue is a feast.types.Value; empty for NULL. A list, and a vector, is a message
// with the elements as its first field.
func feastValue(v value.Value) string {
	if v.IsNull() {
		return ""
	}
	field, wire := feastField(v.Type().Elem())
	if v.Type().Scalar() {
		return string(appendFeast(protowire.AppendTag(nil, field, wire), v))
	}
	var list []byte
	for e := range v.Elements() {
		if wire == protowire.BytesType {
			list = protowire.AppendTag(list, 1, wire)
		}
		list = appendFeast(list, e)
	}
	if wire != protowire.BytesType && len(list) > 0 { // numbers are packed
		list = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), list)
	}
	return string(protowire.AppendBytes(protowire.AppendTag(nil, field+feastLists, protowire.BytesType), list))
}

// feastField is where feast.types.Value has scalars of a type, and how.
func feastField(t value.Type) (protowire.Number, protowire.Type) {
	switch t {
	case value.String:
		return 2, protowire.BytesType
	case value.Int32:
		return 3, protowire.VarintType
	case value.Int64:
		return 4, protowire.VarintType
	case value.Float64:
		return 5, protowire.Fixed64Type
	case value.Float32:
		return 6, protowire.Fixed32Type
	case value.Bool:
		return 7, protowire.VarintType
	default: // a timestamp
		return 8, protowire.VarintType
	}
}

// appendFeast appends a scalar without its field.
func appendFeast(b []byte, v value.Value) []byte {
	switch v.Type() {
	case value.String:
		return protowire.AppendString(b, v.Str())
	case value.Float64:
		return protowire.AppendFixed64(b, math.Float64bits(v.Float()))
	case value.Float32:
		return protowire.AppendFixed32(b, math.Float32bits(float32(v.Float())))
	case value.Bool:
		return protowire.AppendVarint(b, protowire.EncodeBool(v.Bool()))
	case value.Timestamp:
		return protowire.AppendVarint(b, uint64(seconds(v.Int()))) //nolint:gosec // the bits are meant
	default: // a whole number
		return protowire.AppendVarint(b, uint64(v.Int())) //nolint:gosec // the bits are meant
	}
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
