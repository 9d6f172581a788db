// Reads the indices of a strip one by one. Included by the file of each instruction set, hence internal linkage.
#pragma once

#include <cstring>

#include "matrix.hpp"

namespace bitbench::vptq {
namespace {

inline std::uint32_t dword(const std::uint8_t* at, int i) {
    std::uint32_t value;
    std::memcpy(&value, at + 4 * i, sizeof value);
    return value;
}

inline void read16(const std::uint8_t* at, std::uint32_t (&index)[kStrip]) {
    for (int h = 0; h < 4; ++h)
        for (int i = 0; i < 8; ++i) {
            const std::uint32_t pair = dword(at + 32 * h, i);
            index[16 * h + i] = pair & 0xffff;
            index[16 * h + 8 + i] = pair >> 16;
        }
}

inline void add_bit(const std::uint8_t* at, int bit, std::uint32_t (&index)[kStrip]) {
    for (int i = 0; i < 8; ++i)
        for (int g = 0; g < 8; ++g) index[8 * g + i] |= std::uint32_t(at[i] >> g & 1) << bit;
}

inline void read_main(const Segment& segment, const std::uint8_t* at, std::uint32_t (&index)[kStrip]) {
    if (segment.main_bits == 16) return read16(at, index);
    for (int i = 0; i < 8; ++i) {
        const std::uint32_t a = dword(at, i), b = dword(at + 32, i), c = dword(at + 64, i);
        index[i] = a & 0xfff;
        index[8 + i] = a >> 12 & 0xfff;
        index[16 + i] = b & 0xfff;
        index[24 + i] = b >> 12 & 0xfff;
        index[32 + i] = c & 0xfff;
        index[40 + i] = c >> 12 & 0xfff;
        index[48 + i] = a >> 24 | (c >> 16 & 0xf00);
        index[56 + i] = b >> 24 | (c >> 20 & 0xf00);
    }
    if (segment.main_bits == 13) add_bit(at + 96, 12, index);
}

inline void read_residual(const Segment& segment, const std::uint8_t* at, std::uint32_t (&index)[kStrip]) {
    if (segment.residual_bits == 16) return read16(at, index);
    if (segment.residual_bits == 8) {
        for (int column = 0; column < kStrip; ++column) index[column] = at[column];
        return;
    }
    for (int h = 0; h < 2; ++h)
        for (int i = 0; i < 8; ++i)
            for (int j = 0; j < 4; ++j) index[8 * (4 * h + j) + i] = at[32 * h + 4 * i + j];
    add_bit(at + 64, 8, index);
}

}  // namespace
}  // namespace bitbench::vptq
