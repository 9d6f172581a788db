// The product on processors that cannot turn 8 entries by one shuffle: each entry is loaded on its own. Eight columns at
// a time are decoded for the instruction set's best dot product. Included by the file of each such instruction set,
// hence internal linkage.
//
// A `Level` offers, for activations of 8 (Wide = false) or 16 bits:
//   Columns<Wide>(entries, index)  8 columns of a codebook, arranged for the dot product
//   Inputs<Wide>(x, at)            the activations of 8 columns
//   Sums                           of 8 outputs, 32 bits each, zero at first: add(columns, inputs), write(outputs)
//   kWeightOffset<Wide>            what its weights are too large by: 128, or 0 where it undoes the offset itself
#pragma once

#include "matrix.hpp"
#include "quantize_row.hpp"
#include "strip.hpp"

namespace bitbench::vptq {
namespace {

constexpr int kGroups = kStrip / 8;  // of 8 columns in a strip
constexpr int kAhead = 2048;         // bytes of the stream to ask for in advance

enum class Residual { kNone, kBytes, kUnpacked };  // bytes: indices of 8 bits are read where they lie

// Strips after which integer sums become floats. 16-bit activations: 512 columns * 128 * 32767 still fits in 32 bits.
// (With the offset the sum itself may not; it wraps, and comes back when the offset is undone.)
template <bool Wide>
constexpr int kStripsPerSum = Wide ? 8 : kStripsPerChunk;

// Of the activations that one sum covers: times the offset, this is what the sum is too large by.
template <bool Wide>
BITBENCH_INLINE std::int32_t sum_of_inputs(const Activations& x, int row, int first, int last) {
    if constexpr (!Wide) return x.sum_high[row * x.chunks + first / kStripsPerChunk];
    const std::int16_t* q = x.whole + std::size_t(row) * x.stride;
    std::int32_t sum = 0;
    for (int column = first * kStrip; column < last * kStrip; ++column) sum += q[column];
    return sum;
}

// The sums of one row and block over some strips.
template <class Level>
struct BlockSums {
    typename Level::Sums main, residual;

    template <bool Wide, Residual kResidual>
    BITBENCH_INLINE void add_to(float* outputs, const Segment& segment, float scale, std::int32_t input_sum) const {
        const std::uint32_t offset = std::uint32_t(Level::template kWeightOffset<Wide>) * std::uint32_t(input_sum);
        alignas(32) std::uint32_t mains[kVector], residuals[kVector];
        main.write(mains);
        residual.write(residuals);
        for (int o = 0; o < kVector; ++o) {
            const auto first = float(std::int32_t(mains[o] - offset));
            float sum = segment.main_scale * first;
            if constexpr (kResidual != Residual::kNone)
                sum += segment.residual_scale * float(std::int32_t(residuals[o] - offset));
            outputs[o] += scale * sum;
        }
    }
};

// The indices of a strip, main and residual.
template <Residual kResidual>
struct StripIndices {
    alignas(64) std::uint32_t main[kStrip];
    alignas(64) std::uint32_t unpacked[kResidual == Residual::kUnpacked ? kStrip : 1];
    const std::uint8_t* bytes;

    BITBENCH_INLINE StripIndices(const Segment& segment, const std::uint8_t* strip)
        : bytes(strip + main_bytes(segment.main_bits)) {
        read_main(segment, strip, main);
        if constexpr (kResidual == Residual::kUnpacked) read_residual(segment, bytes, unpacked);
        // Through memory: the compiler would take each index out of a vector by a shuffle, of which there are enough.
        asm("" : "+m"(main), "+m"(unpacked));
    }

    BITBENCH_INLINE auto residual(int group) const {
        if constexpr (kResidual == Residual::kBytes)
            return bytes + 8 * group;
        else
            return unpacked + 8 * group;
    }
};

BITBENCH_INLINE void ask_for(const std::uint8_t* strip, int bytes) {
    for (int line = 0; line < bytes; line += 64) __builtin_prefetch(strip + kAhead + line);
}

// Decoded and multiplied at once.
template <class Level, bool Wide, Residual kResidual>
void one_row(const Segment& segment, const Activations& x, int begin, int end, float* sums, std::size_t) {
    using Columns = typename Level::template Columns<Wide>;
    using Inputs = typename Level::template Inputs<Wide>;
    const int bytes = strip_bytes(segment.main_bits, segment.residual_bits), strips = segment.strips();
    const std::uint8_t* strip = segment.stream + begin * segment.block_bytes();
    for (int block = begin; block < end; ++block) {
        for (int first = 0; first < strips; first += kStripsPerSum<Wide>) {
            BlockSums<Level> total;
            const int last = smaller(first + kStripsPerSum<Wide>, strips);
            for (int s = first; s < last; ++s, strip += bytes) {
                ask_for(strip, bytes);
                const StripIndices<kResidual> indices(segment, strip);
#pragma GCC unroll 8
                for (int g = 0; g < kGroups; ++g) {
                    const Inputs inputs(x, std::size_t(s) * kStrip + 8 * g);
                    total.main.add(Columns(segment.main, indices.main + 8 * g), inputs);
                    if constexpr (kResidual != Residual::kNone)
                        total.residual.add(Columns(segment.residual, indices.residual(g)), inputs);
                }
            }
            total.template add_to<Wide, kResidual>(sums + std::size_t(kVector) * block, segment,
                                                   x.scale[first / kStripsPerChunk],
                                                   sum_of_inputs<Wide>(x, 0, first, last));
        }
    }
}

// A strip is decoded once for all rows.
template <class Level, bool Wide, Residual kResidual>
struct Tile {
    using Columns = typename Level::template Columns<Wide>;
    using Inputs = typename Level::template Inputs<Wide>;
    Columns main[kGroups], residual[kResidual == Residual::kNone ? 1 : kGroups];

    BITBENCH_INLINE void decode(const Segment& segment, const std::uint8_t* strip) {
        const StripIndices<kResidual> indices(segment, strip);
        for (int g = 0; g < kGroups; ++g) {
            main[g] = Columns(segment.main, indices.main + 8 * g);
            if constexpr (kResidual != Residual::kNone) residual[g] = Columns(segment.residual, indices.residual(g));
        }
    }

    BITBENCH_INLINE void multiply(const Activations& x, std::size_t at, BlockSums<Level>& total) const {
        BlockSums<Level> sums = total;  // in registers
        for (int g = 0; g < kGroups; ++g) {
            const Inputs inputs(x, at + 8 * std::size_t(g));
            sums.main.add(main[g], inputs);
            if constexpr (kResidual != Residual::kNone) sums.residual.add(residual[g], inputs);
        }
        total = sums;
    }
};

template <class Level, bool Wide, Residual kResidual>
void many_rows(const Segment& segment, const Activations& x, int begin, int end, float* sums, std::size_t stride) {
    const int bytes = strip_bytes(segment.main_bits, segment.residual_bits), strips = segment.strips();
    const std::uint8_t* strip = segment.stream + begin * segment.block_bytes();
    Tile<Level, Wide, kResidual> tile;
    for (int block = begin; block < end; ++block) {
        for (int first = 0; first < strips; first += kStripsPerSum<Wide>) {
            BlockSums<Level> totals[kMaxBatch];
            const int last = smaller(first + kStripsPerSum<Wide>, strips);
            for (int s = first; s < last; ++s, strip += bytes) {
                ask_for(strip, bytes);
                tile.decode(segment, strip);
                for (int row = 0; row < x.batch; ++row)
                    tile.multiply(x, std::size_t(row) * x.stride + std::size_t(s) * kStrip, totals[row]);
            }
            for (int row = 0; row < x.batch; ++row) {
                float* outputs = sums + row * stride + std::size_t(kVector) * block;
                const float scale = x.scale[row * x.chunks + first / kStripsPerChunk];
                totals[row].template add_to<Wide, kResidual>(outputs, segment, scale,
                                                             sum_of_inputs<Wide>(x, row, first, last));
            }
        }
    }
}

template <class Level, Residual kResidual>
BlocksKernel choose_rows(const Activations& x) {
    if (x.batch == 1) return x.wide ? one_row<Level, true, kResidual> : one_row<Level, false, kResidual>;
    return x.wide ? many_rows<Level, true, kResidual> : many_rows<Level, false, kResidual>;
}

template <class Level>
BlocksKernel kernel_by_column(const Segment& segment, const Activations& x) {
    switch (segment.residual_bits) {
        case 0: return choose_rows<Level, Residual::kNone>(x);
        case 8: return choose_rows<Level, Residual::kBytes>(x);
        default: return choose_rows<Level, Residual::kUnpacked>(x);
    }
}

}  // namespace
}  // namespace bitbench::vptq
