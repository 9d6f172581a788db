"""Calibration text on its way through a model, block by block: what each block is called with, what its layers meet.

A part of `vptq_worker.py`, loaded by path in its environment; imports nothing of ours.
"""

from typing import Any

Json = dict[str, Any]


def vptq_calibration_blocks(model: Any) -> Any:
    """The list of blocks that repeat: the one that holds most of the weights."""
    from torch.nn import ModuleList

    lists = [module for module in model.modules() if isinstance(module, ModuleList)]
    if not lists:
        raise ValueError("this model has no list of repeated blocks, which VPTQ needs")
    return max(lists, key=lambda found: sum(weight.numel() for weight in found.parameters()))


class Call:
    """What a block is called with for one sample; the hidden state is replaced by its output."""

    def __init__(self, hidden: Any, arguments: tuple[Any, ...], options: Json) -> None:
        self.hidden, self._arguments, self._options = hidden, arguments, options

    def of(self, block: Any) -> Any:
        return block(self.hidden, *self._arguments, **self._options)


class FirstBlockReached(Exception):
    """Nothing behind it is needed."""


def vptq_calibration_calls(model: Any, block: Any, samples: list[list[int]]) -> list[Call]:
    import torch

    calls: list[Call] = []

    def catch(_: Any, arguments: tuple[Any, ...], options: Json) -> None:
        calls.append(Call(arguments[0], arguments[1:], options))
        raise FirstBlockReached

    handle = block.register_forward_pre_hook(catch, with_kwargs=True)
    for sample in samples:
        try:
            model(torch.tensor([sample]), use_cache=False)
        except FirstBlockReached:
            continue
    handle.remove()
    return calls


def advance_vptq_calibration(block: Any, calls: list[Call]) -> None:
    """Each sample through the block, as it is now: what the next one is called with."""
    for call in calls:
        call.hidden = _output_of(call.of(block))


def vptq_calibration_hessians(block: Any, layers: dict[str, Any], calls: list[Call]) -> dict[str, Any]:
    """E[x x^T] of each layer's inputs. Layers that are given the same tensor share one."""
    import torch

    sums: dict[str, Any] = {}
    sharing: dict[str, str] = {}
    seen: Json = {}

    def note(name: str) -> Any:
        def hook(_: Any, arguments: tuple[Any, ...]) -> None:
            x = arguments[0]
            first = sharing.setdefault(name, seen.get("name", name) if seen.get("tensor") is x else name)
            if first == name:
                flat = x.reshape(-1, x.shape[-1]).float()
                sums[name] = torch.addmm(sums[name], flat.T, flat) if name in sums else flat.T @ flat
                seen.update(tensor=x, name=name)

        return hook

    handles = [module.register_forward_pre_hook(note(name)) for name, module in layers.items()]
    for call in calls:
        call.of(block)
    for handle in handles:
        handle.remove()
    if unmet := [name for name in layers if name not in sharing]:
        why = "no sample may have chosen this expert; use more samples, or ignore the layer"
        raise ValueError(f"no calibration text reached the layer {unmet[0]}: {why}")
    tokens = sum(call.hidden.shape[1] for call in calls)
    return {name: sums[sharing[name]] / tokens for name in layers}


def _output_of(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result
