// Package app puts Falaj together: the only package that sees everything.
//
// # Map
//
//   - app.go: opens the store, governance and the domains in the order in which
//     they need each other, starts the loops, listens, and stops in the opposite
//     order.
//   - governance.go, domains.go: what is opened, and with what.
//   - late.go: services that are opened after their user. What takes several domains is in
//     internal/usecase.
//   - launch.go: the hidden child modes, and how child processes are confined.
//   - housekeeping.go: background loops; the domains that say what a project still contains.
//
// Settings are in package config, the checks of `falaj doctor` in package doctor.
package app
