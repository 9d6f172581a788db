#include "sockets.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <system_error>

namespace bitbench {
namespace {

constexpr int kBacklog = 4096;
// A kernel time stamp further back than this is not believed: the wall clock it was read from has been set meanwhile.
constexpr Nanoseconds kOldestArrival = 10 * kSecond;

Nanoseconds read_clock(clockid_t which) {
    timespec time{};
    clock_gettime(which, &time);
    return time.tv_sec * kSecond + time.tv_nsec;
}

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

Nanoseconds now_ns() { return read_clock(CLOCK_MONOTONIC); }

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

ssize_t receive_into(int descriptor, std::vector<char>& buffer, Nanoseconds& arrived) {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(timespec))> control{};
    iovec space{buffer.data(), buffer.size()};
    msghdr message{};
    message.msg_iov = &space;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t received = recvmsg(descriptor, &message, 0);
    if (received > 0) arrived = arrival(message);
    return received;
}

}  // namespace bitbench
