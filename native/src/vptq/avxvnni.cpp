// AVX2 with AVX-VNNI: client processors of Intel since Alder Lake, and of AMD since Zen 5.
#include "by_column_256.hpp"

namespace bitbench::vptq {
namespace {

struct AvxVnni {
    static constexpr bool kDotsBytes = true;

    BITBENCH_INLINE static __m256i dot_words(__m256i sum, __m256i weights, __m256i x) {
        return _mm256_dpwssd_avx_epi32(sum, weights, x);
    }

    BITBENCH_INLINE static __m256i dot_bytes(__m256i sum, __m256i weights, __m256i x) {
        return _mm256_dpbusd_avx_epi32(sum, weights, x);
    }
};

constexpr Isa kIsa{"avxvnni", kernel_by_column<Level256<AvxVnni>>, quantize_row};

}  // namespace

const Isa& avxvnni() { return kIsa; }

}  // namespace bitbench::vptq
