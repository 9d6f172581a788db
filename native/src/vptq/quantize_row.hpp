// Quantizes a row of activations. Included by the file of each instruction set, hence internal linkage.
#pragma once

#include <cstring>

#include "matrix.hpp"

namespace bitbench::vptq {
namespace {

constexpr int smaller(int a, int b) { return a < b ? a : b; }

// The largest magnitude, compared as bits: these order like the magnitudes, and infinity and NaN lie above all others.
inline std::int32_t largest_bits(const float* x, int count) {
    std::int32_t largest = 0;
    for (int i = 0; i < count; ++i) {
        std::int32_t bits;
        std::memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        largest = largest > bits ? largest : bits;
    }
    return largest;
}

inline void quantize_chunk(const float* x, int columns, float inverse, bool wide, std::int8_t* high, std::int8_t* low,
                           std::int16_t* whole, std::int32_t& sum_high, std::int32_t& sum_low) {
    std::int32_t highs = 0, lows = 0;
    if (wide) {
        for (int i = 0; i < columns; ++i) {
            const auto q = std::int32_t(__builtin_rintf(x[i] * inverse));
            const std::int32_t upper = (q + 128) >> 8, lower = q - 256 * upper;
            whole[i] = std::int16_t(q);
            high[i] = std::int8_t(upper);
            low[i] = std::int8_t(lower);
            highs += upper;
            lows += lower;
        }
    } else {
        for (int i = 0; i < columns; ++i) {
            const auto q = std::int32_t(__builtin_rintf(x[i] * inverse));
            whole[i] = std::int16_t(q);
            high[i] = std::int8_t(q);
            highs += q;
        }
    }
    sum_high = highs;
    sum_low = lows;
}

void quantize_row(const float* x, int columns, int stride, bool wide, const QuantizedRow& row) {
    constexpr std::int32_t kInfinity = 0x7f800000;
    const float steps = wide ? 127 * 256.0f : 127.0f;  // the upper part of a 16-bit value then fits in int8
    for (int first = 0, chunk = 0; first < columns; first += kChunk, ++chunk) {
        const int count = smaller(kChunk, columns - first);
        const std::int32_t bits = largest_bits(x + first, count);
        float largest;
        std::memcpy(&largest, &bits, sizeof largest);
        // Where a value is not finite the outputs must not be either: zeros with a scale of infinity or NaN give NaN.
        const bool finite = bits < kInfinity;
        const float inverse = finite && largest > 1e-30f ? steps / largest : 0.0f;
        row.scale[chunk] = finite ? largest / steps : largest;
        quantize_chunk(finite ? x + first : nullptr, finite ? count : 0, inverse, wide, row.high + first,
                       row.low + first, row.whole + first, row.sum_high[chunk], row.sum_low[chunk]);
        if (!finite) {
            std::memset(row.high + first, 0, std::size_t(count));
            std::memset(row.low + first, 0, std::size_t(count));
            std::memset(row.whole + first, 0, sizeof(std::int16_t) * std::size_t(count));
        }
    }
    const auto padding = std::size_t(stride - columns);
    std::memset(row.high + columns, 0, padding);
    std::memset(row.low + columns, 0, padding);
    std::memset(row.whole + columns, 0, sizeof(std::int16_t) * padding);
}

}  // namespace
}  // namespace bitbench::vptq
