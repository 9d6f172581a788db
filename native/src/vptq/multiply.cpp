#include "multiply.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(BITBENCH_X86)
#include <cpuid.h>
#endif

#include "../parallel.hpp"

namespace bitbench::vptq {
namespace {

float widen(std::uint16_t bfloat16) { return std::bit_cast<float>(std::uint32_t(bfloat16) << 16); }

std::uint16_t narrow(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return std::uint16_t(bits >> 16 | 0x40);  // stays a NaN
    return std::uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Everything that one call needs besides its arguments; kept by the calling thread, so that a call allocates nothing.
struct Scratch {
    std::vector<float> x, permuted, sums, scale;
    std::vector<std::int8_t> high, low;
    std::vector<std::int16_t> whole;
    std::vector<std::int32_t> sum_high, sum_low;
    std::vector<Activations> activations;
    std::array<float, kMaxBatch> shift;  // what the column bias adds to every output of a row
};

const float* as_floats(const Matrix& matrix, Floats x, int row, std::vector<float>& room) {
    const std::size_t first = std::size_t(row) * matrix.in_features;
    if (!x.is_bfloat16) return static_cast<const float*>(x.data) + first;
    const auto* values = static_cast<const std::uint16_t*>(x.data) + first;
    room.resize(std::size_t(matrix.in_features));
    for (int k = 0; k < matrix.in_features; ++k) room[std::size_t(k)] = widen(values[k]);
    return room.data();
}

float dot(const float* a, const float* b, int count) {
    double sum = 0;
    for (int k = 0; k < count; ++k) sum += double(a[k]) * double(b[k]);
    return float(sum);
}

// The columns in the order of the stream, with their scale.
void arrange(const Matrix& matrix, const float* x, float* to) {
    const float* scale = matrix.column_scale;
    const std::int32_t* order = matrix.permutation;
    for (int k = 0; k < matrix.in_features; ++k) {
        const int from = order == nullptr ? k : order[k];
        to[k] = scale == nullptr ? x[from] : x[from] * scale[from];
    }
}

class Call {
  public:
    Call(const Matrix& matrix, int batch, bool wide, const Isa& isa, Scratch& scratch)
        : matrix_(matrix), batch_(batch), wide_(wide), isa_(isa), scratch_(scratch) {}

    void prepare(Floats x) {
        const auto columns = std::size_t(matrix_.in_features);
        scratch_.permuted.resize(columns * std::size_t(batch_));
        for (int row = 0; row < batch_; ++row) {
            const float* values = as_floats(matrix_, x, row, scratch_.x);
            arrange(matrix_, values, scratch_.permuted.data() + columns * std::size_t(row));
            scratch_.shift[std::size_t(row)] =
                matrix_.column_bias == nullptr ? 0.0f : dot(values, matrix_.column_bias, matrix_.in_features);
        }
        quantize();
        scratch_.sums.resize(std::size_t(batch_) * row_stride());
    }

    void run(Floats y, int threads) {
        y_ = y;
        step_ = blocks_at_once(threads);
        parallel(
            std::min(threads, matrix_.blocks()), [](void* call, int, int) { static_cast<Call*>(call)->work(); }, this);
    }

  private:
    std::size_t row_stride() const { return std::size_t(matrix_.blocks()) * kVector; }

    void quantize() {
        std::size_t columns = 0, chunks = 0;
        for (const Segment& segment : matrix_.segments) {
            columns += std::size_t(segment.strips()) * kStrip * std::size_t(batch_);
            chunks += std::size_t(segment.chunks()) * std::size_t(batch_);
        }
        scratch_.high.resize(columns);
        scratch_.low.resize(columns);
        scratch_.whole.resize(columns);
        scratch_.scale.resize(chunks);
        scratch_.sum_high.resize(chunks);
        scratch_.sum_low.resize(chunks);
        scratch_.activations.clear();
        std::size_t column = 0, chunk = 0;
        for (const Segment& segment : matrix_.segments) {
            const int stride = segment.strips() * kStrip;
            scratch_.activations.push_back({batch_, wide_, stride, segment.chunks(), scratch_.high.data() + column,
                                            scratch_.low.data() + column, scratch_.whole.data() + column,
                                            scratch_.scale.data() + chunk, scratch_.sum_high.data() + chunk,
                                            scratch_.sum_low.data() + chunk});
            for (int row = 0; row < batch_; ++row) {
                const float* x = scratch_.permuted.data() + std::size_t(row) * std::size_t(matrix_.in_features);
                isa_.quantize(
                    x + segment.first_column, segment.columns, stride, wide_,
                    {scratch_.high.data() + column, scratch_.low.data() + column, scratch_.whole.data() + column,
                     scratch_.scale.data() + chunk, scratch_.sum_high.data() + chunk, scratch_.sum_low.data() + chunk});
                column += std::size_t(stride);
                chunk += std::size_t(segment.chunks());
            }
        }
    }

    // Threads fetch their next blocks when they have done the last: on a shared machine one core is often slower than
    // another. A piece is long enough that its start, which no prefetch has seen coming, does not count.
    int blocks_at_once(int threads) const {
        constexpr int kPiecesPerThread = 16;
        constexpr std::size_t kPieceBytes = 32 * 1024;
        std::size_t block_bytes = 1;
        for (const Segment& segment : matrix_.segments) block_bytes += segment.block_bytes();
        return std::max(matrix_.blocks() / (threads * kPiecesPerThread), int(kPieceBytes / block_bytes) + 1);
    }

    void work() {
        const int blocks = matrix_.blocks();
        for (int begin = 0; (begin = next_.fetch_add(step_, std::memory_order_relaxed)) < blocks;)
            multiply_blocks(begin, std::min(begin + step_, blocks));
    }

    void multiply_blocks(int begin, int end) {
        for (int row = 0; row < batch_; ++row) {
            float* sums = scratch_.sums.data() + std::size_t(row) * row_stride();
            std::fill(sums + kVector * begin, sums + kVector * end, scratch_.shift[std::size_t(row)]);
        }
        for (std::size_t i = 0; i < matrix_.segments.size(); ++i) {
            const BlocksKernel kernel = isa_.kernel(matrix_.segments[i], scratch_.activations[i]);
            kernel(matrix_.segments[i], scratch_.activations[i], begin, end, scratch_.sums.data(), row_stride());
        }
        for (int row = 0; row < batch_; ++row) {
            if (matrix_.outlier_columns > 0) add_outliers(row, begin, end);
            write(row, kVector * begin, std::min(kVector * end, matrix_.out_features));
        }
    }

    void add_outliers(int row, int begin, int end) {
        const float* x = scratch_.permuted.data() + std::size_t(row) * std::size_t(matrix_.in_features);
        const float* weights = matrix_.outliers + std::size_t(begin) * matrix_.outlier_columns * kVector;
        for (int block = begin; block < end; ++block) {
            float total[kVector] = {};
            for (int column = 0; column < matrix_.outlier_columns; ++column, weights += kVector)
                for (int o = 0; o < kVector; ++o) total[o] += x[column] * weights[o];
            float* sums = scratch_.sums.data() + std::size_t(row) * row_stride() + std::size_t(block) * kVector;
            for (int o = 0; o < kVector; ++o) sums[o] += total[o];
        }
    }

    void write(int row, int begin, int end) {
        const float* sums = scratch_.sums.data() + std::size_t(row) * row_stride();
        const std::size_t first = std::size_t(row) * std::size_t(matrix_.out_features);
        for (int n = begin; n < end; ++n) {
            const float value = matrix_.bias == nullptr ? sums[n] : sums[n] + matrix_.bias[n];
            if (y_.is_bfloat16)
                static_cast<std::uint16_t*>(y_.data)[first + std::size_t(n)] = narrow(value);
            else
                static_cast<float*>(y_.data)[first + std::size_t(n)] = value;
        }
    }

    const Matrix& matrix_;
    int batch_;
    bool wide_;
    const Isa& isa_;
    Scratch& scratch_;
    Floats y_{};
    int step_ = 1;              // blocks that a thread takes at once
    std::atomic<int> next_{0};  // the first block that nobody has taken
};

Floats rows_from(Floats values, std::size_t elements) {
    const std::size_t bytes = elements * (values.is_bfloat16 ? sizeof(std::uint16_t) : sizeof(float));
    return {static_cast<std::byte*>(values.data) + bytes, values.is_bfloat16};
}

constexpr const char* kBestIsa = "BITBENCH_ISA";  // an environment variable: better ones are then left out

#if defined(BITBENCH_X86)
// GCC 12 knows no name for it. The operating system needs to save no more than it does for AVX2.
bool has_avx_vnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1) != 0;
}
#endif

// What the processor can run, best first.
std::vector<const Isa*> runnable_isas() {
    std::vector<const Isa*> found;
#if defined(BITBENCH_X86)
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512vnni");
    if (has_avx512 && __builtin_cpu_supports("avx512vbmi")) found.push_back(&avx512vbmi());
    if (has_avx512) found.push_back(&avx512());
    if (has_avx2 && has_avx_vnni()) found.push_back(&avxvnni());
    if (has_avx2) found.push_back(&avx2());
#endif
    found.push_back(&portable());
    return found;
}

auto named(const auto& isas, std::string_view name) {
    return std::ranges::find_if(isas, [name](const Isa* isa) { return name == isa->name; });
}

std::vector<const Isa*> find_isas() {
    std::vector<const Isa*> found = runnable_isas();
    const char* best = std::getenv(kBestIsa);
    if (best == nullptr || *best == '\0') return found;
    const auto first = named(found, best);
    if (first == found.end()) {
        std::string names;
        for (const Isa* isa : found) names += std::string(names.empty() ? "" : ", ") + isa->name;
        throw std::invalid_argument(std::string(kBestIsa) + "=" + best +
                                    " names no instruction set that this processor runs; choose one of: " + names);
    }
    found.erase(found.begin(), first);
    return found;
}

}  // namespace

std::span<const Isa* const> usable_isas() {
    static const std::vector<const Isa*> found = find_isas();
    return found;
}

const Isa* isa_named(std::string_view name) {
    const auto isas = usable_isas();
    const auto found = named(isas, name);
    return found == isas.end() ? nullptr : *found;
}

void multiply(const Matrix& matrix, Floats x, int batch, Floats y, bool wide, int threads, const Isa& isa) {
    static thread_local Scratch scratch;
    for (int first = 0; first < batch; first += kMaxBatch) {
        Call call(matrix, std::min(kMaxBatch, batch - first), wide, isa, scratch);
        call.prepare(rows_from(x, std::size_t(first) * std::size_t(matrix.in_features)));
        call.run(rows_from(y, std::size_t(first) * std::size_t(matrix.out_features)), threads);
    }
}

}  // namespace bitbench::vptq
