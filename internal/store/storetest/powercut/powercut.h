#ifndef FALAJ_POWERCUT_H
#define FALAJ_POWERCUT_H

typedef struct {
  int kind;
  const char *file;
  long long offset;
  const void *data;
  int size;
} powercut_op;

int powercut_start(const char *dir);
void powercut_stop(void);
int powercut_len(void);
void powercut_at(int i, powercut_op *op);

#endif
