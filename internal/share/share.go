// Package share divides what tenants have in common: slots for work, open
// connections, and rates.
//
//   - pool.go: Pool gives out a fixed number of slots. It bounds what one project
//     and one principal may hold, keeps the last free slot for a project that
//     holds none, and takes turns between the projects, and within a project
//     between the principals, that wait.
//   - connections.go: Connections bounds the open connections of all listeners below
//     the limit on open files.
//   - turn.go: Turn is a processor for heavy work, of which one is always left free.
//   - rate.go: Limiter is a rate per key, such as an address, in bounded memory.
//   - usage.go: what is in use, waits and was refused, by the name of the limit.
//
// All of it is of this process and counts time by the monotonic clock, so a wall
// clock that jumps changes nothing. Every refusal is fault.Exhausted, names the
// limit and says which share is used up and when to ask again.
//
// docs/reference/shared-resources.md lists every limit; a test compares it with the code.
package share

// Owner is for whom a slot is taken. An empty Principal is the server's own work
// for a project: it counts for the project alone.
type Owner struct{ Project, Principal string }
