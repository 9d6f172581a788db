// Any 64-bit Arm.
#include "by_column_neon.hpp"

namespace bitbench::vptq {
namespace {

constexpr Isa kIsa{"neon", kernel_by_column<NeonLevel>, quantize_row};

}  // namespace

const Isa& neon() { return kIsa; }

}  // namespace bitbench::vptq
