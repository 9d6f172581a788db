// Runs work on the threads of the OpenMP runtime that this process already has.
#pragma once

#include <string>

namespace bitbench {

// Calls work(context, index, count) for each index below count, on `threads` threads at most. The threads are those of
// the runtime that torch brought: a second pool would spin against the first. Where no runtime is loaded, the work is
// done by the caller alone (count is 1).
void parallel(int threads, void (*work)(void* context, int index, int count), void* context);

// The file of the runtime that is used; empty where there is none.
std::string openmp_runtime();

}  // namespace bitbench
