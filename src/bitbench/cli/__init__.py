"""Arguments in, exit code out; what a terminal would obey or hide is spelled out. Imports that cost time are made where
they are needed, so that --help stays quick.

Whatever is written plainly passes here: texts, tables of data, usage errors, warnings, tracebacks. What is drawn with
colours passes `terminal`.
"""

import os
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from bitbench.util import machine_faults
from bitbench.util.errors import BitbenchError, ExitCode
from bitbench.util.plugins import PluginWarning
from bitbench.util.text import visible


def main() -> None:
    """The console script: a person gets one sentence, a traceback only with --debug."""
    with visible_streams(), warnings.catch_warnings():
        _show_plugin_warnings_as_a_line()
        try:
            from bitbench.cli.app import app

            if _command_word() and not {"--help", "--version"} & set(sys.argv[1:]):
                _end_what_is_left_over()
            code = ExitCode(
                app(standalone_mode=False) or ExitCode.DONE
            )  # typer gives the code of a typer.Exit
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            code = _explained(error)
        if code is ExitCode.STOPPED:
            resumes = "; finished trials are kept, and the same command resumes"
            _say(f"stopped{resumes if _can_resume(_command_word()) else ''}")
    raise SystemExit(int(code))


def _explained(error: BaseException) -> ExitCode:
    """What is said of it, and the code to end with. Within `except`."""
    import typer

    # Of its errors of usage typer exports only this one; the others are beside it, in click or in a copy of it.
    usage_error = cast("type[typer.BadParameter]", typer.BadParameter.__base__)
    match error:
        case BitbenchError():
            return _fail(str(error), error.exit_code)
        case usage_error():
            error.message = error.message.replace(
                "Value error, ", ""
            )  # what pydantic puts before our own words
            error.show()
            return _fail_as_json(error.format_message(), ExitCode.USAGE)
        case KeyboardInterrupt() | typer.Abort():  # the latter: a question that was left unanswered
            return ExitCode.STOPPED
        case (
            BrokenPipeError() | SystemExit(code=1)
        ):  # the reader is gone: rich and typer leave by exit(1)
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
            )  # what is left has nowhere to go
            return ExitCode.PIPE_CLOSED
        case SystemExit():
            raise error
        case OSError() if (fault := machine_faults.explain_machine_fault(error)) is not None:
            return _fail(f"{fault}, then repeat the command", ExitCode.UNAVAILABLE)
    said = f"unexpected {type(error).__name__}: {error}; this is a bug in bitbench; --debug shows the traceback"
    return _fail(said, ExitCode.DEFECT)


def _can_resume(command: str) -> bool:
    from bitbench.cli.app import all_commands

    known = all_commands()
    return command in known and known[command][0].resumes


def _end_what_is_left_over() -> None:
    """Engines of a run that was killed together with all that guarded them."""
    from bitbench.engines.left_over import end_left_over

    try:
        if ended := end_left_over():
            _say(
                f"ended {ended} process(es) of engines that a killed run had left behind",
                "note",
                "yellow",
            )
    except TimeoutError:
        _say(
            "engines that a killed run left behind cannot be ended and disturb what is measured",
            "warning",
            "yellow",
        )


def _fail(message: str, code: ExitCode) -> ExitCode:
    """Says it, with the traceback of the exception that is handled where --debug asks for it."""
    if "--debug" in sys.argv[1:]:
        traceback.print_exc()
    else:
        _say(message)
    return _fail_as_json(message, code)


def _fail_as_json(message: str, code: ExitCode) -> ExitCode:
    """A program that asked for JSON gets its one document here, too."""
    if "--json" in sys.argv[1:]:
        from bitbench.cli.json_answers import answers_by_command, json_answer_text

        if (word := _command_word()) in answers_by_command():
            print(json_answer_text(word, None, code, message))
    return code


def _command_word() -> str:
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


def _show_plugin_warnings_as_a_line() -> None:
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


class _VisibleStream:
    """A stream on which nothing but lines and tabs is obeyed. `Terminal` writes to what is behind it."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # bytes would pass unseen
            raise AttributeError(name)
        return getattr(self.rich_proxied_file, name)


@contextmanager
def visible_streams() -> Iterator[None]:
    """Standard error always, standard output where it is a terminal: a file or a pipe gets data as it is."""
    out, err = sys.stdout, sys.stderr
    if out.isatty():
        sys.stdout = cast("TextIO", _VisibleStream(out))
    sys.stderr = cast("TextIO", _VisibleStream(err))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
