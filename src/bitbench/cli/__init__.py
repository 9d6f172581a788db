"""Arguments in, exit code out. Every import that costs time is made by the command that needs it."""

import sys
import warnings
from typing import Any, NoReturn


def main() -> None:
    """The console script: a person gets one sentence, a traceback only with --debug."""
    from bitbench.cli.streams import visible_streams

    with visible_streams():
        _run()


def _run() -> None:
    from bitbench.cli.app import app
    from bitbench.ground import machine_faults
    from bitbench.ground.errors import BitbenchError

    try:
        with warnings.catch_warnings():
            _show_plugin_warnings_as_a_line()
            app()
    except BitbenchError as error:
        _end(str(error), error.exit_code)
    except KeyboardInterrupt:
        _say("stopped; finished trials are kept, and the same command resumes")
        raise SystemExit(130) from None
    except BrokenPipeError:
        raise SystemExit(141) from None
    except Exception as error:
        if isinstance(error, OSError) and (fault := machine_faults.explain(error)) is not None:
            _end(f"{fault}, then repeat the command", 1)
        _end(f"unexpected {type(error).__name__}: {error}; this is a bug in bitbench; --debug shows the traceback", 70)


def _end(message: str, exit_code: int) -> NoReturn:
    """Says it, with the traceback of the exception that is handled where --debug asks for it."""
    if "--debug" in sys.argv[1:]:
        import traceback

        traceback.print_exc()
    else:
        _say(message)
    raise SystemExit(exit_code) from None


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
    from bitbench.cli.terminal import Terminal

    Terminal(stderr=True).print(f"{kind}:", message, style=style, soft_wrap=True)
