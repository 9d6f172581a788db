// bitbench._native: with vptq/python.cpp what Python sees. src/bitbench/_native.pyi says the same to a type checker.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "parts.hpp"
#include "receiver.hpp"
#include "server.hpp"
#include "vptq/python.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

nb::str text(std::string_view view) { return nb::str(view.data(), view.size()); }

std::string copied(nb::handle object) {
    const auto bytes = nb::cast<nb::bytes>(object);
    return {bytes.c_str(), bytes.size()};
}

bitbench::Ending ending_of(std::string_view name) {
    if (name == "keep") return bitbench::Ending::kKeep;
    if (name == "hang") return bitbench::Ending::kHang;
    if (name == "close") return bitbench::Ending::kClose;
    throw nb::value_error("the ending of a stream is keep, hang or close");
}

bitbench::Answer answer_of(nb::handle answered) {
    if (nb::isinstance<nb::bytes>(answered)) return copied(answered);
    bitbench::StreamPlan plan;
    plan.ttft_s = nb::cast<double>(answered.attr("ttft_s"));
    plan.tpot_s = nb::cast<double>(answered.attr("tpot_s"));
    plan.head = copied(answered.attr("head"));
    plan.piece = copied(answered.attr("piece"));
    plan.repeats = nb::cast<std::uint64_t>(answered.attr("repeats"));
    plan.last = copied(answered.attr("last"));
    plan.ending = ending_of(nb::cast<std::string>(answered.attr("ending")));
    return plan;
}

bitbench::Responder responder_of(nb::callable respond) {
    return [respond = std::move(respond)](const bitbench::Request& request) {
        nb::gil_scoped_acquire held;
        return answer_of(respond(text(request.method), text(request.path), text(request.authorization),
                                 nb::bytes(request.body.data(), request.body.size())));
    };
}

void make_server(bitbench::Server* server, std::uint16_t port, nb::callable respond, double per_stream,
                 std::optional<std::size_t> capacity, std::optional<double> stall_at_s, double stall_for_s) {
    new (server) bitbench::Server({port, per_stream, capacity, stall_at_s, stall_for_s}, responder_of(respond));
}

nb::dict take_truth(bitbench::Server& server) {
    bitbench::Truth truth = server.take_truth();
    nb::dict summary;
    summary["requests"] = truth.ttft_s.size();
    summary["tokens"] = truth.lateness.count();
    for (auto [name, values] : {std::pair{"ttft", &truth.ttft_s}, std::pair{"tpot", &truth.tpot_s}}) {
        for (auto [label, share] : {std::pair{"p50", 0.50}, std::pair{"p99", 0.99}}) {
            const std::string key = std::string(name) + "_" + label + "_s";
            if (values->empty()) {
                summary[key.c_str()] = nb::none();
            } else {
                summary[key.c_str()] = bitbench::quantile(*values, share);
            }
        }
    }
    summary["late_p50_s"] = static_cast<double>(truth.lateness.quantile_ns(0.50)) / 1e9;
    summary["late_p99_s"] = static_cast<double>(truth.lateness.quantile_ns(0.99)) / 1e9;
    summary["late_max_s"] = static_cast<double>(truth.lateness.longest_ns()) / 1e9;
    return summary;
}

std::string_view view(const nb::bytes& data) { return {data.c_str(), data.size()}; }

bool take_chunk(bitbench::Parts& parts, const nb::bytes& data, double time_s) {
    const auto content = bitbench::content_of_whole_chunk(view(data));
    return !content.empty() && parts.add_if_room(content, time_s);
}

std::optional<double> last_time(const bitbench::Parts& parts) {
    return parts.count() == 0 ? std::nullopt : std::optional(parts.last_time_s());
}

void add_parts(nb::module_& module) {
    nb::class_<bitbench::Parts>(module, "Parts")
        .def(nb::init<std::size_t>(), "limit_bytes"_a)
        .def("take_chunk", &take_chunk, "data"_a, "time"_a)
        .def("add", [](bitbench::Parts& parts, const nb::bytes& content, double time_s) { parts.add(view(content), time_s); },
             "content"_a, "time"_a)
        .def("__len__", &bitbench::Parts::count)
        .def_prop_ro("last_time", &last_time)
        .def_prop_ro("times", &bitbench::Parts::times_s)
        .def_prop_ro("lengths", &bitbench::Parts::lengths)
        .def_prop_ro("body", [](const bitbench::Parts& parts) {
            const std::string body = parts.body();
            return nb::bytes(body.data(), body.size());
        })
        .def_prop_ro("limit_bytes", &bitbench::Parts::limit_bytes)
        .def_prop_ro("body_bytes", &bitbench::Parts::body_bytes)
        .def_prop_ro("about_bytes", &bitbench::Parts::bytes);
}

nb::list receive(bitbench::Receiver& receiver, bool may_wait) {
    nb::list arrivals;
    const auto received = [&] {
        nb::gil_scoped_release released;
        return receiver.receive(may_wait);
    }();
    for (const auto& [descriptor, data, error, arrived, noticed] : received) {
        arrivals.append(nb::make_tuple(descriptor, nb::bytes(data.data(), data.size()), error,
                                       static_cast<double>(arrived) / 1e9, static_cast<double>(noticed) / 1e9));
    }
    return arrivals;
}

void add_receiver(nb::module_& module) {
    nb::class_<bitbench::Receiver>(module, "Receiver")
        .def(nb::init<>())
        .def("fileno", &bitbench::Receiver::descriptor)
        .def("watch", &bitbench::Receiver::watch, "descriptor"_a)
        .def("yield_to", &bitbench::Receiver::yield_to, "descriptor"_a)
        .def("forget", &bitbench::Receiver::forget, "descriptor"_a)
        .def("keep_chunks", &bitbench::Receiver::keep_chunks, "descriptor"_a, "parts"_a)
        .def("receive", &receive, nb::kw_only(), "may_wait"_a);
}

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "bitbench's native part: what Python is too slow for.";
    nb::class_<bitbench::Server>(module, "NullServer")
        .def("__init__", &make_server, "port"_a, "respond"_a, nb::kw_only(), "per_stream"_a, "capacity"_a.none(),
             "stall_at_s"_a.none(), "stall_for_s"_a)
        .def("serve", [](bitbench::Server& server) { server.serve(); }, nb::call_guard<nb::gil_scoped_release>())
        .def("take_truth", &take_truth);
    add_parts(module);
    add_receiver(module);
    bitbench::vptq::add_to(module);
}
