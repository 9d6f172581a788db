// Reads the indices of a strip and looks the entries up, with AVX-512. Only avx512vbmi.cpp includes this.
#pragma once

#include <immintrin.h>

#include <array>
#include <utility>

#include "matrix.hpp"

namespace bitbench::vptq {
namespace {

constexpr int kAhead = 2048;  // bytes of the stream to ask for in advance

BITBENCH_INLINE __m256i load256(const std::uint8_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }

BITBENCH_INLINE __m256i spread_bytes(const std::uint8_t* at) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
}

// `low` where the mask is set, else `high`.
BITBENCH_INLINE __m256i joined(__m256i mask, __m256i low, __m256i high) {
    return _mm256_ternarylogic_epi32(mask, low, high, 0xca);
}

// low | (high & mask)
BITBENCH_INLINE __m256i with_bits(__m256i low, __m256i high, __m256i mask) {
    return _mm256_ternarylogic_epi32(low, high, mask, 0xf8);
}

BITBENCH_INLINE __m256i masked(const std::uint8_t* from, int mask) {
    return _mm256_and_si256(load256(from), _mm256_set1_epi32(mask));
}

BITBENCH_INLINE __m256i shifted(const std::uint8_t* from, int bits) { return _mm256_srli_epi32(load256(from), bits); }

// The 64 indices of a strip; at<Place>() gives eight of them, each when its gather comes: the gathers leave little room
// beside them, and none for all of a strip at once. Most fields lie where a load at an odd address brings them to the
// lowest bits, or up to three bits above: the index is then 2, 4 or 8 times as large, and the scale of its gather
// (kScale) as much smaller.
template <int Bits>
struct Indices;

template <>
struct Indices<0> {
    BITBENCH_INLINE explicit Indices(const std::uint8_t*) {}
};

template <>
struct Indices<9> {
    static constexpr int kScale[8] = {8, 4, 2, 8, 4, 2, 8, 8};
    const std::uint8_t* from;
    __m256i rest;

    BITBENCH_INLINE explicit Indices(const std::uint8_t* strip) : from(strip), rest(spread_bytes(strip + 64)) {}

    template <int Place>
    BITBENCH_INLINE __m256i at() const {
        const __m256i high4 = _mm256_set1_epi32(0x1e0);
        if constexpr (Place == 6) return with_bits(shifted(from, 27), _mm256_slli_epi32(rest, 5), high4);
        if constexpr (Place == 7) return with_bits(shifted(from + 32, 27), _mm256_slli_epi32(rest, 1), high4);
        return masked(from + 32 * (Place / 3) + Place % 3, 0x1ff << Place % 3);
    }
};

template <>
struct Indices<12> {
    static constexpr int kScale[8] = {8, 8, 8, 8, 8, 8, 8, 8};
    const std::uint8_t* from;

    BITBENCH_INLINE explicit Indices(const std::uint8_t* strip) : from(strip) {}

    template <int Place>
    BITBENCH_INLINE __m256i at() const {
        const __m256i low12 = _mm256_set1_epi32(0xfff), low8 = _mm256_set1_epi32(0xff);
        if constexpr (Place == 4)  // as the even ones below, but a load at an odd address would reach behind the strip
            return _mm256_and_si256(shifted(from + 64, 8), low12);
        if constexpr (Place == 6)
            return _mm256_and_si256(joined(low8, load256(from), load256(from + 63)), low12);
        if constexpr (Place == 7)
            return _mm256_and_si256(joined(low8, load256(from + 32), _mm256_slli_epi32(load256(from + 64), 4)), low12);
        return Place % 2 == 0 ? masked(from + 16 * Place + 1, 0xfff) : shifted(from + 16 * (Place - 1), 20);
    }
};

template <>
struct Indices<13> {
    static constexpr int kScale[8] = {8, 1, 8, 1, 8, 1, 8, 8};
    const std::uint8_t* from;
    __m256i rest;

    BITBENCH_INLINE explicit Indices(const std::uint8_t* strip) : from(strip), rest(spread_bytes(strip + 96)) {}

    template <int Place>
    BITBENCH_INLINE __m256i at() const {
        const __m256i low13 = _mm256_set1_epi32(0x1fff), low12 = _mm256_set1_epi32(0xfff);
        const __m256i low6 = _mm256_set1_epi32(0x3f);
        if constexpr (Place == 6) {
            const __m256i twelve = joined(low6, shifted(from, 13), shifted(from + 32, 7));
            return _mm256_and_si256(joined(low12, twelve, _mm256_slli_epi32(rest, 12)), low13);
        }
        if constexpr (Place == 7) return joined(low6, shifted(from + 64, 13), _mm256_slli_epi32(rest, 5));
        return Place % 2 == 0 ? masked(from + 16 * Place, 0x1fff) : masked(from + 16 * (Place - 1) + 2, 0x1fff << 3);
    }
};

template <>
struct Indices<16> {
    static constexpr int kScale[8] = {8, 8, 8, 8, 8, 8, 8, 8};
    const std::uint8_t* from;

    BITBENCH_INLINE explicit Indices(const std::uint8_t* strip) : from(strip) {}

    template <int Place>
    BITBENCH_INLINE __m256i at() const {
        return Place % 2 == 0 ? masked(from + 16 * Place, 0xffff) : shifted(from + 16 * (Place - 1), 16);
    }
};

// work(integral_constant<int, 0>) ... work(integral_constant<int, 7>): the scale of a gather is part of the instruction.
template <class Work>
BITBENCH_INLINE void for_eight(Work work) {
    [&]<int... Place>(std::integer_sequence<int, Place...>) __attribute__((always_inline)) {
        (work(std::integral_constant<int, Place>()), ...);
    }(std::make_integer_sequence<int, 8>());
}

// Fetches 8 entries of a codebook and turns them: byte (output o, column c) goes to dword 2o + c / 4, byte c % 4, so
// that four columns of one output meet in a dword.
struct Fetch {
    __m512i control;
    __mmask8 all = 0xff;

    Fetch() {
        alignas(64) static constexpr auto kOrder = [] {
            std::array<std::uint8_t, 64> order{};
            for (int o = 0; o < 8; ++o)
                for (int c = 0; c < 8; ++c) order[std::size_t(8 * o + c)] = std::uint8_t(8 * c + o);
            return order;
        }();
        control = _mm512_load_si512(kOrder.data());
        // A gather merges into its destination and waits for what was last computed there, so each one starts from
        // zeros. The compiler would leave them out if it knew that the mask is full.
        asm("" : "+Yk"(all));
    }

    template <int Bits, int Place>
    BITBENCH_INLINE __m512i find(const std::uint8_t* entries, const Indices<Bits>& indices) const {
        const __m512i found = _mm512_mask_i32gather_epi64(_mm512_setzero_si512(), all, indices.template at<Place>(), entries,
                                                          Indices<Bits>::kScale[Place]);
        return _mm512_permutexvar_epi8(control, found);
    }
};

// The 64 residual indices of a strip, and in which quarters of the 256 entries each is looked up: the last one counts.
struct PlaneLookup {
    __m512i index;
    __mmask64 odd, upper_half, last;

    BITBENCH_INLINE explicit PlaneLookup(const std::uint8_t* at) : index(_mm512_loadu_si512(at)) {
        upper_half = _mm512_movepi8_mask(index);
        odd = _mm512_movepi8_mask(_mm512_slli_epi16(index, 1));
        last = _kand_mask64(odd, upper_half);
    }

    BITBENCH_INLINE __m512i plane(const std::uint8_t* planes, int output) const {
        const std::uint8_t* table = planes + kResidualPlane * output;
        __m512i found = _mm512_permutexvar_epi8(index, _mm512_loadu_si512(table));
        found = _mm512_mask_permutexvar_epi8(found, odd, index, _mm512_loadu_si512(table + 64));
        found = _mm512_mask_permutexvar_epi8(found, upper_half, index, _mm512_loadu_si512(table + 128));
        return _mm512_mask_permutexvar_epi8(found, last, index, _mm512_loadu_si512(table + 192));
    }
};

// One strip: its 8 x 8 columns of main entries, and as many columns or 8 planes of residual ones.
template <int MainBits, int ResidualBits>
class Strip {
  public:
    static constexpr bool kPlanes = ResidualBits == 8;

    BITBENCH_INLINE Strip(const Segment& segment, const std::uint8_t* at, const Fetch& fetch)
        : segment_(segment), fetch_(fetch), main_(at), residual_(at + main_bytes(MainBits)) {
        for (int line = 0; line < strip_bytes(MainBits, ResidualBits); line += 64)
            _mm_prefetch(reinterpret_cast<const char*>(at + kAhead + line), _MM_HINT_T0);
    }

    template <int Place>
    BITBENCH_INLINE __m512i main() const {
        return fetch_.find<MainBits, Place>(segment_.main, main_);
    }

    template <int Place>
    BITBENCH_INLINE __m512i residual() const {
        if constexpr (kPlanes)
            return residual_.plane(segment_.planes, Place);
        else
            return fetch_.find<ResidualBits, Place>(segment_.residual, residual_);
    }

  private:
    const Segment& segment_;
    const Fetch& fetch_;
    Indices<MainBits> main_;
    std::conditional_t<kPlanes, PlaneLookup, Indices<kPlanes ? 0 : ResidualBits>> residual_;
};

}  // namespace
}  // namespace bitbench::vptq
