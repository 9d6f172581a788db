// Levels of by_column.hpp in registers of 256 bits. Four entries meet in a register by loads that broadcast and blends,
// which any vector port does: a shuffle has one port on many processors. Byte shuffles within 128-bit halves then bring
// the columns of one output side by side.
#pragma once

#include <immintrin.h>

#include "by_column.hpp"

namespace bitbench::vptq {
namespace {

BITBENCH_INLINE long long eight_bytes(const void* at) {
    long long value;
    __builtin_memcpy(&value, at, sizeof value);
    return value;
}

BITBENCH_INLINE const std::uint8_t* entry(const std::uint8_t* entries, std::uint32_t index) {
    return entries + std::size_t(kVector) * index;
}

BITBENCH_INLINE __m256i four_entries(const std::uint8_t* a, const std::uint8_t* b, const std::uint8_t* c,
                                     const std::uint8_t* d) {
    const __m256i lower = _mm256_blend_epi32(_mm256_castsi128_si256(_mm_cvtsi64_si128(eight_bytes(a))),
                                             _mm256_set1_epi64x(eight_bytes(b)), 0x0c);
    const __m256i upper =
        _mm256_blend_epi32(_mm256_set1_epi64x(eight_bytes(c)), _mm256_set1_epi64x(eight_bytes(d)), 0xc0);
    return _mm256_blend_epi32(lower, upper, 0xf0);
}

// The first four bytes of eight in all dwords of the lower half, the others in the upper half.
BITBENCH_INLINE __m256i spread_halves(const void* at) {
    const __m256i order = _mm256_set_epi32(0x07060504, 0x07060504, 0x07060504, 0x07060504, 0x03020100, 0x03020100,
                                           0x03020100, 0x03020100);
    return _mm256_shuffle_epi8(_mm256_set1_epi64x(eight_bytes(at)), order);
}

// Outputs 0 to 3 and 4 to 7; each half of a register has its own columns.
struct Sums256 {
    __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();

    template <class Columns, class Inputs>
    BITBENCH_INLINE void add(const Columns& columns, const Inputs& inputs) {
        for (int i = 0; i < Inputs::kRegisters; ++i) {
            low = Columns::dot(low, columns.low[i], inputs.x[i]);
            high = Columns::dot(high, columns.high[i], inputs.x[i]);
        }
        // The compiler would put off additions until registers run out, and keep products in memory.
        asm("" : "+x"(low), "+x"(high));
    }

    BITBENCH_INLINE void write(std::uint32_t* outputs) const {
        const __m256i sums =
            _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
        _mm256_store_si256(reinterpret_cast<__m256i*>(outputs), sums);
    }
};

// Weights as words: two columns of one output in a dword, for activations of either width. Exact: a product of bytes,
// added in pairs, does not fit in the 16 bits that vpmaddubsw has for it.
template <class Operations>
struct WordColumns {
    __m256i low[2], high[2];

    WordColumns() = default;

    template <class Index>
    BITBENCH_INLINE WordColumns(const std::uint8_t* entries, const Index* index) {
        const __m256i low_order = order(0), high_order = order(4);
        for (int i = 0; i < 2; ++i, index += 4) {
            const __m256i found = four_entries(entry(entries, index[0]), entry(entries, index[1]),
                                               entry(entries, index[2]), entry(entries, index[3]));
            low[i] = _mm256_shuffle_epi8(found, low_order);
            high[i] = _mm256_shuffle_epi8(found, high_order);
        }
    }

    BITBENCH_INLINE static __m256i dot(__m256i sum, __m256i weights, __m256i x) {
        return Operations::dot_words(sum, weights, x);
    }

  private:
    // Per output o: byte o of the half's first column, zero, byte o of its second column, zero.
    BITBENCH_INLINE static __m256i order(int o) {
        const auto dword = [](int at) { return int(0x80008000u) | (at + 8) << 16 | at; };
        const __m128i half = _mm_set_epi32(dword(o + 3), dword(o + 2), dword(o + 1), dword(o));
        return _mm256_set_m128i(half, half);
    }
};

struct WordInputs {
    static constexpr int kRegisters = 2;
    __m256i x[kRegisters];

    BITBENCH_INLINE WordInputs(const Activations& from, std::size_t at)
        : x{spread_halves(from.whole + at), spread_halves(from.whole + at + 4)} {}
};

// Weights as bytes: four columns of one output in a dword.
template <class Operations>
struct ByteColumns {
    __m256i low[1], high[1];

    ByteColumns() = default;

    template <class Index>
    BITBENCH_INLINE ByteColumns(const std::uint8_t* entries, const Index* index) {
        const __m256i even = pairs(entries, index[0], index[1], index[4], index[5]);
        const __m256i odd = pairs(entries, index[2], index[3], index[6], index[7]);
        low[0] = _mm256_unpacklo_epi16(even, odd);
        high[0] = _mm256_unpackhi_epi16(even, odd);
    }

    BITBENCH_INLINE static __m256i dot(__m256i sum, __m256i weights, __m256i x) {
        return Operations::dot_bytes(sum, weights, x);
    }

  private:
    BITBENCH_INLINE static __m256i pairs(const std::uint8_t* entries, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                         std::uint32_t d) {
        const __m256i order = _mm256_set_epi64x(0x0f070e060d050c04, 0x0b030a0209010800, 0x0f070e060d050c04,
                                                0x0b030a0209010800);
        return _mm256_shuffle_epi8(
            four_entries(entry(entries, a), entry(entries, b), entry(entries, c), entry(entries, d)), order);
    }
};

struct ByteInputs {
    static constexpr int kRegisters = 1;
    __m256i x[kRegisters];

    BITBENCH_INLINE ByteInputs(const Activations& from, std::size_t at) : x{spread_halves(from.high + at)} {}
};

// `Operations`: dot_words(sum, weights, x), and with kDotsBytes also dot_bytes.
template <class Operations>
struct Level256 {
    template <bool>
    static constexpr int kWeightOffset = kOffset;
    template <bool Wide>
    static constexpr bool kWords = Wide || !Operations::kDotsBytes;
    template <bool Wide>
    using Columns = std::conditional_t<kWords<Wide>, WordColumns<Operations>, ByteColumns<Operations>>;
    template <bool Wide>
    using Inputs = std::conditional_t<kWords<Wide>, WordInputs, ByteInputs>;
    using Sums = Sums256;
};

}  // namespace
}  // namespace bitbench::vptq
