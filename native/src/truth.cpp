#include "truth.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace bitbench {

void DurationHistogram::add(std::int64_t duration_ns) {
    const auto value = static_cast<std::uint64_t>(std::max<std::int64_t>(duration_ns, 0));
    // Below 2^kBits each value has a bucket of its own; above, the kBits digits after the leading one choose it.
    const int shift = std::max(0, static_cast<int>(std::bit_width(value)) - kBits - 1);
    ++buckets_[(static_cast<std::size_t>(shift) << kBits) + static_cast<std::size_t>(value >> shift)];
    ++count_;
    longest_ = std::max(longest_, static_cast<std::int64_t>(value));
}

std::int64_t DurationHistogram::quantile_ns(double share) const {
    const auto wanted = static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(count_)));
    std::uint64_t seen = 0;
    for (std::size_t index = 0; index < buckets_.size(); ++index) {
        seen += buckets_[index];
        if (seen < wanted || seen == 0) continue;
        const std::size_t shift = index < (2U << kBits) ? 0 : (index >> kBits) - 1;
        const auto leading = static_cast<std::int64_t>(index - (shift << kBits));
        return std::min(longest_, ((leading + 1) << shift) - 1);
    }
    return 0;
}

double quantile(std::vector<double>& values, double share) {
    std::sort(values.begin(), values.end());
    const double place = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const auto above = std::min(below + 1, values.size() - 1);
    return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

}  // namespace bitbench
