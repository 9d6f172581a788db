"""Starts SGLang's server, in the environment of SGLang: python sglang_server.py ARGUMENTS-OF-sglang-serve.

Where torch is built without CUDA, two packages that SGLang imports could not be: the compiled operators of torchvision,
two of which are declared here without code, and SGLang's own kernels (`sgl_kernel`), in whose place a module without
kernels stands if no build for this processor is installed. SGLang then computes with torch.

The key comes in BITBENCH_API_KEY. SGLang writes all its arguments to its log, and opens the port over which its
processes find each other on every interface: both are prevented here.

SGLang's processes are spawned, so they run the top of this file, too. It imports nothing of bitbench's.
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

_rendezvous = importlib.import_module(
    "torch.distributed.rendezvous"
)  # the package has a function of this name
_OpenStore = _rendezvous.TCPStore


class HiddenKey(str):
    """A key whose value no log shows that prints what holds it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class NoKernels(types.ModuleType):
    """Takes the place of `sgl_kernel`: every function can be imported, none can be called."""

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
    """torch's TCPStore, which listens on all interfaces unless it is handed a socket that listens already."""
    if is_master and host_name in _LOOPBACK:
        options["master_listen_fd"] = socket.create_server((_LOOPBACK[0], port)).detach()
    return _OpenStore(host_name, port, *args, is_master=is_master, **options)


def main() -> None:
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree
    from sglang.version import __version__

    own_kernels = not isinstance(sys.modules.get("sgl_kernel"), NoKernels)
    print(
        FACTS + json.dumps({"engine_version": __version__, "own_kernels": own_kernels}), flush=True
    )
    load_plugins()
    arguments = prepare_server_args([*(_CPU_ARGUMENTS if _ON_CPU else ()), *sys.argv[1:]])
    if key := os.environ.get(_KEY_VARIABLE):
        arguments.api_key = HiddenKey(key)
    try:
        run_server(arguments)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


_rendezvous.TCPStore = _store_on_loopback  # type: ignore[attr-defined]
if _ON_CPU:
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    declared = torch.library.Library(
        "torchvision", "DEF"
    )  # gone from torch as soon as it is collected
    for _name in ("nms", "qnms"):
        declared.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    if importlib.util.find_spec("sgl_kernel") is None:
        _stand_in = NoKernels("sgl_kernel")
        _stand_in.__spec__ = importlib.machinery.ModuleSpec("sgl_kernel", None)
        sys.modules["sgl_kernel"] = _stand_in

if __name__ == "__main__":
    main()
