// AVX-512 with BW, VL and VNNI but without VBMI: Cascade Lake, Cooper Lake. Registers of 256 bits, because 512 bits
// leave two ports for vectors instead of three. No gather: the microcode against Downfall makes it slow on these.
#include "by_column_256.hpp"

namespace bitbench::vptq {
namespace {

struct Avx512 {
    static constexpr bool kDotsBytes = true;

    BITBENCH_INLINE static __m256i dot_words(__m256i sum, __m256i weights, __m256i x) {
        return _mm256_dpwssd_epi32(sum, weights, x);
    }

    BITBENCH_INLINE static __m256i dot_bytes(__m256i sum, __m256i weights, __m256i x) {
        return _mm256_dpbusd_epi32(sum, weights, x);
    }
};

constexpr Isa kIsa{"avx512", kernel_by_column<Level256<Avx512>>, quantize_row};

}  // namespace

const Isa& avx512() { return kIsa; }

}  // namespace bitbench::vptq
