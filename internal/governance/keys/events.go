package keys

// KeyDestroyed is published when a key is destroyed; its body is KeyEvent.
const KeyDestroyed = "key.destroyed"

// KeyEvent is the body of the package's events.
type KeyEvent struct {
	ID      ID     `json:"id"`
	Project string `json:"project"`
	Owner   string `json:"owner"`
}
