// Arm with the dot product of signed bytes (dotprod: Armv8.2 and later).
#include "by_column_neon.hpp"

namespace bitbench::vptq {
namespace {

struct SignedDot {
    static constexpr int kWeightOffset = 0;

    template <int Half>
    BITBENCH_INLINE static int32x4_t dot(int32x4_t sum, uint8x16_t weights, int8x8_t x) {
        const int8x16_t without_offset = vreinterpretq_s8_u8(veorq_u8(weights, vdupq_n_u8(kOffset)));
        return vdotq_lane_s32(sum, without_offset, x, Half);
    }
};

constexpr Isa kIsa{"neon-dot", kernel_by_column<NeonDotLevel<SignedDot>>, quantize_row};

}  // namespace

const Isa& neon_dot() { return kIsa; }

}  // namespace bitbench::vptq
