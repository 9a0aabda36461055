// Package doctor checks this machine and a configuration for `falaj doctor`: what works, what
// does not, and what to do. It changes nothing.
package doctor
