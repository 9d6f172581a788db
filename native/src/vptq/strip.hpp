// Reads the indices of a strip. Included by the file of each instruction set, hence internal linkage.
#pragma once

#include <cstring>

#include "matrix.hpp"

namespace bitbench::vptq {
namespace {

// The dwords of a part, in whatever registers there are.
using Part = std::uint32_t __attribute__((vector_size(32)));
using EightBytes = std::uint8_t __attribute__((vector_size(8)));

// Parts that follow each other.
template <class... Parts>
[[gnu::always_inline]] inline void load(const std::uint8_t* at, Parts&... parts) {
    ((std::memcpy(&parts, at, sizeof parts), at += sizeof parts), ...);
}

[[gnu::always_inline]] inline void load_bytes(const std::uint8_t* at, Part& part) {
    EightBytes bytes;
    std::memcpy(&bytes, at, sizeof bytes);
    part = __builtin_convertvector(bytes, Part);
}

struct IndexWriter {
    std::uint32_t* index;

    [[gnu::always_inline]] void put(int g, const Part& indices) const {
        std::memcpy(index + 8 * g, &indices, sizeof indices);
    }
};

inline void read16(const std::uint8_t* at, std::uint32_t (&index)[kStrip]) {
    const IndexWriter to{index};
    for (int h = 0; h < 4; ++h) {
        Part pairs;
        load(at + 32 * h, pairs);
        to.put(2 * h, pairs & 0xffff);
        to.put(2 * h + 1, pairs >> 16);
    }
}

inline void read12(const std::uint8_t* at, std::uint32_t (&index)[kStrip]) {
    const IndexWriter to{index};
    Part a, b, c;
    load(at, a, b, c);
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
    Part a, b, c, e;
    load(at, a, b, c);
    load_bytes(at + 96, e);
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
    Part a, b, e;
    load(at, a, b);
    load_bytes(at + 64, e);
    for (int j = 0; j < 3; ++j) {
        to.put(j, a >> 9 * j & 0x1ff);
        to.put(3 + j, b >> 9 * j & 0x1ff);
    }
    to.put(6, a >> 27 | (e & 0xf) << 5);
    to.put(7, b >> 27 | (e >> 4) << 5);
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
