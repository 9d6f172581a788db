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

inline void read12(const std::uint8_t* at, std::uint32_t (&index)[kStrip]) {
    for (int i = 0; i < 8; ++i) {
        const std::uint32_t a = dword(at, i), b = dword(at + 32, i), c = dword(at + 64, i);
        index[i] = a >> 8 & 0xfff;
        index[8 + i] = a >> 20;
        index[16 + i] = b >> 8 & 0xfff;
        index[24 + i] = b >> 20;
        index[32 + i] = c >> 8 & 0xfff;
        index[40 + i] = c >> 20;
        index[48 + i] = (a & 0xff) | (c & 0xf) << 8;
        index[56 + i] = (b & 0xff) | (c & 0xf0) << 4;
    }
}

inline void read13(const std::uint8_t* at, std::uint32_t (&index)[kStrip]) {
    for (int i = 0; i < 8; ++i) {
        const std::uint32_t a = dword(at, i), b = dword(at + 32, i), c = dword(at + 64, i), e = at[96 + i];
        index[i] = a & 0x1fff;
        index[8 + i] = a >> 19;
        index[16 + i] = b & 0x1fff;
        index[24 + i] = b >> 19;
        index[32 + i] = c & 0x1fff;
        index[40 + i] = c >> 19;
        index[48 + i] = (a >> 13 & 0x3f) | (b >> 7 & 0xfc0) | (e & 1) << 12;
        index[56 + i] = (c >> 13 & 0x3f) | (e >> 1) << 6;
    }
}

inline void read9(const std::uint8_t* at, std::uint32_t (&index)[kStrip]) {
    for (int i = 0; i < 8; ++i) {
        const std::uint32_t a = dword(at, i), b = dword(at + 32, i), e = at[64 + i];
        for (int j = 0; j < 3; ++j) {
            index[8 * j + i] = a >> 9 * j & 0x1ff;
            index[8 * (3 + j) + i] = b >> 9 * j & 0x1ff;
        }
        index[48 + i] = a >> 27 | (e & 0xf) << 5;
        index[56 + i] = b >> 27 | (e >> 4) << 5;
    }
}

inline void read_main(const Segment& segment, const std::uint8_t* at, std::uint32_t (&index)[kStrip]) {
    if (segment.main_bits == 12) return read12(at, index);
    if (segment.main_bits == 13) return read13(at, index);
    read16(at, index);
}

inline void read_residual(const Segment& segment, const std::uint8_t* at, std::uint32_t (&index)[kStrip]) {
    if (segment.residual_bits == 9) return read9(at, index);
    if (segment.residual_bits == 16) return read16(at, index);
    for (int column = 0; column < kStrip; ++column) index[column] = at[column];
}

}  // namespace
}  // namespace bitbench::vptq
