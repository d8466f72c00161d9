/* A program around kernels that are built with a sanitizer: it does what a job file says, in a child process for each mark.

   Usage: PROGRAM JOB RESULTS SECONDS.  codegen/cuda/sanitized.py writes the one and reads the other: the first run leaves nothing out and
   its outputs are the results; those of the others are compared with them.  */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "graph_opt_host.h"

extern "C" const go_kernel *go_find(const char *name);
extern "C" const char *go_message(void);
extern "C" void go_remove(int mark);
extern "C" void go_reverse(int on);
extern "C" int go_launch(const go_kernel *launched, const unsigned *grid, int threads, size_t shared, void **values);

enum { END, BUFFER, LAUNCH, COPY, OUTPUT, MARKS, REVERSE };
enum { REFUSED = 97, MOST_ARGUMENTS = 256, REPORT = 4000 };
typedef long long number;

static const unsigned char *job, *job_end;

static void broken(const char *what)
{
  fprintf(stderr, "the job is broken: %s\n", what);
  _exit(96);
}

static const void *take(const unsigned char **at, number size)
{
  const unsigned char *found = *at;
  if (size < 0 || size > job_end - found) broken("it ends too early");
  *at += (size + 7) / 8 * 8;
  return found;
}
static number take_number(const unsigned char **at) { return *(const number *)take(at, 8); }

struct Memory {
  unsigned char *data;
  number size;
};
static Memory *buffers;
static number buffer_count;

static unsigned char *address(number buffer, number offset)
{
  if (buffer < 0 || buffer >= buffer_count) broken("there is no such buffer");
  return buffers[buffer].data + offset;
}

static void launch(const unsigned char **at)
{
  char name[512];
  const number length = take_number(at);
  if (length >= (number)sizeof name) broken("a long name");
  memcpy(name, take(at, length), (size_t)length);
  name[length] = 0;
  unsigned grid[3];
  for (int i = 0; i < 3; ++i) grid[i] = (unsigned)take_number(at);
  const number threads = take_number(at), shared = take_number(at), count = take_number(at);
  static number values[MOST_ARGUMENTS];
  static void *addresses[MOST_ARGUMENTS];
  if (count > MOST_ARGUMENTS) broken("too many arguments");
  for (number i = 0; i < count; ++i) {
    const number kind = take_number(at), first = take_number(at), second = take_number(at);
    values[i] = kind ? (number)address(first, second) : first;
    addresses[i] = &values[i];
  }
  const go_kernel *kernel = go_find(name);
  if (!kernel || kernel->count != count) broken(name);
  if (go_launch(kernel, grid, (int)threads, (size_t)shared, addresses)) {
    fprintf(stderr, "%s\n", go_message());
    _exit(REFUSED);
  }
}

/* Memory is allocated to the byte, so that AddressSanitizer sees what is read or written beyond it. */
static void make_buffer(number size, const void *data)
{
  buffers = (Memory *)realloc(buffers, (size_t)(buffer_count + 1) * sizeof(Memory));
  Memory made = {0, size};
  if (posix_memalign((void **)&made.data, 256, (size_t)(size ? size : 1))) broken("no memory");
  memcpy(made.data, data, (size_t)size);
  buffers[buffer_count++] = made;
}

/* Does the job; the outputs one after the other, their size. */
static number run(unsigned char *outputs)
{
  const unsigned char *at = job + 8;
  number written = 0;
  for (;;) {
    switch (take_number(&at)) {
    case END: return written;
    case BUFFER: {
      const number size = take_number(&at);
      make_buffer(size, take(&at, size));
      break;
    }
    case LAUNCH: launch(&at); break;
    case COPY: {
      unsigned char *to = address(take_number(&at), 0);
      to += take_number(&at);
      const unsigned char *from = address(take_number(&at), 0);
      from += take_number(&at);
      memmove(to, from, (size_t)take_number(&at));
      break;
    }
    case OUTPUT: {
      const number buffer = take_number(&at), offset = take_number(&at), size = take_number(&at);
      memcpy(outputs + written, address(buffer, offset), (size_t)size);
      written += size;
      break;
    }
    case MARKS: take(&at, 8 * take_number(&at)); break;
    case REVERSE: go_reverse((int)take_number(&at)); break;
    default: broken("an unknown command");
    }
  }
}

/* Sum of the sizes of the outputs, and the marks, without doing anything. */
static number scan(const number **marks, number *mark_count)
{
  const unsigned char *at = job + 8;
  number size = 0;
  for (;;) {
    switch (take_number(&at)) {
    case END: return size;
    case BUFFER: take(&at, take_number(&at)); break;
    case LAUNCH: {
      take(&at, take_number(&at));
      for (int i = 0; i < 5; ++i) take_number(&at);
      take(&at, 24 * take_number(&at));
      break;
    }
    case COPY: take(&at, 40); break;
    case OUTPUT:
      take(&at, 16);
      size += take_number(&at);
      break;
    case MARKS:
      *mark_count = take_number(&at);
      *marks = (const number *)take(&at, 8 * *mark_count);
      break;
    case REVERSE: take_number(&at); break;
    default: broken("an unknown command");
    }
  }
}

int main(int argc, char **argv)
{
  if (argc != 4) broken("usage: PROGRAM JOB RESULTS SECONDS");
  FILE *file = fopen(argv[1], "rb");
  if (!file || fseek(file, 0, SEEK_END)) broken(strerror(errno));
  const long size = ftell(file);
  rewind(file);
  unsigned char *read = (unsigned char *)malloc((size_t)size + 8);
  if (size < 16 || fread(read, 1, (size_t)size, file) != (size_t)size || memcmp(read, "GOJOB001", 8)) broken("it is no job");
  fclose(file);
  job = read;
  job_end = read + size;

  const number *marks = 0;
  number mark_count = 0;
  const number bytes = scan(&marks, &mark_count);
  unsigned char *outputs = (unsigned char *)mmap(0, (size_t)bytes + 8, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  unsigned char *expected = (unsigned char *)malloc((size_t)bytes + 8);
  FILE *results = fopen(argv[2], "wb");
  if (outputs == MAP_FAILED || !results) broken("no memory, or no file for the results");
  for (number i = -1; i < mark_count; ++i) {
    const number mark = i < 0 ? -1 : marks[i];
    FILE *report = tmpfile();
    memset(outputs, 0xa5, (size_t)bytes);
    fflush(results);
    const pid_t child = fork();
    if (child == 0) {
      dup2(fileno(report), 2);
      alarm((unsigned)atoi(argv[3]));
      go_remove((int)mark);
      run(outputs);
      _exit(0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) broken("no process");
    char text[REPORT];
    rewind(report);
    const size_t length = fread(text, 1, sizeof text, report);
    fclose(report);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    if (i < 0) memcpy(expected, outputs, (size_t)bytes);
    const bool differs = memcmp(expected, outputs, (size_t)bytes) != 0;
    fprintf(results, "%lld %d %d %zu\n", mark, code, differs, length);
    fwrite(text, 1, length, results);
    if (i < 0 && code == 0) fwrite(expected, 1, (size_t)bytes, results);
  }
  return fclose(results) != 0;
}
