// Compares every instruction set of the VPTQ kernel that this processor runs with the portable one, without Python: for
// processors that are emulated (scripts/native-arm). Prints a line for each, and fails where one differs.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "vptq/multiply.hpp"

namespace {

using namespace bitbench::vptq;

std::mt19937 generator(1);

struct Layer {
    int columns, outputs, main_bits, residual_bits, batch;
    bool wide;
};

std::vector<std::uint8_t> random_bytes(std::size_t count) {
    std::vector<std::uint8_t> bytes(count);
    for (auto& byte : bytes) byte = std::uint8_t(generator());
    return bytes;
}

// Codebooks hold 1 to 255: -127 to 127 with their offset.
std::vector<std::uint8_t> random_entries(int bits) {
    auto entries = random_bytes(std::size_t(kVector) << bits);
    for (auto& byte : entries) byte = byte == 0 ? 1 : byte;
    return entries;
}

std::vector<std::uint8_t> planes_of(const std::vector<std::uint8_t>& entries) {
    std::vector<std::uint8_t> planes(std::size_t(kVector) * kResidualPlane);
    for (std::size_t at = 0; at < planes.size(); ++at)
        planes[at] = entries[at % kResidualPlane * kVector + at / kResidualPlane];
    return planes;
}

double distance(const std::vector<float>& found, const std::vector<float>& wanted) {
    double wrong = 0, norm = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        wrong += std::pow(double(found[i]) - double(wanted[i]), 2);
        norm += std::pow(double(wanted[i]), 2);
    }
    return std::sqrt(wrong / norm);
}

// The relative error of one instruction set against the portable one: both add the same integers.
double error(const Isa& isa, const Layer& layer) {
    Segment segment{0, layer.columns, layer.main_bits, layer.residual_bits, nullptr, nullptr, nullptr, nullptr, 0.01f, 0.002f};
    Matrix matrix;
    matrix.in_features = layer.columns, matrix.out_features = layer.outputs;
    const auto stream = random_bytes(segment.block_bytes() * std::size_t(matrix.blocks()));
    const auto main = random_entries(layer.main_bits);
    const auto residual = random_entries(layer.residual_bits == 0 ? 8 : layer.residual_bits);
    const auto planes = planes_of(residual);
    segment.stream = stream.data(), segment.main = main.data();
    segment.residual = residual.data(), segment.planes = planes.data();
    matrix.segments = {segment};
    std::normal_distribution<float> normal;
    std::vector<float> x(std::size_t(layer.batch) * std::size_t(layer.columns));
    for (auto& value : x) value = normal(generator);
    std::vector<float> found(std::size_t(layer.batch) * std::size_t(layer.outputs)), wanted = found;
    multiply(matrix, {x.data(), false}, layer.batch, {found.data(), false}, layer.wide, 1, isa);
    multiply(matrix, {x.data(), false}, layer.batch, {wanted.data(), false}, layer.wide, 1, portable());
    return distance(found, wanted);
}

double largest_error(const Isa& isa) {
    double largest = 0;
    for (const int main_bits : {12, 13, 16})
        for (const int residual_bits : {0, 8, 9, 16})
            for (const int columns : {1, 64, 511, 1100, 2100})
                for (const int batch : {1, 3})
                    for (const bool wide : {false, true})
                        largest = std::fmax(largest, error(isa, {columns, 21, main_bits, residual_bits, batch, wide}));
    return largest;
}

}  // namespace

int main() {
    constexpr double kAllowed = 1e-6;  // sums of floats in another order
    bool agree = true;
    for (const Isa* isa : usable_isas()) {
        const double largest = largest_error(*isa);
        std::printf("%s: relative error %.1e, allowed %.0e\n", isa->name, largest, kAllowed);
        agree = agree && largest <= kAllowed;
    }
    return agree ? 0 : 1;
}
