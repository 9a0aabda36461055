// Package doctor checks this machine and a configuration for `falaj doctor`: what works, what
// does not, and what to do. It changes nothing.
//
// # Map
//
//   - doctor.go: Check, which runs all checks in order and prints their findings; the checks of
//     this machine. A new check is a function that returns findings, and a line in Check.
//   - stores.go: PostgreSQL, Redis, the bucket and the engines. certificate.go: certificates.
//     upgrade.go: whether the database waits for an upgrade.
package doctor
