// The CUDA driver's calls that Ambitus makes, on host memory: kernels are the emulated blocks of block.cc, streams and
// graphs are lists of work with the dependencies that events give them. For tests without a card.
#include "block.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

API int emulated_take_fault();
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719, UNJOINED = 904 };

struct Module {
    void* library;
};
struct Node {
    std::function<void()> work;
    std::vector<int> after;
    bool on_origin;
};
struct Graph {
    std::vector<Node> nodes;
    void* origin;
};
struct Stream;
static std::vector<Stream*> streams;
struct Stream {
    Graph* graph = nullptr;
    std::vector<int> last;  // what the next node comes after
    // A copy from page-locked memory that runs late: when the stream's next work is put on it, or is waited for.
    std::function<void()> copy;

    void flush() {
        if (copy) std::exchange(copy, nullptr)();
    }
};
struct Event {
    Graph* graph = nullptr;
    std::vector<int> last;
};

static const size_t TOTAL = (size_t)4 << 30;
static const int SHARED = 48 << 10;
static std::recursive_mutex lock;
static std::map<uintptr_t, size_t> allocations;  // device and host memory alike
static size_t device_bytes;
static unsigned order;
static int late, races, hopper;

// How threads of a block take turns (0 upwards, 1 downwards, 2 shuffled, 3 and 4 warp by warp), whether copies run as early or as
// late as they may, and whether kernels that are compiled from now on say their loads and stores.
API void emulated_settings(int turns_of_threads, int copies_late, int check_races) {
    order = (unsigned)turns_of_threads;
    late = copies_late;
    races = check_races;
}
// What card it is: an A100 (8.0) or Hopper (9.0), whose blocks may have more shared memory.
API void emulated_hopper(int is) { hopper = is; }
static int most_shared() { return (hopper ? 227 : 163) << 10; }
API int emulated_races() { return races; }
API int emulated_copies_late() { return late; }

API bool emulated_inside(uintptr_t at, size_t bytes) {
    auto next = allocations.upper_bound(at);
    if (next == allocations.begin()) return false;
    auto found = --next;
    return at + bytes <= found->first + found->second;
}

// Pages with unmapped neighbours, so that a kernel which runs past the arena stops there.
static void* take(size_t bytes, unsigned char filled) {
    size_t page = 4096, whole = (bytes + page - 1) / page * page;
    char* at = (char*)mmap(nullptr, whole + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == (char*)MAP_FAILED) return nullptr;
    if (mprotect(at + page, whole, PROT_READ | PROT_WRITE) != 0) return nullptr;
    // The end of the arena, up to its alignment of 256 bytes, is the end of the last page.
    char* start = at + page + (whole - (bytes + 255) / 256 * 256);
    memset(start, filled, bytes);
    allocations[(uintptr_t)start] = bytes;
    return start;
}
static bool give_back(uintptr_t at) {
    auto found = allocations.find(at);
    if (found == allocations.end()) return false;
    size_t page = 4096, whole = (found->second + page - 1) / page * page;
    munmap((char*)(at / page * page) - page, whole + 2 * page);
    allocations.erase(found);
    return true;
}

static int done() { return emulated_take_fault() ? LAUNCH_FAILED : SUCCESS; }

// Runs work now, or adds it to the graph that the stream records.
API int emulated_enqueue(void* stream, void (*call)(void*), void* data) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    Stream* s = (Stream*)stream;
    if (s) s->flush();
    if (!s || !s->graph) {
        call(data);
        return done();
    }
    s->graph->nodes.push_back({[call, data] { call(data); }, s->last, s->graph->origin == stream});
    s->last = {(int)s->graph->nodes.size() - 1};
    return SUCCESS;
}
static int enqueue(Stream* s, std::function<void()> work) {
    if (s) s->flush();
    if (!s || !s->graph) {
        work();
        return done();
    }
    auto* kept = new std::function<void()>(std::move(work));
    return emulated_enqueue(s, [](void* f) { (*(std::function<void()>*)f)(); }, kept);
}

API int cuInit(unsigned) { return SUCCESS; }
API int cuDriverGetVersion(int* v) { *v = 12000; return SUCCESS; }
API int cuGetErrorName(int e, const char** s) { *s = e == OUT_OF_MEMORY ? "out of memory" : e == LAUNCH_FAILED ? "a kernel has a fault, said above" : "error of the emulated card"; return SUCCESS; }
API int cuGetErrorString(int e, const char** s) { return cuGetErrorName(e, s); }
// One card, or as many as EMULATED_CARDS says: all have the same memory.
static int cards() {
    const char* n = getenv("EMULATED_CARDS");
    return n ? atoi(n) : 1;
}
API int cuDeviceGetCount(int* n) { *n = cards(); return SUCCESS; }
API int cuDeviceGet(int* d, int i) { *d = i; return i >= 0 && i < cards() ? SUCCESS : 101; }
API int cuDeviceGetName(char* name, int n, int) { snprintf(name, n, "emulated card"); return SUCCESS; }
API int cuDeviceGetPCIBusId(char* name, int n, int) { snprintf(name, n, "0000:01:00.0"); return SUCCESS; }
API uint64_t emulated_device_bytes() { return device_bytes; }
API int cuDeviceTotalMem_v2(size_t* bytes, int) { *bytes = TOTAL; return SUCCESS; }
API int cuDeviceGetAttribute(int* v, int attribute, int) {
    // 75 is the compute capability's major, 76 its minor number; bytes of shared memory of a block, and where a kernel asks.
    *v = attribute == 75 ? 8 + hopper : attribute == 8 ? SHARED : attribute == 97 ? most_shared() : 0;
    return SUCCESS;
}
API int cuDevicePrimaryCtxSetFlags_v2(int, unsigned flags) { return flags == 4 ? SUCCESS : INVALID_VALUE; }
API int cuDevicePrimaryCtxRetain(void** context, int) { *context = (void*)1; return SUCCESS; }
API int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
API int cuCtxSetCurrent(void*) { return SUCCESS; }

API int cuMemGetInfo_v2(size_t* free, size_t* total) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    *total = TOTAL;
    *free = TOTAL - device_bytes;
    return SUCCESS;
}
API int cuMemAlloc_v2(uint64_t* at, size_t bytes) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (device_bytes + bytes > TOTAL) return OUT_OF_MEMORY;
    // Full of NaN: what is read without having been written shows.
    void* made = take(bytes, 0xff);
    if (!made) return OUT_OF_MEMORY;
    device_bytes += bytes;
    *at = (uint64_t)made;
    return SUCCESS;
}
API int cuMemFree_v2(uint64_t at) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    auto found = allocations.find(at);
    if (found == allocations.end()) return INVALID_VALUE;
    device_bytes -= found->second;
    return give_back(at) ? SUCCESS : INVALID_VALUE;
}
API int cuMemHostAlloc(void** at, size_t bytes, unsigned) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    *at = take(bytes, 0xff);
    return *at ? SUCCESS : OUT_OF_MEMORY;
}
API int cuMemFreeHost(void* at) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    return give_back((uintptr_t)at) ? SUCCESS : INVALID_VALUE;
}
API int cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, void* stream) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (!emulated_inside(at, bytes)) return ILLEGAL_ADDRESS;
    return enqueue((Stream*)stream, [=] { memset((void*)at, value, bytes); });
}
API int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void* stream) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    // One side may be any host memory; that is not recorded.
    bool both = emulated_inside(to, bytes) && emulated_inside(from, bytes);
    bool recording = stream && ((Stream*)stream)->graph;
    if (!both && (recording || (!emulated_inside(to, bytes) && !emulated_inside(from, bytes)))) return ILLEGAL_ADDRESS;
    auto copy = [=] { memmove((void*)to, (const void*)from, bytes); };
    if (late && both && stream && !recording) {
        ((Stream*)stream)->flush();
        ((Stream*)stream)->copy = copy;
        return SUCCESS;
    }
    return enqueue((Stream*)stream, copy);
}

struct Copy2D {
    size_t src_x, src_y; int src_type; const void* src_host; uint64_t src_device; void* src_array; size_t src_pitch;
    size_t dst_x, dst_y; int dst_type; void* dst_host; uint64_t dst_device; void* dst_array; size_t dst_pitch;
    size_t width, height;
};
API int cuMemcpy2DAsync_v2(const Copy2D* c, void* stream) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (stream) ((Stream*)stream)->flush();
    if (!stream || ((Stream*)stream)->graph || c->src_pitch < c->width || c->dst_pitch < c->width) return INVALID_VALUE;
    if (c->src_pitch > 0x7fffffff || c->dst_pitch > 0x7fffffff) return INVALID_VALUE;
    const int HOST = 1;
    const char* from = c->src_type == HOST ? (const char*)c->src_host : (const char*)c->src_device;
    char* to = c->dst_type == HOST ? (char*)c->dst_host : (char*)c->dst_device;
    for (size_t row = 0; row < c->height; row++, from += c->src_pitch, to += c->dst_pitch) {
        if (c->src_type != HOST && !emulated_inside((uintptr_t)from, c->width)) return ILLEGAL_ADDRESS;
        if (c->dst_type != HOST && !emulated_inside((uintptr_t)to, c->width)) return ILLEGAL_ADDRESS;
        memcpy(to, from, c->width);
    }
    return SUCCESS;
}

// A module's image is what the emulated compiler made: a magic word, a length, a shared library.
API int cuModuleLoadData(void** module, const void* image) {
    uint64_t head[2];
    memcpy(head, image, sizeof head);
    if (head[0] != 0x44454d554c415445ull) return 200;
    int file = memfd_create("kernels", 0);
    if (file < 0 || write(file, (const char*)image + sizeof head, head[1]) != (ssize_t)head[1]) return OUT_OF_MEMORY;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    // The loader knows libraries by their path: the descriptor stays open, so that the next module has another.
    if (!library) { fprintf(stderr, "%s\n", dlerror()); return 200; }
    *module = new Module{library};
    return SUCCESS;
}
API int cuModuleGetFunction(void** function, void* module, const char* name) {
    *function = dlsym(((Module*)module)->library, (std::string("emulated_") + name).c_str());
    return *function ? SUCCESS : NOT_FOUND;
}
API int cuModuleUnload(void* module) {
    delete (Module*)module;
    return SUCCESS;
}
// What a kernel's launches may ask for: by cuFuncSetAttribute, else as much as any.
static std::map<const EmulatedKernel*, int> dynamic_shared;
enum { DYNAMIC_SHARED_BYTES = 8, CARVEOUT = 9 };
static int shared_bytes(const EmulatedKernel* f) { return (int)(f->shared_end - f->shared); }
API int cuFuncSetAttribute(void* function, int attribute, int value) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    const EmulatedKernel* f = (const EmulatedKernel*)function;
    if (attribute == CARVEOUT) return value >= -1 && value <= 100 ? SUCCESS : INVALID_VALUE;
    if (attribute != DYNAMIC_SHARED_BYTES || value < 0 || value + shared_bytes(f) > most_shared()) return INVALID_VALUE;
    dynamic_shared[f] = value;
    return SUCCESS;
}
API int cuFuncGetAttribute(int* value, int attribute, void* function) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    const EmulatedKernel* f = (const EmulatedKernel*)function;
    // 0: threads of a block, at most; 1: bytes of static shared memory, here of all kernels of the file.
    if (attribute == 0) *value = f->block;
    else if (attribute == 1) *value = shared_bytes(f);
    else if (attribute == DYNAMIC_SHARED_BYTES) *value = dynamic_shared.count(f) ? dynamic_shared[f] : SHARED - shared_bytes(f);
    else return INVALID_VALUE;
    return SUCCESS;
}
API int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared, void* stream, void** parameters, void**) {
    if (!gx || !gy || gz != 1 || !bx || bx > 1024 || by != 1 || bz != 1 || gy > 65535) return INVALID_VALUE;
    std::lock_guard<std::recursive_mutex> hold(lock);
    const EmulatedKernel* f = (const EmulatedKernel*)function;
    int most = 0;
    if (bx != f->block || cuFuncGetAttribute(&most, DYNAMIC_SHARED_BYTES, function) || (int)shared > std::max(most, 0)) return INVALID_VALUE;
    std::vector<uint64_t> args((f->arguments + 7) / 8);
    memcpy(args.data(), parameters[0], f->arguments);
    return enqueue((Stream*)stream, [=] { emulated_run(f, args.data(), gx, gy, shared, order); });
}

API int cuStreamCreate(void** stream, unsigned) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    streams.push_back(new Stream);
    *stream = streams.back();
    return SUCCESS;
}
API int cuStreamDestroy_v2(void* stream) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    for (Stream*& s : streams) if (s == stream) { s = streams.back(); streams.pop_back(); break; }
    delete (Stream*)stream;
    return SUCCESS;
}
API int cuStreamSynchronize(void* stream) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (stream) ((Stream*)stream)->flush();
    return SUCCESS;
}
// Outside of graphs all work is done when it is put on a stream.
API int cuStreamQuery(void* stream) { return cuStreamSynchronize(stream); }
API int cuEventQuery(void*) { return SUCCESS; }
API int cuEventCreate(void** event, unsigned) { *event = new Event; return SUCCESS; }
API int cuEventDestroy_v2(void* event) { delete (Event*)event; return SUCCESS; }
API int cuEventRecord(void* event, void* stream) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    Stream* s = (Stream*)stream;
    s->flush();
    *(Event*)event = Event{s->graph, s->last};
    return SUCCESS;
}
API int cuStreamWaitEvent(void* stream, void* event, unsigned) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    Stream* s = (Stream*)stream;
    Event* e = (Event*)event;
    if (!e->graph) return SUCCESS;
    if (s->graph && s->graph != e->graph) return INVALID_VALUE;
    s->graph = e->graph;
    s->last.insert(s->last.end(), e->last.begin(), e->last.end());
    return SUCCESS;
}

API int cuStreamBeginCapture_v2(void* stream, int) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    Stream* s = (Stream*)stream;
    if (s->graph) return INVALID_VALUE;
    s->graph = new Graph{{}, stream};
    s->last.clear();
    return SUCCESS;
}
// Fails unless all recorded work comes before the end of the stream that began.
API int cuStreamEndCapture(void* stream, void** graph) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    Stream* s = (Stream*)stream;
    if (!s->graph || s->graph->origin != stream) return INVALID_VALUE;
    Graph* g = s->graph;
    std::vector<char> reached(g->nodes.size(), 0);
    std::vector<int> open = s->last;
    while (!open.empty()) {
        int n = open.back();
        open.pop_back();
        if (reached[n]) continue;
        reached[n] = 1;
        open.insert(open.end(), g->nodes[n].after.begin(), g->nodes[n].after.end());
    }
    for (Stream* other : streams) if (other->graph == g) *other = Stream();
    *graph = nullptr;
    for (char r : reached) if (!r) return UNJOINED;
    *graph = g;
    return SUCCESS;
}
API int cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long) {
    *exec = new Graph(*(Graph*)graph);
    return SUCCESS;
}
API int cuGraphDestroy(void* graph) { delete (Graph*)graph; return SUCCESS; }
API int cuGraphExecDestroy(void* exec) { delete (Graph*)exec; return SUCCESS; }
API int cuGraphUpload(void*, void*) { return SUCCESS; }

static void run(Graph* g, std::vector<char>& over, int n) {
    if (over[n]) return;
    over[n] = 1;
    for (int before : g->nodes[n].after) run(g, over, before);
    g->nodes[n].work();
}
API int cuGraphLaunch(void* exec, void* stream) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    ((Stream*)stream)->flush();
    Graph* g = (Graph*)exec;
    std::vector<char> over(g->nodes.size(), 0);
    // Late: what other streams do waits until the first stream needs it.
    for (int n = 0; n < (int)g->nodes.size(); n++) if (!late || g->nodes[n].on_origin) run(g, over, n);
    for (int n = 0; n < (int)g->nodes.size(); n++) run(g, over, n);
    return done();
}
