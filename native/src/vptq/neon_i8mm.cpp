// Arm with the dot product of unsigned with signed bytes (i8mm: Armv8.6 and later).
#include "by_column_neon.hpp"

namespace bitbench::vptq {
namespace {

struct MixedDot {
    static constexpr int kWeightOffset = kOffset;

    template <int Half>
    BITBENCH_INLINE static int32x4_t dot(int32x4_t sum, uint8x16_t weights, int8x8_t x) {
        return vusdotq_lane_s32(sum, weights, x, Half);
    }
};

constexpr Isa kIsa{"neon-i8mm", kernel_by_column<NeonDotLevel<MixedDot>>, quantize_row};

}  // namespace

const Isa& neon_i8mm() { return kIsa; }

}  // namespace bitbench::vptq
