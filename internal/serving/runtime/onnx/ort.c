#include "ort.h"

#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
	const OrtApi *(*GetApi)(uint32_t);
	const char *(*GetVersionString)(void);
} OrtApiBase;

// Values of the library's enumerations.
enum { fatal = 4, device_allocator = 0, arena_allocator = 1, default_memory = 0, strings = 8, truth = 9 };

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

// Bytes of an element, by type.
static const size_t sizes[] = {[1] = 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, [16] = 2};

static size_t size_of(int type) { return type >= 0 && (size_t)type < sizeof sizes / sizeof *sizes ? sizes[type] : 0; }

// keep copies the outputs of a run that has few bytes of them, so that nothing of the
// library's is needed any more.
static void keep(call *c) {
	size_t used = 0;
	for (size_t i = 0; i < c->wanted; i++) {
		tensor *t = &c->output[i];
		size_t size = size_of(t->type);
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

static failure ask(OrtSession *session, call *c) {
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
	return (failure){0};
}

// ort_run asks the session. What it leaves in the call is the caller's until
// ort_release, which is called whether or not there was a failure, but where it was
// released.
failure ort_run(OrtSession *session, call *c) {
	failure f = ask(session, c);
	if (f.message == NULL) keep(c);
	return f;
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

// Lanes.

static uint32_t *asked(const lane *l) { return (uint32_t *)(l->memory + asked_at); }
static lane_head *question(const lane *l) { return (lane_head *)(l->memory + question_at); }
static size_t aligned(size_t n) { return (n + 63) & ~(size_t)63; }

static void lock(lane *l) {
	while (__atomic_exchange_n(&l->lock, 1, __ATOMIC_ACQUIRE)) usleep(1);
}

static void unlock(lane *l) { __atomic_store_n(&l->lock, 0, __ATOMIC_RELEASE); }

// next waits for a question; 0 when the lane was stopped.
static int next(lane *l) {
	for (;;) {
		if (__atomic_load_n(&l->stop, __ATOMIC_ACQUIRE)) return 0;
		uint32_t turn = __atomic_load_n(asked(l), __ATOMIC_ACQUIRE);
		if (turn != l->turn) {
			l->turn = turn;
			return 1;
		}
		syscall(SYS_futex, asked(l), FUTEX_WAIT, turn, NULL, NULL, 0);
	}
}

// read_question gives the call what the question has, where it lies. It gives the bytes of the inputs.
static size_t read_question(lane *l) {
	lane_head *q = question(l);
	call *c = l->call;
	l->id = q->id;
	uint32_t *wanted = (uint32_t *)(q + 1);
	c->wanted = q->wanted;
	for (size_t i = 0; i < c->wanted; i++) c->output_names[i] = l->names[wanted[i]];
	lane_tensor *from = (lane_tensor *)((char *)wanted + (((size_t)q->wanted * 4 + 7) & ~(size_t)7));
	size_t bytes = 0;
	for (size_t i = 0; i < c->inputs; i++, from++) {
		tensor *t = &c->input[i];
		t->type = (int)from->type, t->rank = (int)from->rank, t->count = from->count, t->size = from->size;
		t->data = l->memory + from->at, t->at = NULL;
		for (int d = 0; d < t->rank; d++) t->shape[d] = from->shape[d];
		if (t->type == strings) {
			t->at = t->data;
			t->data = (char *)t->data + 8 * t->count;
			t->size -= 8 * t->count;
		}
		bytes += from->size;
	}
	return bytes;
}

// write_answer puts the outputs into the lane; 0 when they have no place there.
static size_t write_answer(lane *l) {
	lane_head *q = question(l);
	call *c = l->call;
	lane_head *head = (lane_head *)(l->memory + q->answer);
	lane_tensor *to = (lane_tensor *)(head + 1);
	size_t at = q->answer + sizeof *head + c->wanted * sizeof *to;
	for (size_t i = 0; i < c->wanted; i++, to++) {
		tensor *t = &c->output[i];
		size_t one = size_of(t->type), all;
		at = aligned(at);
		if (at > q->size || (one == 0 && t->type != strings) || t->count > (q->size - at) / (one ? one : 8)) return 0;
		all = one ? t->count * one : 8 * t->count + t->size;
		if (all > q->size - at) return 0;
		to->type = (uint32_t)t->type, to->rank = (uint32_t)t->rank, to->at = at, to->size = all, to->count = t->count;
		memcpy(to->shape, t->shape, (size_t)t->rank * sizeof *t->shape);
		if (t->type == strings) {
			if (t->count > 0) memcpy(l->memory + at, t->at, 8 * t->count), memcpy(l->memory + at + 8 * t->count, t->data, t->size);
		} else if (t->type == truth) { // a model's file may have other bytes
			for (size_t j = 0; j < all; j++) l->memory[at + j] = ((char *)t->data)[j] != 0;
		} else if (all > 0) {
			memcpy(l->memory + at, t->data, all);
		}
		at += all;
	}
	return at;
}

// done says that the question is answered. The number changes last.
static void done(lane *l, uint32_t outcome) {
	lane_head *q = question(l), *head = (lane_head *)(l->memory + q->answer);
	head->id = q->id, head->turn = q->turn, head->inputs_or_outcome = outcome;
	uint32_t *answered = (uint32_t *)(l->memory + answered_at);
	__atomic_store_n(answered, q->turn, __ATOMIC_RELEASE);
	syscall(SYS_futex, answered, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void begin(lane *l) {
	lock(l);
	l->running = l->id;
	if (l->cancelled == l->id) ort_terminate(l->call), l->broken = 1;
	unlock(l);
}

static void end(lane *l) {
	lock(l);
	l->running = 0;
	if (l->broken) ort_resume(l->call), l->broken = 0;
	unlock(l);
}

void lane_cancel(lane *l, uint64_t id) {
	lock(l);
	l->cancelled = id;
	if (l->running == id) ort_terminate(l->call), l->broken = 1;
	unlock(l);
}

// lane_stop ends the waiting for questions, and breaks off the run that is under way.
void lane_stop(lane *l) {
	lock(l);
	__atomic_store_n(&l->stop, 1, __ATOMIC_RELEASE);
	if (l->running != 0) ort_terminate(l->call), l->broken = 1;
	unlock(l);
	__atomic_fetch_add(asked(l), 1u << 31, __ATOMIC_RELEASE);
	syscall(SYS_futex, asked(l), FUTEX_WAKE, 1, NULL, NULL, 0);
}

void lane_elsewhere(lane *l) { done(l, 1); }

// much reports whether a run of so many bytes is much larger than they usually are.
static int much(const lane *l, size_t bytes) { return bytes > 4 * l->usual + (1 << 16); }

// lane_answer answers questions until it is stopped (0), or until one (1) whose answer is
// not to go through the lane: l->failure says why, and the call has the outputs where there
// are any, until ort_release. tight: the first run gives back what the arena does not need.
int lane_answer(lane *l, int tight) {
	call *c = l->call;
	while (next(l)) {
		size_t bytes = read_question(l);
		int shrink = tight || much(l, bytes);
		tight = 0;
		if (shrink != l->shrinks) {
			failure f = ort_shrink(c, shrink);
			if (f.message == NULL) l->shrinks = shrink;
			ort_forgive(f);
		}
		begin(l);
		c->released = 0;
		l->failure = ask(l->session, c);
		end(l);
		if (l->failure.message != NULL) return 1;
		size_t to = write_answer(l);
		if (to == 0) return 1;
		bytes += to - question(l)->answer;
		tight = much(l, bytes);
		if (bytes > l->usual) l->usual += (bytes - l->usual + 7) / 8; else l->usual -= (l->usual - bytes) / 8;
		ort_release(c);
		done(l, 0);
	}
	return 0;
}
