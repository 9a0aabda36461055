package redis

import (
	"context"
	"strconv"

	"github.com/redis/rueidis"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online"
)

// putIf is put of several rows, if a version of the first key is as it was. ARGV has
// the version's stamp, the bytes after all members with it, and its value, empty for
// none; then for each other key how many versions follow, and those as put has them.
// What a script writes is in the append-only file whole or not at all.
var putIf = rueidis.NewLuaScript(`
local was = redis.call('ZRANGEBYLEX', KEYS[1], '[' .. ARGV[1], ARGV[2], 'LIMIT', 0, 1)
if ARGV[3] == '' then
  if #was > 0 then return 0 end
elseif was[1] ~= ARGV[1] .. ARGV[3] then
  return 0
end
local at = 4
for k = 2, #KEYS do
  local versions = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, versions do
    redis.call('ZREMRANGEBYLEX', KEYS[k], '[' .. ARGV[at], ARGV[at + 1])
    redis.call('ZADD', KEYS[k], 0, ARGV[at] .. ARGV[at + 2])
    at = at + 3
  end
end;
return 1`)

// WriteIf implements online.Fenced on one server. In a cluster the rows are on
// several, and no step is one of all.
func (d *DB) WriteIf(ctx context.Context, was online.Version, versions []online.Version) (bool, error) {
	if d.client.Mode() == rueidis.ClientModeCluster {
		return false, fault.New(fault.Unsupported, "a Redis cluster does not support multi-row writes")
	}
	if err := d.expected(ctx); err != nil {
		return false, err
	}
	rows, order, err := d.list(ctx, versions)
	if err != nil {
		return false, err
	}
	stamp := was.Stamp.Append(nil)
	keys, args := []string{d.row(was.Row)}, []string{string(stamp), after(stamp), string(was.Sealed)}
	for _, row := range order {
		keys = append(keys, d.row(row))
		args = append(append(args, strconv.Itoa(len(rows[row])/3)), rows[row]...)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	n, err := putIf.Exec(ctx, d.client, keys, args).AsInt64()
	if err != nil || n != 1 {
		return false, away(err)
	}
	return true, d.expected(ctx)
}
