// Package dcp proves that a checkpoint of PyTorch's distributed format, written
// by four ranks, kept by Falaj and restored, is loaded by two and by three: the
// way in which a job is resized.
//
// # Map
//
//   - reshard.py: one rank: load, compare every number, step, save.
//   - dcp_test.go: the ranks as processes, with checkpoint.Service between the
//     sizes. It needs torch 2 and the tag proof: `make proof-dcp`.
package dcp
