// What the reads of one response brought of its body, and when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bitbench {

// The content where `data` is exactly one HTTP chunk, as nearly every read of a stream is; else an empty view.
std::string_view content_of_whole_chunk(std::string_view data);

class Parts {
public:
    explicit Parts(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

    void add(std::string_view content, double time_s);
    // Adds nothing where the body would grow beyond the limit: that is for whoever can say so.
    bool add_if_room(std::string_view content, double time_s);

    std::size_t count() const { return count_; }
    double last_time_s() const { return last_time_s_; }  // 0 while there is nothing
    std::size_t bytes() const { return records_.capacity(); }
    std::size_t body_bytes() const { return body_bytes_; }
    std::size_t limit_bytes() const { return limit_bytes_; }

    std::string body() const;
    std::vector<double> times_s() const;
    std::vector<std::uint32_t> lengths() const;

private:
    struct Header {
        double time_s;
        std::uint32_t length;
    };
    template <typename Visit>
    void for_each(Visit visit) const;

    // A header and its content, and so on. One row of memory to write to: with a thousand streams none of it is in the
    // processor's cache when its next token comes.
    std::string records_;
    std::size_t limit_bytes_;
    std::size_t body_bytes_ = 0;
    std::size_t count_ = 0;
    double last_time_s_ = 0;
};

}  // namespace bitbench
