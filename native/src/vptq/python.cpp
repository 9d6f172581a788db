// What Python sees of the VPTQ kernel. src/bitbench/_native.pyi says the same to a type checker.
#include "python.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <deque>
#include <stdexcept>

#include "../parallel.hpp"
#include "multiply.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace bitbench::vptq {
namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::c_contig, nb::device::cpu>;
using Reals = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Order = nb::ndarray<const std::int32_t, nb::c_contig, nb::device::cpu>;
using Values = nb::ndarray<nb::c_contig, nb::device::cpu>;  // float32 or bfloat16

void require(bool holds, const char* otherwise) {
    if (!holds) throw nb::value_error(otherwise);
}

Floats floats_of(const Values& values) {
    const nb::dlpack::dtype type = values.dtype();
    const bool is_bfloat16 = type.code == std::uint8_t(nb::dlpack::dtype_code::Bfloat) && type.bits == 16;
    require(is_bfloat16 || type == nb::dtype<float>(), "activations and results are float32 or bfloat16");
    return {values.data(), is_bfloat16};
}

// Keeps the arrays that a Matrix points into.
class OwningMatrix {
  public:
    OwningMatrix(int in_features, int out_features, std::optional<Reals> column_scale, std::optional<Reals> column_bias,
                 std::optional<Order> permutation, std::optional<Reals> bias, std::optional<Reals> outliers) {
        require(in_features > 0 && out_features > 0, "a matrix has at least one row and one column");
        matrix_.in_features = in_features;
        matrix_.out_features = out_features;
        matrix_.column_scale = keep(column_scale, in_features, "column_scale has one element per column");
        matrix_.column_bias = keep(column_bias, in_features, "column_bias has one element per column");
        matrix_.permutation = keep(permutation, in_features, "permutation has one element per column");
        matrix_.bias = keep(bias, out_features, "bias has one element per output");
        if (permutation)
            for (int k = 0; k < in_features; ++k)
                require(matrix_.permutation[k] >= 0 && matrix_.permutation[k] < in_features,
                        "permutation names a column that does not exist");
        if (outliers) {
            const std::size_t per_column = std::size_t(matrix_.blocks()) * kVector;
            require(outliers->size() % per_column == 0, "outliers are [blocks, columns, 8]");
            matrix_.outlier_columns = int(outliers->size() / per_column);
            matrix_.outliers = keep(outliers, outliers->size(), "");
        }
        covered_ = matrix_.outlier_columns;
        require(covered_ <= in_features, "there are more outliers than columns");
    }

    void add_segment(int columns, int main_bits, int residual_bits, Bytes stream, Bytes main, float main_scale,
                     std::optional<Bytes> residual, float residual_scale) {
        require(main_bits == 12 || main_bits == 13 || main_bits == 16, "main_bits is 12, 13 or 16");
        require(residual_bits == 0 || residual_bits == 8 || residual_bits == 9 || residual_bits == 16,
                "residual_bits is 0, 8, 9 or 16");
        require(columns > 0 && covered_ + columns <= matrix_.in_features,
                "the segments have more columns than the matrix");
        Segment segment{covered_, columns, main_bits, residual_bits, nullptr,
                        nullptr,  nullptr, nullptr,   main_scale,    residual_scale};
        segment.stream = keep(std::optional(stream), segment.block_bytes() * std::size_t(matrix_.blocks()),
                              "the stream does not have the size that its layout needs");
        segment.main = keep(std::optional(main), entry_bytes(main_bits), "the main codebook is [2 ** main_bits, 8]");
        if (residual_bits != 0) {
            require(residual.has_value(), "a residual needs its codebook");
            segment.residual =
                keep(residual, entry_bytes(residual_bits), "the residual codebook is [2 ** residual_bits, 8]");
        }
        if (residual_bits == 8) segment.planes = make_planes(segment.residual);
        covered_ += columns;
        matrix_.segments.push_back(segment);
    }

    void multiply(const Values& x, const Values& y, int activation_bits, int threads, const std::string& isa) const {
        require(x.ndim() > 0 && x.shape(x.ndim() - 1) == std::size_t(matrix_.in_features), "x ends in in_features");
        const std::size_t batch = x.size() / std::size_t(matrix_.in_features);
        require(y.size() == batch * std::size_t(matrix_.out_features), "y is [..., out_features] with the rows of x");
        run(floats_of(x), floats_of(y), int(batch), activation_bits, threads, isa);
    }

    void multiply_at(std::uintptr_t x, std::uintptr_t y, int rows, bool bfloat16, int activation_bits, int threads,
                     const std::string& isa) const {
        require(x != 0 && y != 0 && rows > 0, "x and y are addresses of at least one row");
        const Floats from{reinterpret_cast<void*>(x), bfloat16}, to{reinterpret_cast<void*>(y), bfloat16};
        run(from, to, rows, activation_bits, threads, isa);
    }

  private:
    void run(Floats x, Floats y, int rows, int activation_bits, int threads, const std::string& isa) const {
        require(covered_ == matrix_.in_features, "some columns of the matrix have no segment yet");
        require(activation_bits == 8 || activation_bits == 16, "activation_bits is 8 or 16");
        require(threads > 0, "threads is at least 1");
        const Isa* chosen = isa.empty() ? usable_isas().front() : isa_named(isa);
        require(chosen != nullptr, "this machine cannot run that instruction set");
        nb::gil_scoped_release released;
        vptq::multiply(matrix_, x, rows, y, activation_bits == 16, threads, *chosen);
    }

    static std::size_t entry_bytes(int bits) { return (std::size_t(1) << bits) * kVector; }

    template <class Array>
    auto keep(const std::optional<Array>& array, std::size_t elements, const char* otherwise)
        -> decltype(array->data()) {
        if (!array) return nullptr;
        require(array->size() == elements, otherwise);
        kept_.emplace_back(nb::ndarray<nb::ro>(*array));
        return array->data();
    }

    const std::uint8_t* make_planes(const std::uint8_t* entries) {
        auto& planes = planes_.emplace_back(std::size_t(kVector) * kResidualPlane);
        for (int entry = 0; entry < kResidualPlane; ++entry)
            for (int o = 0; o < kVector; ++o)
                planes[std::size_t(kResidualPlane * o + entry)] = entries[kVector * entry + o];
        return planes.data();
    }

    Matrix matrix_;
    int covered_ = 0;  // columns that outliers and segments account for so far
    std::vector<nb::ndarray<nb::ro>> kept_;
    std::deque<std::vector<std::uint8_t>> planes_;
};

std::vector<std::string> isa_names() {
    std::vector<std::string> names;
    for (const Isa* isa : usable_isas()) names.emplace_back(isa->name);
    return names;
}

}  // namespace

void add_to(nb::module_& module) {
    nb::class_<OwningMatrix>(module, "VptqMatrix")
        .def(nb::init<int, int, std::optional<Reals>, std::optional<Reals>, std::optional<Order>, std::optional<Reals>,
                      std::optional<Reals>>(),
             "in_features"_a, "out_features"_a, nb::kw_only(), "column_scale"_a = nb::none(),
             "column_bias"_a = nb::none(), "permutation"_a = nb::none(), "bias"_a = nb::none(),
             "outliers"_a = nb::none())
        .def("add_segment", &OwningMatrix::add_segment, nb::kw_only(), "columns"_a, "main_bits"_a, "residual_bits"_a,
             "stream"_a, "main"_a, "main_scale"_a, "residual"_a = nb::none(), "residual_scale"_a = 0.0f)
        // A copy of x would cost time, and one of y would get the result instead of y: what is not contiguous is refused.
        .def("multiply", &OwningMatrix::multiply, "x"_a.noconvert(), "y"_a.noconvert(), nb::kw_only(),
             "activation_bits"_a = 8, "threads"_a = 1, "isa"_a = "")
        // The same for who knows what lies there: to ask a tensor of torch for DLPack takes 3 us, twice per product.
        .def("multiply_at", &OwningMatrix::multiply_at, "x"_a, "y"_a, nb::kw_only(), "rows"_a, "bfloat16"_a,
             "activation_bits"_a, "threads"_a, "isa"_a = "");
    module.def("vptq_isas", &isa_names, "The instruction sets that this machine can run, best first, from the one that BITBENCH_ISA names on.");
    module.def("openmp_runtime", &openmp_runtime,
               "The file of the OpenMP runtime whose threads are used; empty while none is loaded.");
}

}  // namespace bitbench::vptq
