// y = x W^T + bias for a VPTQ matrix, on the best instruction set of this machine.
#pragma once

#include <span>
#include <string_view>

#include "matrix.hpp"

namespace bitbench::vptq {

// A floating-point array of either type, as torch hands it over.
struct Floats {
    void* data;
    bool is_bfloat16;
};

// Those that this machine can run, best first; the last one is always "portable". With BITBENCH_ISA in the environment
// the one that it names is the best; throws std::invalid_argument where the processor does not run that one.
std::span<const Isa* const> usable_isas();

// Null where there is none of this name here.
const Isa* isa_named(std::string_view name);

// x is [batch][in], y is [batch][out], both dense. `wide`: activations are rounded to 16 bits instead of 8, per row and
// chunk of columns. Uses at most `threads` threads.
void multiply(const Matrix& matrix, Floats x, int batch, Floats y, bool wide, int threads, const Isa& isa);

}  // namespace bitbench::vptq
