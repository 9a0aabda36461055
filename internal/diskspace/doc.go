// Package diskspace measures the free space of disks, refuses work that a disk has no space for,
// and keeps a reserve that a full disk gives back (reserve.go).
package diskspace
