// Package archtest holds the architecture's rules as tests, each with its
// reason: who may import whom, how packages are called, and that every package
// says what it is for.
package archtest
