// Reads the indices of a strip. Included by the file of each instruction set, hence internal linkage.
#pragma once

#include <cstring>

#include "matrix.hpp"

namespace bitbench::vptq {
namespace {

// The dwords of a part, in whatever registers there are.
using Part = std::uint32_t __attribute__((vector_size(32)));
using EightBytes = std::uint8_t __attribute__((vector_size(8)));

struct IndexWriter {
    std::uint32_t* index;

    [[gnu::always_inline]] void put(int g, Part indices) const { std::memcpy(index + 8 * g, &indices, sizeof indices); }
};

#define BITBENCH_PART(name, at) \
    Part name;                  \
    std::memcpy(&name, at, sizeof name)
#define BITBENCH_SPREAD(name, at)                  \
    EightBytes name##_bytes;                       \
    std::memcpy(&name##_bytes, at, sizeof name##_bytes); \
    const Part name = __builtin_convertvector(name##_bytes, Part)

inline void read16(const std::uint8_t* at, std::uint32_t (&index)[kStrip]) {
    const IndexWriter to{index};
    for (int h = 0; h < 4; ++h) {
        BITBENCH_PART(pairs, at + 32 * h);
        to.put(2 * h, pairs & 0xffff);
        to.put(2 * h + 1, pairs >> 16);
    }
}

inline void read12(const std::uint8_t* at, std::uint32_t (&index)[kStrip]) {
    const IndexWriter to{index};
    BITBENCH_PART(a, at);
    BITBENCH_PART(b, at + 32);
    BITBENCH_PART(c, at + 64);
    to.put(0, a >> 8 & 0xfff);
    to.put(1, a >> 20);
    to.put(2, b >> 8 & 0xfff);
    to.put(3, b >> 20);
    to.put(4, c >> 8 & 0xfff);
    to.put(5, c >> 20);
    to.put(6, (a & 0xff) | (c & 0xf) << 8);
    to.put(7, (b & 0xff) | (c & 0xf0) << 4);
}

inline void read13(const std::uint8_t* at, std::uint32_t (&index)[kStrip]) {
    const IndexWriter to{index};
    BITBENCH_PART(a, at);
    BITBENCH_PART(b, at + 32);
    BITBENCH_PART(c, at + 64);
    BITBENCH_SPREAD(e, at + 96);
    to.put(0, a & 0x1fff);
    to.put(1, a >> 19);
    to.put(2, b & 0x1fff);
    to.put(3, b >> 19);
    to.put(4, c & 0x1fff);
    to.put(5, c >> 19);
    to.put(6, (a >> 13 & 0x3f) | (b >> 7 & 0xfc0) | (e & 1) << 12);
    to.put(7, (c >> 13 & 0x3f) | (e >> 1) << 6);
}

inline void read9(const std::uint8_t* at, std::uint32_t (&index)[kStrip]) {
    const IndexWriter to{index};
    BITBENCH_PART(a, at);
    BITBENCH_PART(b, at + 32);
    BITBENCH_SPREAD(e, at + 64);
    for (int j = 0; j < 3; ++j) {
        to.put(j, a >> 9 * j & 0x1ff);
        to.put(3 + j, b >> 9 * j & 0x1ff);
    }
    to.put(6, a >> 27 | (e & 0xf) << 5);
    to.put(7, b >> 27 | (e >> 4) << 5);
}

#undef BITBENCH_PART
#undef BITBENCH_SPREAD

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
