//go:build race

package rollout

func init() { slow = true }
