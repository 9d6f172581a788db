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
// Thick and fast: so often in a row the next read came so soon. From then on it sleeps between two readings, as long as
// each finds so many. Two tokens of one stream within a sleep would have one time, and few streams are so quick.
constexpr int kQuickReturns = 8;
constexpr Nanoseconds kSoon = 100'000;
constexpr Nanoseconds kSleep = 500'000;
constexpr int kManyReads = 5;
constexpr Nanoseconds kLongest = 2'000'000;  // in receive(), beyond the last sleep

double to_seconds(Nanoseconds time) { return static_cast<double>(time) / 1e9; }

}  // namespace

Receiver::Receiver() : poller_(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")), buffer_(kReadBytes) {}

Receiver::~Receiver() { close(poller_); }

void Receiver::watch(int descriptor) {
    enable(descriptor, SOL_SOCKET, SO_TIMESTAMPNS);
    if (streams_.size() <= static_cast<std::size_t>(descriptor)) streams_.resize(descriptor + 1);
    streams_[descriptor].reset();  // of one that had this number before
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = descriptor;
    checked(epoll_ctl(poller_, EPOLL_CTL_ADD, descriptor, &event), "epoll_ctl");
}

void Receiver::yield_to(int descriptor) { yields_.push_back({descriptor, POLLIN, 0}); }

void Receiver::forget(int descriptor) {
    streams_.at(descriptor).reset();
    epoll_ctl(poller_, EPOLL_CTL_DEL, descriptor, nullptr);  // it may have been forgotten when it broke
}

void Receiver::keep_chunks(int descriptor, std::shared_ptr<Parts> parts) { streams_.at(descriptor) = std::move(parts); }

std::vector<Arrival> Receiver::receive(bool may_wait) {
    std::vector<Arrival> arrivals;
    const Nanoseconds called = now_ns();
    quick_returns_ = called - returned_ < kSoon ? quick_returns_ + 1 : 0;
    receive_ready(arrivals);
    while (may_wait && quick_returns_ >= kQuickReturns && arrivals.empty() && now_ns() - called < kLongest) {
        if (!sleep_a_little()) break;
        if (receive_ready(arrivals) < kManyReads) quick_returns_ = 0;
    }
    returned_ = now_ns();
    return arrivals;
}

bool Receiver::sleep_a_little() {
    const timespec pause{0, kSleep};
    return ppoll(yields_.data(), yields_.size(), &pause, nullptr) == 0;
}

int Receiver::receive_ready(std::vector<Arrival>& arrivals) {
    std::array<epoll_event, kReadyAtOnce> ready{};
    const int count = epoll_wait(poller_, ready.data(), static_cast<int>(ready.size()), 0);
    for (int index = 0; index < count; ++index) read(ready[index].data.fd, arrivals);
    return count;
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
    if (!content.empty() && parts->add_if_room(content, to_seconds(arrived))) return;
    parts.reset();  // what comes next is for whoever looks into this, until he says otherwise
    arrivals.push_back({descriptor, std::string(data), 0, arrived, now_ns()});
}

}  // namespace bitbench
