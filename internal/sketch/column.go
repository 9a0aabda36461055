package sketch

import (
	"math"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Kind says what a Column summarises.
type Kind string

// The kinds of column.
const (
	Numeric     Kind = "numeric"
	Categorical Kind = "categorical"
)

// Column is the summary of one feature, or of the scores, over one window or
// over a training set. Make one with NewNumeric or NewCategorical.
type Column struct {
	kind     Kind
	missing  uint64
	infinite uint64 // ±Inf and beyond MaxMagnitude; in nothing else
	mistyped uint64 // text in a numeric column

	numbers *numeric     // of a numeric column
	texts   *categorical // of a categorical one
}

// NewNumeric returns an empty summary of numbers. The seed decides which values
// are sampled.
func NewNumeric(seed uint64) *Column {
	return &Column{kind: Numeric, numbers: newNumeric(seed)}
}

// NewCategorical returns an empty summary of categories.
func NewCategorical(_ uint64) *Column {
	return &Column{kind: Categorical, texts: newCategorical()}
}

// MaxMagnitude is the largest number, without its sign, that statistics are made
// of: squares of greater ones are no longer numbers. They count as infinite.
const MaxMagnitude = 1e150

// Add adds a number: NaN counts as missing, ±Inf apart. In a categorical column
// the number's shortest decimal form is the category.
func (c *Column) Add(v float64) {
	switch {
	case math.IsNaN(v):
		c.missing++
	case c.kind == Categorical:
		c.texts.add(numberText(v))
	case math.Abs(v) > MaxMagnitude:
		c.infinite++
	default:
		c.numbers.add(v)
	}
}

// AddText adds a category; the empty text counts as missing. In a numeric
// column a text counts as of the wrong type.
func (c *Column) AddText(text string) {
	switch {
	case text == "":
		c.missing++
	case c.kind == Numeric:
		c.mistyped++
	default:
		c.texts.add(text)
	}
}

// Merge adds all that other has seen. It fails with Conflict when the kinds
// differ.
func (c *Column) Merge(other *Column) error {
	if other == nil {
		return nil
	}
	if c.kind != other.kind {
		return fault.New(fault.Conflict, "a %s column cannot be merged into a %s one", other.kind, c.kind)
	}
	c.missing += other.missing
	c.infinite += other.infinite
	c.mistyped += other.mistyped
	if c.kind == Numeric {
		c.numbers.merge(other.numbers)
	} else {
		c.texts.merge(other.texts)
	}
	return nil
}

// Kind is numeric or categorical.
func (c *Column) Kind() Kind { return c.kind }

// Rows is how many values were added, of every sort.
func (c *Column) Rows() uint64 { return c.Count() + c.missing + c.infinite + c.mistyped }

// Count is how many values are in the statistics: finite numbers, categories.
func (c *Column) Count() uint64 {
	if c.kind == Numeric {
		return c.numbers.kll.Count()
	}
	return c.texts.count
}

// Missing is how many values were missing.
func (c *Column) Missing() uint64 { return c.missing }

// Infinite is how many numbers were +Inf, -Inf or beyond MaxMagnitude.
func (c *Column) Infinite() uint64 { return c.infinite }

// Mistyped is how many texts came for a number.
func (c *Column) Mistyped() uint64 { return c.mistyped }

// Min is the smallest finite number; NaN when there is none.
func (c *Column) Min() float64 { return c.KLL().Min() }

// Max is the largest finite number; NaN when there is none.
func (c *Column) Max() float64 { return c.KLL().Max() }

// Mean is the mean of the finite numbers; NaN when there is none.
func (c *Column) Mean() float64 {
	if c.kind != Numeric || c.Count() == 0 {
		return math.NaN()
	}
	return c.numbers.mean
}

// Std is the standard deviation of the finite numbers, divided by n, not n-1;
// NaN when there is none.
func (c *Column) Std() float64 {
	if c.kind != Numeric || c.Count() == 0 {
		return math.NaN()
	}
	return math.Sqrt(c.numbers.m2 / float64(c.Count()))
}

// KLL answers ranks and quantiles of a numeric column. That of a categorical
// one is empty. The caller does not change it.
func (c *Column) KLL() *KLL {
	if c.kind != Numeric {
		return NewKLL(DefaultK, 0)
	}
	return c.numbers.kll
}

// Sample is a uniform random sample of at most MaxSample finite numbers, in no
// order that means something; whole says that it is all of them. The caller
// does not change it.
func (c *Column) Sample() (values []float64, whole bool) {
	if c.kind != Numeric {
		return nil, false
	}
	return c.numbers.sample, c.Count() == uint64(len(c.numbers.sample))
}

// Weighted is the best there is of the numbers: all of them with weight 1 while
// they are at most MaxSample, what KLL keeps afterwards. Sorted.
func (c *Column) Weighted() Weighted {
	if c.kind != Numeric {
		return Weighted{}
	}
	return c.numbers.weighted()
}

// Category is a category and how often it came.
type Category struct {
	Text  string `json:"text"`
	Count uint64 `json:"count"` // never more than the truth
}

// Categories are the categories known by name, most frequent first, ties by
// text; other is how many rows had another one. Of a numeric column they are
// its values while it has at most MaxValues different ones, in ascending order;
// ok is false when it has more.
func (c *Column) Categories() (known []Category, other uint64, ok bool) {
	if c.kind == Numeric {
		return c.numbers.categories()
	}
	known, other = c.texts.categories()
	return known, other, true
}

// Exact says that every category is known by name with its exact count.
func (c *Column) Exact() bool {
	if c.kind == Numeric {
		return c.numbers.values != nil
	}
	return !c.texts.full
}

// Distinct is the number of different values: exact up to MaxCategories
// categories and MaxValues numbers. Above, an estimate with a standard error of
// 0.8 % for categories, and for numbers only "more than MaxValues".
func (c *Column) Distinct() (n uint64, exact bool) {
	if c.kind == Categorical {
		return c.texts.distinct()
	}
	if c.numbers.values == nil {
		return MaxValues + 1, false
	}
	return uint64(len(c.numbers.values)), true
}

// Size is about how many bytes the summary takes.
func (c *Column) Size() int {
	if c.kind == Numeric {
		return 64 + 8*(len(c.numbers.sample)+c.numbers.kll.size) + 16*len(c.numbers.values)
	}
	n := 64
	for _, e := range c.texts.entries {
		n += len(e.text) + 32
	}
	return n
}

// MarshalBinary returns the binary form, which UnmarshalBinary reads.
func (c *Column) MarshalBinary() ([]byte, error) {
	kind := kindNumeric
	if c.kind == Categorical {
		kind = kindCategorical
	}
	w := newWriter(kind)
	w.uint(c.missing)
	w.uint(c.infinite)
	w.uint(c.mistyped)
	if c.kind == Numeric {
		c.numbers.append(w)
		return w.bytes, nil
	}
	if err := c.texts.append(w); err != nil {
		return nil, err
	}
	return w.bytes, nil
}

// UnmarshalBinary replaces c. It fails with Invalid or TooLarge on bytes that
// MarshalBinary did not write, and leaves c as it was.
func (c *Column) UnmarshalBinary(b []byte) error {
	r := newReader(b, kindNumeric, kindCategorical)
	got := Column{missing: r.uint(), infinite: r.uint(), mistyped: r.uint()}
	if max(got.missing, got.infinite, got.mistyped) > maxCount {
		r.fail("a column has an impossible number of rows")
	}
	if r.kind == kindCategorical {
		got.kind, got.texts = Categorical, readCategorical(r)
	} else {
		got.kind, got.numbers = Numeric, readNumeric(r)
	}
	if err := r.end(); err != nil {
		return fault.Wrap(err, "reading a column")
	}
	*c = got
	return nil
}

// maxCount keeps sums of counts far from overflow.
const maxCount = 1 << 52
