// NVRTC's calls that Ambitus makes, with the host's C++ compiler behind them: the code runs as emulated blocks (block.cc).
// For tests without a card.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string>

#define API extern "C" __attribute__((visibility("default")))
enum { SUCCESS = 0, OUT_OF_MEMORY = 1, COMPILATION = 6 };

API int emulated_races();

struct Program {
    std::string name, code, log, image;
};

static std::string read_file(const std::string& path) {
    std::string text;
    if (FILE* f = fopen(path.c_str(), "rb")) {
        char buffer[65536];
        for (size_t n; (n = fread(buffer, 1, sizeof buffer, f)) > 0;) text.append(buffer, n);
        fclose(f);
    }
    return text;
}

API int nvrtcVersion(int* major, int* minor) { *major = 0; *minor = 1 + emulated_races(); return SUCCESS; }
API int nvrtcGetNumSupportedArchs(int* n) { *n = 2; return SUCCESS; }
API int nvrtcGetSupportedArchs(int* to) { to[0] = 80, to[1] = 90; return SUCCESS; }
API const char* nvrtcGetErrorString(int e) { return e ? "compilation failed" : "success"; }
API int nvrtcCreateProgram(void** program, const char* code, const char* name, int, const char* const*, const char* const*) {
    *program = new Program{name ? name : "kernels.cu", code, "", ""};
    return SUCCESS;
}
API int nvrtcDestroyProgram(void** program) { delete (Program*)*program; *program = nullptr; return SUCCESS; }
API int nvrtcCompileProgram(void* program, int, const char* const*) {
    Program* p = (Program*)program;
    char folder[] = "/tmp/emulated-nvrtc-XXXXXX";
    if (!mkdtemp(folder)) return OUT_OF_MEMORY;
    std::string base = std::string(folder) + "/kernels", code = base + ".cc", object = base + ".o", made = base + ".so", log = base + ".log";
    if (FILE* f = fopen(code.c_str(), "wb")) {
        fprintf(f, "#include \"%s/block.h\"\n%s", FOLDER, p->code.c_str());
        fclose(f);
    }
    const char* compiler = getenv("CXX");
    std::string command = std::string(compiler ? compiler : "c++") +
        " -std=c++17 -O2 -fPIC -fvisibility=hidden -ffp-contract=off -fno-exceptions -w";
    // Loads and stores call the driver's races.h; the library that belongs to the option is not linked.
    std::string instrumented = emulated_races() ? " -fsanitize=thread" : "";
    std::string link = " && " + std::string(compiler ? compiler : "c++") + " -shared -o " + made + " " + object + " -L" FOLDER " -l:libcuda.so";
    int failed = system((command + instrumented + " -c -o " + object + " " + code + " 2> " + log + link + " 2>> " + log).c_str());
    p->log = read_file(log);
    std::string library = read_file(made);
    for (const std::string& path : {code, object, made, log}) unlink(path.c_str());
    rmdir(folder);
    if (failed || library.empty()) return COMPILATION;
    uint64_t head[2] = {0x44454d554c415445ull, library.size()};
    p->image.assign((const char*)head, sizeof head);
    p->image += library;
    return SUCCESS;
}
API int nvrtcGetProgramLogSize(void* program, size_t* n) { *n = ((Program*)program)->log.size() + 1; return SUCCESS; }
API int nvrtcGetProgramLog(void* program, char* to) { strcpy(to, ((Program*)program)->log.c_str()); return SUCCESS; }
API int nvrtcGetCUBINSize(void* program, size_t* n) { *n = ((Program*)program)->image.size(); return SUCCESS; }
API int nvrtcGetCUBIN(void* program, char* to) {
    Program* p = (Program*)program;
    memcpy(to, p->image.data(), p->image.size());
    return SUCCESS;
}
