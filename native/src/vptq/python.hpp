// Adds the VPTQ kernel to the extension module.
#pragma once

#include <nanobind/nanobind.h>

namespace bitbench::vptq {

void add_to(nanobind::module_& module);

}  // namespace bitbench::vptq
