"""Start SGLang's server, in its environment: python sglang_server.py ARGUMENTS-OF-sglang-serve.

With a torch built without CUDA, two packages cannot be imported as they are. For torchvision, two
compiled operators are declared here without code. For SGLang's own kernels (`sgl_kernel`), a module
without kernels takes their place unless a build for this processor is installed. SGLang then
computes with torch.

The key comes in BITBENCH_API_KEY. SGLang writes all its arguments to its log, and opens the port
through which its processes find each other on every interface. This file prevents both.

SGLang's processes are spawned, so they run the top of this file too. It imports nothing of
bitbench.
"""

import importlib
import importlib.machinery
import importlib.util
import json
import os
import socket
import sys
import types
from typing import Any

import torch

FACTS = "bitbench-facts: "
_KEY_VARIABLE = "BITBENCH_API_KEY"
_LOOPBACK = ("127.0.0.1", "localhost")
_ON_CPU = torch.version.cuda is None and torch.version.hip is None
_CPU_ARGUMENTS = ("--device=cpu", "--disable-overlap-schedule")

# An attribute of the package has the same name: a function.
_rendezvous = importlib.import_module("torch.distributed.rendezvous")
_OpenStore = _rendezvous.TCPStore


class HiddenKey(str):
    """A key whose value does not appear in a log of the object that contains it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class NoKernels(types.ModuleType):
    """A substitute for `sgl_kernel`: every function can be imported, but not called."""

    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*_: object, **__: object) -> None:
            raise NotImplementedError(
                f"sgl_kernel.{name} is not supported: no SGLang kernels for this CPU are installed"
            )

        return missing


def _store_on_loopback(
    host_name: str, port: int, *args: Any, is_master: bool = False, **options: Any
) -> Any:
    """Return a TCPStore of torch that listens on the loopback interface only.

    Without an open socket it would listen on all interfaces.
    """
    if is_master and host_name in _LOOPBACK:
        options["master_listen_fd"] = socket.create_server((_LOOPBACK[0], port)).detach()
    return _OpenStore(host_name, port, *args, is_master=is_master, **options)


def main() -> None:
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree
    from sglang.version import __version__

    has_kernels = not isinstance(sys.modules.get("sgl_kernel"), NoKernels)
    facts = {"engine_version": __version__, "own_kernels": has_kernels}
    print(FACTS + json.dumps(facts), flush=True)
    load_plugins()
    defaults = _CPU_ARGUMENTS if _ON_CPU else ()
    arguments = prepare_server_args([*defaults, *sys.argv[1:]])
    if key := os.environ.get(_KEY_VARIABLE):
        arguments.api_key = HiddenKey(key)
    try:
        run_server(arguments)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


_rendezvous.TCPStore = _store_on_loopback  # type: ignore[attr-defined]
if _ON_CPU:
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    # It is gone from torch as soon as it is collected, hence the variable.
    declared = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        declared.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    if importlib.util.find_spec("sgl_kernel") is None:
        _stand_in = NoKernels("sgl_kernel")
        _stand_in.__spec__ = importlib.machinery.ModuleSpec("sgl_kernel", None)
        sys.modules["sgl_kernel"] = _stand_in

if __name__ == "__main__":
    main()
