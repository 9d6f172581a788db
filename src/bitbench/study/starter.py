"""The commented study file that `bitbench init` writes."""

from bitbench.study.environment import Device

_EAGER = """\
    args: {enforce-eager: true} # no compilation, which takes minutes on a CPU; on a GPU it would cost speed
"""


def starter(device: Device) -> str:
    """For engines that compute on this: on a GPU eager mode would switch CUDA graphs off."""
    return _STARTER.replace("EAGER\n", _EAGER if device == "cpu" else "")


_STARTER = """\
# A bitbench study: one question, asked of models × recipes × engines × workloads.
# `bitbench plan FILE` shows what it would run; `bitbench run FILE` runs it, or resumes it.
bitbench: 1                     # version of this format
name: my-study                  # the results go to a folder of this name; default: the name of the file

# The model: a name from `bitbench model list`, or a folder with a Hugging Face checkpoint.
models: [smollm2-135m]
# What is compared: the unquantized checkpoint, 8-bit weights and activations, 4-bit weights. Variants are created by
# `bitbench run`; `bitbench recipes` lists the others.
recipes: [bf16, w8a8-rtn, w4a16-rtn]

# The engines. Each runs in its own environment: `bitbench env create vllm`.
engines:
  - engine: vllm
EAGER
    # args: {dtype: float16}    # as the engine spells them; they are recorded with the results. `dtype` is bfloat16, or
                                # float32 on a processor that would emulate it, unless it is given here
  # - transformers              # bf16, VPTQ and torchao; others run unquantized there, and are refused
  # - llamacpp                  # needs recipes of GGUF files, such as gguf-q4_k_m

# The workloads. Built in: interactive, decode_bound, prefill_bound, long_context, medium_batch, base,
# high_concurrency. Or a shape of your own:
workloads:
  - interactive                 # 1 request at a time, 128 tokens in, 64 out
  - name: chat-8
    concurrency: 8
    input_tokens: 256
    output_tokens: 64
    arrival: closed_loop        # batch: all at once; closed_loop: each stream sends its next when the last ended
    requests: 16                # per trial
  # - name: poisson-5             # an open loop; docs/workloads.md has more kinds
  #   input_tokens: {min: 64, max: 512}
  #   output_tokens: 64
  #   arrival: {kind: poisson, rate: 5}
  #   duration: 60s

# How long. Starts and rounds are planned from the budget; a config that is already decided is dropped, and the study
# ends early once everything is decided. `starts: 3` and `trials: 4` instead ask for a fixed number.
measure:
  budget: 10m                   # wall time
  # equal_within: 10%           # a difference that is known to be smaller than this is answered: equal

# quality: {windows: 8}           # what each variant loses; docs/quality.md

limits:
  start: 10m                    # from start to ready
  stall: 2m                     # without a token
  # memory: 8GiB                # what one instance may use

baseline: smollm2-135m/bf16 @ vllm  # what the others are compared to
seed: 1
"""
