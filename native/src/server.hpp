// The null engine's serving loop: one thread, one heap of due times, one wait for whatever comes first.
//
// What a request is answered with is not decided here: a responder turns it into a reply, or into a stream whose pieces
// leave at absolute times. The first piece leaves at t0 + ttft and piece i at t0 + ttft + i × tpot, where t0 is the
// moment at which the kernel had received the request completely. A piece that was late does not delay the next.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <variant>
#include <vector>

#include "http.hpp"
#include "truth.hpp"

namespace bitbench {

using Nanoseconds = std::int64_t;  // on CLOCK_MONOTONIC, the clock of Python's time.monotonic()

enum class Ending { kKeep, kHang, kClose };  // of the connection, after the last piece

struct StreamPlan {
    double ttft_s = 0;
    double tpot_s = 0;
    std::string head;         // leaves with the first piece
    std::string piece;        // is sent `repeats` times
    std::uint64_t repeats = 0;
    std::string last;         // follows them, at a due time of its own
    Ending ending = Ending::kKeep;
};

using Answer = std::variant<std::string, StreamPlan>;  // the bytes of a reply, or a stream
using Responder = std::function<Answer(const Request&)>;

struct Settings {
    std::uint16_t port = 0;
    double per_stream = 0;             // how much each further stream that is served slows a token
    std::optional<std::size_t> capacity;  // so many streams are served at once; the others wait in line
    std::optional<double> stall_at_s;  // nothing is written from this moment after the first request ...
    double stall_for_s = 0;            // ... for so long; then everything that was due leaves at once
};

class Server {
  public:
    Server(const Settings& settings, Responder responder);
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    [[noreturn]] void serve();  // ends by an exception of the responder alone
    Truth take_truth();         // since it was taken last; from the serving thread

  private:
    struct Stream {
        StreamPlan plan;
        std::uint64_t serial = 0;
        Nanoseconds arrived = 0;
        Nanoseconds first_due = 0;
        Nanoseconds first_sent = 0;
        std::uint64_t sent = 0;
        bool served = false;  // false while it waits in line
    };
    struct Client {
        int descriptor = -1;
        std::uint64_t serial = 0;
        std::string received;
        std::string unsent;
        std::unique_ptr<Stream> stream;
    };
    struct Due {
        Nanoseconds at;
        std::uint64_t order;  // of equal times the earlier made one first
        int descriptor;
        std::uint64_t stream;
        bool operator>(const Due& other) const { return at != other.at ? at > other.at : order > other.order; }
    };
    struct Visit {  // a client by its descriptor, which may meanwhile be somebody else's
        int descriptor;
        std::uint64_t client;
        Nanoseconds at;
    };

    int milliseconds_to_wait();
    void accept_all();
    void attend(int descriptor, std::uint32_t happened);
    void receive(Client& client);
    void answer(Client& client, Nanoseconds received_at);
    void begin(Client& client, StreamPlan&& plan, Nanoseconds received_at);
    void serve_stream(Client& client, Nanoseconds from);
    void next_in_line(Nanoseconds freed_at);
    void send_due();
    void send_piece(const Due& due);
    void finish(Client& client, Nanoseconds due_at);
    void note(Stream& stream, Nanoseconds due_at, Nanoseconds now, bool is_last);
    void send(Client& client, const std::string& data);
    void flush(Client& client);
    void drop(Client& client);
    void watch(int descriptor, std::uint32_t events, int operation) const;
    Nanoseconds held(Nanoseconds due) const;
    Client* find(int descriptor) const;

    Settings settings_;
    Responder responder_;
    int listener_ = -1;
    int poller_ = -1;
    int timer_ = -1;
    std::vector<std::unique_ptr<Client>> clients_;  // by descriptor
    std::deque<Visit> unread_;
    std::deque<Visit> line_;
    std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
    std::vector<char> read_buffer_;
    std::uint64_t serial_ = 0;
    std::size_t serving_ = 0;
    Nanoseconds stall_from_ = INT64_MAX;
    Nanoseconds stall_until_ = INT64_MAX;
    bool stall_planned_ = false;
    Truth truth_;
};

}  // namespace bitbench
