// Reads the indices of a strip and looks the entries up, with AVX-512. Only avx512.cpp includes this.
#pragma once

#include <immintrin.h>

#include "matrix.hpp"

namespace bitbench::vptq {
namespace {

inline __m256i load256(const std::uint8_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }

inline __m256i spread_bits(const std::uint8_t* at) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
}

// index | bit g of `bits`, moved to position `Bit`.
template <int Bit>
inline __m256i with_bit(__m256i index, __m256i bits, int g) {
    const __m256i moved = Bit >= g ? _mm256_slli_epi32(bits, Bit - g) : _mm256_srli_epi32(bits, g - Bit);
    return _mm256_ternarylogic_epi32(index, moved, _mm256_set1_epi32(1 << Bit), 0xf8);  // a | (b & c)
}

inline void unpack16(const std::uint8_t* at, __m256i (&index)[8]) {
    for (int h = 0; h < 4; ++h) {
        const __m256i pair = load256(at + 32 * h);
        index[2 * h] = _mm256_and_si256(pair, _mm256_set1_epi32(0xffff));
        index[2 * h + 1] = _mm256_srli_epi32(pair, 16);
    }
}

template <int Bits>
inline void unpack_main(const std::uint8_t* at, __m256i (&index)[8]) {
    if constexpr (Bits == 16) {
        unpack16(at, index);
        return;
    }
    const __m256i a = load256(at), b = load256(at + 32), c = load256(at + 64);
    const __m256i low12 = _mm256_set1_epi32(0xfff), nibble = _mm256_set1_epi32(0xf00);
    index[0] = _mm256_and_si256(a, low12);
    index[1] = _mm256_and_si256(_mm256_srli_epi32(a, 12), low12);
    index[2] = _mm256_and_si256(b, low12);
    index[3] = _mm256_and_si256(_mm256_srli_epi32(b, 12), low12);
    index[4] = _mm256_and_si256(c, low12);
    index[5] = _mm256_and_si256(_mm256_srli_epi32(c, 12), low12);
    index[6] = _mm256_ternarylogic_epi32(_mm256_srli_epi32(a, 24), _mm256_srli_epi32(c, 16), nibble, 0xf8);
    index[7] = _mm256_ternarylogic_epi32(_mm256_srli_epi32(b, 24), _mm256_srli_epi32(c, 20), nibble, 0xf8);
    if constexpr (Bits == 13) {
        const __m256i bits = spread_bits(at + 96);
#pragma GCC unroll 8
        for (int g = 0; g < 8; ++g) index[g] = with_bit<12>(index[g], bits, g);
    }
}

template <int Bits>
inline void unpack_gathered_residual(const std::uint8_t* at, __m256i (&index)[8]) {
    if constexpr (Bits == 16) {
        unpack16(at, index);
        return;
    }
    const __m256i bits = spread_bits(at + 64), byte = _mm256_set1_epi32(0xff);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
        const __m256i four = load256(at + 32 * h);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            const int g = 4 * h + j;
            index[g] = with_bit<8>(_mm256_and_si256(_mm256_srli_epi32(four, 8 * j), byte), bits, g);
        }
    }
}

// Fetches 8 entries of a codebook and turns them: byte (output o, column c) goes to dword 2o + c / 4, byte c % 4, so
// that four columns of one output meet in a dword.
struct Fetch {
    __m512i control;
    __mmask8 all = 0xff;

    Fetch() {
        alignas(64) std::uint8_t order[64];
        for (int o = 0; o < 8; ++o)
            for (int c = 0; c < 8; ++c) order[8 * o + c] = std::uint8_t(8 * c + o);
        control = _mm512_load_si512(order);
        // A gather merges into its destination and waits for what was last computed there, so each one starts from
        // zeros. The compiler would leave them out if it knew that the mask is full.
        asm("" : "+Yk"(all));
    }

    __m512i operator()(const std::uint8_t* entries, __m256i index) const {
        const __m512i found = _mm512_mask_i32gather_epi64(_mm512_setzero_si512(), all, index, entries, 8);
        return _mm512_permutexvar_epi8(control, found);
    }
};

// The 64 residual indices of a strip and which quarter of the 256 entries each lies in.
struct PlaneLookup {
    __m512i index;
    __mmask64 second, third, fourth;

    explicit PlaneLookup(const std::uint8_t* at) : index(_mm512_loadu_si512(at)) {
        const __mmask64 upper_half = _mm512_movepi8_mask(index);
        const __mmask64 odd = _mm512_movepi8_mask(_mm512_slli_epi16(index, 1));
        second = _kandn_mask64(upper_half, odd);
        third = _kandn_mask64(odd, upper_half);
        fourth = _kand_mask64(odd, upper_half);
    }

    __m512i plane(const std::uint8_t* planes, int output) const {
        const std::uint8_t* table = planes + kResidualPlane * output;
        __m512i found = _mm512_permutexvar_epi8(index, _mm512_loadu_si512(table));
        found = _mm512_mask_permutexvar_epi8(found, second, index, _mm512_loadu_si512(table + 64));
        found = _mm512_mask_permutexvar_epi8(found, third, index, _mm512_loadu_si512(table + 128));
        return _mm512_mask_permutexvar_epi8(found, fourth, index, _mm512_loadu_si512(table + 192));
    }
};

}  // namespace
}  // namespace bitbench::vptq
