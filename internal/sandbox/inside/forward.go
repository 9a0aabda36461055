package inside

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/sandbox/internal/wire"
)

const (
	maxConns    = 256 // of one forward
	dialTimeout = 10 * time.Second
	maxLookups  = 256 // host names that are reported
)

// listen opens the forwards' ports, and port 53 inside an own network. It runs
// before the root changes, because it opens the sockets' directories.
func (b *box) listen() error {
	for i, f := range b.spec.Forwards {
		at := filepath.Dir(f.Socket)
		if b.spec.Image != nil {
			at = socketsInside(i)
		}
		dir, err := unix.Open(at, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("directory of %s: %w", filepath.Base(f.Socket), err)
		}
		// Through the descriptor the directory is found when it is no longer
		// visible, and a long path fits.
		target := "/proc/self/fd/" + strconv.Itoa(dir) + "/" + filepath.Base(f.Socket)
		var plain net.ListenConfig
		plain.SetMultipathTCP(false) // there is one path, and the kernel would set up the protocol for it
		l, err := plain.Listen(context.Background(), "tcp4", "127.0.0.1:"+strconv.Itoa(f.Port))
		if err != nil {
			return err
		}
		for _, name := range f.Env {
			b.env[name] = "http://" + l.Addr().String()
		}
		b.serving = append(b.serving, func() { forward(l, target) })
	}
	if !b.spec.Separate {
		return nil
	}
	p, err := new(net.ListenConfig).ListenPacket(context.Background(), "udp4", "127.0.0.1:53")
	if err != nil {
		return err
	}
	b.serving = append(b.serving, func() { answerLookups(p, b.spec.Names) })
	return nil
}

// forward passes each connection to a new one to the socket.
func forward(l net.Listener, target string) {
	slots := make(chan struct{}, maxConns)
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			defer c.Close()
			d := net.Dialer{Timeout: dialTimeout}
			to, err := d.DialContext(context.Background(), "unix", target)
			if err != nil {
				return // the program sees a closed connection and tries again
			}
			defer to.Close()
			splice(c, to)
		}()
	}
}

// splice copies both ways and passes on each side's end.
func splice(a, b net.Conn) {
	var both sync.WaitGroup
	one := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		if w, ok := to.(interface{ CloseWrite() error }); ok {
			_ = w.CloseWrite()
		}
	}
	both.Go(func() { one(a, b) })
	both.Go(func() { one(b, a) })
	both.Wait()
}

// answerLookups says of every name that it does not exist, and reports those
// that the policy does not give.
func answerLookups(p net.PacketConn, allowed []string) {
	buf := make([]byte, 512)
	seen := map[string]bool{}
	for {
		n, from, err := p.ReadFrom(buf)
		if err != nil {
			return
		}
		name, answer, ok := refuseLookup(buf[:n])
		if !ok {
			continue
		}
		if !slices.Contains(allowed, name) && !seen[name] && len(seen) < maxLookups {
			seen[name] = true
			tell(wire.Message{Lookup: name})
		}
		_, _ = p.WriteTo(answer, from)
	}
}

// refuseLookup reads the name of a DNS question and makes the answer NXDOMAIN.
func refuseLookup(q []byte) (name string, answer []byte, ok bool) {
	const header, response, recursion, nxdomain = 12, 0x80, 0x80, 3
	if len(q) < header || q[2]&response != 0 || q[4] != 0 || q[5] != 1 {
		return "", nil, false
	}
	var labels []string
	i := header
	for {
		if i >= len(q) {
			return "", nil, false
		}
		n := int(q[i])
		i++
		if n == 0 {
			break
		}
		if n > 63 || i+n > len(q) {
			return "", nil, false
		}
		labels = append(labels, strings.ToValidUTF8(strings.ToLower(string(q[i:i+n])), "?"))
		i += n
	}
	if i+4 > len(q) || len(labels) == 0 {
		return "", nil, false
	}
	answer = append([]byte(nil), q[:i+4]...)
	answer[2] |= response
	answer[3] = recursion | nxdomain
	clear(answer[6:header]) // no records follow the question
	return strings.Join(labels, "."), answer, true
}
