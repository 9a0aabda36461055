package sandbox

import "golang.org/x/sys/unix"

// call is a system call that the observer understands.
type call int32

const (
	callOpen    call = -1 // arm64 has openat only
	callOpenat  call = unix.SYS_OPENAT
	callConnect call = unix.SYS_CONNECT
	callSendto  call = unix.SYS_SENDTO
)
