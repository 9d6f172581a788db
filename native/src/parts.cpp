#include "parts.hpp"

#include <array>
#include <charconv>
#include <cstring>

namespace bitbench {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::size_t kMostDigits = 8;  // of a chunk's size, in base 16

}  // namespace

std::string_view content_of_whole_chunk(std::string_view data) {
    // The size line that a read of this length has where it is one whole chunk: as short as it can be, in small letters.
    // Any other way to write it is for the complete reader.
    std::array<char, kMostDigits> line{};
    for (std::size_t digits = 1; digits <= kMostDigits && data.size() > digits + 2 * kLineEnd.size(); ++digits) {
        const std::size_t size = data.size() - digits - 2 * kLineEnd.size();
        const auto written = std::to_chars(line.data(), line.data() + line.size(), size, 16);
        if (written.ptr != line.data() + digits) continue;
        const bool whole = data.starts_with(std::string_view(line.data(), digits)) &&
                           data.substr(digits, kLineEnd.size()) == kLineEnd && data.ends_with(kLineEnd);
        return whole ? data.substr(digits + kLineEnd.size(), size) : std::string_view();
    }
    return {};
}

void Parts::add(std::string_view content, double time_s) {
    const Header header{time_s, static_cast<std::uint32_t>(content.size())};
    std::array<char, sizeof header> bytes{};
    std::memcpy(bytes.data(), &header, sizeof header);
    records_.append(bytes.data(), bytes.size());
    records_.append(content);
    body_bytes_ += content.size();
    ++count_;
    last_time_s_ = time_s;
}

bool Parts::add_if_room(std::string_view content, double time_s) {
    if (body_bytes_ + content.size() > limit_bytes_) return false;
    add(content, time_s);
    return true;
}

template <typename Visit>
void Parts::for_each(Visit visit) const {
    for (std::size_t at = 0; at < records_.size();) {
        Header header{};
        std::memcpy(&header, records_.data() + at, sizeof header);
        at += sizeof header;
        visit(header, std::string_view(records_.data() + at, header.length));
        at += header.length;
    }
}

std::string Parts::body() const {
    std::string body;
    body.reserve(records_.size());
    for_each([&](const Header&, std::string_view content) { body.append(content); });
    return body;
}

std::vector<double> Parts::times_s() const {
    std::vector<double> times;
    times.reserve(count_);
    for_each([&](const Header& header, std::string_view) { times.push_back(header.time_s); });
    return times;
}

std::vector<std::uint32_t> Parts::lengths() const {
    std::vector<std::uint32_t> lengths;
    lengths.reserve(count_);
    for_each([&](const Header& header, std::string_view) { lengths.push_back(header.length); });
    return lengths;
}

}  // namespace bitbench
