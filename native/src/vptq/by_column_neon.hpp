// Levels of by_column.hpp for 64-bit Arm, in registers of 128 bits. A table lookup over two registers brings the columns
// of one output side by side. Checked under qemu (scripts/native-arm) and never timed: NOT YET RUN ON AN ARM PROCESSOR.
#pragma once

#include <arm_neon.h>

#include "by_column.hpp"

namespace bitbench::vptq {
namespace {

BITBENCH_INLINE uint8x8_t entry(const std::uint8_t* entries, std::uint32_t index) {
    return vld1_u8(entries + std::size_t(kVector) * index);
}

// Outputs 0 to 3 and 4 to 7.
struct NeonSums {
    int32x4_t low = vdupq_n_s32(0), high = vdupq_n_s32(0);

    template <class Columns, class Inputs>
    BITBENCH_INLINE void add(const Columns& columns, const Inputs& inputs) {
        columns.add_to(low, high, inputs);
    }

    BITBENCH_INLINE void write(std::uint32_t* outputs) const {
        vst1q_u32(outputs, vreinterpretq_u32_s32(low));
        vst1q_u32(outputs + 4, vreinterpretq_u32_s32(high));
    }
};

struct NeonWordInputs {
    int16x8_t x;

    BITBENCH_INLINE NeonWordInputs(const Activations& from, std::size_t at) : x(vld1q_s16(from.whole + at)) {}
};

// Each column as it is, for a multiplication of words by one activation.
struct NeonWordColumns {
    uint8x8_t column[8];

    NeonWordColumns() = default;

    template <class Index>
    BITBENCH_INLINE NeonWordColumns(const std::uint8_t* entries, const Index* index) {
        for (int c = 0; c < 8; ++c) column[c] = entry(entries, index[c]);
    }

    BITBENCH_INLINE void add_to(int32x4_t& low, int32x4_t& high, const NeonWordInputs& inputs) const {
        add_four<0>(low, high, vget_low_s16(inputs.x));
        add_four<4>(low, high, vget_high_s16(inputs.x));
    }

  private:
    template <int First>
    BITBENCH_INLINE void add_four(int32x4_t& low, int32x4_t& high, int16x4_t x) const {
        add_one<0>(low, high, column[First], x);
        add_one<1>(low, high, column[First + 1], x);
        add_one<2>(low, high, column[First + 2], x);
        add_one<3>(low, high, column[First + 3], x);
    }

    template <int Lane>
    BITBENCH_INLINE static void add_one(int32x4_t& low, int32x4_t& high, uint8x8_t weights, int16x4_t x) {
        const int16x8_t words = vreinterpretq_s16_u16(vmovl_u8(weights));
        low = vmlal_lane_s16(low, vget_low_s16(words), x, Lane);
        high = vmlal_lane_s16(high, vget_high_s16(words), x, Lane);
    }
};

struct NeonByteInputs {
    int8x8_t x;

    BITBENCH_INLINE NeonByteInputs(const Activations& from, std::size_t at) : x(vld1_s8(from.high + at)) {}
};

// Four columns of one output in a dword. `Operations`: dot<Half>(sum, weights, x), with the Half-th four activations,
// and kWeightOffset of what it multiplied with.
template <class Operations>
struct NeonByteColumns {
    uint8x16_t low[2], high[2];

    NeonByteColumns() = default;

    template <class Index>
    BITBENCH_INLINE NeonByteColumns(const std::uint8_t* entries, const Index* index) {
        static constexpr std::uint8_t kOrder[16] = {0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27};
        const uint8x16_t low_order = vld1q_u8(kOrder), high_order = vaddq_u8(low_order, vdupq_n_u8(4));
        for (int i = 0; i < 2; ++i, index += 4) {
            const uint8x16x2_t found = {{vcombine_u8(entry(entries, index[0]), entry(entries, index[1])),
                                         vcombine_u8(entry(entries, index[2]), entry(entries, index[3]))}};
            low[i] = vqtbl2q_u8(found, low_order);
            high[i] = vqtbl2q_u8(found, high_order);
        }
    }

    BITBENCH_INLINE void add_to(int32x4_t& low_sum, int32x4_t& high_sum, const NeonByteInputs& inputs) const {
        low_sum = Operations::template dot<0>(low_sum, low[0], inputs.x);
        high_sum = Operations::template dot<0>(high_sum, high[0], inputs.x);
        low_sum = Operations::template dot<1>(low_sum, low[1], inputs.x);
        high_sum = Operations::template dot<1>(high_sum, high[1], inputs.x);
    }
};

// Words alone: any 64-bit Arm.
struct NeonLevel {
    template <bool>
    static constexpr int kWeightOffset = kOffset;
    template <bool Wide>
    using Columns = NeonWordColumns;
    template <bool Wide>
    using Inputs = NeonWordInputs;
    using Sums = NeonSums;
};

template <class Operations>
struct NeonDotLevel {
    template <bool Wide>
    static constexpr int kWeightOffset = Wide ? kOffset : Operations::kWeightOffset;
    template <bool Wide>
    using Columns = std::conditional_t<Wide, NeonWordColumns, NeonByteColumns<Operations>>;
    template <bool Wide>
    using Inputs = std::conditional_t<Wide, NeonWordInputs, NeonByteInputs>;
    using Sums = NeonSums;
};

}  // namespace
}  // namespace bitbench::vptq
