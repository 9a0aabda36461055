// Package project is the unit of tenancy: members, policy, keys, residency and
// quota hang on it.
package project

// Name is a project's name, unique in the installation. Names obey
// id.CheckName. The empty Name is the system itself.
type Name string
