// What the server really did, as against what its schedule says.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace bitbench {

// Durations in nanoseconds, in buckets 1/32 wide of their value: a run of any length takes the same memory.
class DurationHistogram {
  public:
    void add(std::int64_t duration_ns);
    // The upper end of the bucket that holds this share of all durations, never above the longest; 0 when empty.
    std::int64_t quantile_ns(double share) const;
    std::int64_t longest_ns() const { return longest_; }
    std::uint64_t count() const { return count_; }

  private:
    static constexpr int kBits = 5;  // 2^5 buckets for each power of two
    std::array<std::uint64_t, 64U << kBits> buckets_{};
    std::uint64_t count_ = 0;
    std::int64_t longest_ = 0;
};

// Between two looks at it. Times of requests are kept one by one: their percentiles must be exact.
struct Truth {
    std::vector<double> ttft_s;  // from the request's arrival to the moment its first token was handed to the kernel
    std::vector<double> tpot_s;  // of the streams that ended with their last token
    DurationHistogram lateness;  // of each token against the schedule
};

// Linear between the two nearest ranks, as numpy's default; `values` is sorted in place and must not be empty.
double quantile(std::vector<double>& values, double share);

}  // namespace bitbench
