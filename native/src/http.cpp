#include "http.hpp"

#include <charconv>

namespace bitbench {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kHeadEnd = "\r\n\r\n";

char lower(char letter) { return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter; }

bool same_name(std::string_view one, std::string_view lower_case) {
    if (one.size() != lower_case.size()) return false;
    for (std::size_t at = 0; at < one.size(); ++at) {
        if (lower(one[at]) != lower_case[at]) return false;
    }
    return true;
}

std::string_view strip(std::string_view text) {
    const auto first = text.find_first_not_of(" \t");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// What stands before `separator`; `text` keeps what stands after it.
std::string_view take_until(std::string_view& text, std::string_view separator) {
    const auto at = text.find(separator);
    const auto taken = text.substr(0, at);
    text = at == std::string_view::npos ? std::string_view{} : text.substr(at + separator.size());
    return taken;
}

}  // namespace

std::optional<Request> read_request(std::string_view received) {
    const auto head_bytes = received.find(kHeadEnd);
    if (head_bytes == std::string_view::npos) return std::nullopt;
    auto head = received.substr(0, head_bytes);
    auto first_line = take_until(head, kLineEnd);
    Request request;
    request.method = take_until(first_line, " ");
    request.path = take_until(first_line, " ");
    std::size_t body_bytes = 0;
    while (!head.empty()) {
        auto value = take_until(head, kLineEnd);
        const auto name = take_until(value, ":");
        value = strip(value);
        if (same_name(name, "content-length")) {
            std::from_chars(value.data(), value.data() + value.size(), body_bytes);
        } else if (same_name(name, "authorization")) {
            request.authorization = value;
        }
    }
    request.bytes = head_bytes + kHeadEnd.size() + body_bytes;
    if (received.size() < request.bytes) return std::nullopt;
    request.body = received.substr(request.bytes - body_bytes, body_bytes);
    return request;
}

}  // namespace bitbench
