// NCCL's calls that Ambitus makes, between threads or processes of one machine, through a file in shared memory: a box of bytes for
// each pair of ranks. As a communicator that is polled, each group of calls runs beside the caller until it asks whether it is
// over. For tests without a card; all ranks may have the one emulated card.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))
enum { SUCCESS = 0, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6, IN_PROGRESS = 7 };

struct Id { char text[128]; };
struct Config { size_t size; unsigned magic, version; int blocking; };

// Bytes from one rank to another: `in` were written so far, `out` read.
struct Box {
    std::atomic<uint64_t> in, out;
    char bytes[16384];
};
struct Shared {
    std::atomic<uint64_t> here;
    std::atomic<int> processes[256];
    Box boxes[];
};
struct Call {
    bool sends;
    int rank;
    char* at;
    size_t bytes, done;
};
struct Comm {
    int rank, ranks;
    Shared* shared;
    size_t length;
    std::thread worker;
    std::atomic<int> status{SUCCESS};
    std::atomic<bool> stop{false};

    Box& box(int from, int to) { return shared->boxes[from * ranks + to]; }
};

static thread_local int depth;
static thread_local std::vector<Call> calls;
static thread_local Comm* grouped;

API int ncclGetVersion(int* version) { *version = 23007; return SUCCESS; }
API const char* ncclGetErrorString(int status) { return status == SUCCESS ? "no error" : "error of the emulated NCCL"; }
API const char* ncclGetLastError(void*) { return ""; }
API int ncclGetUniqueId(Id* id) {
    memset(id, 0, sizeof *id);
    const char* meeting = getenv("NCCL_COMM_ID");
    if (meeting) snprintf(id->text, sizeof id->text, "%s", meeting);
    else snprintf(id->text, sizeof id->text, "%08x%08x", std::random_device()(), std::random_device()());
    return SUCCESS;
}

// Moves what can be moved of every call; those between the same two ranks the same way in their order.
static void work(Comm* c, std::vector<Call> list) {
    int idle = 0;
    for (size_t open = list.size(); open > 0 && !c->stop;) {
        bool moved = false;
        std::vector<char> busy(2 * c->ranks, 0);
        for (Call& call : list) {
            if (call.done == call.bytes) continue;
            char& taken = busy[2 * call.rank + call.sends];
            if (taken) continue;
            taken = 1;
            Box& b = call.sends ? c->box(c->rank, call.rank) : c->box(call.rank, c->rank);
            uint64_t in = b.in, out = b.out;
            size_t most = call.sends ? sizeof b.bytes - (in - out) : in - out;
            size_t at = (call.sends ? in : out) % sizeof b.bytes;
            size_t n = std::min(std::min(most, call.bytes - call.done), sizeof b.bytes - at);
            if (!n) continue;
            moved = true;
            if (call.sends) { memcpy(b.bytes + at, call.at + call.done, n); b.in = in + n; }
            else { memcpy(call.at + call.done, b.bytes + at, n); b.out = out + n; }
            call.done += n;
            if (call.done == call.bytes) open--;
        }
        if (moved) continue;
        usleep(20);
        if (++idle % 500) continue;
        for (const Call& call : list) {
            if (call.done == call.bytes || kill(c->shared->processes[call.rank], 0) == 0 || errno != ESRCH) continue;
            c->status = REMOTE_ERROR;
            return;
        }
    }
    c->status = SUCCESS;
}
static int start(Comm* c, std::vector<Call> list) {
    if (c->status == IN_PROGRESS) return INVALID_USAGE;  // was not polled to its end
    if (c->worker.joinable()) c->worker.join();
    std::vector<Call> some;
    for (const Call& call : list) if (call.bytes) some.push_back(call);
    if (some.empty()) return SUCCESS;
    c->status = IN_PROGRESS;
    c->worker = std::thread(work, c, some);
    return IN_PROGRESS;
}

API int ncclCommInitRankConfig(Comm** comm, int ranks, Id id, int rank, Config* config) {
    if (config->magic != 0xcafebeef || config->size < sizeof(Config) || config->blocking || rank < 0 || rank >= ranks ||
        ranks > 256)
        return INVALID_ARGUMENT;
    std::string name = "/emulated-nccl-" + std::string(id.text);
    for (char& c : name) if (c == ':' || c == '.') c = '-';
    Comm* c = *comm = new Comm;
    c->rank = rank;
    c->ranks = ranks;
    c->length = sizeof(Shared) + sizeof(Box) * ranks * ranks;
    int file = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, c->length) != 0) return INVALID_ARGUMENT;
    void* at = mmap(nullptr, c->length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (at == MAP_FAILED) return INVALID_ARGUMENT;
    c->shared = (Shared*)at;
    c->shared->processes[rank] = getpid();
    c->shared->here++;
    c->status = IN_PROGRESS;
    c->worker = std::thread([c, name] {
        while (c->shared->here < (uint64_t)c->ranks && !c->stop) usleep(100);
        shm_unlink(name.c_str());
        c->status = SUCCESS;
    });
    return IN_PROGRESS;
}
API int ncclCommGetAsyncError(Comm* c, int* status) { *status = c->status; return SUCCESS; }
static int end(Comm* c) {
    if (c->worker.joinable()) c->worker.join();
    munmap(c->shared, c->length);
    delete c;
    return SUCCESS;
}
API int ncclCommAbort(Comm* c) { c->stop = true; return end(c); }
API int ncclCommFinalize(Comm* c) { return c->status == IN_PROGRESS ? INVALID_USAGE : SUCCESS; }
API int ncclCommDestroy(Comm* c) { return end(c); }

API int ncclGroupStart() { depth++; return SUCCESS; }
API int ncclGroupEnd() {
    if (--depth > 0 || !grouped) return SUCCESS;
    Comm* c = grouped;
    grouped = nullptr;
    std::vector<Call> list;
    list.swap(calls);
    return start(c, list);
}
static int add(Comm* c, std::vector<Call> list) {
    for (const Call& call : list) if (call.rank < 0 || call.rank >= c->ranks) return INVALID_ARGUMENT;
    if (!depth) return start(c, list);
    if (grouped && grouped != c) return INVALID_USAGE;
    grouped = c;
    calls.insert(calls.end(), list.begin(), list.end());
    return SUCCESS;
}
API int ncclSend(const void* from, size_t bytes, int, int rank, Comm* c, void*) {
    return add(c, {{true, rank, (char*)from, bytes, 0}});
}
API int ncclRecv(void* to, size_t bytes, int, int rank, Comm* c, void*) { return add(c, {{false, rank, (char*)to, bytes, 0}}); }
API int ncclAllGather(const void* from, void* to, size_t bytes, int, Comm* c, void*) {
    std::vector<Call> list;
    for (int r = 0; r < c->ranks; r++) {
        list.push_back({true, r, (char*)from, bytes, 0});
        list.push_back({false, r, (char*)to + r * bytes, bytes, 0});
    }
    return add(c, list);
}
