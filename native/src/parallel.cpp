#include "parallel.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <mutex>
#include <string_view>
#include <vector>

namespace bitbench {
namespace {

// The entry points that GCC's -fopenmp calls; libgomp, LLVM's libomp and Intel's libiomp5 all offer them.
struct Runtime {
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
    int (*thread_number)() = nullptr;
    int (*team_size)() = nullptr;
    std::string file;

    bool complete() const { return parallel != nullptr && thread_number != nullptr && team_size != nullptr; }
};

Runtime runtime_in(void* library) {
    Runtime found;
    found.parallel = reinterpret_cast<decltype(found.parallel)>(dlsym(library, "GOMP_parallel"));
    found.thread_number = reinterpret_cast<decltype(found.thread_number)>(dlsym(library, "omp_get_thread_num"));
    found.team_size = reinterpret_cast<decltype(found.team_size)>(dlsym(library, "omp_get_num_threads"));
    Dl_info where;
    if (found.complete() && dladdr(reinterpret_cast<void*>(found.parallel), &where) != 0) found.file = where.dli_fname;
    return found;
}

bool names_a_runtime(const char* path) {
    const char* slash = std::strrchr(path, '/');
    const std::string_view name = slash == nullptr ? path : slash + 1;
    return name.starts_with("libgomp") || name.starts_with("libomp") || name.starts_with("libiomp");
}

int collect(dl_phdr_info* info, std::size_t, void* paths) {
    if (names_a_runtime(info->dlpi_name)) static_cast<std::vector<std::string>*>(paths)->emplace_back(info->dlpi_name);
    return 0;
}

// What a Python extension brought along is not in the global scope, so every loaded library is looked at by name.
Runtime search() {
    Runtime found = runtime_in(RTLD_DEFAULT);
    if (found.complete()) return found;
    std::vector<std::string> paths;
    dl_iterate_phdr(collect, &paths);
    for (const std::string& path : paths) {
        void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
        if (library == nullptr) continue;
        found = runtime_in(library);
        if (found.complete()) return found;
    }
    return {};
}

// Searched for until there is one: torch may be imported after this module.
const Runtime& runtime() {
    static std::mutex guard;
    static Runtime found;
    const std::lock_guard held(guard);
    if (!found.complete()) found = search();
    return found;
}

struct Team {
    const Runtime& runtime;
    void (*work)(void*, int, int);
    void* context;
};

void run_member(void* data) {
    const auto& team = *static_cast<const Team*>(data);
    team.work(team.context, team.runtime.thread_number(), team.runtime.team_size());
}

}  // namespace

void parallel(int threads, void (*work)(void*, int, int), void* context) {
    const Runtime& here = runtime();
    if (threads <= 1 || !here.complete()) return work(context, 0, 1);
    Team team{here, work, context};
    here.parallel(run_member, &team, unsigned(threads), 0);
}

std::string openmp_runtime() { return runtime().file; }

}  // namespace bitbench
