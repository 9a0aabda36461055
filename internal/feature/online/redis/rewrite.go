package redis

import (
	"context"
	"strings"

	"github.com/redis/rueidis"

	"github.com/falaj-ml/falaj/internal/fault"
)

// rewriting is what a server was asked: to write its append-only file anew, without the
// removals that a token stands for.
type rewriting struct {
	token  string
	server string // its run ID: one that ended meanwhile did not do it
}

// forget deletes a key that still has a value.
var forget = rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

// Settled implements online.Copier. A rewriting that was under way already may have
// begun before the removal: it is waited for, and another one asked for. Who was
// interrupted asks again.
func (d *DB) Settled(ctx context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	token, err := d.ask(ctx, []rueidis.Completed{d.client.B().Get().Key(d.rewrite()).Build()})
	if err != nil || token[0] == "" {
		return err == nil, err
	}
	settled := true
	for address, node := range d.client.Nodes() {
		done, err := d.rewritten(ctx, address, node, token[0])
		if err != nil {
			return false, err
		}
		settled = settled && done
	}
	if !settled {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	n, err := forget.Exec(ctx, d.client, []string{d.rewrite()}, token).AsInt64()
	return n == 1, away(err) // else something was removed since
}

func (d *DB) rewritten(ctx context.Context, address string, node rueidis.Client, token string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	text, err := node.Do(ctx, node.B().Info().Build()).ToString()
	if err != nil {
		return false, away(err)
	}
	says := func(name string) string {
		_, rest, _ := strings.Cut(text, "\n"+name+":")
		value, _, _ := strings.Cut(rest, "\r")
		return value
	}
	this := rewriting{token, says("run_id")}
	switch {
	case says("aof_enabled") == "0":
		return true, nil
	case says("aof_rewrite_in_progress") != "0" || says("aof_rewrite_scheduled") != "0":
		return false, nil
	case d.asked[address] == this && says("aof_last_bgrewrite_status") == "ok":
		return true, nil
	}
	err = node.Do(ctx, node.B().Bgrewriteaof().Build()).Error()
	said, ok := rueidis.IsRedisErr(err)
	switch {
	case ok && strings.Contains(said.Error(), "in progress"): // it began meanwhile
		return false, nil
	case ok:
		return false, fault.New(fault.Unavailable, "Redis cannot rewrite its append-only file, which contains removed features unencrypted: %s", said.Error()).
			WithHint("Grant BGREWRITEAOF to the user of online.url.")
	case err != nil:
		return false, away(err)
	}
	d.asked[address] = this
	return false, nil
}
