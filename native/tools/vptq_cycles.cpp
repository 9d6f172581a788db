// Cycles per vector of the VPTQ kernel while everything lies in the caches, and what bounds them. docs/internals/kernels.md says
// how to read it. Not part of the wheel:
//
//   cmake -S native -B build/native && cmake --build build/native --target bitbench_core
//   c++ -O2 -std=c++20 -Inative/src native/tools/vptq_cycles.cpp build/native/libbitbench_core.a -ldl -o vptq_cycles
//
// Each figure is the least of many short runs: what a neighbour on the same core adds is left out.
#include <immintrin.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "vptq/matrix.hpp"
#include "vptq/multiply.hpp"

namespace {

using namespace bitbench::vptq;

constexpr int kColumns = 1024, kBlocks = 16;

template <class Work>
double least_ticks(int runs, Work work) {
    unsigned long long least = ~0ULL;
    for (int run = 0; run < runs; ++run) {
        const auto began = __rdtsc();
        work();
        least = std::min(least, __rdtsc() - began);
    }
    return double(least);
}

// Ticks of the time stamp counter per cycle of the core: a multiplication that waits for the last one takes three.
double ticks_per_cycle() {
    return least_ticks(300, [] {
               unsigned long x = 1;
               for (int i = 0; i < 1000; ++i) asm volatile("imul %0, %0\n imul %0, %0" : "+r"(x));
           }) /
           6000;
}

std::vector<std::uint8_t> random_bytes(std::size_t count) {
    static std::mt19937 random(1);
    std::vector<std::uint8_t> bytes(count);
    for (auto& byte : bytes) byte = std::uint8_t(random());
    return bytes;
}

double cycles_per_vector(const Isa& isa, int main_bits, int residual_bits, bool wide) {
    Segment segment{0, kColumns, main_bits, residual_bits, nullptr, nullptr, nullptr, nullptr, 1.0f, 1.0f};
    const auto stream = random_bytes(segment.block_bytes() * kBlocks), main = random_bytes(8UL << main_bits);
    const auto residual = random_bytes(8UL << residual_bits), planes = random_bytes(kVector * kResidualPlane);
    segment.stream = stream.data(), segment.main = main.data();
    segment.residual = residual.data(), segment.planes = planes.data();
    const std::vector<std::int8_t> part(kColumns, 1);
    const std::vector<std::int16_t> whole(kColumns, 1);
    const float scale = 1;
    const std::int32_t sum = 0;
    const Activations x{1, wide, kColumns, 1, part.data(), part.data(), whole.data(), &scale, &sum, &sum};
    std::vector<float> sums(kVector * kBlocks);
    const BlocksKernel kernel = isa.kernel(segment, x);
    const double ticks = least_ticks(2000, [&] { kernel(segment, x, 0, kBlocks, sums.data(), sums.size()); });
    return ticks / ticks_per_cycle() / (kColumns * kBlocks);
}

// Eight lookups by one gather, with some shuffles of bytes beside it that wait for nothing.
template <int Shuffles>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512vbmi")]] double cycles_per_gather() {
    const auto entries = random_bytes(8UL << 12);
    alignas(32) std::int32_t index[128][8];
    std::mt19937 random(2);
    for (auto& eight : index)
        for (auto& one : eight) one = std::int32_t(random() & 0xfff);
    const double ticks = least_ticks(3000, [&]() __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi"))) {
        __m512i zero = _mm512_setzero_si512();
        __mmask8 all = 0xff;
        asm("" : "+v"(zero), "+Yk"(all));
#pragma GCC unroll 8
        for (const auto& eight : index) {
            const __m256i at = _mm256_load_si256(reinterpret_cast<const __m256i*>(eight));
            const __m512i found = _mm512_mask_i32gather_epi64(zero, all, at, entries.data(), 8);
            asm volatile("" ::"v"(found));
            __m512i shuffled;
            for (int i = 0; i < Shuffles; ++i) asm volatile("vpermb %1, %1, %0" : "=v"(shuffled) : "v"(zero));
        }
    });
    return ticks / ticks_per_cycle() / 128;
}

}  // namespace

int main() {
    for (const Isa* isa : usable_isas())
        for (const auto [main_bits, residual_bits] : {std::pair{12, 8}, {12, 9}, {13, 8}, {13, 9}, {16, 8}})
            std::printf("%-10s %5d/%d: %.2f cycles per vector, with 16-bit activations %.2f\n", isa->name,
                        1 << main_bits, 1 << residual_bits, cycles_per_vector(*isa, main_bits, residual_bits, false),
                        cycles_per_vector(*isa, main_bits, residual_bits, true));
    if (isa_named("avx512vbmi") != nullptr)
        std::printf("a gather of 8 entries: %.2f cycles; with 2, 3, 4, 5 shuffles beside it: %.2f %.2f %.2f %.2f\n",
                    cycles_per_gather<0>(), cycles_per_gather<2>(), cycles_per_gather<3>(), cycles_per_gather<4>(),
                    cycles_per_gather<5>());
}
