// AVX2: weights become words, because a product of two bytes needs 16 bits and a sum of them more.
#include "by_column_256.hpp"

namespace bitbench::vptq {
namespace {

struct Avx2 {
    static constexpr bool kDotsBytes = false;

    BITBENCH_INLINE static __m256i dot_words(__m256i sum, __m256i weights, __m256i x) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(weights, x));
    }
};

constexpr Isa kIsa{"avx2", kernel_by_column<Level256<Avx2>>, quantize_row};

}  // namespace

const Isa& avx2() { return kIsa; }

}  // namespace bitbench::vptq
