// Package coding reads the names of HTTP's content codings: of what a body is in
// (RFC 9110, 8.4), and of what an answer may be in (12.5.3). Names are compared without
// their case, and x-gzip is gzip (8.4.1).
package coding

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// The codings that Falaj knows. Which of them there are is for each door to say.
const (
	Identity = "" // as it is
	Gzip     = "gzip"
	Deflate  = "deflate"
	Brotli   = "br"
)

// ErrUnknown is in the chain of Of's errors: 415 Unsupported Media Type (15.5.16).
var ErrUnknown = errors.New("unknown content coding")

// Of is the coding that a Content-Encoding header names, of those that a door knows;
// Identity without one. Error: fault.Unsupported, with ErrUnknown in its chain.
func Of(header string, known ...string) (string, error) {
	found := Identity
	for name := range strings.SplitSeq(header, ",") {
		name = canonical(name)
		if name == Identity {
			continue
		}
		if found != Identity { // one inside the other
			return "", unknown(header, known)
		}
		for _, k := range known {
			if name == k {
				found = k
			}
		}
		if found == Identity {
			return "", unknown(header, known)
		}
	}
	return found, nil
}

func unknown(header string, known []string) error {
	hint := "Send the body as it is, without this header."
	if len(known) > 0 {
		hint = "Send it in " + strings.Join(known, " or ") + ", or as it is."
	}
	return &fault.Error{Kind: fault.Unsupported, Message: "the Content-Encoding " + strconv.Quote(cut(header)) + " is not known here", Hint: hint, Err: ErrUnknown}
}

// cut bounds what an error repeats.
func cut(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), 40)], "\uFFFD")
}

func canonical(name string) string {
	name = strings.TrimSpace(name)
	switch {
	case strings.EqualFold(name, Gzip) || strings.EqualFold(name, "x-gzip"):
		return Gzip
	case strings.EqualFold(name, Deflate):
		return Deflate
	case strings.EqualFold(name, Brotli):
		return Brotli
	case strings.EqualFold(name, "identity"):
		return Identity
	}
	return name
}

// Accepted is the coding that an answer may be in, by an Accept-Encoding header: of those
// that are offered the one with the greatest weight, and of equals the first; Identity when
// none may, or when the header gives the plain answer more weight than any.
func Accepted(header string, offered ...string) string {
	if header == "" {
		return Identity
	}
	best, most := Identity, 0.0
	if w, named := weight(header, Identity); named {
		most = math.Nextafter(w, 0) // an equal coding is better: the answer is smaller
	}
	for _, o := range offered {
		w, named := weight(header, o)
		if !named {
			w, _ = weight(header, "*")
		}
		if w > most {
			best, most = o, w
		}
	}
	return best
}

// weight is what a header says of a coding; 0 refuses it, and what is no weight is 0.
func weight(header, coding string) (w float64, named bool) {
	for item := range strings.SplitSeq(header, ",") {
		name, parameters, _ := strings.Cut(item, ";")
		if strings.TrimSpace(name) == "" || canonical(name) != coding {
			continue
		}
		w, named = 1, true
		for p := range strings.SplitSeq(parameters, ";") {
			key, value, ok := strings.Cut(p, "=")
			if !ok || !strings.EqualFold(strings.TrimSpace(key), "q") {
				continue
			}
			q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil || !(q >= 0 && q <= 1) {
				q = 0
			}
			w = q
		}
	}
	return w, named
}
