// Package app puts Falaj together: the only package that sees everything.
//
// # Map
//
//   - config.go: every setting, and where it comes from.
//   - app.go: builds the services in the order in which they need each other,
//     starts the loops, listens, and stops in the opposite order.
//   - adapters.go: one domain's answer as another domain's question.
//   - reactions.go: what one domain does when another's event happens.
//   - launch.go: how child processes are confined.
//   - doctor.go: what this machine can do.
package app
