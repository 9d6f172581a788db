// The limit case for scripts/loadgen_shootout: what a client can do that only reads and looks at the clock.
//
//   stream_reader PORT STREAMS ROUNDS TOKENS      (the key in BITBENCH_NULL_KEY)
//
// Opens STREAMS connections to the null engine on loopback, sends ROUNDS requests of TOKENS tokens on each, one after
// the other, and prints one line of JSON. Not part of the wheel: c++ -O2 -std=c++20 stream_reader.cpp -o stream_reader
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr int kPromptTokens = 16;
constexpr int kExtraEvents = 2;  // usage and [DONE] after the tokens
constexpr std::string_view kEnd = "0\r\n\r\n";

struct Stream {
    int descriptor = -1;
    int rounds = 0;
    int events = 0;
    bool after_newline = false;
    double sent = 0;
    double first = 0;
    double last = 0;
};

double now_s() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double cpu_s() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec); };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

[[noreturn]] void fail(const char* what) {
    std::perror(what);
    std::exit(1);
}

int connect_to(int port) {
    const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("connect");
    const int on = 1;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return descriptor;
}

std::string make_request(int port, int tokens, const char* key) {
    std::string body = R"({"model":"null","prompt":[1)";
    for (int token = 1; token < kPromptTokens; ++token) body += ",1";
    body += R"(],"max_tokens":)" + std::to_string(tokens) + R"(,"stream":true})";
    return "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port) + "\r\nAuthorization: Bearer " +
           key + "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

void send_request(Stream& stream, const std::string& request) {
    stream.events = 0;
    stream.after_newline = false;
    stream.sent = now_s();
    if (send(stream.descriptor, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) fail("send");
}

// Events end with an empty line; only they do, since HTTP's own lines end with \r\n.
int count_events(Stream& stream, std::string_view data) {
    int found = 0;
    for (std::size_t at = data.find('\n'); at != std::string_view::npos; at = data.find('\n', at + 1)) {
        const bool doubled = at == 0 ? stream.after_newline : data[at - 1] == '\n';
        found += doubled ? 1 : 0;
    }
    stream.after_newline = data.back() == '\n';
    return found;
}

double quantile(std::vector<double> values, double share) {
    std::sort(values.begin(), values.end());
    const double place = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const auto above = std::min(below + 1, values.size() - 1);
    return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

}  // namespace

int main(int count, char** words) {
    const char* key = std::getenv("BITBENCH_NULL_KEY");
    if (count != 5 || key == nullptr) {
        std::fprintf(stderr, "usage: BITBENCH_NULL_KEY=... stream_reader PORT STREAMS ROUNDS TOKENS\n");
        return 2;
    }
    const int port = std::atoi(words[1]), stream_count = std::atoi(words[2]);
    const int rounds = std::atoi(words[3]), tokens = std::atoi(words[4]);
    const std::string request = make_request(port, tokens, key);
    const int poller = epoll_create1(0);
    std::vector<Stream> streams(static_cast<std::size_t>(stream_count));
    for (auto& stream : streams) {
        stream.descriptor = connect_to(port);
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.ptr = &stream;
        epoll_ctl(poller, EPOLL_CTL_ADD, stream.descriptor, &event);
    }
    std::vector<double> ttft, tpot;
    std::array<epoll_event, 256> events{};
    std::array<char, 65536> buffer{};
    int open = stream_count;
    const double cpu_before = cpu_s(), started = now_s();
    for (auto& stream : streams) send_request(stream, request);
    while (open > 0) {
        const int ready = epoll_wait(poller, events.data(), static_cast<int>(events.size()), -1);
        for (int index = 0; index < ready; ++index) {
            auto& stream = *static_cast<Stream*>(events[static_cast<std::size_t>(index)].data.ptr);
            const ssize_t received = recv(stream.descriptor, buffer.data(), buffer.size(), 0);
            const double now = now_s();
            if (received <= 0) fail("recv");
            const std::string_view data(buffer.data(), static_cast<std::size_t>(received));
            const int before = stream.events;
            stream.events += count_events(stream, data);
            if (before == 0 && stream.events > 0) stream.first = now;
            if (before < tokens && stream.events >= tokens) stream.last = now;
            if (stream.events < tokens + kExtraEvents || !data.ends_with(kEnd)) continue;
            ttft.push_back(stream.first - stream.sent);
            tpot.push_back((stream.last - stream.first) / (tokens - 1));
            if (++stream.rounds < rounds) {
                send_request(stream, request);
            } else {
                --open;
            }
        }
    }
    const double cpu = cpu_s() - cpu_before;
    const double token_events = static_cast<double>(ttft.size()) * tokens;
    std::printf("{\"requests\": %zu, \"tokens\": %.0f, \"ttft_p50_s\": %.9f, \"ttft_p99_s\": %.9f, \"tpot_p50_s\": %.9f, "
                "\"cpu_s\": %.6f, \"wall_s\": %.6f, \"tokens_per_cpu_s\": %.1f}\n",
                ttft.size(), token_events, quantile(ttft, 0.5), quantile(ttft, 0.99), quantile(tpot, 0.5), cpu,
                now_s() - started, token_events / cpu);
    return 0;
}
