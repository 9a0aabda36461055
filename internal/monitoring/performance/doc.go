// Package performance says how good a model's answers were, from scores and the
// labels that came later, and how good they probably are where labels are missing.
//
// # Map
//
//   - performance.go: Metric, the intervals.
//   - classification.go: Classification, of probabilities of a binary label; its
//     Calibration. regression.go: Regression, of numbers. multiclass.go:
//     Multiclass, of any number of classes, and its estimate, Confidence.
//   - estimate.go: Estimate, classification without labels; Calibrator, which
//     makes scores fit for it.
//   - ranking.go: scores by rank, in bounded memory.
//
// # What holds
//
// Everything streams: memory does not grow with the rows (320 KiB at most), and
// only the area under the curve and the calibrator see scores rounded, to 1/8192,
// above MaxExact rows. Intervals are at 95 % and hold for each metric alone. A
// metric that is not defined, such as the AUC of one class, is NaN with a note in
// words, and null in JSON. Nothing here is safe for concurrent use.
package performance
