// bitbench._native: with vptq/python.cpp what Python sees. src/bitbench/_native.pyi says the same to a type checker.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

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

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "bitbench's native part: what Python is too slow for.";
    nb::class_<bitbench::Server>(module, "NullServer")
        .def("__init__", &make_server, "port"_a, "respond"_a, nb::kw_only(), "per_stream"_a, "capacity"_a.none(),
             "stall_at_s"_a.none(), "stall_for_s"_a)
        .def("serve", [](bitbench::Server& server) { server.serve(); }, nb::call_guard<nb::gil_scoped_release>())
        .def("take_truth", &take_truth);
    bitbench::vptq::add_to(module);
}
