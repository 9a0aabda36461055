// Package sketch summarises columns of numbers and of categories in bounded
// memory: what monitoring keeps of a window instead of its rows.
//
// # Map
//
//   - column.go: Column, the summary of one feature over one window.
//   - numeric.go, categorical.go: what a Column keeps of each kind.
//   - kll.go: KLL, quantiles by rank error. latency.go: Latency, quantiles by
//     relative error of the value (DDSketch).
//   - codec.go: the binary form. summary.go: the JSON view, for pictures.
//
// # What holds
//
// Everything is deterministic: the same seed and the same sequence of calls
// give the same bytes, but for the distinct counts of more than MaxCategories
// categories. Merge of two summaries holds the same errors as one summary of
// both inputs. A numeric Column is at most 32 KiB, a categorical one at most
// 350 KiB, whatever it was fed. Decoders refuse what a sketch could not have
// written, and anything over MaxEncoded.
//
// Nothing here is safe for concurrent use.
package sketch
