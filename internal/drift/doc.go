// Package drift says whether two samples of a column come from the same
// distribution, by how much they differ, and how sure that is. Whether a window of a monitor
// has drifted, and which of the checks count for that, monitoring/evaluate.go decides.
//
// # Map
//
//   - drift.go: Method, Choose, Test, Result: a baseline and a window compared.
//   - correct.go: many tests at once. check.go: missing values, new categories,
//     range: what a test of the distribution does not see.
//   - stream.go: ADWIN and PageHinkley, change in a stream.
//   - samples.go, kolmogorov.go, counts.go, distance.go: the mathematics.
//
// # What holds
//
// Everything is pure and repeatable: the same input, options and seed give the
// same result. A p-value is of a valid test: under no drift it is below α with a
// probability of at most α (asymptotically where the test is asymptotic), also
// where a column is only known by a sample of it. A distance is over its
// threshold only when it is also over what sampling alone gives. Nothing panics
// and no result is NaN because of what the data are: a comparison that cannot be
// made says so in words. docs/design/drift.md has the formulas and sources.
package drift
