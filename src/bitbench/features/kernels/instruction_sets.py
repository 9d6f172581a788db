"""The instruction sets that the native kernel chooses from."""


def usable_isas() -> tuple[str, ...]:
    """Those that this processor runs, best first, from the one that BITBENCH_ISA names on.

    Empty without the native part. Raises ValueError where BITBENCH_ISA names one that it does not run.
    """
    try:
        from bitbench._native import vptq_isas
    except ImportError:
        return ()
    return tuple(vptq_isas())
