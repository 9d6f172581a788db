#include "receiver.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace bitbench {
namespace {

constexpr std::size_t kReadBytes = 65'536;
constexpr std::size_t kReadyAtOnce = 256;
// Thick and fast: so often in a row the next read came so soon. At 100 tokens a second of 100 streams it does.
constexpr int kQuickReturns = 8;
constexpr Nanoseconds kSoon = 100'000;
constexpr int kWaitMilliseconds = 1;
constexpr Nanoseconds kLongest = 1'000'000;  // in receive(), beyond the last wait

double to_seconds(Nanoseconds time) { return static_cast<double>(time) / 1e9; }

}  // namespace

Receiver::Receiver() : poller_(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")), buffer_(kReadBytes) {}

Receiver::~Receiver() { close(poller_); }

void Receiver::watch(int descriptor) {
    enable(descriptor, SOL_SOCKET, SO_TIMESTAMPNS);
    add(descriptor);
    streams_[descriptor].reset();  // of one that had this number before
    yields_[descriptor] = false;
}

void Receiver::yield_to(int descriptor) {
    add(descriptor);
    yields_[descriptor] = true;
}

void Receiver::add(int descriptor) {
    if (streams_.size() <= static_cast<std::size_t>(descriptor)) {
        streams_.resize(descriptor + 1);
        yields_.resize(descriptor + 1);
    }
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = descriptor;
    checked(epoll_ctl(poller_, EPOLL_CTL_ADD, descriptor, &event), "epoll_ctl");
}

void Receiver::forget(int descriptor) {
    streams_.at(descriptor).reset();
    epoll_ctl(poller_, EPOLL_CTL_DEL, descriptor, nullptr);  // it may have been forgotten when it broke
}

void Receiver::keep_chunks(int descriptor, std::shared_ptr<Parts> parts) { streams_.at(descriptor) = std::move(parts); }

std::vector<Arrival> Receiver::receive(bool may_wait) {
    std::vector<Arrival> arrivals;
    const Nanoseconds called = now_ns();
    quick_returns_ = called - returned_ < kSoon ? quick_returns_ + 1 : 0;
    Found found = receive_ready(0, arrivals);
    while (may_wait && found == Found::kChunks && quick_returns_ >= kQuickReturns) {
        found = receive_ready(kWaitMilliseconds, arrivals);
        if (found == Found::kNothing) quick_returns_ = 0;
        returned_ = now_ns();
        if (returned_ - called > kLongest) break;
    }
    returned_ = now_ns();
    return arrivals;
}

Receiver::Found Receiver::receive_ready(int wait_ms, std::vector<Arrival>& arrivals) {
    std::array<epoll_event, kReadyAtOnce> ready{};
    const int count = epoll_wait(poller_, ready.data(), static_cast<int>(ready.size()), wait_ms);
    bool for_caller = false;
    for (int index = 0; index < count; ++index) {
        const int descriptor = ready[index].data.fd;
        if (yields_[descriptor]) {
            for_caller = true;
        } else {
            read(descriptor, arrivals);
        }
    }
    if (for_caller || !arrivals.empty()) return Found::kForCaller;
    return count > 0 ? Found::kChunks : Found::kNothing;
}

void Receiver::read(int descriptor, std::vector<Arrival>& arrivals) {
    Nanoseconds arrived = 0;
    const ssize_t received = receive_into(descriptor, buffer_, arrived);
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (received <= 0) {
        const int error = received < 0 ? errno : 0;
        forget(descriptor);
        arrivals.push_back({descriptor, {}, error, now_ns(), now_ns()});
        return;
    }
    const std::string_view data(buffer_.data(), static_cast<std::size_t>(received));
    auto& parts = streams_[descriptor];
    const auto content = parts ? content_of_whole_chunk(data) : std::string_view();
    if (!content.empty()) {
        parts->add(content, to_seconds(arrived));
        return;
    }
    parts.reset();  // what comes next is for whoever looks into this, until he says otherwise
    arrivals.push_back({descriptor, std::string(data), 0, arrived, now_ns()});
}

}  // namespace bitbench
