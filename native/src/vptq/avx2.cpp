// AVX2. Two columns of 8 outputs are interleaved and widened to 16 bits, so that one multiply-add serves 8 outputs and
// activations of 8 and 16 bits alike.
#include <immintrin.h>

#include "matrix.hpp"
#include "quantize_row.hpp"
#include "strip.hpp"

namespace bitbench::vptq {
namespace {

constexpr int kStripsPerSum = 8;  // 512 columns * 128 * 32767 still fits in 32 bits
constexpr int kPairs = kStrip / 2;
constexpr int kAhead = 2048;  // bytes of the stream to ask for in advance

inline __m128i entry(const std::uint8_t* entries, std::uint32_t index) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(entries + std::size_t(kVector) * index));
}

inline void decode(const std::uint8_t* entries, const std::uint32_t (&index)[kStrip], __m256i (&pairs)[kPairs]) {
    const __m128i offset = _mm_set1_epi8(char(kOffset));
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; ++p) {
        const __m128i both = _mm_unpacklo_epi8(entry(entries, index[2 * p]), entry(entries, index[2 * p + 1]));
        pairs[p] = _mm256_cvtepi8_epi16(_mm_xor_si128(both, offset));
    }
}

inline __m256i add_products(const __m256i (&pairs)[kPairs], const std::int16_t* x, __m256i total) {
    __m256i second = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; p += 2) {
        std::int32_t columns[2];
        std::memcpy(columns, x + 2 * p, sizeof columns);
        total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs[p], _mm256_set1_epi32(columns[0])));
        second = _mm256_add_epi32(second, _mm256_madd_epi16(pairs[p + 1], _mm256_set1_epi32(columns[1])));
    }
    return _mm256_add_epi32(total, second);
}

void multiply(const Segment& segment, const Activations& x, int begin, int end, float* sums, std::size_t stride) {
    const int bytes = strip_bytes(segment.main_bits, segment.residual_bits), strips = segment.strips();
    const std::uint8_t* strip = segment.stream + begin * segment.block_bytes();
    const bool has_residual = segment.residual_bits != 0;
    std::uint32_t index[kStrip];
    __m256i main[kPairs], residual[kPairs];
    for (int block = begin; block < end; ++block) {
        __m256 totals[kMaxBatch];
        for (auto& total : totals) total = _mm256_setzero_ps();
        for (int first = 0; first < strips; first += kStripsPerSum) {
            __m256i main_sums[kMaxBatch] = {}, residual_sums[kMaxBatch] = {};
            const int last = smaller(first + kStripsPerSum, strips);
            for (int s = first; s < last; ++s, strip += bytes) {
                for (int line = 0; line < bytes; line += 64)
                    _mm_prefetch(reinterpret_cast<const char*>(strip + kAhead + line), _MM_HINT_T0);
                read_main(segment, strip, index);
                decode(segment.main, index, main);
                if (has_residual) {
                    read_residual(segment, strip + main_bytes(segment.main_bits), index);
                    decode(segment.residual, index, residual);
                }
                for (int row = 0; row < x.batch; ++row) {
                    const std::int16_t* q = x.whole + std::size_t(row) * x.stride + std::size_t(s) * kStrip;
                    main_sums[row] = add_products(main, q, main_sums[row]);
                    if (has_residual) residual_sums[row] = add_products(residual, q, residual_sums[row]);
                }
            }
            for (int row = 0; row < x.batch; ++row) {
                const float scale = x.scale[row * x.chunks + first / kStripsPerChunk];
                const __m256 both = _mm256_add_ps(
                    _mm256_mul_ps(_mm256_cvtepi32_ps(main_sums[row]), _mm256_set1_ps(segment.main_scale)),
                    _mm256_mul_ps(_mm256_cvtepi32_ps(residual_sums[row]), _mm256_set1_ps(segment.residual_scale)));
                totals[row] = _mm256_add_ps(totals[row], _mm256_mul_ps(both, _mm256_set1_ps(scale)));
            }
        }
        for (int row = 0; row < x.batch; ++row) {
            float* at = sums + row * stride + std::size_t(kVector) * block;
            _mm256_storeu_ps(at, _mm256_add_ps(_mm256_loadu_ps(at), totals[row]));
        }
    }
}

BlocksKernel kernel(const Segment&, const Activations&) { return multiply; }

constexpr Isa kIsa{"avx2", kernel, quantize_row};

}  // namespace

const Isa& avx2() { return kIsa; }

}  // namespace bitbench::vptq
