// One HTTP/1.1 request out of the bytes of a connection: as much of HTTP as a load generator speaks.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace bitbench {

struct Request {
    std::string_view method;
    std::string_view path;
    std::string_view authorization;  // empty where the header is missing
    std::string_view body;
    std::size_t bytes = 0;  // how much of the input it took
};

// The first request in `received` if it is there as a whole; its views point into `received`.
std::optional<Request> read_request(std::string_view received);

}  // namespace bitbench
