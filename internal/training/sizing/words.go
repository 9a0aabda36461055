package sizing

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/resource"
)

// Worth a sentence is what is so much cheaper or faster.
const (
	muchCheaper = 0.9
	muchFaster  = 0.8
	dearAtMost  = 1.5
)

// Sentence says in words what a job used and what would be better: "used 22 % of an
// A100 and 6 of 80 GiB; a T4 would take 1.1x the time at 0.3x the price (measured
// in 4 attempts)". It is empty when there is nothing to say.
func Sentence(u Use, ask Ask, a Answer) string {
	parts := []string{used(u)}
	if w := ask.words(); w != "" {
		parts = append(parts, w)
	}
	if o, ok := a.best(); ok {
		parts = append(parts, o.words())
	} else if len(a.Explore) > 0 {
		parts = append(parts, a.Explore[0].words())
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "; ")
}

func used(u Use) string {
	if a := u.Accelerators; a != nil {
		name := Article(a.Device)
		if a.Count > 1 {
			name = fmt.Sprintf("%d %s", a.Count, Short(a.Device))
		}
		s := fmt.Sprintf("used %.0f %% of %s and %s", 100*a.Busy, name, gib(a.Memory))
		if a.Has > 0 {
			s = fmt.Sprintf("used %.0f %% of %s and %s of %s", 100*a.Busy, name, strings.TrimSuffix(gib(a.Memory), " GiB"), gib(a.Has))
		}
		if a.Count > 1 {
			s += " of each"
		}
		return s
	}
	if u.AskedCores == 0 || u.Memory == 0 && u.Cores == 0 {
		return ""
	}
	s := fmt.Sprintf("used %s of %s", short(u.Cores), plural(u.AskedCores, "core"))
	if u.Memory > 0 && u.Asked > 0 {
		s += fmt.Sprintf(" and %s of %s", strings.TrimSuffix(gib(u.Memory), " GiB"), gib(u.Asked))
	}
	return s
}

func (a Ask) words() string {
	var parts []string
	if a.Cores > 0 {
		parts = append(parts, plural(a.Cores, "core"))
	}
	if a.Memory > 0 {
		parts = append(parts, gib(a.Memory))
	}
	if len(parts) == 0 {
		return ""
	}
	return strings.Join(parts, " and ") + " would do"
}

// best is what is worth a sentence: the cheapest of what is known best, else what is
// much faster and not much dearer. What an interval leaves open is not said to be
// cheaper.
func (a Answer) best() (Option, bool) {
	for _, known := range []Known{Measured, Fitted, LikeJobs, Bound} {
		for _, o := range a.Options { // the cheapest first
			if o.Known == known && o.Price != nil && max(o.Price.Is, o.Price.High) <= muchCheaper {
				return o, true
			}
		}
	}
	var found Option
	for _, o := range a.Options {
		if o.Known != Bound && max(o.Time.Is, o.Time.High) <= muchFaster && (o.Price == nil || o.Price.Is <= dearAtMost) && (found.Time.Is == 0 || o.Time.Is < found.Time.Is) {
			found = o
		}
	}
	return found, found.Time.Is > 0
}

func (o Option) words() string {
	name := Article(o.Device)
	if o.Known == Fitted {
		name = plural(float64(o.Workers), "worker")
	}
	most, at := "", "at"
	if o.Known == Bound {
		most, at = "at most ", "and"
	}
	s := fmt.Sprintf("%s would take %s%sx the time", name, most, short(o.Time.Is))
	if o.Price != nil {
		s += fmt.Sprintf(" %s %sx the price", at, short(o.Price.Is))
	}
	return s + " (" + o.Basis() + ")"
}

func (t Trial) words() string {
	length := plural(math.Round(t.Minutes), "minute")
	if t.Minutes < 1 {
		length = "a run"
	}
	return fmt.Sprintf("%s on %s would show whether it is cheaper (%s)", length, Article(t.Device), t.Basis)
}

// Basis says how an option is known.
func (o Option) Basis() string {
	switch o.Known {
	case Measured:
		return "measured in " + plural(float64(o.Attempts), "attempt")
	case Fitted:
		return "fitted to " + plural(float64(o.Attempts), "attempt")
	case LikeJobs:
		return "from " + plural(float64(o.Families), "like job")
	case Bound:
		return "a bound from published peaks"
	}
	return string(o.Known)
}

func plural(n float64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return short(n) + " " + what + "s"
}

// short is a number with two digits that count, or all before the point.
func short(v float64) string {
	switch {
	case v >= 9.95:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 0.095:
		return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
	}
	return strconv.FormatFloat(v, 'g', 1, 64)
}

func gib(b resource.Bytes) string {
	if float64(b) < 0.95*float64(resource.GiB) {
		return fmt.Sprintf("%.0f MiB", math.Ceil(float64(b)/float64(resource.MiB)))
	}
	return short(float64(b)/float64(resource.GiB)) + " GiB"
}

var model = regexp.MustCompile(`^[A-Z]{1,3}\d{1,4}[A-Z]{0,2}$`)

// Short is what people call a device: "A100" of "NVIDIA A100-SXM4-80GB". A name
// that is none of a vendor's models stays as it is.
func Short(device string) string {
	for _, w := range strings.FieldsFunc(device, func(r rune) bool { return r == ' ' || r == '-' }) {
		if w == "NVIDIA" || w == "Tesla" || w == "AMD" || w == "Instinct" {
			continue
		}
		if model.MatchString(w) {
			return w
		}
		break
	}
	return device
}

// Article is the short name with "a" or "an".
func Article(device string) string {
	s := Short(device)
	vowels := "AEIOUaeiou"
	if model.MatchString(s) {
		vowels = "AEFHILMNORSX" // the names of the letters
	}
	if s != "" && strings.ContainsRune(vowels, rune(s[0])) {
		return "an " + s
	}
	return "a " + s
}
