// Reads many connections, and keeps what needs no thought: the chunks of streams that are under way.
#pragma once

#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "parts.hpp"
#include "sockets.hpp"

namespace bitbench {

// A read that somebody has to look into: a head, an end, a half of a chunk, two of them.
struct Arrival {
    int descriptor = -1;
    std::string data;          // empty: the other side has closed the connection
    int error = 0;             // or it broke, by this errno
    Nanoseconds arrived = 0;   // when the kernel received the last of it
    Nanoseconds noticed = 0;   // when it was read
};

class Receiver {
public:
    Receiver();
    ~Receiver();
    Receiver(const Receiver&) = delete;
    Receiver& operator=(const Receiver&) = delete;

    int descriptor() const { return poller_; }  // readable while a connection is

    void watch(int descriptor);
    void forget(int descriptor);  // before it is closed

    // Whole chunks go there, from now until a read is something else.
    void keep_chunks(int descriptor, std::shared_ptr<Parts> parts);

    // Something that the caller's event loop attends to: where it is readable, receive() returns to that at once.
    void yield_to(int descriptor);

    // Read what is there. Where chunks come thick and fast and the caller has time, it sleeps between two readings, for
    // the kernel keeps the time of each: to wake up for every one of them takes longer than to read it.
    std::vector<Arrival> receive(bool may_wait);

private:
    int receive_ready(std::vector<Arrival>& arrivals);  // how many were read
    bool sleep_a_little();                              // false: the caller has to attend to something
    void read(int descriptor, std::vector<Arrival>& arrivals);

    int poller_ = -1;
    std::vector<std::shared_ptr<Parts>> streams_;  // by descriptor; null: its reads are arrivals
    std::vector<char> buffer_;
    std::vector<pollfd> yields_;  // what the caller attends to
    Nanoseconds returned_ = 0;    // from receive(), the last time
    int quick_returns_ = 0;       // how often in a row there was more right after that
};

}  // namespace bitbench
