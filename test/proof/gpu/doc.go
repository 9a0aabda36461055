// Package gpu proves on a machine with a real GPU what elsewhere is simulated:
// that Falaj finds it, gives it to a job that asks for it and to no other, and
// shows what the job does with it.
//
// # Map
//
//   - load.py: the job: the same products in fp32 and bf16, with their error.
//   - gpu_test.go: the inventory beside nvidia-smi, and the job on the real binary.
//
// It needs the tag proof and, for the machine's python3, a torch with CUDA: `make
// proof-gpu`. Where there is no GPU it says so.
package gpu
