// The little of sockets and clocks that the serving loop needs, with errors as exceptions.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace bitbench {

using Nanoseconds = std::int64_t;  // on CLOCK_MONOTONIC, the clock of Python's time.monotonic()
constexpr Nanoseconds kSecond = 1'000'000'000;

Nanoseconds now_ns();

// The result of a system call, or std::system_error where it failed.
int checked(int result, const char* what);

// Sets an option of a socket that is on or off.
void enable(int descriptor, int level, int option);

// A non-blocking listener on loopback.
int listen_on(std::uint16_t port);

// As recv; `arrived` is when the kernel received the last of these bytes. Reading them may come later, when many
// requests arrive at once.
ssize_t receive_into(int descriptor, std::vector<char>& buffer, Nanoseconds& arrived);

}  // namespace bitbench
