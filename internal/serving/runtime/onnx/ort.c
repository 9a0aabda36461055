#include "ort.h"

#include <dlfcn.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
	const OrtApi *(*GetApi)(uint32_t);
	const char *(*GetVersionString)(void);
} OrtApiBase;

// Values of the library's enumerations.
enum { fatal = 4, device_allocator = 0, arena_allocator = 1, default_memory = 0, strings = 8 };

static const OrtApi *api;
static OrtEnv *env;
static OrtMemoryInfo *cpu;
static OrtAllocator *allocator;

static failure ours(const char *message) { return (failure){.message = message, .code = -1}; }

static failure of(OrtStatus *s) {
	if (s == NULL) return (failure){0};
	return (failure){.status = s, .message = api->GetErrorMessage(s), .code = api->GetErrorCode(s)};
}

void ort_forgive(failure f) {
	if (f.status != NULL) api->ReleaseStatus(f.status);
}

#define TRY(call)                                  \
	do {                                           \
		OrtStatus *status = (call);                \
		if (status != NULL) return of(status);     \
	} while (0)

// share makes the arena that the runs of all sessions take their memory from, of at
// most so many bytes; 0 is as many as there are.
static OrtStatus *share(size_t memory) {
	const char *keys[] = {"max_mem"};
	OrtArenaCfg *arena;
	OrtMemoryInfo *info;
	OrtStatus *s = api->CreateArenaCfgV2(keys, &memory, 1, &arena);
	if (s != NULL) return s;
	s = api->CreateCpuMemoryInfo(arena_allocator, default_memory, &info);
	if (s == NULL) {
		s = api->CreateAndRegisterAllocator(env, info, arena);
		api->ReleaseMemoryInfo(info);
	}
	api->ReleaseArenaCfg(arena);
	return s;
}

// The library is opened once, before anything else here is called.
failure ort_open(const char *path, int threads, size_t memory, const char **version) {
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (library == NULL) return ours(dlerror());
	const OrtApiBase *(*base)(void) = dlsym(library, "OrtGetApiBase");
	if (base == NULL) return ours("it is not ONNX Runtime");
	*version = base()->GetVersionString();
	if ((api = base()->GetApi(api_version)) == NULL) return ours("it is older than version 1.20");
	OrtThreadingOptions *pool;
	TRY(api->CreateThreadingOptions(&pool));
	OrtStatus *s = api->SetGlobalIntraOpNumThreads(pool, threads);
	if (s == NULL) s = api->SetGlobalInterOpNumThreads(pool, 1);
	if (s == NULL) s = api->SetGlobalSpinControl(pool, 0);
	// Errors come back to us; on the way the library would print each, and a
	// caller can cause as many as it likes.
	if (s == NULL) s = api->CreateEnvWithGlobalThreadPools(fatal, "falaj", pool, &env);
	api->ReleaseThreadingOptions(pool);
	if (s == NULL) s = share(memory);
	if (s != NULL) return of(s);
	TRY(api->CreateCpuMemoryInfo(device_allocator, default_memory, &cpu));
	return of(api->GetAllocatorWithDefaultOptions(&allocator));
}

static OrtStatus *set(OrtSessionOptions *o, const settings *s) {
	OrtStatus *e = s->threads > 0 ? api->SetIntraOpNumThreads(o, s->threads) : api->DisablePerSessionThreads(o);
	if (e == NULL) e = api->SetInterOpNumThreads(o, 1);
	if (e == NULL && !s->arena) e = api->DisableCpuMemArena(o);
	// A pattern is kept of each shape that was ever asked: callers choose those.
	if (e == NULL) e = api->DisableMemPattern(o);
	for (size_t i = 0; e == NULL && i < s->entries; i++) e = api->AddSessionConfigEntry(o, s->keys[i], s->values[i]);
	return e;
}

failure ort_load(const void *model, size_t size, const settings *how, OrtSession **session) {
	OrtSessionOptions *options;
	TRY(api->CreateSessionOptions(&options));
	OrtStatus *s = set(options, how);
	if (s == NULL) s = api->CreateSessionFromArray(env, model, size, options, session);
	api->ReleaseSessionOptions(options);
	return of(s);
}

void ort_unload(OrtSession *session) {
	api->ReleaseSession(session);
	// glibc keeps what a thread freed for that thread, and Go moves between them:
	// without this, loading and unloading goes on taking memory.
	malloc_trim(0);
}

call *ort_new_call(size_t inputs, size_t outputs) {
	call *c = aligned_alloc(_Alignof(call), sizeof *c);
	if (c == NULL) return NULL;
	*c = (call){0};
	c->inputs = inputs, c->outputs = outputs;
	c->input_names = calloc(inputs + 1, sizeof *c->input_names), c->output_names = calloc(outputs + 1, sizeof *c->output_names);
	c->input = calloc(inputs + 1, sizeof *c->input), c->output = calloc(outputs + 1, sizeof *c->output);
	c->given = calloc(inputs + 1, sizeof *c->given), c->answered = calloc(outputs + 1, sizeof *c->answered);
	if (c->input_names && c->output_names && c->input && c->output && c->given && c->answered && api->CreateRunOptions(&c->options) == NULL) return c;
	ort_free_call(c);
	return NULL;
}

void ort_free_call(call *c) {
	if (c->options != NULL) api->ReleaseRunOptions(c->options);
	free(c->input_names), free(c->output_names), free(c->input), free(c->output), free(c->given), free(c->answered), free(c);
}

// give makes the library's value of an input: its own memory for strings, else
// the caller's.
static OrtStatus *give(tensor *t) {
	if (t->type != strings) return api->CreateTensorWithDataAsOrtValue(cpu, t->data, t->size, t->shape, (size_t)t->rank, t->type, &t->value);
	OrtStatus *s = api->CreateTensorAsOrtValue(allocator, t->shape, (size_t)t->rank, t->type, &t->value);
	for (size_t i = 0; s == NULL && i < t->count; i++) {
		size_t from = t->at[i], to = i + 1 < t->count ? t->at[i + 1] : t->size;
		char *buffer;
		s = api->GetResizedStringTensorElementBuffer(t->value, i, to - from, &buffer);
		for (size_t j = 0; s == NULL && j < to - from; j++) buffer[j] = ((char *)t->data)[from + j];
	}
	return s;
}

static failure describe(tensor *t, const OrtTensorTypeAndShapeInfo *info) {
	size_t rank;
	TRY(api->GetDimensionsCount(info, &rank));
	if (rank > max_rank) return ours("an output has more than 32 dimensions");
	t->rank = (int)rank;
	TRY(api->GetDimensions(info, t->shape, rank));
	TRY(api->GetTensorShapeElementCount(info, &t->count));
	return of(api->GetTensorElementType(info, &t->type));
}

// take says of an output what and where it is. The bytes of strings are copied
// into memory of their own, to be freed.
static failure take(tensor *t) {
	int plain;
	TRY(api->IsTensor(t->value, &plain));
	if (!plain) return ours("an output is not a tensor");
	OrtTensorTypeAndShapeInfo *info;
	TRY(api->GetTensorTypeAndShape(t->value, &info));
	failure f = describe(t, info);
	api->ReleaseTensorTypeAndShapeInfo(info);
	if (f.message != NULL || t->count == 0) return f;
	if (t->type != strings) return of(api->GetTensorMutableData(t->value, &t->data));
	TRY(api->GetStringTensorDataLength(t->value, &t->size));
	if (t->size > max_answer || t->count > max_answer) return ours("an output is too large");
	t->data = malloc(t->size + 1);
	t->at = malloc(t->count * sizeof *t->at);
	if (t->data == NULL || t->at == NULL) return ours("out of memory");
	return of(api->GetStringTensorContent(t->value, t->data, t->size, t->at, t->count));
}

// keep copies the outputs of a run that has few bytes of them, so that nothing of the
// library's is needed any more.
static void keep(call *c) {
	static const size_t sizes[] = {[1] = 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, [16] = 2};
	size_t used = 0;
	for (size_t i = 0; i < c->wanted; i++) {
		tensor *t = &c->output[i];
		size_t size = t->type >= 0 && (size_t)t->type < sizeof sizes / sizeof *sizes ? sizes[t->type] : 0;
		if (size == 0 || t->count > (small - used) / size) return;
		used += (t->count * size + 7) & ~(size_t)7;
		if (used > small) return;
	}
	used = 0;
	for (size_t i = 0; i < c->wanted; i++) {
		tensor *t = &c->output[i];
		size_t size = t->count * sizes[t->type];
		if (size > 0) memcpy(c->answered_small + used, t->data, size);
		t->data = c->answered_small + used;
		used += (size + 7) & ~(size_t)7;
		api->ReleaseValue(t->value);
		t->value = NULL;
	}
	for (size_t i = 0; i < c->inputs; i++) {
		api->ReleaseValue(c->input[i].value);
		c->input[i].value = NULL;
	}
	c->released = 1;
}

// ort_run asks the session. What it leaves in the call is the caller's until
// ort_release, which is called whether or not there was a failure, but where it was
// released.
failure ort_run(OrtSession *session, call *c) {
	c->released = 0;
	for (size_t i = 0; i < c->wanted; i++) c->output[i] = (tensor){0};
	for (size_t i = 0; i < c->inputs; i++) {
		TRY(give(&c->input[i]));
		c->given[i] = c->input[i].value;
	}
	TRY(api->Run(session, c->options, c->input_names, c->given, c->inputs, c->output_names, c->wanted, c->answered));
	for (size_t i = 0; i < c->wanted; i++) {
		c->output[i].value = c->answered[i];
		c->answered[i] = NULL;
	}
	for (size_t i = 0; i < c->wanted; i++) {
		failure f = take(&c->output[i]);
		if (f.message != NULL) return f;
	}
	keep(c);
	return (failure){0};
}

void ort_release(call *c) {
	for (size_t i = 0; i < c->wanted; i++) {
		tensor *t = &c->output[i];
		if (t->type == strings) free(t->data), free(t->at);
		if (t->value != NULL) api->ReleaseValue(t->value);
		if (c->answered[i] != NULL) api->ReleaseValue(c->answered[i]);
		*t = (tensor){0};
		c->answered[i] = NULL;
	}
	for (size_t i = 0; i < c->inputs; i++) {
		if (c->input[i].value != NULL) api->ReleaseValue(c->input[i].value);
		c->input[i].value = NULL;
		c->input[i].data = NULL;
		c->input[i].at = NULL;
	}
}

// ort_shrink says whether the next runs of a call give back what the arena does not
// need after them.
failure ort_shrink(call *c, int on) {
	return of(api->AddRunConfigEntry(c->options, "memory.enable_memory_arena_shrinkage", on ? "cpu:0" : ""));
}

// A run that is under way ends soon after ort_terminate; ort_resume makes the
// call usable again.
void ort_terminate(call *c) {
	OrtStatus *s = api->RunOptionsSetTerminate(c->options);
	if (s != NULL) api->ReleaseStatus(s);
}

void ort_resume(call *c) {
	OrtStatus *s = api->RunOptionsUnsetTerminate(c->options);
	if (s != NULL) api->ReleaseStatus(s);
}
