// What is used of ONNX Runtime's C interface, and what onnx.go calls of ours.
//
// The interface is a table of functions that only ever grows: a position and
// its signature stay for good. Source of the numbers: struct OrtApi in
// onnxruntime_c_api.h of github.com/microsoft/onnxruntime, API version 24.

#pragma once
#include <stddef.h>
#include <stdint.h>

enum { api_version = 20, max_rank = 32, max_answer = 512 << 20 };

// How many bytes of a run's inputs, and of its outputs, are copied to where they need
// neither be held still nor released: that would cost more.
enum { small = 4 << 10 };

typedef struct OrtStatus OrtStatus;
typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtThreadingOptions OrtThreadingOptions;
typedef struct OrtValue OrtValue;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtArenaCfg OrtArenaCfg;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;

#define UNUSED(from, to) void *unused_##from[to - from + 1]

typedef struct {
	UNUSED(0, 0);
	int (*GetErrorCode)(const OrtStatus *);
	const char *(*GetErrorMessage)(const OrtStatus *);
	UNUSED(3, 7);
	OrtStatus *(*CreateSessionFromArray)(const OrtEnv *, const void *, size_t, const OrtSessionOptions *, OrtSession **);
	OrtStatus *(*Run)(OrtSession *, const OrtRunOptions *, const char *const *, const OrtValue *const *, size_t, const char *const *, size_t, OrtValue **);
	OrtStatus *(*CreateSessionOptions)(OrtSessionOptions **);
	UNUSED(11, 16);
	OrtStatus *(*DisableMemPattern)(OrtSessionOptions *);
	UNUSED(18, 18);
	OrtStatus *(*DisableCpuMemArena)(OrtSessionOptions *);
	UNUSED(20, 23);
	OrtStatus *(*SetIntraOpNumThreads)(OrtSessionOptions *, int);
	OrtStatus *(*SetInterOpNumThreads)(OrtSessionOptions *, int);
	UNUSED(26, 38);
	OrtStatus *(*CreateRunOptions)(OrtRunOptions **);
	UNUSED(40, 45);
	OrtStatus *(*RunOptionsSetTerminate)(OrtRunOptions *);
	OrtStatus *(*RunOptionsUnsetTerminate)(OrtRunOptions *);
	OrtStatus *(*CreateTensorAsOrtValue)(OrtAllocator *, const int64_t *, size_t, int, OrtValue **);
	OrtStatus *(*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo *, void *, size_t, const int64_t *, size_t, int, OrtValue **);
	OrtStatus *(*IsTensor)(const OrtValue *, int *);
	OrtStatus *(*GetTensorMutableData)(OrtValue *, void **);
	UNUSED(52, 52);
	OrtStatus *(*GetStringTensorDataLength)(const OrtValue *, size_t *);
	OrtStatus *(*GetStringTensorContent)(const OrtValue *, void *, size_t, size_t *, size_t);
	UNUSED(55, 59);
	OrtStatus *(*GetTensorElementType)(const OrtTensorTypeAndShapeInfo *, int *);
	OrtStatus *(*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo *, size_t *);
	OrtStatus *(*GetDimensions)(const OrtTensorTypeAndShapeInfo *, int64_t *, size_t);
	UNUSED(63, 63);
	OrtStatus *(*GetTensorShapeElementCount)(const OrtTensorTypeAndShapeInfo *, size_t *);
	OrtStatus *(*GetTensorTypeAndShape)(const OrtValue *, OrtTensorTypeAndShapeInfo **);
	UNUSED(66, 68);
	OrtStatus *(*CreateCpuMemoryInfo)(int, int, OrtMemoryInfo **);
	UNUSED(70, 77);
	OrtStatus *(*GetAllocatorWithDefaultOptions)(OrtAllocator **);
	UNUSED(79, 92);
	void (*ReleaseStatus)(OrtStatus *);
	void (*ReleaseMemoryInfo)(OrtMemoryInfo *);
	void (*ReleaseSession)(OrtSession *);
	void (*ReleaseValue)(OrtValue *);
	void (*ReleaseRunOptions)(OrtRunOptions *);
	UNUSED(98, 98);
	void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo *);
	void (*ReleaseSessionOptions)(OrtSessionOptions *);
	UNUSED(101, 118);
	OrtStatus *(*CreateEnvWithGlobalThreadPools)(int, const char *, const OrtThreadingOptions *, OrtEnv **);
	OrtStatus *(*DisablePerSessionThreads)(OrtSessionOptions *);
	OrtStatus *(*CreateThreadingOptions)(OrtThreadingOptions **);
	void (*ReleaseThreadingOptions)(OrtThreadingOptions *);
	UNUSED(123, 129);
	OrtStatus *(*AddSessionConfigEntry)(OrtSessionOptions *, const char *, const char *);
	UNUSED(131, 143);
	OrtStatus *(*CreateAndRegisterAllocator)(OrtEnv *, const OrtMemoryInfo *, const OrtArenaCfg *);
	UNUSED(145, 146);
	OrtStatus *(*SetGlobalIntraOpNumThreads)(OrtThreadingOptions *, int);
	OrtStatus *(*SetGlobalInterOpNumThreads)(OrtThreadingOptions *, int);
	OrtStatus *(*SetGlobalSpinControl)(OrtThreadingOptions *, int);
	UNUSED(150, 156);
	void (*ReleaseArenaCfg)(OrtArenaCfg *);
	UNUSED(158, 163);
	OrtStatus *(*CreateArenaCfgV2)(const char *const *, const size_t *, size_t, OrtArenaCfg **);
	OrtStatus *(*AddRunConfigEntry)(OrtRunOptions *, const char *, const char *);
	UNUSED(166, 251);
	OrtStatus *(*GetResizedStringTensorElementBuffer)(OrtValue *, size_t, size_t, char **);
} OrtApi;

_Static_assert(offsetof(OrtApi, Run) == 9 * sizeof(void *), "position");
_Static_assert(offsetof(OrtApi, ReleaseSessionOptions) == 100 * sizeof(void *), "position");
_Static_assert(offsetof(OrtApi, DisableCpuMemArena) == 19 * sizeof(void *), "position");
_Static_assert(offsetof(OrtApi, AddRunConfigEntry) == 165 * sizeof(void *), "position");
_Static_assert(offsetof(OrtApi, AddSessionConfigEntry) == 130 * sizeof(void *), "position");
_Static_assert(offsetof(OrtApi, GetResizedStringTensorElementBuffer) == 252 * sizeof(void *), "position");

// An error of the library, to be freed by forgive.
typedef struct {
	OrtStatus *status;
	const char *message; // NULL: none
	int code;
} failure;

// A session's settings.
typedef struct {
	int threads; // of its own; 0: those of the process
	int arena;   // whether memory of a run is kept for the next
	size_t entries;
	const char **keys, **values;
} settings;

// A tensor on its way in or out.
typedef struct {
	OrtValue *value;
	void *data;   // its elements; those of strings one after another
	size_t size;  // of data, in bytes
	size_t count; // of elements
	size_t *at;   // strings: where each begins in data
	int type;     // TensorProto.DataType
	int rank;
	int64_t shape[max_rank];
} tensor;

// All that one run needs. It is made once and used again and again.
typedef struct {
	OrtRunOptions *options;
	size_t inputs, outputs; // of inputs as many as the run has, of outputs as the model
	const char **input_names, **output_names;
	tensor *input, *output; // outputs: those wanted, in order
	size_t wanted;
	const OrtValue **given;
	OrtValue **answered;
	int released;          // the run left nothing of the library's
	_Alignas(64) char given_small[small], answered_small[small];
} call;

// What lies in a lane: see package lane. The first two are in shared memory, where the
// server wrote the question and reads the answer.
typedef struct {
	uint64_t id;
	uint32_t turn, inputs_or_outcome, wanted, unused;
	uint64_t answer, size;
	char rest[24];
} lane_head;

typedef struct {
	uint32_t type, rank;
	uint64_t at, size, count;
	int64_t shape[max_rank];
} lane_tensor;

enum { asked_at = 0, answered_at = 64, question_at = 128 };

_Static_assert(sizeof(lane_head) == 64, "as in package lane");
_Static_assert(sizeof(lane_tensor) == 32 + 8 * max_rank, "as in package lane");

// A lane, as its thread has it.
typedef struct {
	char *memory;
	uint32_t turn;
	uint64_t id;            // of the question
	OrtSession *session;
	call *call;
	const char **names;     // of the model's outputs
	size_t usual;           // bytes of a run
	int shrinks;            // whether the call's runs give back what the arena does not need
	int stop;               // atomic
	failure failure;        // why the run failed; none of outputs that have no place in the lane
	// What a cancel and the thread both touch.
	int lock;
	uint64_t running, cancelled; // ids; 0: none
	int broken;                  // the run was told to end
} lane;

failure ort_open(const char *path, int threads, size_t memory, const char **version);
failure ort_load(const void *model, size_t size, const settings *, OrtSession **);
void ort_unload(OrtSession *);
call *ort_new_call(size_t inputs, size_t outputs);
void ort_free_call(call *);
failure ort_run(OrtSession *, call *);
void ort_release(call *);
failure ort_shrink(call *, int);
void ort_terminate(call *);
void ort_resume(call *);
void ort_forgive(failure);
int lane_answer(lane *, int tight);
void lane_elsewhere(lane *);
void lane_cancel(lane *, uint64_t id);
void lane_stop(lane *);
