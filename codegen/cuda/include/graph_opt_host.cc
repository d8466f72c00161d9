/* Runs the blocks of a kernel on the CPU, for graph_opt_host.h: a fiber for each thread of a block, one at a time.

   Compiled once, without instrumentation, and linked to kernels that may have it: GO_ADDRESS and GO_THREAD say which, so that the
   sanitizers are told about the fibers.  For TSan every thread is one of its own, in two sets that blocks take in turns: what orders
   threads are only barriers, and nothing orders a block and the next one, so blocks that touch the same memory are found as well.  */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifndef __x86_64__
#define GO_UCONTEXT 1
#endif
#ifdef GO_UCONTEXT
#include <ucontext.h>
#endif

#include "graph_opt_host.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

#ifdef GO_ADDRESS
extern "C" void __sanitizer_start_switch_fiber(void **fake, const void *bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void *fake, const void **bottom, size_t *size);
extern "C" void __asan_unpoison_memory_region(const void *address, size_t size);
#endif
#ifdef GO_THREAD
extern "C" void *__tsan_get_current_fiber(void);
extern "C" void *__tsan_create_fiber(unsigned flags);
extern "C" void __tsan_switch_to_fiber(void *fiber, unsigned flags);
extern "C" void __tsan_acquire(void *address);
extern "C" void __tsan_release(void *address);
#endif

enum { STACK = 256 << 10, PAGE = 4096, WARP = 32, LARGEST = 1024, BROUGHT = 64 };
enum State { READY, WAITING, ENDED };

/* -- one thread ------------------------------------------------------------------------------------------------------- */

struct Pending {
  go_copy copy;
  int line;
};

struct Fiber {
  State state;
  int place, line;
  unsigned meetings[2]; /* of the block, of the warp: which of two places for order and values is in use */
  alignas(16) unsigned char brought[2][BROUGHT];
  Pending *copies; /* in the order of their issue; groups[i]: how many copies belong to the first i + 1 groups that were closed */
  int copy_count, copy_room;
  int *groups, group_count, group_room;
  unsigned char *stack;
#ifdef GO_UCONTEXT
  ucontext_t context;
#else
  void *top;
#endif
  void *fake, *tsan;
};

static Fiber *fibers[2]; /* two sets; without TSan only the first is used */
static int fiber_count[2];
static Fiber *now;
static int set, threads;
static Fiber scheduler;
#ifdef GO_ADDRESS
static const void *scheduler_bottom;
static size_t scheduler_size;
#endif
#ifdef GO_THREAD
static void *leaders[2];
static char launch_order, set_order[2], end_order[2], block_order[2][2], warp_order[2][LARGEST / WARP][2];
#endif

extern "C" {
go_index go_now_thread, go_now_block[3];
unsigned char *go_now_shared;
int go_removed_mark = -1;
}

static const go_kernel *kernel;
static void **arguments;
static bool failed, backwards;
static char message[1024];

static const char *const place_names[] = {"a barrier", "a barrier of the warp", "a shuffle", "ldmatrix", "mma"};

static void ordered(bool released, char *address)
{
#ifdef GO_THREAD
  if (released) __tsan_release(address);
  else __tsan_acquire(address);
#else
  (void)released, (void)address;
#endif
}

#ifndef GO_UCONTEXT
extern "C" void go_switch(void **from, void *to);
asm(".text\n.p2align 4\n.globl go_switch\n.hidden go_switch\n.type go_switch, @function\ngo_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n.size go_switch, .-go_switch\n");
#endif

static void jump(Fiber *from, Fiber *to)
{
#ifdef GO_ADDRESS
  const bool home = to == &scheduler;
  __sanitizer_start_switch_fiber(&from->fake, home ? scheduler_bottom : to->stack, home ? scheduler_size : (size_t)STACK);
#endif
#ifdef GO_THREAD
  __tsan_switch_to_fiber(to->tsan, 1);
#endif
#ifdef GO_UCONTEXT
  swapcontext(&from->context, &to->context);
#else
  go_switch(&from->top, to->top);
#endif
#ifdef GO_ADDRESS
  if (from == &scheduler) __sanitizer_finish_switch_fiber(from->fake, 0, 0);
  else __sanitizer_finish_switch_fiber(from->fake, &scheduler_bottom, &scheduler_size);
#endif
}

static void give_way(State state)
{
  now->state = state;
  jump(now, &scheduler);
}

static void thread_body()
{
#ifdef GO_ADDRESS
  __sanitizer_finish_switch_fiber(0, &scheduler_bottom, &scheduler_size);
#endif
#ifdef GO_THREAD
  __tsan_acquire(&set_order[set]);
#endif
  kernel->call(kernel->function, arguments);
#ifdef GO_THREAD
  __tsan_release(&end_order[set]);
#endif
  for (;;) give_way(ENDED);
}

static void start(Fiber *fiber)
{
  fiber->state = READY;
  fiber->meetings[0] = fiber->meetings[1] = 0;
  fiber->copy_count = fiber->group_count = 0;
  fiber->fake = 0;
#ifdef GO_ADDRESS
  __asan_unpoison_memory_region(fiber->stack, STACK);
#endif
#ifdef GO_UCONTEXT
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = STACK;
  fiber->context.uc_link = 0;
  makecontext(&fiber->context, thread_body, 0);
#else
  void **top = (void **)(fiber->stack + STACK);
  *--top = 0; /* where thread_body would return to; it keeps the stack aligned as behind a call */
  *--top = (void *)thread_body;
  for (int i = 0; i < 6; ++i) *--top = 0;
  fiber->top = top;
#endif
}

/* Room for the stacks of the largest block, each behind a page that ends the process at once when a stack overflows.  A process may load many
   libraries, and has only so many pieces of memory: they share the stacks of the first one, `given`, as only one of them runs at a time. */
static unsigned char *all_stacks;

EXPORT unsigned char *go_stacks(unsigned char *given)
{
  if (given) all_stacks = given;
  if (all_stacks) return all_stacks;
  const size_t each = STACK + PAGE;
  void *made = mmap(0, LARGEST * each, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return 0;
  all_stacks = (unsigned char *)made;
  for (size_t i = 0; i < LARGEST; ++i) mprotect(all_stacks + i * each, PAGE, PROT_NONE);
  return all_stacks;
}

static bool prepare(int which, int count)
{
  static Fiber *room[2];
  if (!room[which]) room[which] = (Fiber *)calloc(LARGEST, sizeof(Fiber));
  fibers[which] = room[which];
  if (count <= fiber_count[which]) return true;
  const size_t each = STACK + PAGE;
#ifdef GO_THREAD /* two sets, in a process of their own */
  const size_t added = (size_t)(count - fiber_count[which]);
  unsigned char *stacks = (unsigned char *)mmap(0, added * each, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) return false;
#else
  if (!go_stacks(0)) return false;
  unsigned char *stacks = all_stacks + (size_t)fiber_count[which] * each;
#endif
  for (; fiber_count[which] < count; ++fiber_count[which], stacks += each) {
    Fiber *fiber = &fibers[which][fiber_count[which]];
    fiber->stack = stacks + PAGE;
#ifdef GO_THREAD
    mprotect(stacks, PAGE, PROT_NONE);
    fiber->tsan = __tsan_create_fiber(0);
#endif
  }
  return true;
}

/* -- what can go wrong ------------------------------------------------------------------------------------------------ */

static void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void fail(const char *format, ...)
{
  if (failed) return;
  failed = true;
  int length = snprintf(message, sizeof message, "kernel %s, block (%lld, %lld, %lld): ", kernel->name, go_now_block[0], go_now_block[1], go_now_block[2]);
  va_list list;
  va_start(list, format);
  vsnprintf(message + length, sizeof message - (size_t)length, format, list);
  va_end(list);
}

/* Only from inside a thread: it never goes on. */
static void fail_here(const char *what, int line, const void *address)
{
  fail("thread %lld, line %d: %s (address %p)", go_now_thread, line, what, address);
  for (;;) give_way(ENDED);
}

extern "C" void go_misaligned(const void *address, int bytes, int line)
{
  char what[80];
  snprintf(what, sizeof what, "an access that must be aligned to %d bytes is not", bytes);
  fail_here(what, line, address);
}

static void describe(char *text, size_t size, int thread)
{
  const Fiber *fiber = &fibers[set][thread];
  if (fiber->state == ENDED) snprintf(text, size, "thread %d has ended", thread);
  else snprintf(text, size, "thread %d waits at %s in line %d", thread, place_names[fiber->place], fiber->line);
}

/* Threads first to last - 1 wait, not all for the same. */
static void fail_apart(int first, int last)
{
  Fiber *set_fibers = fibers[set];
  int a = first, b = first;
  while (a < last && set_fibers[a].state == ENDED) ++a;
  for (b = first; b < last; ++b) {
    if (set_fibers[b].state != set_fibers[a].state || set_fibers[b].place != set_fibers[a].place || set_fibers[b].line != set_fibers[a].line) break;
  }
  char one[120], other[120];
  describe(one, sizeof one, a);
  describe(other, sizeof other, b);
  fail("%s, but %s", one, other);
}

/* -- meetings --------------------------------------------------------------------------------------------------------- */

static char *order_of(const Fiber *fiber, bool block)
{
#ifdef GO_THREAD
  const unsigned turn = fiber->meetings[!block] % 2;
  return block ? &block_order[set][turn] : &warp_order[set][(fiber - fibers[set]) / WARP][turn];
#else
  (void)fiber, (void)block;
  return 0;
#endif
}

extern "C" void go_meet(int place, int line)
{
  const bool block = place == GO_AT_BARRIER;
  Fiber *self = now;
  ++self->meetings[!block];
  self->place = place;
  self->line = line;
  ordered(true, order_of(self, block));
  give_way(WAITING);
  ordered(false, order_of(self, block));
}

extern "C" void go_exchange(int place, int line, const void *mine, int size)
{
  Fiber *self = now;
  ++self->meetings[1];
  self->place = place;
  self->line = line;
  unsigned char *to = self->brought[self->meetings[1] % 2]; /* memcpy would be an access that TSan sees, and no barrier orders it */
  for (int i = 0; i < size; ++i) to[i] = ((const unsigned char *)mine)[i];
  give_way(WAITING);
}

extern "C" const void *go_peer(int lane, int line)
{
  const int thread = (int)go_now_thread / WARP * WARP + lane;
  if (thread >= threads) fail_here("a value of a lane that doesn't exist is asked for", line, 0);
  return fibers[set][thread].brought[now->meetings[1] % 2];
}

/* -- asynchronous copies ---------------------------------------------------------------------------------------------- */

extern "C" void go_copy_issue(const go_copy *copy, const unsigned *, int line)
{
  if (now->copy_count == now->copy_room) {
    now->copy_room = now->copy_room ? 2 * now->copy_room : 16;
    now->copies = (Pending *)realloc(now->copies, (size_t)now->copy_room * sizeof(Pending));
  }
  const Pending pending = {*copy, line};
  now->copies[now->copy_count++] = pending;
}

extern "C" void go_copy_close(void)
{
  if (now->group_count == now->group_room) {
    now->group_room = now->group_room ? 2 * now->group_room : 16;
    now->groups = (int *)realloc(now->groups, (size_t)now->group_room * sizeof(int));
  }
  now->groups[now->group_count++] = now->copy_count;
}

/* The next copy of a group that must have landed where at most ``pending`` groups may be open; false when there is none. */
extern "C" bool go_copy_land(int pending, go_copy *copy)
{
  Fiber *self = now;
  if (self->group_count <= pending) return false;
  while (self->groups[0] == 0) { /* a group without copies (left) */
    memmove(self->groups, self->groups + 1, (size_t)--self->group_count * sizeof(int));
    if (self->group_count <= pending) return false;
  }
  *copy = self->copies[0].copy;
  memmove(self->copies, self->copies + 1, (size_t)--self->copy_count * sizeof(Pending));
  for (int i = 0; i < self->group_count; ++i) --self->groups[i];
  return true;
}

/* -- blocks ----------------------------------------------------------------------------------------------------------- */

static void resume(int thread)
{
  now = &fibers[set][thread];
  go_now_thread = thread;
  jump(&scheduler, now);
  if (!failed && now->state == ENDED && now->copy_count > 0) {
    fail("thread %d ended with copies in flight, issued in line %d, that it never waited for", thread, now->copies[0].line);
  }
}

/* Runs the threads of a warp until all wait for the block or have ended. */
static void run_warp(int first, int last)
{
  for (;;) {
    for (int i = 0; i < last - first; ++i) {
      const int thread = backwards ? last - 1 - i : first + i;
      if (fibers[set][thread].state != READY) continue;
      resume(thread);
      if (failed) return;
    }
    int lanes = 0, same = 0;
    const Fiber *one = 0;
    for (int thread = first; thread < last; ++thread) {
      const Fiber *fiber = &fibers[set][thread];
      if (fiber->state != WAITING || fiber->place == GO_AT_BARRIER) continue;
      if (!one) one = fiber;
      ++lanes;
      same += fiber->place == one->place && fiber->line == one->line;
    }
    if (lanes == 0) return;
    if (same < last - first) return fail_apart(first, last);
    for (int thread = first; thread < last; ++thread) fibers[set][thread].state = READY;
  }
}

static void run_block()
{
  Fiber *all = fibers[set];
  for (int thread = 0; thread < threads; ++thread) start(&all[thread]);
  for (;;) {
    const int warps = (threads + WARP - 1) / WARP;
    for (int i = 0; i < warps; ++i) {
      const int first = (backwards ? warps - 1 - i : i) * WARP;
      run_warp(first, first + WARP < threads ? first + WARP : threads);
      if (failed) return;
    }
    int ended = 0, same = 0;
    for (int thread = 0; thread < threads; ++thread) {
      ended += all[thread].state == ENDED;
      same += all[thread].state == WAITING && all[thread].line == all[0].line;
    }
    if (ended == threads) return;
    if (same < threads) return fail_apart(0, threads);
    for (int thread = 0; thread < threads; ++thread) all[thread].state = READY;
  }
}

extern unsigned char static_begin[] __asm__("__start_go_static_shared") __attribute__((weak, visibility("hidden")));
extern unsigned char static_end[] __asm__("__stop_go_static_shared") __attribute__((weak, visibility("hidden")));

static void fill_garbage(unsigned char *memory, size_t size)
{
  for (size_t i = 0; i < size; ++i) memory[i] = i % 2 ? 0x7f : 0xff;
}

/* Garbage in shared memory, by a thread that is behind those of the set's last block and in front of those of the next one. */
static void begin_block(unsigned char *shared, size_t size)
{
#ifdef GO_THREAD
  __tsan_switch_to_fiber(leaders[set], 1);
  __tsan_acquire(&end_order[set]);
  memset(shared, 0, size);
#endif
  fill_garbage(shared, size);
  fill_garbage(static_begin, (size_t)(static_end - static_begin));
#ifdef GO_THREAD
  __tsan_release(&set_order[set]);
  __tsan_switch_to_fiber(scheduler.tsan, 1);
#endif
}

static void run_grid(const unsigned *grid, size_t shared_bytes)
{
  bool apart = false;
  unsigned char *shared[2] = {0, 0};
  const size_t room = shared_bytes ? shared_bytes : 1;
  for (int i = 0; i < 2; ++i) {
    if (posix_memalign((void **)&shared[i], 1024, room)) abort();
  }
#ifdef GO_THREAD
  apart = static_begin == static_end; /* static shared memory exists once */
  scheduler.tsan = __tsan_get_current_fiber();
  __tsan_release(&launch_order);
  for (int i = 0; i < 2; ++i) {
    if (!leaders[i]) leaders[i] = __tsan_create_fiber(0);
    __tsan_switch_to_fiber(leaders[i], 1);
    __tsan_acquire(&launch_order);
    __tsan_switch_to_fiber(scheduler.tsan, 1);
  }
#endif
  const unsigned long long blocks = (unsigned long long)grid[0] * grid[1] * grid[2];
  for (unsigned long long i = 0; i < blocks && !failed; ++i) {
    const unsigned long long block = backwards ? blocks - 1 - i : i;
    go_now_block[0] = (go_index)(block % grid[0]);
    go_now_block[1] = (go_index)(block / grid[0] % grid[1]);
    go_now_block[2] = (go_index)(block / grid[0] / grid[1]);
    set = apart ? (int)(i % 2) : 0;
    begin_block(shared[set], shared_bytes);
    go_now_shared = shared[set];
    run_block();
  }
#ifdef GO_THREAD
  for (int i = 0; i < 2; ++i) __tsan_acquire(&end_order[i]);
#endif
  for (int i = 0; i < 2; ++i) free(shared[i]);
}

/* -- what libraries and programs call --------------------------------------------------------------------------------- */

static const go_kernel *kernels[4096];
static int kernel_count;

extern "C" void go_register(const go_kernel *added)
{
  if (kernel_count == (int)(sizeof kernels / sizeof kernels[0])) abort();
  kernels[kernel_count++] = added;
}

EXPORT const go_kernel *go_find(const char *name)
{
  for (int i = 0; i < kernel_count; ++i) {
    if (!strcmp(kernels[i]->name, name)) return kernels[i];
  }
  return 0;
}

/* What was wrong with the last launch, or "". */
EXPORT const char *go_message(void) { return message; }

/* Leaves out the barrier, wait or bound of this mark; -1: none. */
EXPORT void go_remove(int mark) { go_removed_mark = mark; }

/* Runs threads and blocks from the last one to the first. */
EXPORT void go_reverse(int on) { backwards = on != 0; }

/* Runs a kernel; arguments are the addresses of its values.  0, or 1 with a message. */
EXPORT int go_launch(const go_kernel *launched, const unsigned *grid, int block_threads, size_t shared_bytes, void **values)
{
  kernel = launched;
  arguments = values;
  threads = block_threads;
  failed = false;
  message[0] = 0;
  if (threads < 1 || threads > LARGEST || shared_bytes > 227 << 10) {
    fail("%d threads and %zu bytes of shared memory can't be launched", threads, shared_bytes);
    return 1;
  }
  bool enough = prepare(0, threads);
#ifdef GO_THREAD
  enough = enough && prepare(1, threads);
#endif
  if (!enough) {
    fail("no memory for the stacks of %d threads", threads);
    return 1;
  }
  run_grid(grid, shared_bytes);
  return failed;
}
