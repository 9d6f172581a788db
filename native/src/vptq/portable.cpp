// Plain C++, for any processor, and the readable statement of what the others do.
#include "matrix.hpp"
#include "quantize_row.hpp"
#include "strip.hpp"

namespace bitbench::vptq {
namespace {

constexpr int kStripsPerSum = 8;  // 512 columns * 128 * 32767 still fits in 32 bits

struct Totals {
    std::int32_t main[kVector] = {};
    std::int32_t residual[kVector] = {};
};

void add_products(const std::uint8_t* entries, const std::uint32_t (&index)[kStrip], const std::int16_t* x,
                  std::int32_t (&totals)[kVector]) {
    for (int column = 0; column < kStrip; ++column) {
        const std::uint8_t* entry = entries + std::size_t(kVector) * index[column];
        for (int o = 0; o < kVector; ++o) totals[o] += (std::int32_t(entry[o]) - kOffset) * x[column];
    }
}

void multiply(const Segment& segment, const Activations& x, int begin, int end, float* sums, std::size_t stride) {
    const int bytes = strip_bytes(segment.main_bits, segment.residual_bits), strips = segment.strips();
    const std::uint8_t* strip = segment.stream + begin * segment.block_bytes();
    std::uint32_t index[kStrip], residual_index[kStrip];
    for (int block = begin; block < end; ++block) {
        for (int first = 0; first < strips; first += kStripsPerSum) {
            Totals totals[kMaxBatch];
            const int last = smaller(first + kStripsPerSum, strips);
            for (int s = first; s < last; ++s, strip += bytes) {
                read_main(segment, strip, index);
                if (segment.residual_bits != 0)
                    read_residual(segment, strip + main_bytes(segment.main_bits), residual_index);
                for (int row = 0; row < x.batch; ++row) {
                    const std::int16_t* q = x.whole + std::size_t(row) * x.stride + std::size_t(s) * kStrip;
                    add_products(segment.main, index, q, totals[row].main);
                    if (segment.residual_bits != 0)
                        add_products(segment.residual, residual_index, q, totals[row].residual);
                }
            }
            for (int row = 0; row < x.batch; ++row) {
                const float scale = x.scale[row * x.chunks + first / kStripsPerChunk];
                for (int o = 0; o < kVector; ++o)
                    sums[row * stride + std::size_t(kVector) * block + o] +=
                        scale * (segment.main_scale * float(totals[row].main[o]) +
                                 segment.residual_scale * float(totals[row].residual[o]));
            }
        }
    }
}

BlocksKernel kernel(const Segment&, const Activations&) { return multiply; }

constexpr Isa kIsa{"portable", kernel, quantize_row};

}  // namespace

const Isa& portable() { return kIsa; }

}  // namespace bitbench::vptq
