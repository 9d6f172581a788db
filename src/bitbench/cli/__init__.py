"""Arguments in, exit code out. Every import that costs time is made by the command that needs it."""

import sys
import warnings
from typing import Any


def main() -> None:
    """The console script: a person gets one sentence, a traceback only with --debug."""
    from bitbench.cli.app import app
    from bitbench.ground import machine_faults
    from bitbench.ground.errors import BitbenchError

    debug = "--debug" in sys.argv[1:]
    try:
        with warnings.catch_warnings():
            _show_plugin_warnings_as_a_line()
            app()
    except BitbenchError as error:
        if debug:
            raise
        _say(str(error))
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        _say("stopped; finished trials are kept, and the same command resumes")
        raise SystemExit(130) from None
    except BrokenPipeError:
        raise SystemExit(141) from None
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError) and (fault := machine_faults.explain(error)) is not None:
            _say(f"{fault}, then repeat the command")
            raise SystemExit(1) from None
        _say(f"unexpected {type(error).__name__}: {error}; this is a bug in bitbench; --debug shows the traceback")
        raise SystemExit(70) from None


def _show_plugin_warnings_as_a_line() -> None:
    from bitbench.ground.plugins import PluginWarning

    show_others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
        if issubclass(category, PluginWarning):
            _say(str(message), "warning", "yellow")
        else:
            show_others(message, category, *rest, **named)

    warnings.showwarning = show


def _say(message: str, kind: str = "error", style: str = "bold red") -> None:
    from rich.console import Console

    Console(stderr=True, highlight=False).print(f"{kind}:", message, style=style, markup=False, soft_wrap=True)
