package config

import (
	"github.com/falaj-ml/falaj/internal/feature/online/redis"
)

// What an acknowledged write of an online feature means.
const (
	synced   = "synced"
	inMemory = "in-memory"
)

// How Redis is laid out.
const (
	falajLayout = "falaj"
	feastLayout = "feast"
)

// Redis is how the online store is reached, but for its files.
func (c Config) Redis() redis.Config {
	return redis.Config{URL: c.Online.URL, Prefix: c.Online.Prefix, Loses: c.Online.Acknowledged == inMemory, Feast: c.Online.Layout == feastLayout}
}
