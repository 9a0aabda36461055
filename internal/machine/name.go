package machine

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Name is what records call the machine whose file systems are below root, "/" for this
// one: its host name, and a digest of /etc/machine-id that stays when the host name
// changes, such as "gpu1/5a93d7e2c014". The identifier itself is left out, because systemd's
// documentation (machine-id(5)) asks not to disclose it. A machine without one has its
// host name only.
func Name(root string) string {
	host := line(filepath.Join(root, "proc/sys/kernel/hostname"))
	var uts unix.Utsname
	if root == "/" && unix.Uname(&uts) == nil {
		host = unix.ByteSliceToString(uts.Nodename[:])
	}
	machineID := line(filepath.Join(root, "etc/machine-id"))
	if _, err := hex.DecodeString(machineID); err != nil || len(machineID) != 32 {
		return host
	}
	mac := hmac.New(sha256.New, []byte(machineID))
	mac.Write([]byte("falaj machine"))
	return strings.TrimPrefix(host+"/"+hex.EncodeToString(mac.Sum(nil))[:12], "/")
}
