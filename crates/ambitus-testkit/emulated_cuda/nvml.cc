// The management library's calls that Ambitus makes: one card, held by this process and a neighbour. For tests without a
// card.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API extern "C" __attribute__((visibility("default")))
API uint64_t emulated_device_bytes();
static const uint64_t TOTAL = (uint64_t)4 << 30, CONTEXT = (uint64_t)128 << 20;

// Bytes that another process holds.
static uint64_t neighbour() {
    const char* mib = getenv("EMULATED_NEIGHBOUR_MIB");
    return (uint64_t)(mib ? atoi(mib) : 256) << 20;
}

struct Memory { uint64_t total, free, used; };
struct Process { unsigned pid; uint64_t used; unsigned instance, compute_instance; };
struct Pci { char legacy[16]; unsigned numbers[5]; char bus[32]; };

// Bytes of this process on the emulated card: a context, where one was made, and its memory.
static uint64_t own() {
    return emulated_device_bytes() ? emulated_device_bytes() + CONTEXT : 0;
}

API int nvmlInit_v2() { return 0; }
API int nvmlShutdown() { return 0; }
API int nvmlSystemGetDriverVersion(char* text, unsigned n) { snprintf(text, n, "0.0 emulated"); return 0; }
API int nvmlDeviceGetCount_v2(unsigned* n) { *n = 1; return 0; }
API int nvmlDeviceGetHandleByIndex_v2(unsigned, void** card) { *card = (void*)1; return 0; }
API int nvmlDeviceGetName(void*, char* text, unsigned n) { snprintf(text, n, "emulated card"); return 0; }
API int nvmlDeviceGetMemoryInfo(void*, Memory* m) {
    uint64_t used = neighbour() + own();
    *m = {TOTAL, TOTAL - used, used};
    return 0;
}
API int nvmlDeviceGetPciInfo_v3(void*, Pci* p) {
    memset(p, 0, sizeof *p);
    strcpy(p->bus, "00000000:01:00.0");
    return 0;
}
API int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* n, Process* list) {
    *n = 2;
    list[0] = {1, neighbour(), 0, 0};
    list[1] = {(unsigned)getpid(), own(), 0, 0};
    return 0;
}
API int nvmlDeviceGetGraphicsRunningProcesses_v3(void*, unsigned* n, Process*) { *n = 0; return 0; }
