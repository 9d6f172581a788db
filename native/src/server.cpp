#include "server.hpp"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <system_error>
#include <utility>

namespace bitbench {
namespace {

constexpr Nanoseconds kSecond = 1'000'000'000;
// A sleeping process is scheduled 20 to 80 µs after its timer fired; so it wakes this much early and polls until due.
constexpr Nanoseconds kWakeEarly = 100'000;
// A kernel time stamp further back than this is not believed: the wall clock it was read from has been set meanwhile.
constexpr Nanoseconds kOldestArrival = 10 * kSecond;
constexpr int kSendsBetweenPolls = 64;
constexpr int kBacklog = 4096;
constexpr std::size_t kReadBytes = 262'144;

Nanoseconds read_clock(clockid_t which) {
    timespec time{};
    clock_gettime(which, &time);
    return time.tv_sec * kSecond + time.tv_nsec;
}

Nanoseconds now_ns() { return read_clock(CLOCK_MONOTONIC); }

Nanoseconds to_ns(double seconds) { return std::llround(seconds * 1e9); }

int checked(int result, const char* what) {
    if (result < 0) throw std::system_error(errno, std::generic_category(), what);
    return result;
}

void enable(int descriptor, int level, int option) {
    const int on = 1;
    checked(setsockopt(descriptor, level, option, &on, sizeof on), "setsockopt");
}

int listen_on(std::uint16_t port) {
    const int listener = checked(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "socket");
    enable(listener, SOL_SOCKET, SO_REUSEADDR);
    enable(listener, SOL_SOCKET, SO_TIMESTAMPNS);  // also for what comes in before it is accepted
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    checked(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), "bind");
    checked(listen(listener, kBacklog), "listen");
    return listener;
}

// When the kernel received the last of these bytes. Reading them may come later, when many requests arrive at once.
Nanoseconds arrival(msghdr& message) {
    const Nanoseconds now = now_ns();
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_TIMESTAMPNS) continue;
        timespec wall{};
        std::memcpy(&wall, CMSG_DATA(header), sizeof wall);
        const Nanoseconds age = read_clock(CLOCK_REALTIME) - (wall.tv_sec * kSecond + wall.tv_nsec);
        if (age >= 0 && age < kOldestArrival) return now - age;
    }
    return now;
}

}  // namespace

Server::Server(const Settings& settings, Responder responder)
    : settings_(settings), responder_(std::move(responder)), read_buffer_(kReadBytes) {
    listener_ = listen_on(settings.port);
    poller_ = checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    timer_ = checked(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC), "timerfd_create");
    watch(listener_, EPOLLIN, EPOLL_CTL_ADD);
    watch(timer_, EPOLLIN, EPOLL_CTL_ADD);
}

Server::~Server() {
    for (const auto& client : clients_) {
        if (client) close(client->descriptor);
    }
    for (const int descriptor : {listener_, poller_, timer_}) close(descriptor);
}

void Server::serve() {
    std::array<epoll_event, 256> events{};
    for (;;) {
        const int count = epoll_wait(poller_, events.data(), static_cast<int>(events.size()), milliseconds_to_wait());
        for (int index = 0; index < count; ++index) {
            const int descriptor = events[index].data.fd;
            if (descriptor == listener_) {
                accept_all();
            } else if (descriptor == timer_) {
                std::uint64_t expirations = 0;
                [[maybe_unused]] const auto got = read(timer_, &expirations, sizeof expirations);
            } else {
                attend(descriptor, events[index].events);
            }
        }
        send_due();
        if (!unread_.empty()) {
            const Visit visit = unread_.front();
            unread_.pop_front();
            Client* client = find(visit.descriptor);
            if (client != nullptr && client->serial == visit.client) answer(*client, visit.at);
        }
    }
}

// Without end (the timer will wake us), or not at all when something is to be done within a moment.
int Server::milliseconds_to_wait() {
    if (!unread_.empty()) return 0;
    if (due_.empty()) return -1;
    const Nanoseconds now = now_ns();
    const bool stalled = now >= stall_from_ && now < stall_until_;
    const Nanoseconds wake = (stalled ? stall_until_ : held(due_.top().at)) - kWakeEarly;
    if (wake <= now) return 0;
    itimerspec setting{};
    setting.it_value.tv_sec = wake / kSecond;
    setting.it_value.tv_nsec = wake % kSecond;
    checked(timerfd_settime(timer_, TFD_TIMER_ABSTIME, &setting, nullptr), "timerfd_settime");
    return -1;
}

void Server::accept_all() {
    for (;;) {
        const int descriptor = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (descriptor < 0) {
            if (errno == EAGAIN || errno == EWOULDBLOCK) return;
            if (errno == ECONNABORTED || errno == EINTR) continue;
            throw std::system_error(errno, std::generic_category(), "no further connection can be accepted");
        }
        enable(descriptor, IPPROTO_TCP, TCP_NODELAY);
        enable(descriptor, SOL_SOCKET, SO_TIMESTAMPNS);
        if (clients_.size() <= static_cast<std::size_t>(descriptor)) clients_.resize(descriptor + 1);
        clients_[descriptor] = std::make_unique<Client>();
        clients_[descriptor]->descriptor = descriptor;
        clients_[descriptor]->serial = ++serial_;
        watch(descriptor, EPOLLIN, EPOLL_CTL_ADD);
    }
}

void Server::attend(int descriptor, std::uint32_t happened) {
    Client* client = find(descriptor);
    if (client == nullptr) return;
    if ((happened & EPOLLOUT) != 0) flush(*client);
    client = find(descriptor);  // it may have gone when it was written to
    if (client != nullptr && (happened & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) receive(*client);
}

void Server::receive(Client& client) {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(timespec))> control{};
    iovec buffer{read_buffer_.data(), read_buffer_.size()};
    msghdr message{};
    message.msg_iov = &buffer;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t received = recvmsg(client.descriptor, &message, 0);
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (received <= 0) {
        drop(client);
        return;
    }
    client.received.append(read_buffer_.data(), static_cast<std::size_t>(received));
    // Answered when due tokens have left: making an answer takes longer than sending a token.
    unread_.push_back({client.descriptor, client.serial, arrival(message)});
}

// Answer the next request of this connection if it is there as a whole.
void Server::answer(Client& client, Nanoseconds received_at) {
    if (client.stream) return;
    const auto request = read_request(client.received);
    if (!request) return;
    Answer answer = responder_(*request);
    client.received.erase(0, request->bytes);
    if (auto* plan = std::get_if<StreamPlan>(&answer)) {
        begin(client, std::move(*plan), received_at);
    } else {
        send(client, std::get<std::string>(answer));
    }
}

void Server::begin(Client& client, StreamPlan&& plan, Nanoseconds received_at) {
    if (settings_.stall_at_s && !stall_planned_) {
        stall_planned_ = true;
        stall_from_ = received_at + to_ns(*settings_.stall_at_s);
        stall_until_ = stall_from_ + to_ns(settings_.stall_for_s);
    }
    client.stream = std::make_unique<Stream>();
    client.stream->plan = std::move(plan);
    client.stream->serial = ++serial_;
    client.stream->arrived = received_at;
    if (settings_.capacity && serving_ >= *settings_.capacity) {
        line_.push_back({client.descriptor, client.serial, received_at});
    } else {
        serve_stream(client, received_at);
    }
}

void Server::serve_stream(Client& client, Nanoseconds from) {
    Stream& stream = *client.stream;
    stream.served = true;
    stream.first_due = from + to_ns(stream.plan.ttft_s);
    ++serving_;
    due_.push({stream.first_due, ++serial_, client.descriptor, stream.serial});
}

// Whoever waits longest takes the place. It was free from the scheduled end of the one before, not from when we saw it.
void Server::next_in_line(Nanoseconds freed_at) {
    --serving_;
    while (!line_.empty()) {
        const Visit waiting = line_.front();
        line_.pop_front();
        Client* client = find(waiting.descriptor);
        if (client == nullptr || client->serial != waiting.client) continue;
        serve_stream(*client, std::max(waiting.at, freed_at));
        return;
    }
}

void Server::send_due() {
    for (int sent = 0; sent < kSendsBetweenPolls && !due_.empty(); ++sent) {
        const Nanoseconds now = now_ns();
        if ((now >= stall_from_ && now < stall_until_) || held(due_.top().at) > now) return;
        const Due due = due_.top();
        due_.pop();
        send_piece(due);
    }
}

void Server::send_piece(const Due& due) {
    Client* client = find(due.descriptor);
    if (client == nullptr || !client->stream || client->stream->serial != due.stream) return;  // its reader has gone
    Stream& stream = *client->stream;
    if (stream.sent == 0) {
        // A server's step time follows from how many it serves; here it is fixed when decoding begins.
        stream.plan.tpot_s *= 1 + settings_.per_stream * static_cast<double>(serving_ - 1);
    }
    const bool is_last = stream.sent == stream.plan.repeats;
    if (is_last && stream.plan.ending != Ending::kKeep) {
        if (stream.plan.ending == Ending::kClose) drop(*client);
        return;
    }
    note(stream, held(due.at), now_ns(), is_last);
    const bool is_first = stream.sent++ == 0;
    const std::string& piece = is_last ? stream.plan.last : stream.plan.piece;
    if (!is_last) {
        const double since_first_s = static_cast<double>(stream.sent) * stream.plan.tpot_s;
        due_.push({stream.first_due + to_ns(since_first_s), ++serial_, due.descriptor, due.stream});
    }
    const std::uint64_t serial = client->serial;
    send(*client, is_first ? stream.plan.head + piece : piece);
    client = find(due.descriptor);
    if (is_last && client != nullptr && client->serial == serial) finish(*client, held(due.at));
}

void Server::finish(Client& client, Nanoseconds due_at) {
    client.stream.reset();
    next_in_line(due_at);
    answer(client, now_ns());  // a request that came too early has waited until now
}

void Server::note(Stream& stream, Nanoseconds due_at, Nanoseconds now, bool is_last) {
    truth_.lateness.add(now - due_at);
    if (stream.sent == 0) {
        stream.first_sent = now;
        truth_.ttft_s.push_back(static_cast<double>(now - stream.arrived) / 1e9);
    } else if (is_last) {
        const auto gaps = static_cast<double>(stream.sent);
        truth_.tpot_s.push_back(static_cast<double>(now - stream.first_sent) / 1e9 / gaps);
    }
}

Truth Server::take_truth() { return std::exchange(truth_, Truth{}); }

void Server::send(Client& client, const std::string& data) {
    if (!client.unsent.empty()) {
        client.unsent += data;
        return;
    }
    ssize_t sent = ::send(client.descriptor, data.data(), data.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
        drop(client);
        return;
    }
    sent = std::max<ssize_t>(sent, 0);
    if (static_cast<std::size_t>(sent) < data.size()) {
        client.unsent = data.substr(static_cast<std::size_t>(sent));
        watch(client.descriptor, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
    }
}

void Server::flush(Client& client) {
    const std::string data = std::exchange(client.unsent, {});
    watch(client.descriptor, EPOLLIN, EPOLL_CTL_MOD);
    send(client, data);
}

void Server::drop(Client& client) {
    const bool was_served = client.stream && client.stream->served;
    const int descriptor = client.descriptor;
    close(descriptor);  // which also takes it out of the poller
    clients_[descriptor].reset();
    if (was_served) next_in_line(now_ns());
}

void Server::watch(int descriptor, std::uint32_t events, int operation) const {
    epoll_event event{};
    event.events = events;
    event.data.fd = descriptor;
    checked(epoll_ctl(poller_, operation, descriptor, &event), "epoll_ctl");
}

// When something that is due at this moment really leaves.
Nanoseconds Server::held(Nanoseconds due) const { return due >= stall_from_ && due < stall_until_ ? stall_until_ : due; }

Server::Client* Server::find(int descriptor) const {
    const auto index = static_cast<std::size_t>(descriptor);
    return index < clients_.size() ? clients_[index].get() : nullptr;
}

}  // namespace bitbench
