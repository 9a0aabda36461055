// Package config is every setting of a server: where it comes from, what it may be, and how it is
// shown. It only reads: what the settings name is opened by package app.
//
// # Map
//
//   - config.go: the type, its defaults, loading and validation. fields.go: keys, variables and
//     the reference page.
//   - engine.go, remote.go, inprocess.go, gateway.go, objects.go, online.go, indexes.go: settings
//     with rules of their own, and what they are to the package that they configure.
//   - files.go: the files that settings name. paths.go: programs and libraries beside the
//     binary. disk.go: space that is left free. zone.go: where this server is.
package config
