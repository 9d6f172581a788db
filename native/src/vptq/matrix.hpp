// A VPTQ weight matrix as the CPU kernels read it. Nothing here owns memory.
//
// W is [out, in]. A vector is 8 consecutive outputs of one column; a block is the vectors of 8 outputs over all
// columns. The columns of a segment share one pair of codebooks and are cut into strips of 64. A block's strips follow
// each other in memory, so each thread reads one contiguous stream:
//
//   a part is 8 dwords; dword i of a, b, c and byte i of e belong to the columns 8g + i, g = 0 ... 7. The indices:
//   main 12 bit     parts a, b, c   g0 = a[8:20]  g1 = a[20:32]  g6 = a[0:8]  | c[0:4] << 8
//                                   g2 = b[8:20]  g3 = b[20:32]  g7 = b[0:8]  | c[4:8] << 8
//                                   g4 = c[8:20]  g5 = c[20:32]
//   main 13 bit     parts a, b, c   g0 = a[0:13]  g1 = a[19:32]  g6 = a[13:19] | b[13:19] << 6 | e[0] << 12
//                   8 bytes e       g2 = b[0:13]  g3 = b[19:32]  g7 = c[13:19] | e[1:8] << 6
//                                   g4 = c[0:13]  g5 = c[19:32]
//   residual 8 bit  64 bytes in the order of the columns
//   residual 9 bit  parts a, b      g0 = a[0:9]   g1 = a[9:18]   g2 = a[18:27]  g6 = a[27:32] | e[0:4] << 5
//                   8 bytes e       g3 = b[0:9]   g4 = b[9:18]   g5 = b[18:27]  g7 = b[27:32] | e[4:8] << 5
//   16 bit, both    four parts      part h holds g = 2h in its lower and g = 2h + 1 in its upper halves
//
// Codebooks are int8, entries of 8 bytes, as many as their index can name: no index leads outside. A residual of 256
// entries also lies as 8 planes of 256 bytes (one per output), because AVX-512 with VBMI looks it up in registers.
// All codebook bytes carry an offset of 128: the dot-product instruction multiplies unsigned with signed bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// The compiler stops inlining where a file grows as much as those of the instruction sets do by their templates; a call
// per lookup doubles the time.
#define BITBENCH_INLINE [[gnu::always_inline]] inline

namespace bitbench::vptq {

inline constexpr int kVector = 8;    // outputs in a vector
inline constexpr int kStrip = 64;    // columns in a strip: one byte of index per column fills a 512-bit register
inline constexpr int kChunk = 1024;  // columns that share one activation scale
inline constexpr int kStripsPerChunk = kChunk / kStrip;
inline constexpr int kMaxBatch = 8;         // activation rows that share one decoding of the weights
inline constexpr int kResidualPlane = 256;  // entries of a residual that is looked up in registers
inline constexpr int kOffset = 128;

constexpr int main_bytes(int bits) { return bits == 12 ? 96 : bits == 13 ? 104 : 128; }
constexpr int residual_bytes(int bits) { return bits == 0 ? 0 : bits == 8 ? 64 : bits == 9 ? 72 : 128; }
constexpr int strip_bytes(int main_bits, int residual_bits) {
    return main_bytes(main_bits) + residual_bytes(residual_bits);
}

struct Segment {
    int first_column;   // in the permuted order
    int columns;        // without padding
    int main_bits;      // 12, 13, 16
    int residual_bits;  // 0 (none), 8, 9, 16
    const std::uint8_t* stream;
    const std::uint8_t* main;
    const std::uint8_t* residual;
    const std::uint8_t* planes;  // 8 bits only
    float main_scale;
    float residual_scale;

    [[gnu::always_inline]] int strips() const { return (columns + kStrip - 1) / kStrip; }
    [[gnu::always_inline]] int chunks() const { return (strips() + kStripsPerChunk - 1) / kStripsPerChunk; }
    [[gnu::always_inline]] std::size_t block_bytes() const {
        return std::size_t(strips()) * strip_bytes(main_bits, residual_bits);
    }
};

struct Matrix {
    int in_features = 0;
    int out_features = 0;
    std::vector<Segment> segments;
    int outlier_columns = 0;                    // the first ones in the permuted order
    const float* outliers = nullptr;            // [blocks][outlier_columns][8], dense
    const float* column_scale = nullptr;        // [in], original order, as are the next two
    const float* column_bias = nullptr;         // [in]
    const std::int32_t* permutation = nullptr;  // [in]: position in the stream -> original column
    const float* bias = nullptr;                // [out]

    int blocks() const { return (out_features + kVector - 1) / kVector; }
};

// Activations of one segment, quantized per row and chunk: x is about scale * q. A row is padded with zeros to whole
// strips. With 16 bits q = 256 * high + low; with 8 bits q = high and there is no low part.
struct Activations {
    int batch;
    bool wide;
    int stride;  // columns of a row, padded
    int chunks;
    const std::int8_t* high;       // [batch][stride]
    const std::int8_t* low;        // [batch][stride], wide only
    const std::int16_t* whole;     // [batch][stride]: q itself
    const float* scale;            // [batch][chunks]
    const std::int32_t* sum_high;  // [batch][chunks]
    const std::int32_t* sum_low;   // [batch][chunks], wide only
};

// A row of activations as floats, quantized into the arrays above for one segment.
struct QuantizedRow {
    std::int8_t* high;
    std::int8_t* low;
    std::int16_t* whole;
    float* scale;
    std::int32_t* sum_high;
    std::int32_t* sum_low;
};

// Adds the product of the blocks [begin, end) to sums[row * stride + 8 * block + output].
using BlocksKernel = void (*)(const Segment&, const Activations&, int begin, int end, float* sums, std::size_t stride);

using ChooseKernel = BlocksKernel (*)(const Segment&, const Activations&);
using QuantizeRow = void (*)(const float* x, int columns, int stride, bool wide, const QuantizedRow& row);

// One way to compute. The files of an instruction set are compiled with its flags, so whatever they include and is not
// inlined must have internal linkage: the linker would otherwise keep one copy for all.
struct Isa {
    const char* name;
    ChooseKernel kernel;
    QuantizeRow quantize;
};

const Isa& portable();
const Isa& avx2();
const Isa& avxvnni();
const Isa& avx512();
const Isa& avx512vbmi();

}  // namespace bitbench::vptq
