// AVX-512 with VNNI and VBMI. Per 8 columns: one gather of 8 centroids, one byte transpose, one dot product. A residual
// of 256 entries is looked up in registers, one output plane between two gathers, so that the shuffles fill the time
// that the gather's loads take.
#include "avx512vbmi_lookup.hpp"
#include "matrix.hpp"
#include "quantize_row.hpp"

namespace bitbench::vptq {
namespace {

constexpr int kStripsPerTile = 8;  // decoded at once for a batch: 8 KB beside a codebook of 32 KB in the first cache

BITBENCH_INLINE void add_dot(__m512i& sum, __m512i weights, __m512i x) { sum = _mm512_dpbusd_epi32(sum, weights, x); }

BITBENCH_INLINE __m512i eight_columns(const std::int8_t* x) {
    long long packed;
    __builtin_memcpy(&packed, x, sizeof packed);
    return _mm512_set1_epi64(packed);
}

// What undoes the offset of the codebook bytes: -128 * (sum of x) once per output.
BITBENCH_INLINE __m512i paired_start(std::int32_t sum) { return _mm512_set1_epi64(std::uint32_t(-kOffset * sum)); }
BITBENCH_INLINE __m512i plane_start(std::int32_t sum) { return _mm512_zextsi128_si512(_mm_cvtsi32_si128(-kOffset * sum)); }

// Integer sums of one activation row over some strips. Paired: two dwords per output. Planes: 16 dwords per output.
template <int ResidualBits>
struct Sums {
    static constexpr bool kPlanes = ResidualBits == 8;
    static constexpr int kResidualSums = ResidualBits == 0 ? 0 : kPlanes ? kVector : 1;
    __m512i main;
    __m512i residual[kResidualSums == 0 ? 1 : kResidualSums];

    BITBENCH_INLINE explicit Sums(std::int32_t sum) : main(paired_start(sum)) {
        for (int o = 0; o < kResidualSums; ++o) residual[o] = kPlanes ? plane_start(sum) : paired_start(sum);
    }
};

// The same in floats, scaled, over all chunks.
template <int ResidualBits>
struct Totals {
    static constexpr bool kPlanes = ResidualBits == 8;
    __m512 paired = _mm512_setzero_ps();
    __m512 planes[kPlanes ? kVector : 1];

    BITBENCH_INLINE Totals() {
        for (auto& plane : planes) plane = _mm512_setzero_ps();
    }

    BITBENCH_INLINE void add(const Sums<ResidualBits>& sums, float main_scale, float residual_scale) {
        paired = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums.main), _mm512_set1_ps(main_scale), paired);
        if constexpr (kPlanes) {
            for (int o = 0; o < kVector; ++o)
                planes[o] =
                    _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums.residual[o]), _mm512_set1_ps(residual_scale), planes[o]);
        } else if constexpr (ResidualBits != 0) {
            paired = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums.residual[0]), _mm512_set1_ps(residual_scale), paired);
        }
    }

    BITBENCH_INLINE __m256 reduce() const {
        const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
        const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
        const __m512 both = _mm512_add_ps(_mm512_permutexvar_ps(even, paired), _mm512_permutexvar_ps(odd, paired));
        __m256 result = _mm512_castps512_ps256(both);
        if constexpr (kPlanes) result = _mm256_add_ps(result, reduce_planes());
        return result;
    }

  private:
    // Element o of the result is the sum of the 16 elements of planes[o].
    BITBENCH_INLINE __m256 reduce_planes() const {
        __m512 pairs[4], fours[2];
        for (int i = 0; i < 4; ++i)
            pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(planes[2 * i], planes[2 * i + 1]),
                                     _mm512_unpackhi_ps(planes[2 * i], planes[2 * i + 1]));
        for (int i = 0; i < 2; ++i)
            fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(pairs[2 * i]),
                                                                         _mm512_castps_pd(pairs[2 * i + 1]))),
                                     _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(pairs[2 * i]),
                                                                         _mm512_castps_pd(pairs[2 * i + 1]))));
        const __m256 low = _mm256_add_ps(_mm512_castps512_ps256(fours[0]), _mm512_extractf32x8_ps(fours[0], 1));
        const __m256 high = _mm256_add_ps(_mm512_castps512_ps256(fours[1]), _mm512_extractf32x8_ps(fours[1], 1));
        return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
    }
};

BITBENCH_INLINE void add_to(float* at, __m256 values) { _mm256_storeu_ps(at, _mm256_add_ps(_mm256_loadu_ps(at), values)); }

// One strip of one activation row, decoded and multiplied at once.
template <int MainBits, int ResidualBits, bool Wide>
BITBENCH_INLINE void multiply_strip(const Strip<MainBits, ResidualBits>& strip, const std::int8_t* high, const std::int8_t* low,
                           Sums<ResidualBits>& sums, Sums<ResidualBits>& low_sums) {
    constexpr bool kPlanes = ResidualBits == 8;
    for_eight([&](auto place) __attribute__((always_inline)) {
        constexpr int g = place, sum = kPlanes ? g : 0;
        const __m512i found = strip.template main<g>();
        add_dot(sums.main, found, eight_columns(high + 8 * g));
        if constexpr (Wide) add_dot(low_sums.main, found, eight_columns(low + 8 * g));
        if constexpr (ResidualBits != 0) {
            const __m512i second = strip.template residual<g>();
            add_dot(sums.residual[sum], second, kPlanes ? _mm512_loadu_si512(high) : eight_columns(high + 8 * g));
            if constexpr (Wide)
                add_dot(low_sums.residual[sum], second, kPlanes ? _mm512_loadu_si512(low) : eight_columns(low + 8 * g));
        }
    });
}

template <int MainBits, int ResidualBits, bool Wide>
void one_row(const Segment& segment, const Activations& x, int begin, int end, float* sums, std::size_t) {
    constexpr int kBytes = strip_bytes(MainBits, ResidualBits);
    const Fetch fetch;
    const int strips = segment.strips();
    const std::uint8_t* strip = segment.stream + begin * segment.block_bytes();
    for (int block = begin; block < end; ++block) {
        Totals<ResidualBits> totals;
        for (int chunk = 0; chunk < x.chunks; ++chunk) {
            const int last = smaller(strips, (chunk + 1) * kStripsPerChunk);
            Sums<ResidualBits> high(x.sum_high[chunk]), low(Wide ? x.sum_low[chunk] : 0);
            for (int s = chunk * kStripsPerChunk; s < last; ++s, strip += kBytes)
                multiply_strip<MainBits, ResidualBits, Wide>({segment, strip, fetch}, x.high + kStrip * s,
                                                             Wide ? x.low + kStrip * s : nullptr, high, low);
            const float unit = Wide ? 256 * x.scale[chunk] : x.scale[chunk];
            totals.add(high, unit * segment.main_scale, unit * segment.residual_scale);
            if constexpr (Wide)
                totals.add(low, x.scale[chunk] * segment.main_scale, x.scale[chunk] * segment.residual_scale);
        }
        add_to(sums + kVector * block, totals.reduce());
    }
}

// Some strips of one block, decoded: the main part in columns of 8, the residual in planes or in columns of 8.
template <int MainBits, int ResidualBits>
struct Tile {
    static constexpr int kParts = ResidualBits == 0 ? 1 : 2;
    __m512i part[kStripsPerTile][kParts][8];

    BITBENCH_INLINE void decode(const Segment& segment, const std::uint8_t* stream, const Fetch& fetch, int count) {
        for (int s = 0; s < count; ++s, stream += strip_bytes(MainBits, ResidualBits)) {
            const Strip<MainBits, ResidualBits> strip(segment, stream, fetch);
            for_eight([&](auto place) __attribute__((always_inline)) {
                constexpr int g = place;
                part[s][0][g] = strip.template main<g>();
                if constexpr (ResidualBits != 0) part[s][1][g] = strip.template residual<g>();
            });
        }
    }

    // Sums of one part that lies in columns of 8. Four at a time: a dot product takes five cycles until it can be added
    // to.
    template <int Part>
    BITBENCH_INLINE __m512i multiply_columns(const std::int8_t* x, int count, __m512i start) const {
        __m512i sums[4] = {start, _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
        for (int s = 0; s < count; ++s, x += kStrip) {
#pragma GCC unroll 8
            for (int g = 0; g < 8; ++g) add_dot(sums[g % 4], part[s][Part][g], eight_columns(x + 8 * g));
        }
        return _mm512_add_epi32(_mm512_add_epi32(sums[0], sums[1]), _mm512_add_epi32(sums[2], sums[3]));
    }

    BITBENCH_INLINE Sums<ResidualBits> multiply(const std::int8_t* x, int count, std::int32_t sum) const {
        Sums<ResidualBits> sums(sum);
        sums.main = multiply_columns<0>(x, count, sums.main);
        if constexpr (ResidualBits == 8) {
            for (int s = 0; s < count; ++s) {
                const __m512i columns = _mm512_loadu_si512(x + kStrip * s);
#pragma GCC unroll 8
                for (int o = 0; o < kVector; ++o) add_dot(sums.residual[o], part[s][1][o], columns);
            }
        } else if constexpr (ResidualBits != 0) {
            sums.residual[0] = multiply_columns<1>(x, count, sums.residual[0]);
        }
        return sums;
    }
};

template <int MainBits, int ResidualBits, bool Wide>
void many_rows(const Segment& segment, const Activations& x, int begin, int end, float* sums, std::size_t stride) {
    const Fetch fetch;
    const int strips = segment.strips();
    const std::uint8_t* stream = segment.stream + begin * segment.block_bytes();
    Tile<MainBits, ResidualBits> tile;
    for (int block = begin; block < end; ++block) {
        Totals<ResidualBits> totals[kMaxBatch];
        for (int first = 0; first < strips; first += kStripsPerTile) {
            const int count = smaller(kStripsPerTile, strips - first);
            const int chunk = first / kStripsPerChunk;
            const bool opens_chunk = first % kStripsPerChunk == 0;  // the offset is undone once per chunk
            tile.decode(segment, stream, fetch, count);
            stream += std::size_t(count) * strip_bytes(MainBits, ResidualBits);
            for (int row = 0; row < x.batch; ++row) {
                const std::size_t at = std::size_t(row) * x.stride + std::size_t(first) * kStrip;
                const int scale_at = row * x.chunks + chunk;
                const float unit = Wide ? 256 * x.scale[scale_at] : x.scale[scale_at];
                totals[row].add(tile.multiply(x.high + at, count, opens_chunk ? x.sum_high[scale_at] : 0),
                                unit * segment.main_scale, unit * segment.residual_scale);
                if constexpr (Wide)
                    totals[row].add(tile.multiply(x.low + at, count, opens_chunk ? x.sum_low[scale_at] : 0),
                                    x.scale[scale_at] * segment.main_scale, x.scale[scale_at] * segment.residual_scale);
            }
        }
        for (int row = 0; row < x.batch; ++row) add_to(sums + row * stride + kVector * block, totals[row].reduce());
    }
}

template <int MainBits, int ResidualBits>
BlocksKernel choose(const Activations& x) {
    if (x.batch == 1) return x.wide ? one_row<MainBits, ResidualBits, true> : one_row<MainBits, ResidualBits, false>;
    return x.wide ? many_rows<MainBits, ResidualBits, true> : many_rows<MainBits, ResidualBits, false>;
}

template <int MainBits>
BlocksKernel choose(const Segment& segment, const Activations& x) {
    switch (segment.residual_bits) {
        case 0: return choose<MainBits, 0>(x);
        case 8: return choose<MainBits, 8>(x);
        case 9: return choose<MainBits, 9>(x);
        default: return choose<MainBits, 16>(x);
    }
}

BlocksKernel kernel(const Segment& segment, const Activations& x) {
    switch (segment.main_bits) {
        case 12: return choose<12>(segment, x);
        case 13: return choose<13>(segment, x);
        default: return choose<16>(segment, x);
    }
}

constexpr Isa kIsa{"avx512vbmi", kernel, quantize_row};

}  // namespace

const Isa& avx512vbmi() { return kIsa; }

}  // namespace bitbench::vptq
