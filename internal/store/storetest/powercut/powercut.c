/* A SQLite VFS that hands everything to the default one and logs the writes.
** The declarations are the stable interface of sqlite3.h (VFS version 2,
** I/O methods version 2: no memory mapping, so that every write is seen). */
#include "powercut.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef long long i64;
typedef struct sqlite3_file sqlite3_file;
typedef struct sqlite3_vfs sqlite3_vfs;

typedef struct {
  int iVersion;
  int (*xClose)(sqlite3_file *);
  int (*xRead)(sqlite3_file *, void *, int, i64);
  int (*xWrite)(sqlite3_file *, const void *, int, i64);
  int (*xTruncate)(sqlite3_file *, i64);
  int (*xSync)(sqlite3_file *, int);
  int (*xFileSize)(sqlite3_file *, i64 *);
  int (*xLock)(sqlite3_file *, int);
  int (*xUnlock)(sqlite3_file *, int);
  int (*xCheckReservedLock)(sqlite3_file *, int *);
  int (*xFileControl)(sqlite3_file *, int, void *);
  int (*xSectorSize)(sqlite3_file *);
  int (*xDeviceCharacteristics)(sqlite3_file *);
  int (*xShmMap)(sqlite3_file *, int, int, int, void volatile **);
  int (*xShmLock)(sqlite3_file *, int, int, int);
  void (*xShmBarrier)(sqlite3_file *);
  int (*xShmUnmap)(sqlite3_file *, int);
} io_methods;

struct sqlite3_file {
  const io_methods *pMethods;
};

struct sqlite3_vfs {
  int iVersion;
  int szOsFile;
  int mxPathname;
  sqlite3_vfs *pNext;
  const char *zName;
  void *pAppData;
  int (*xOpen)(sqlite3_vfs *, const char *, sqlite3_file *, int, int *);
  int (*xDelete)(sqlite3_vfs *, const char *, int);
  int (*xAccess)(sqlite3_vfs *, const char *, int, int *);
  int (*xFullPathname)(sqlite3_vfs *, const char *, int, char *);
  void *(*xDlOpen)(sqlite3_vfs *, const char *);
  void (*xDlError)(sqlite3_vfs *, int, char *);
  void (*(*xDlSym)(sqlite3_vfs *, void *, const char *))(void);
  void (*xDlClose)(sqlite3_vfs *, void *);
  int (*xRandomness)(sqlite3_vfs *, int, char *);
  int (*xSleep)(sqlite3_vfs *, int);
  int (*xCurrentTime)(sqlite3_vfs *, double *);
  int (*xGetLastError)(sqlite3_vfs *, int, char *);
  int (*xCurrentTimeInt64)(sqlite3_vfs *, i64 *);
};

/* Weak, because cgo links this file alone once before the Go linker adds SQLite. */
extern int sqlite3_initialize(void) __attribute__((weak));
extern sqlite3_vfs *sqlite3_vfs_find(const char *) __attribute__((weak));
extern int sqlite3_vfs_register(sqlite3_vfs *, int) __attribute__((weak));

enum { OP_WRITE, OP_TRUNCATE, OP_SYNC, OP_DELETE };
enum { OPEN_MAIN_DB = 0x100, OPEN_WAL = 0x80000 };

typedef struct {
  sqlite3_file base;
  char *path; /* set when the file is recorded */
  sqlite3_file *real;
} file;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static powercut_op *ops;
static int nops, cap;
static char *dir;
static sqlite3_vfs vfs, *real_vfs;

static void record(int kind, const char *path, i64 offset, const void *data, int size) {
  powercut_op op = {kind, strdup(path), offset, NULL, size};
  if (size > 0) {
    void *copy = malloc(size);
    memcpy(copy, data, size);
    op.data = copy;
  }
  pthread_mutex_lock(&mu);
  if (nops == cap) {
    cap = cap ? 2 * cap : 1024;
    ops = realloc(ops, cap * sizeof *ops);
  }
  ops[nops++] = op;
  pthread_mutex_unlock(&mu);
}

#define F(p) ((file *)(p))
#define R(p) (F(p)->real)
#define M(p) (R(p)->pMethods)

static int f_close(sqlite3_file *p) {
  int rc = M(p)->xClose(R(p));
  free(F(p)->path);
  return rc;
}
static int f_read(sqlite3_file *p, void *b, int n, i64 o) { return M(p)->xRead(R(p), b, n, o); }
static int f_write(sqlite3_file *p, const void *b, int n, i64 o) {
  int rc = M(p)->xWrite(R(p), b, n, o);
  if (rc == 0 && F(p)->path) record(OP_WRITE, F(p)->path, o, b, n);
  return rc;
}
static int f_truncate(sqlite3_file *p, i64 size) {
  int rc = M(p)->xTruncate(R(p), size);
  if (rc == 0 && F(p)->path) record(OP_TRUNCATE, F(p)->path, size, NULL, 0);
  return rc;
}
static int f_sync(sqlite3_file *p, int flags) {
  int rc = M(p)->xSync(R(p), flags);
  if (rc == 0 && F(p)->path) record(OP_SYNC, F(p)->path, 0, NULL, 0);
  return rc;
}
static int f_size(sqlite3_file *p, i64 *n) { return M(p)->xFileSize(R(p), n); }
static int f_lock(sqlite3_file *p, int l) { return M(p)->xLock(R(p), l); }
static int f_unlock(sqlite3_file *p, int l) { return M(p)->xUnlock(R(p), l); }
static int f_reserved(sqlite3_file *p, int *out) { return M(p)->xCheckReservedLock(R(p), out); }
static int f_control(sqlite3_file *p, int op, void *arg) { return M(p)->xFileControl(R(p), op, arg); }
static int f_sector(sqlite3_file *p) { return M(p)->xSectorSize(R(p)); }
static int f_device(sqlite3_file *p) { return M(p)->xDeviceCharacteristics(R(p)); }
static int f_shm_map(sqlite3_file *p, int i, int n, int x, void volatile **out) { return M(p)->xShmMap(R(p), i, n, x, out); }
static int f_shm_lock(sqlite3_file *p, int o, int n, int fl) { return M(p)->xShmLock(R(p), o, n, fl); }
static void f_shm_barrier(sqlite3_file *p) { M(p)->xShmBarrier(R(p)); }
static int f_shm_unmap(sqlite3_file *p, int del) { return M(p)->xShmUnmap(R(p), del); }

static const io_methods methods = {
    2,        f_close,    f_read,    f_write,  f_truncate, f_sync,    f_size,     f_lock,        f_unlock,
    f_reserved, f_control, f_sector, f_device, f_shm_map,  f_shm_lock, f_shm_barrier, f_shm_unmap,
};

static int recorded(const char *path) { return path && dir && strncmp(path, dir, strlen(dir)) == 0; }

static int v_open(sqlite3_vfs *v, const char *path, sqlite3_file *p, int flags, int *out) {
  file *f = F(p);
  memset(f, 0, sizeof *f);
  f->real = (sqlite3_file *)(f + 1);
  memset(f->real, 0, real_vfs->szOsFile);
  int rc = real_vfs->xOpen(real_vfs, path, f->real, flags, out);
  if (f->real->pMethods == NULL) return rc;
  f->base.pMethods = &methods;
  if ((flags & (OPEN_MAIN_DB | OPEN_WAL)) && recorded(path)) f->path = strdup(path);
  return rc;
}
static int v_delete(sqlite3_vfs *v, const char *path, int sync) {
  int rc = real_vfs->xDelete(real_vfs, path, sync);
  if (rc == 0 && recorded(path)) record(OP_DELETE, path, 0, NULL, 0);
  return rc;
}

int powercut_start(const char *d) {
  sqlite3_initialize();
  if (real_vfs == NULL) {
    real_vfs = sqlite3_vfs_find(NULL);
    vfs = *real_vfs; /* all that is not about files is the real one's */
    vfs.iVersion = 2;
    vfs.szOsFile = sizeof(file) + real_vfs->szOsFile;
    vfs.zName = "powercut";
    vfs.pNext = NULL;
    vfs.xOpen = v_open;
    vfs.xDelete = v_delete;
  }
  pthread_mutex_lock(&mu);
  for (int i = 0; i < nops; i++) {
    free((void *)ops[i].file);
    free((void *)ops[i].data);
  }
  nops = 0;
  free(dir);
  dir = strdup(d);
  pthread_mutex_unlock(&mu);
  return sqlite3_vfs_register(&vfs, 1);
}

void powercut_stop(void) { sqlite3_vfs_register(real_vfs, 1); }

int powercut_len(void) {
  pthread_mutex_lock(&mu);
  int n = nops;
  pthread_mutex_unlock(&mu);
  return n;
}

void powercut_at(int i, powercut_op *op) {
  pthread_mutex_lock(&mu);
  *op = ops[i];
  pthread_mutex_unlock(&mu);
}
