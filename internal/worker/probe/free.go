package probe

import "golang.org/x/sys/unix"

// free is the space that is left for a directory's files.
func free(dir string) uint64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0
	}
	return st.Bavail * uint64(st.Bsize) //nolint:gosec // A block's size is positive.
}
