/* A CUDA driver without a device, for tests of what talks to one: its "cubins" are libraries that codegen/cuda/host_build.py makes.

   Work for a stream is written down and done when somebody waits for it (FAKE_CUDA_EAGER=1: at once), so that a wait that is missing shows.
   Everything is checked that a driver checks: the context that must be current, places in memory, shared memory that was not asked for,
   calls that are forbidden while a stream is captured.  Functions that are not here are stubs that say CUDA_ERROR_NOT_SUPPORTED.  */
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
enum {
  OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 101, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719,
  NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901
};
static const struct { int number; const char *name, *text; } errors[] = {
  {OK, "CUDA_SUCCESS", "no error"}, {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
  {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}, {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
  {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}, {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
  {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}, {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
  {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"}, {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
  {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
  {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}, {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
  {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
  {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
};

struct go_kernel {
  const char *name;
  void (*call)(void *, void **);
  void *function;
  int count;
  const int *sizes;
};

struct Module;
struct Function {
  const go_kernel *kernel;
  Module *module;
  int shared = 48 << 10;
};
struct Module {
  void *library = nullptr;
  int file = -1;
  std::map<std::string, std::unique_ptr<Function>> functions;
  int (*launch)(const go_kernel *, const unsigned *, int, size_t, void **) = nullptr;
  const go_kernel *(*find)(const char *) = nullptr;
  const char *(*message)() = nullptr;
};

struct Event {
  bool timing = true, recorded = false, done = false;
  double at = 0;
  struct Stream *stream = nullptr;
  long asked = 0, happened = 0; /* records of it: a wait is for the last one that was asked for before it, whatever comes later */
};

struct Work {
  enum Kind { COPY, FILL, LAUNCH, RECORD, WAIT } kind;
  void *to = nullptr;
  const void *from = nullptr;
  size_t size = 0, width = 1;
  unsigned value = 0;
  Function *function = nullptr;
  unsigned grid[3] = {1, 1, 1};
  int threads = 0;
  size_t shared = 0;
  std::vector<std::vector<unsigned char>> arguments;
  std::vector<unsigned char> staged; /* what a copy from pageable memory has read at once */
  Event *event = nullptr;
  long record = 0; /* which one of the event */
  struct Stream *recorded_in = nullptr;
};

struct Stream {
  std::vector<Work> queue;
  bool blocking = true, capturing = false, invalid = false, running = false;
  std::vector<Work> captured;
};
struct Graph { std::vector<Work> work; };

static std::recursive_mutex lock;
static bool initialized, eager;
static int sticky;
static std::map<CUdeviceptr, size_t> device_memory, host_memory;
static Stream default_stream;
static std::set<Stream *> streams;
static std::set<Event *> events;
static std::set<Module *> modules;
static std::set<Function *> functions;
static std::set<Graph *> graphs, executables;
static long counts[8]; /* calls by kind, for tests: launches, graph launches, captures, allocations, copies */
static int context_object;
static thread_local std::vector<void *> contexts;
static const size_t total_memory = 8ull << 30;

#define API extern "C" __attribute__((visibility("default"))) CUresult
#define ENTER                                      \
  std::lock_guard<std::recursive_mutex> guard(lock); \
  if (!initialized) return NOT_INITIALIZED;        \
  if (contexts.empty()) return INVALID_CONTEXT;    \
  if (sticky) return sticky

static bool inside(const std::map<CUdeviceptr, size_t> &memory, CUdeviceptr at, size_t size)
{
  auto found = memory.upper_bound(at);
  if (found == memory.begin()) return false;
  --found;
  return at + size <= found->first + found->second;
}
static bool on_device(const void *at, size_t size) { return inside(device_memory, (CUdeviceptr)at, size); }
static bool page_locked(const void *at, size_t size) { return inside(host_memory, (CUdeviceptr)at, size); }

static double seconds()
{
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* -- work ------------------------------------------------------------------------------------------------------------- */

static void run_until(Stream *stream, Event *event, long record = 0);

static void perform(Work &work)
{
  if (sticky) return;
  switch (work.kind) {
  case Work::COPY: memmove(work.to, work.staged.empty() ? work.from : work.staged.data(), work.size); break;
  case Work::FILL:
    for (size_t i = 0; i < work.size; ++i) memcpy((char *)work.to + i * work.width, &work.value, work.width);
    break;
  case Work::LAUNCH: {
    std::vector<void *> addresses;
    for (auto &value : work.arguments) addresses.push_back(value.data());
    addresses.push_back(nullptr);
    Module *module = work.function->module;
    if (module->launch(work.function->kernel, work.grid, work.threads, work.shared, addresses.data())) {
      fprintf(stderr, "fake CUDA driver: %s\n", module->message());
      sticky = LAUNCH_FAILED;
    }
    break;
  }
  case Work::RECORD:
    work.event->happened = work.record;
    work.event->done = work.record == work.event->asked;
    work.event->at = seconds();
    break;
  case Work::WAIT:
    if (work.event->happened < work.record && streams.count(work.recorded_in) + (work.recorded_in == &default_stream)) {
      run_until(work.recorded_in, work.event, work.record);
    }
    break;
  }
}

/* Does the work of a stream, up to a record of an event (all of it: null). */
static void run_until(Stream *stream, Event *event, long record)
{
  if (stream->running) return;
  stream->running = true;
  while (!stream->queue.empty() && !(event && event->happened >= record)) {
    Work work = std::move(stream->queue.front());
    stream->queue.erase(stream->queue.begin());
    perform(work);
  }
  stream->running = false;
}

static void run_all()
{
  run_until(&default_stream, nullptr);
  for (Stream *s : streams) run_until(s, nullptr);
}

static Stream *stream_of(void *handle)
{
  if ((CUdeviceptr)handle <= 2) return &default_stream;
  Stream *stream = (Stream *)handle;
  return streams.count(stream) ? stream : nullptr;
}

static bool anything_captured()
{
  for (Stream *s : streams) {
    if (s->capturing) return true;
  }
  return false;
}

/* A call that must not come while something is captured; it spoils the capture. */
static bool forbidden()
{
  bool found = false;
  for (Stream *s : streams) {
    if (s->capturing) found = s->invalid = true;
  }
  return found;
}

static CUresult enqueue(void *handle, Work work)
{
  Stream *stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  if (stream->capturing) {
    if (stream->invalid) return CAPTURE_INVALIDATED;
    stream->captured.push_back(std::move(work));
    return OK;
  }
  if (stream == &default_stream) {
    if (anything_captured()) { forbidden(); return CAPTURE_UNSUPPORTED; }
    for (Stream *s : streams) {
      if (s->blocking) run_until(s, nullptr);
    }
  } else if (stream->blocking) {
    run_until(&default_stream, nullptr);
  }
  stream->queue.push_back(std::move(work));
  if (eager) run_until(stream, nullptr);
  return sticky;
}

static CUresult copy(void *to, const void *from, size_t size, void *stream, bool to_device, bool from_device, bool wait)
{
  ++counts[4];
  if (size == 0) return OK;
  if (to_device && !on_device(to, size)) return INVALID_VALUE;
  if (from_device && !on_device(from, size)) return INVALID_VALUE;
  Stream *s = stream_of(stream);
  if (!s) return INVALID_HANDLE;
  if (wait && forbidden()) return CAPTURE_UNSUPPORTED;
  Work work;
  work.kind = Work::COPY;
  work.to = to;
  work.from = from;
  work.size = size;
  const bool pageable = (!to_device && !page_locked(to, size)) || (!from_device && !page_locked(from, size));
  if (!from_device && pageable && !s->capturing) work.staged.assign((const unsigned char *)from, (const unsigned char *)from + size);
  const CUresult result = enqueue(stream, std::move(work));
  if (result == OK && !s->capturing && (wait || (!to_device && pageable))) run_until(s, nullptr);
  return result ? result : sticky;
}

static CUresult fill(CUdeviceptr to, unsigned value, size_t width, size_t size, void *stream, bool wait)
{
  if (!on_device((void *)to, size * width)) return INVALID_VALUE;
  Work work;
  work.kind = Work::FILL;
  work.to = (void *)to;
  work.value = value;
  work.width = width;
  work.size = size;
  const CUresult result = enqueue(stream, std::move(work));
  if (wait && result == OK) run_until(stream_of(stream), nullptr);
  return result;
}

API cuLaunchKernel(Function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream,
                   void **parameters, void **extra)
{
  ENTER;
  ++counts[0];
  if (!functions.count(function)) return INVALID_HANDLE;
  if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || gx > 0x7fffffffu || bx * by * bz - 1 >= 1024 || by != 1 || bz != 1) return INVALID_VALUE;
  if ((int)shared > function->shared) return INVALID_VALUE;
  Work work;
  work.kind = Work::LAUNCH;
  work.function = function;
  work.grid[0] = gx, work.grid[1] = gy, work.grid[2] = gz;
  work.threads = (int)bx;
  work.shared = shared;
  const go_kernel *kernel = function->kernel;
  const unsigned char *packed = nullptr;
  size_t room = 0, at = 0;
  if (!parameters && kernel->count) {
    for (; extra && *extra; extra += 2) {
      if ((size_t)extra[0] == 1) packed = (const unsigned char *)extra[1];
      else if ((size_t)extra[0] == 2) room = *(const size_t *)extra[1];
      else return INVALID_VALUE;
    }
    if (!packed) return INVALID_VALUE;
  }
  for (int i = 0; i < kernel->count; ++i) {
    const size_t size = (size_t)kernel->sizes[i];
    at = (at + size - 1) / size * size;
    if (packed && at + size > room) return INVALID_VALUE;
    const unsigned char *from = packed ? packed + at : (const unsigned char *)parameters[i];
    work.arguments.emplace_back(from, from + size);
    at += size;
  }
  return enqueue(stream, std::move(work));
}

API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) { ENTER; return copy((void *)to, from, size, nullptr, true, false, true); }
API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) { ENTER; return copy(to, (void *)from, size, nullptr, false, true, true); }
API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size) { ENTER; return copy((void *)to, (void *)from, size, nullptr, true, true, false); }
API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, void *s) { ENTER; return copy((void *)to, from, size, s, true, false, false); }
API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, void *s) { ENTER; return copy(to, (void *)from, size, s, false, true, false); }
API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, void *s) { ENTER; return copy((void *)to, (void *)from, size, s, true, true, false); }
API cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t size) { ENTER; return fill(to, value, 1, size, nullptr, true); }
API cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t size) { ENTER; return fill(to, value, 4, size, nullptr, true); }
API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, void *s) { ENTER; return fill(to, value, 1, size, s, false); }
API cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t size, void *s) { ENTER; return fill(to, value, 4, size, s, false); }

/* -- devices and contexts --------------------------------------------------------------------------------------------- */

API cuInit(unsigned)
{
  std::lock_guard<std::recursive_mutex> guard(lock);
  const char *value = getenv("FAKE_CUDA_EAGER");
  eager = value && *value == '1';
  initialized = true;
  return OK;
}
API cuDriverGetVersion(int *version) { *version = 13000; return OK; }
API cuGetErrorName(CUresult error, const char **text)
{
  for (auto &e : errors) {
    if (e.number == error) { *text = e.name; return OK; }
  }
  *text = nullptr;
  return INVALID_VALUE;
}
API cuGetErrorString(CUresult error, const char **text)
{
  for (auto &e : errors) {
    if (e.number == error) { *text = e.text; return OK; }
  }
  *text = nullptr;
  return INVALID_VALUE;
}
API cuDeviceGetCount(int *count) { *count = 1; return initialized ? OK : NOT_INITIALIZED; }
API cuDeviceGet(int *device, int ordinal)
{
  if (!initialized) return NOT_INITIALIZED;
  *device = 0;
  return ordinal == 0 ? OK : INVALID_DEVICE;
}
API cuDeviceGetName(char *name, int size, int) { snprintf(name, (size_t)size, "Fake GPU"); return OK; }
API cuDeviceTotalMem_v2(size_t *size, int) { *size = total_memory; return OK; }
API cuDeviceComputeCapability(int *major, int *minor, int) { *major = 9; *minor = 0; return OK; }
API cuDeviceGetUuid_v2(char *uuid, int) { memset(uuid, 7, 16); return OK; }
API cuDeviceGetPCIBusId(char *text, int size, int) { snprintf(text, (size_t)size, "0000:01:00.0"); return OK; }
API cuDeviceGetAttribute(int *value, int attribute, int)
{
  static const std::map<int, int> known = {{1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 0x7fffffff}, {6, 65535}, {7, 65535}, {8, 48 << 10}, {10, 32},
                                           {12, 65536}, {13, 1000000}, {16, 4}, {36, 2000000}, {37, 1024}, {41, 1}, {75, 9}, {76, 0}, {81, 228 << 10},
                                           {97, 227 << 10}};
  auto found = known.find(attribute);
  *value = found == known.end() ? 0 : found->second;
  return OK;
}
API cuDevicePrimaryCtxRetain(void **context, int) { *context = &context_object; return initialized ? OK : NOT_INITIALIZED; }
API cuDevicePrimaryCtxRelease_v2(int) { return OK; }
API cuDevicePrimaryCtxGetState(int, unsigned *flags, int *active) { *flags = 0; *active = 1; return OK; }
static CUresult create_context(void **context)
{
  *context = &context_object;
  contexts.push_back(*context);
  return initialized ? OK : NOT_INITIALIZED;
}
API cuCtxCreate_v2(void **context, unsigned, int) { return create_context(context); }
API cuCtxCreate_v4(void **context, void *, unsigned, int) { return create_context(context); }
API cuCtxDestroy_v2(void *) { if (!contexts.empty()) contexts.pop_back(); return OK; }
API cuCtxAttach(void **context, unsigned) { *context = &context_object; return OK; }
API cuCtxDetach(void *) { return OK; }
API cuCtxPushCurrent_v2(void *context)
{
  if (context != &context_object) return INVALID_CONTEXT;
  contexts.push_back(context);
  return OK;
}
API cuCtxPopCurrent_v2(void **context)
{
  if (contexts.empty()) return INVALID_CONTEXT;
  if (context) *context = contexts.back();
  contexts.pop_back();
  return OK;
}
API cuCtxGetCurrent(void **context) { *context = contexts.empty() ? nullptr : contexts.back(); return OK; }
API cuCtxSetCurrent(void *context)
{
  if (!contexts.empty()) contexts.pop_back();
  if (context) contexts.push_back(context);
  return OK;
}
API cuCtxGetDevice(int *device) { *device = 0; return contexts.empty() ? INVALID_CONTEXT : OK; }
API cuCtxGetApiVersion(void *, unsigned *version) { *version = 13000; return OK; }
API cuCtxSynchronize()
{
  ENTER;
  if (forbidden()) return CAPTURE_UNSUPPORTED;
  run_all();
  return sticky;
}

/* -- modules ---------------------------------------------------------------------------------------------------------- */

API cuModuleLoadData(Module **result, const void *image)
{
  ENTER;
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
  if (memcmp(header->e_ident, ELFMAG, SELFMAG) || header->e_type != ET_DYN) return INVALID_IMAGE;
  const size_t size = header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
  std::unique_ptr<Module> module(new Module);
  module->file = memfd_create("cubin", MFD_CLOEXEC);
  if (module->file < 0 || write(module->file, image, size) != (ssize_t)size) return OUT_OF_MEMORY;
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", module->file);
  module->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!module->library) return INVALID_IMAGE;
  *(void **)&module->find = dlsym(module->library, "go_find");
  *(void **)&module->launch = dlsym(module->library, "go_launch");
  *(void **)&module->message = dlsym(module->library, "go_message");
  unsigned char *(*share)(unsigned char *) = nullptr;
  *(void **)&share = dlsym(module->library, "go_stacks");
  if (!module->find || !module->launch || !module->message || !share) return INVALID_IMAGE;
  static unsigned char *stacks; /* all libraries use those of the first one */
  stacks = share(stacks);
  *result = module.release();
  modules.insert(*result);
  return OK;
}
API cuModuleLoadDataEx(Module **result, const void *image, unsigned, int *, void **) { return cuModuleLoadData(result, image); }
API cuModuleUnload(Module *module)
{
  ENTER;
  if (!modules.erase(module)) return INVALID_HANDLE;
  run_all();
  for (auto &f : module->functions) functions.erase(f.second.get());
  dlclose(module->library);
  close(module->file);
  delete module;
  return OK;
}
API cuModuleGetFunction(Function **result, Module *module, const char *name)
{
  ENTER;
  if (!modules.count(module)) return INVALID_HANDLE;
  auto &found = module->functions[name];
  if (!found) {
    const go_kernel *kernel = module->find(name);
    if (!kernel) return NOT_FOUND;
    found.reset(new Function{kernel, module});
    functions.insert(found.get());
  }
  *result = found.get();
  return OK;
}
API cuFuncSetAttribute(Function *function, int attribute, int value)
{
  ENTER;
  if (!functions.count(function)) return INVALID_HANDLE;
  if (attribute != 8) return OK;
  if (value > 227 << 10) return INVALID_VALUE;
  function->shared = value > 48 << 10 ? value : 48 << 10;
  return OK;
}
API cuFuncGetAttribute(int *value, int attribute, Function *function)
{
  ENTER;
  if (!functions.count(function)) return INVALID_HANDLE;
  *value = attribute == 0 ? 1024 : attribute == 8 ? function->shared : attribute == 4 ? 32 : 0;
  return OK;
}
API cuFuncSetCacheConfig(Function *, int) { return OK; }
API cuFuncSetBlockShape(Function *, int, int, int) { return OK; } /* pycuda calls it, and says it again in the launch */
API cuFuncSetSharedSize(Function *, unsigned) { return OK; }

/* -- memory ----------------------------------------------------------------------------------------------------------- */

static CUresult allocate(std::map<CUdeviceptr, size_t> &memory, void **result, size_t size)
{
  ++counts[3];
  if (size == 0) return INVALID_VALUE;
  size_t used = 0;
  for (auto &m : device_memory) used += m.second;
  void *found = nullptr;
  if (used + size > total_memory || posix_memalign(&found, 512, size)) return OUT_OF_MEMORY;
  for (size_t i = 0; i < size; ++i) ((unsigned char *)found)[i] = i % 2 ? 0x7f : 0xff; /* NaN */
  memory[(CUdeviceptr)found] = size;
  *result = found;
  return OK;
}
API cuMemAlloc_v2(CUdeviceptr *result, size_t size)
{
  ENTER;
  if (forbidden()) return CAPTURE_UNSUPPORTED;
  return allocate(device_memory, (void **)result, size);
}
API cuMemFree_v2(CUdeviceptr address)
{
  ENTER;
  if (forbidden()) return CAPTURE_UNSUPPORTED;
  run_all();
  if (!device_memory.erase(address)) return INVALID_VALUE;
  free((void *)address);
  return OK;
}
API cuMemHostAlloc(void **result, size_t size, unsigned) { ENTER; return allocate(host_memory, result, size); }
API cuMemAllocHost_v2(void **result, size_t size) { ENTER; return allocate(host_memory, result, size); }
API cuMemFreeHost(void *address)
{
  ENTER;
  run_all();
  if (!host_memory.erase((CUdeviceptr)address)) return INVALID_VALUE;
  free(address);
  return OK;
}
API cuMemGetInfo_v2(size_t *left, size_t *total)
{
  ENTER;
  size_t used = 0;
  for (auto &m : device_memory) used += m.second;
  *left = total_memory - used;
  *total = total_memory;
  return OK;
}
API cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address)
{
  std::lock_guard<std::recursive_mutex> guard(lock);
  const bool device = on_device((void *)address, 1), host = page_locked((void *)address, 1);
  if (!device && !host) return INVALID_VALUE;
  if (attribute == 2) *(unsigned *)data = device ? 2 : 1;
  else if (attribute == 9) *(int *)data = 0;
  else return NOT_SUPPORTED;
  return OK;
}

/* -- streams and events ----------------------------------------------------------------------------------------------- */

API cuStreamCreate(Stream **result, unsigned flags)
{
  ENTER;
  *result = new Stream;
  (*result)->blocking = !(flags & 1);
  streams.insert(*result);
  return OK;
}
API cuStreamCreateWithPriority(Stream **result, unsigned flags, int) { return cuStreamCreate(result, flags); }
API cuStreamDestroy_v2(Stream *stream)
{
  ENTER;
  if (!streams.count(stream)) return INVALID_HANDLE;
  run_until(stream, nullptr);
  streams.erase(stream);
  for (Event *e : events) {
    if (e->stream == stream) e->stream = nullptr;
  }
  delete stream;
  return OK;
}
API cuStreamSynchronize(void *handle)
{
  ENTER;
  Stream *stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  if (stream->capturing) { stream->invalid = true; return CAPTURE_UNSUPPORTED; }
  if (stream == &default_stream) {
    for (Stream *s : streams) {
      if (s->blocking) run_until(s, nullptr);
    }
  }
  run_until(stream, nullptr);
  return sticky;
}
API cuStreamQuery(void *handle)
{
  ENTER;
  Stream *stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  const bool busy = !stream->queue.empty();
  run_until(stream, nullptr);
  return sticky ? sticky : busy ? NOT_READY : OK;
}
API cuEventCreate(Event **result, unsigned flags)
{
  ENTER;
  *result = new Event;
  (*result)->timing = !(flags & 2);
  events.insert(*result);
  return OK;
}
API cuEventDestroy_v2(Event *event)
{
  ENTER;
  if (!events.erase(event)) return INVALID_HANDLE;
  run_all();
  delete event;
  return OK;
}
API cuEventRecord(Event *event, void *stream)
{
  ENTER;
  if (!events.count(event) || !stream_of(stream)) return INVALID_HANDLE;
  Work work;
  work.kind = Work::RECORD;
  work.event = event;
  event->recorded = true;
  event->done = false;
  event->stream = stream_of(stream);
  work.record = ++event->asked;
  return enqueue(stream, std::move(work));
}
API cuStreamWaitEvent(void *stream, Event *event, unsigned)
{
  ENTER;
  if (!events.count(event) || !stream_of(stream)) return INVALID_HANDLE;
  Work work;
  work.kind = Work::WAIT;
  work.event = event;
  work.record = event->asked;
  work.recorded_in = event->stream;
  return enqueue(stream, std::move(work));
}
API cuEventSynchronize(Event *event)
{
  ENTER;
  if (!events.count(event)) return INVALID_HANDLE;
  if (event->recorded && !event->done && event->stream) run_until(event->stream, event, event->asked);
  return sticky;
}
API cuEventQuery(Event *event)
{
  ENTER;
  if (!events.count(event)) return INVALID_HANDLE;
  const bool busy = event->recorded && !event->done;
  if (busy && event->stream) run_until(event->stream, event, event->asked);
  return sticky ? sticky : busy ? NOT_READY : OK;
}
API cuEventElapsedTime(float *milliseconds, Event *first, Event *second)
{
  ENTER;
  if (!events.count(first) || !events.count(second) || !first->timing || !second->timing || !first->recorded || !second->recorded) return INVALID_HANDLE;
  if (!first->done || !second->done) return NOT_READY;
  *milliseconds = (float)(1e3 * (second->at - first->at));
  return OK;
}
API cuEventElapsedTime_v2(float *milliseconds, Event *first, Event *second) { return cuEventElapsedTime(milliseconds, first, second); }

/* -- graphs ----------------------------------------------------------------------------------------------------------- */

API cuStreamBeginCapture_v2(void *handle, int)
{
  ENTER;
  ++counts[2];
  Stream *stream = stream_of(handle);
  if (!stream || stream == &default_stream) return CAPTURE_UNSUPPORTED;
  if (stream->capturing) return CAPTURE_INVALIDATED;
  stream->capturing = true;
  stream->invalid = false;
  stream->captured.clear();
  return OK;
}
API cuStreamIsCapturing(void *handle, int *status)
{
  ENTER;
  Stream *stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  *status = !stream->capturing ? 0 : stream->invalid ? 2 : 1;
  return OK;
}
API cuStreamEndCapture(void *handle, Graph **result)
{
  ENTER;
  Stream *stream = stream_of(handle);
  if (!stream || !stream->capturing) return INVALID_HANDLE;
  stream->capturing = false;
  *result = nullptr;
  if (stream->invalid) return CAPTURE_INVALIDATED;
  *result = new Graph{std::move(stream->captured)};
  graphs.insert(*result);
  return OK;
}
API cuGraphInstantiateWithFlags(Graph **result, Graph *graph, unsigned long long)
{
  ENTER;
  if (!graphs.count(graph)) return INVALID_HANDLE;
  *result = new Graph(*graph);
  executables.insert(*result);
  return OK;
}
API cuGraphLaunch(Graph *graph, void *stream)
{
  ENTER;
  ++counts[1];
  if (!executables.count(graph)) return INVALID_HANDLE;
  for (const Work &work : graph->work) {
    const CUresult result = enqueue(stream, work);
    if (result) return result;
  }
  return OK;
}
API cuGraphDestroy(Graph *graph)
{
  ENTER;
  if (!graphs.erase(graph)) return INVALID_HANDLE;
  delete graph;
  return OK;
}
API cuGraphExecDestroy(Graph *graph)
{
  ENTER;
  if (!executables.erase(graph)) return INVALID_HANDLE;
  delete graph;
  return OK;
}

/* How often something was called: 0 launches, 1 launches of graphs, 2 captures, 3 allocations, 4 copies. */
extern "C" __attribute__((visibility("default"))) long fake_cuda_count(int what) { return counts[what]; }

/* -- functions by name ------------------------------------------------------------------------------------------------ */

API cuGetProcAddress_v2(const char *name, void **function, int, unsigned long long, int *status)
{
  static const char *const versions[] = {"_v4", "_v3", "_v2", ""};
  *function = nullptr;
  for (const char *version : versions) {
    const std::string full = std::string(name) + version;
    *function = dlsym(RTLD_DEFAULT, full.c_str());
    if (!*function) {
      static void *self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
      if (self) *function = dlsym(self, full.c_str());
    }
    if (*function) break;
  }
  if (status) *status = *function ? 0 : 1;
  return *function ? OK : NOT_FOUND;
}
API cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags)
{
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}
