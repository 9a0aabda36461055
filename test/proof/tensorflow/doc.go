// Package tensorflow proves that `framework: tensorflow` is enough for
// MultiWorkerMirroredStrategy: two workers with half of the rows each make one
// model, that of all rows.
//
// # Map
//
//   - train.py: the job.
//   - tensorflow_test.go: its two workers on the real binary.
//
// It needs the tag proof, and fetches TensorFlow, 300 MB: `make proof-tensorflow`.
package tensorflow
