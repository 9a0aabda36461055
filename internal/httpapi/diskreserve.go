package httpapi

import (
	"io"
	"net/http"
)

// requireDiskReserve refuses what would grow the disk while its reserve is used up, before the
// body is read and while a file is: what is left is for what was begun, for refusals on record
// and for deleting.
func (s *Server) requireDiskReserve(route *Route, handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := s.checkDiskReserve(); err != nil {
			s.fail(w, r, err)
			return
		}
		if route.Body.upload {
			r.Body = &reserveBody{ReadCloser: r.Body, check: s.checkDiskReserve, untilCheck: reserveEvery}
		}
		handle(w, r)
	}
}

// reserveEvery is how many bytes of a file are read before the reserve is checked
// again: so many and those of other uploads come out of limits.free.
const reserveEvery = 4 << 20

// reserveBody is a body that ends with an error when the reserve of the disk is used up.
type reserveBody struct {
	io.ReadCloser
	check      func() error
	untilCheck int // bytes to read until the next check
}

func (b *reserveBody) Read(p []byte) (int, error) {
	if b.untilCheck <= 0 {
		if err := b.check(); err != nil {
			return 0, err
		}
		b.untilCheck = reserveEvery
	}
	n, err := b.ReadCloser.Read(p)
	b.untilCheck -= n
	return n, err
}
