// AVX-512 with BW, VL and VNNI but without VBMI: Cascade Lake, Cooper Lake. Registers of 256 bits, because 512 bits leave
// two ports for vectors instead of three; what AVX-512 gives is a load that puts an entry in its place by a mask.
#include "by_column_256.hpp"

namespace bitbench::vptq {
namespace {

struct Avx512 {
    static constexpr bool kDotsBytes = true;

    BITBENCH_INLINE static __m256i four_entries(const std::uint8_t* a, const std::uint8_t* b, const std::uint8_t* c,
                                                const std::uint8_t* d) {
        __m256i found = _mm256_castsi128_si256(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(a)));
        found = place<2>(found, b);
        found = place<4>(found, c);
        return place<8>(found, d);
    }

    BITBENCH_INLINE static __m256i dot_words(__m256i sum, __m256i weights, __m256i x) {
        return _mm256_dpwssd_epi32(sum, weights, x);
    }

    BITBENCH_INLINE static __m256i dot_bytes(__m256i sum, __m256i weights, __m256i x) {
        return _mm256_dpbusd_epi32(sum, weights, x);
    }

  private:
    template <int Mask>
    BITBENCH_INLINE static __m256i place(__m256i into, const std::uint8_t* at) {
        return _mm256_mask_broadcastq_epi64(into, Mask, _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
    }
};

constexpr Isa kIsa{"avx512", kernel_by_column<Level256<Avx512>>, quantize_row};

}  // namespace

const Isa& avx512() { return kIsa; }

}  // namespace bitbench::vptq
