package drift

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sketch"
)

// Method names a test or a distance.
type Method string

// The methods. Those of the first group give a p-value, those of the second a
// distance. Which columns each takes is in the table of Methods.
const (
	// Auto is what Choose chooses.
	Auto Method = "auto"

	// KS is Kolmogorov–Smirnov. The p-value is exact while n·m ≤ 1,000,000,
	// asymptotic above; Result.Variant says which.
	KS Method = "ks"
	// KSAsymptotic is KS with the asymptotic p-value always.
	KSAsymptotic Method = "ks_asymptotic"
	// CramerVonMises is exact up to 20 rows on each side; where values are equal
	// its p-value is by 1,000 permutations.
	CramerVonMises Method = "cramer_von_mises"
	// AndersonDarling has p-values in [0.001, 0.25] only; where values are equal
	// by 1,000 permutations.
	AndersonDarling Method = "anderson_darling"
	// MannWhitney is two-sided. Evidently's is one-sided, half of it.
	MannWhitney Method = "mann_whitney"
	// TTest is Student's, two-sided, with pooled variance; on all rows.
	TTest Method = "t_test"
	// EppsSingleton compares characteristic functions; from five rows on. Its
	// p-value is by 1,000 permutations when one side has 1.5 times as many rows.
	EppsSingleton Method = "epps_singleton"
	// ChiSquare is the test of homogeneity of the 2×k table: both sides are
	// samples. Rare categories are put together.
	ChiSquare Method = "chi_square"
	// ChiSquareFit takes the reference's shares as known without error, as
	// Evidently does. It rejects too often when the reference is not much larger
	// than the window.
	ChiSquareFit Method = "chi_square_fit"
	// G is the log-likelihood form of ChiSquareFit.
	G Method = "g"
	// Z compares the shares of two values; Fisher's test where counts are small.
	Z Method = "z"
	// Fisher is the exact test of a 2×2 table.
	Fisher Method = "fisher"
	// TVD is the total variation distance with a p-value by 1,000 permutations.
	TVD Method = "tvd"

	// PSI is the population stability index.
	PSI Method = "psi"
	// JensenShannon is the distance (root of the divergence) in base 2.
	JensenShannon Method = "jensen_shannon"
	// KL is the divergence of the reference from the window, in nats.
	KL Method = "kl"
	// Hellinger is the Hellinger distance.
	Hellinger Method = "hellinger"
	// LInfinity is the greatest difference of a share.
	LInfinity Method = "l_infinity"
	// Wasserstein is the earth mover's distance in the unit of the values.
	Wasserstein Method = "wasserstein"
	// WassersteinNormed is Wasserstein in standard deviations of the reference.
	WassersteinNormed Method = "wasserstein_normed"
	// Energy is the energy distance, in the square root of the values' unit.
	Energy Method = "energy"
)

// takes says which columns a method compares.
type takes uint8

const (
	samples  takes = iota // numbers, by value
	weighted              // numbers, by their distribution functions
	counts                // categories; numbers as values or, of many, in bins
	pairs                 // categories or numbers with two values
)

// traits is what is known of each method.
var traits = map[Method]struct {
	takes    takes
	distance bool
}{
	KS: {samples, false}, KSAsymptotic: {samples, false}, CramerVonMises: {samples, false},
	AndersonDarling: {samples, false}, MannWhitney: {samples, false}, TTest: {samples, false},
	EppsSingleton: {samples, false}, ChiSquare: {counts, false}, ChiSquareFit: {counts, false},
	G: {counts, false}, TVD: {counts, false}, Z: {pairs, false}, Fisher: {pairs, false},
	PSI: {counts, true}, JensenShannon: {counts, true}, KL: {counts, true}, Hellinger: {counts, true},
	LInfinity: {counts, true}, Wasserstein: {weighted, true}, WassersteinNormed: {weighted, true},
	Energy: {weighted, true},
}

// Methods are the names that Test takes, Auto included, in order.
func Methods() []Method {
	return slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(traits)), Auto)))
}

// Distance says that the method gives a distance and no p-value.
func (m Method) Distance() bool { return traits[m].distance }

// How a p-value was found.
const (
	exactly    = "exact"
	asymptotic = "asymptotic"
	permuted   = "permutation"
)

// Options are how a comparison is judged.
type Options struct {
	// Alpha is the level of a test: the chance of a false alarm. 0 means 0.05.
	Alpha float64
	// Threshold is from which on a distance is drift. 0 means 0.1; for Energy both
	// mean 0.1·√(standard deviation of the reference). Sampling noise raises it.
	Threshold float64
	// Seed decides the permutations.
	Seed uint64
}

// Outcome says whether there was a comparison.
type Outcome string

// The outcomes.
const (
	Compared  Outcome = "compared"
	Undecided Outcome = "undecided" // Result.Note says why; Drifted is false
)

// Result is one comparison.
type Result struct {
	Method    Method
	Variant   string // "exact", "asymptotic", "permutation", or empty
	Outcome   Outcome
	Statistic float64 // finite
	PValue    float64 // NaN of distances and when there was no comparison
	Adjusted  float64 // PValue after Correct; NaN before
	Threshold float64 // α of a test, the distance from which on it is drift
	Drifted   bool
	Reference uint64 // rows compared; of a large column, those of its sample
	Current   uint64
	Note      string // in words: what limits the result, or why there is none
}

type resultJSON struct {
	Method    Method   `json:"method"`
	Variant   string   `json:"variant,omitempty"`
	Outcome   Outcome  `json:"outcome"`
	Statistic float64  `json:"statistic"`
	PValue    *float64 `json:"p_value"`
	Adjusted  *float64 `json:"adjusted_p_value,omitempty"`
	Threshold float64  `json:"threshold"`
	Drifted   bool     `json:"drifted"`
	Reference uint64   `json:"reference_rows"`
	Current   uint64   `json:"current_rows"`
	Note      string   `json:"note,omitempty"`
}

// MarshalJSON writes NaN as null, which JSON does not have.
func (r Result) MarshalJSON() ([]byte, error) {
	return json.Marshal(resultJSON{
		r.Method, r.Variant, r.Outcome, r.Statistic, number(r.PValue), number(r.Adjusted),
		r.Threshold, r.Drifted, r.Reference, r.Current, r.Note,
	})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Result) UnmarshalJSON(b []byte) error {
	var j resultJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return fault.New(fault.Invalid, "reading a drift result: %w", err)
	}
	*r = Result{
		j.Method, j.Variant, j.Outcome, j.Statistic, orNaN(j.PValue), orNaN(j.Adjusted),
		j.Threshold, j.Drifted, j.Reference, j.Current, j.Note,
	}
	return nil
}

func number(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

func orNaN(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}

const (
	smallReference = 1000 // rows up to which a test is chosen, a distance above
	fewValues      = 5    // different numbers up to which they are categories
)

// Choose is the method for two columns:
//
//	reference            numbers, > 5 different   numbers ≤ 5, categories
//	≤ 1,000 rows         KS                       Z when ≤ 2 values, else ChiSquare
//	> 1,000 rows         WassersteinNormed        JensenShannon
//
// On large samples a test finds differences that nobody cares about; a distance
// asks how large they are. The table is Evidently's, and so are its numbers; its
// chi-square is ChiSquareFit, here it is the test that stays valid when both
// sides are samples.
func Choose(ref, cur *sketch.Column) Method {
	values := distinct(ref, cur)
	few := values <= fewValues || ref.Kind() == sketch.Categorical || cur.Kind() == sketch.Categorical
	small := ref.Count() <= smallReference
	switch {
	case small && !few:
		return KS
	case small && values <= 2:
		return Z
	case small:
		return ChiSquare
	case few:
		return JensenShannon
	default:
		return WassersteinNormed
	}
}

// distinct is how many different values both columns have together, as far as
// it matters to Choose.
func distinct(ref, cur *sketch.Column) int {
	seen := map[string]bool{}
	for _, c := range []*sketch.Column{ref, cur} {
		known, other, ok := c.Categories()
		if !ok || other > 0 {
			return sketch.MaxCategories + 1
		}
		for _, k := range known {
			seen[k.Text] = true
		}
	}
	return len(seen)
}

// Test compares the window cur with the baseline ref. A test runs on all values
// of a column up to sketch.MaxSample, on a uniform sample of so many above; TTest
// and methods on categories always on all. Distances run on all values up to
// there and on the KLL sketch above. Errors: Invalid for an unknown method, a
// method that does not fit the columns, or options out of range.
func Test(method Method, ref, cur *sketch.Column, opts Options) (Result, error) {
	if ref == nil || cur == nil {
		return Result{}, fault.New(fault.Invalid, "a comparison requires a baseline and a window")
	}
	if method == Auto || method == "" {
		method = Choose(ref, cur)
	}
	t, ok := traits[method]
	if !ok {
		return Result{}, fault.New(fault.Invalid, "there is no drift method %q", method).WithHint("The methods are %v.", Methods())
	}
	opts, err := opts.withDefaults()
	if err != nil {
		return Result{}, err
	}
	if (t.takes == samples || t.takes == weighted) && ref.Kind() == sketch.Categorical && cur.Kind() == sketch.Categorical {
		return Result{}, fault.New(fault.Invalid, "%s compares numbers, and the column has categories", method).
			WithHint("Use auto, chi_square or jensen_shannon.")
	}
	c := comparison{method: method, ref: ref, cur: cur, opts: opts}
	c.Result = Result{
		Method: method, Outcome: Compared, PValue: math.NaN(), Adjusted: math.NaN(),
		Threshold: opts.Alpha, Reference: ref.Count(), Current: cur.Count(),
	}
	if t.distance {
		c.Threshold = opts.Threshold
	}
	if why := cannot(ref, cur); why != "" {
		return c.undecided(why), nil
	}
	switch t.takes {
	case samples:
		return c.bySamples(), nil
	case weighted:
		return c.byFunctions(), nil
	case pairs:
		return c.byPair(), nil
	default:
		return c.byCounts(), nil
	}
}

// Samples is Test of two lists of numbers; NaN is missing.
func Samples(method Method, ref, cur []float64, opts Options) (Result, error) {
	if max(len(ref), len(cur)) > sketch.MaxSample {
		return Result{}, fault.New(fault.TooLarge, "the samples have %d and %d values, over the limit of %d", len(ref), len(cur), sketch.MaxSample).
			WithHint("Summarise them in a sketch.Column, and call Test.")
	}
	a, b := sketch.NewNumeric(1), sketch.NewNumeric(2)
	for _, v := range ref {
		a.Add(v)
	}
	for _, v := range cur {
		b.Add(v)
	}
	return Test(method, a, b, opts)
}

func (o Options) withDefaults() (Options, error) {
	if o.Alpha == 0 {
		o.Alpha = 0.05
	}
	if o.Threshold == 0 {
		o.Threshold = 0.1
	}
	if !(o.Alpha > 0 && o.Alpha < 1) {
		return o, fault.New(fault.Invalid, "alpha is %g, and must be between 0 and 1", o.Alpha)
	}
	if !(o.Threshold > 0) || math.IsInf(o.Threshold, 0) {
		return o, fault.New(fault.Invalid, "the threshold is %g, and must be over 0", o.Threshold)
	}
	return o, nil
}

// cannot says why two columns cannot be compared at all; empty when they can.
func cannot(ref, cur *sketch.Column) string {
	for _, side := range []struct {
		name string
		c    *sketch.Column
	}{{"baseline", ref}, {"window", cur}} {
		switch {
		case side.c.Rows() == 0:
			return "the " + side.name + " has no rows"
		case side.c.Count() > 0:
		case side.c.Missing() == side.c.Rows():
			return fmt.Sprintf("all %d rows of the %s are missing", side.c.Rows(), side.name)
		default:
			return fmt.Sprintf("none of the %d rows of the %s has a value", side.c.Rows(), side.name)
		}
	}
	switch {
	case ref.Kind() != cur.Kind():
		return fmt.Sprintf("the baseline is %s and the window %s", ref.Kind(), cur.Kind())
	case ref.Count() == 1:
		return "the baseline has only one row, so its variance is unknown"
	case cur.Count() == 1:
		return "the window has only one row, so its variance is unknown"
	}
	return ""
}

// comparison is a Result on its way.
type comparison struct {
	Result
	method   Method
	ref, cur *sketch.Column
	opts     Options
}

func (c *comparison) undecided(why string) Result {
	c.Outcome, c.Note, c.Statistic, c.PValue, c.Drifted = Undecided, why, 0, math.NaN(), false
	return c.Result
}

func (c *comparison) tested(stat, p float64) Result {
	c.Statistic, c.PValue = stat, p
	c.Drifted = p < c.opts.Alpha
	return c.Result
}

func (c *comparison) measured(d, noise float64) Result {
	c.Statistic = d
	if noise > c.Threshold {
		c.Threshold = noise
		c.note("the threshold is %.3g, the sampling noise for this number of rows", noise)
	}
	c.Drifted = d >= c.Threshold
	return c.Result
}

func (c *comparison) note(format string, args ...any) {
	if c.Note != "" {
		c.Note += "; "
	}
	c.Note += fmt.Sprintf(format, args...)
}

func (c *comparison) bySamples() Result {
	if c.constant() {
		return c.Result
	}
	if c.method == TTest { // needs no sample
		t, p, why := student(momentsOf(c.ref), momentsOf(c.cur))
		if why != "" {
			return c.undecided(why)
		}
		return c.tested(t, p)
	}
	a, allA := c.ref.Sample()
	b, allB := c.cur.Sample()
	if !allA {
		c.note("a sample of %d of the %d rows of the baseline", len(a), c.ref.Count())
	}
	if !allB {
		c.note("a sample of %d of the %d rows of the window", len(b), c.cur.Count())
	}
	c.Reference, c.Current = uint64(len(a)), uint64(len(b))
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	var stat, p float64
	var why string
	switch c.method {
	case KS:
		c.Variant = asymptotic
		if len(a)*len(b) <= exactCells {
			c.Variant = exactly
		}
		stat, p = ks(a, b, c.Variant == exactly)
	case KSAsymptotic:
		c.Variant = asymptotic
		stat, p = ks(a, b, false)
	case CramerVonMises:
		stat, p, c.Variant = cramerVonMises(a, b, c.opts.Seed)
	case AndersonDarling:
		stat, p, c.Variant, why = andersonDarling(a, b, c.opts.Seed)
		if c.Variant == asymptotic && (p == 0.25 || p == 0.001) {
			c.note("p is outside the table: ≥ 0.25 or ≤ 0.001")
		}
	case MannWhitney:
		c.Variant = asymptotic
		stat, p = mannWhitney(a, b)
	default: // EppsSingleton
		stat, p, c.Variant, why = eppsSingleton(a, b, c.opts.Seed)
	}
	if why != "" {
		return c.undecided(why)
	}
	return c.tested(stat, p)
}

// constant decides columns that have one value, the same on both sides.
func (c *comparison) constant() bool {
	if c.ref.Min() != c.cur.Min() || c.ref.Max() != c.cur.Max() || c.ref.Min() != c.ref.Max() {
		return false
	}
	c.note("both have only the value %g", c.ref.Min())
	if c.method.Distance() {
		c.measured(0, 0)
	} else {
		c.tested(0, 1)
	}
	return true
}

func momentsOf(c *sketch.Column) moments {
	n := float64(c.Count())
	return moments{n: n, mean: c.Mean(), m2: c.Std() * c.Std() * n}
}

// effective is as how many rows a column's distribution function is to be taken:
// a sketch is no better than a sample with the same error of a rank, about 9,400
// rows (the error is 2.576 standard deviations, and one of a rank at the median
// is 1/(2√n)).
func effective(c *sketch.Column) float64 {
	n := float64(c.Count())
	if _, whole := c.Sample(); whole || c.Kind() != sketch.Numeric {
		return n
	}
	e := 2 * c.KLL().RankError(false) / 2.576
	return 1 / (1/n + e*e)
}

// unit is the standard deviation of the baseline; where it is nothing beside the
// mean, that small share of the mean, at least 0.001 as Evidently has it.
func unit(ref *sketch.Column) float64 {
	if s := ref.Std(); s > 1e-9*math.Abs(ref.Mean()) && s > 0 {
		return s
	}
	return math.Max(0.001, 1e-9*math.Abs(ref.Mean()))
}

func (c *comparison) byFunctions() Result {
	if c.constant() {
		return c.Result
	}
	if c.method == Energy && c.opts.Threshold == 0.1 {
		c.Threshold = 0.1 * math.Sqrt(unit(c.ref))
	}
	a, b := c.ref.Weighted(), c.cur.Weighted()
	na, nb := effective(c.ref), effective(c.cur)
	var d, noise float64
	switch c.method {
	case Energy:
		d, noise = energyDistance(a, b), bridgeNoise(a, b, na, nb, true)
	default:
		d, noise = wasserstein(a, b), bridgeNoise(a, b, na, nb, false)
		if c.method == WassersteinNormed {
			u := unit(c.ref)
			if c.ref.Std() < u {
				c.note("the baseline hardly varies: its standard deviation is taken as %.3g", u)
			}
			d, noise = math.Min(d/u, math.MaxFloat64), math.Min(noise/u, math.MaxFloat64)
		}
	}
	return c.measured(d, noise)
}

func (c *comparison) byCounts() Result {
	t, binned := align(c.ref, c.cur)
	if binned {
		c.note("numbers in %d bins at quantiles of the baseline", len(t.ref))
	}
	if !c.ref.Exact() && !binned || !c.cur.Exact() && c.cur.Kind() == sketch.Categorical {
		c.note("more than %d categories: categories below 0.1 %% of the rows are combined", sketch.MaxCategories)
	}
	if len(t.compact().ref) < 2 {
		c.note("both have only one value")
		if c.method.Distance() {
			return c.measured(0, 0)
		}
		return c.tested(0, 1)
	}
	var d float64
	switch c.method {
	case ChiSquare:
		c.Variant = asymptotic
		pooled := t.pool()
		if len(pooled.ref) < len(t.compact().ref) {
			c.note("categories expected fewer than %d times are combined", minExpected)
		}
		if len(pooled.ref) == 2 {
			return c.pair(pooled)
		}
		if len(pooled.ref) < 2 {
			return c.undecided("every category is too rare for a test on so few rows")
		}
		return c.tested(homogeneity(pooled))
	case ChiSquareFit, G:
		c.Variant = asymptotic
		return c.tested(fit(t, c.method == G))
	case TVD:
		c.Variant = permuted
		return c.tested(variationTest(t, c.opts.Seed))
	case PSI:
		d = stability(t)
	case KL:
		d = kullbackLeibler(t)
	case Hellinger:
		d = hellinger(t)
	case LInfinity:
		d = chebyshev(t)
	default: // JensenShannon
		d = jensenShannon(t)
	}
	n, m := t.totals()
	if binned {
		n, m = effective(c.ref), effective(c.cur)
	}
	return c.measured(d, t.noise(c.method, n, m))
}

func (c *comparison) byPair() Result {
	t, binned := align(c.ref, c.cur)
	t = t.compact()
	switch {
	case len(t.ref) < 2:
		c.note("both have only one value")
		return c.tested(0, 1)
	case len(t.ref) > 2 || binned:
		return c.undecided(fmt.Sprintf("%s supports two values, and there are more", c.method))
	}
	return c.pair(t)
}

// pair tests a 2×2 table: exactly when asked to or when the counts are small.
func (c *comparison) pair(t table) Result {
	n, m := t.totals()
	z, p := twoShares(t.ref[0], n, t.cur[0], m)
	least := min(t.ref[0]+t.cur[0], t.ref[1]+t.cur[1]) * min(n, m) / (n + m)
	exact := c.method == Fisher || least < minExpected
	margin := min(t.ref[0]+t.cur[0], t.ref[1]+t.cur[1], n, m)
	c.Variant = asymptotic
	if exact && margin <= fisherMost {
		c.Variant = exactly
		p = fisher(t.ref[0], t.ref[1], t.cur[0], t.cur[1])
	}
	if c.method == ChiSquare {
		z *= z
	}
	return c.tested(z, p)
}
