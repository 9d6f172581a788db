"""The console script: it runs a command, explains its errors, and returns its exit code.

Plain output passes through the streams of this module, which spell out control characters: texts,
tables of data, usage errors, warnings and tracebacks. Colored output passes through `terminal`.
Expensive imports are inside functions, so that --help stays quick.
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
from bitbench.util.text import escape_hidden


def main() -> None:
    """Run the command line, and exit with its code. Errors are one sentence, with a traceback only
    with --debug."""
    with visible_streams(), warnings.catch_warnings():
        _show_plugin_warnings_as_a_line()
        try:
            from bitbench.cli.app import app

            if _get_command_name() and not {"--help", "--version"} & set(sys.argv[1:]):
                _end_what_is_left_over()
            # Typer returns the code of a typer.Exit.
            code = ExitCode(app(standalone_mode=False) or ExitCode.DONE)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            code = _explain_error(error)
        if code is ExitCode.STOPPED:
            message = "stopped"
            if _is_resumable(_get_command_name()):
                message += "; finished trials are kept, and the same command resumes"
            _print_message(message)
    raise SystemExit(int(code))


def _explain_error(error: BaseException) -> ExitCode:
    """Print the error, and return the exit code. Call it within `except`."""
    import typer

    # The only usage error that typer exports. Its base class is in click or in a copy of click.
    usage_error = cast("type[typer.BadParameter]", typer.BadParameter.__base__)
    match error:
        case BitbenchError():
            return _fail(str(error), error.exit_code)
        case usage_error():
            # Pydantic puts this prefix before bitbench's message.
            error.message = error.message.replace("Value error, ", "")
            error.show()
            return _fail_as_json(error.format_message(), ExitCode.USAGE)
        case KeyboardInterrupt() | typer.Abort():  # the latter: a question without an answer
            return ExitCode.STOPPED
        case BrokenPipeError() | SystemExit(code=1):
            # The reader is gone. Rich and typer leave by exit(1). The rest has nowhere to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.PIPE_CLOSED
        case SystemExit():
            raise error
        case OSError() if (fault := machine_faults.explain_machine_fault(error)) is not None:
            return _fail(f"{fault}, then repeat the command", ExitCode.UNAVAILABLE)
    return _fail(
        f"unexpected {type(error).__name__}: {error}; "
        "this is a bug in bitbench; --debug shows the traceback",
        ExitCode.DEFECT,
    )


def _is_resumable(name: str) -> bool:
    from bitbench.cli.app import collect_commands

    commands = collect_commands()
    return name in commands and commands[name][0].resumes


def _end_what_is_left_over() -> None:
    """End the engines of a run that was killed together with its guardians."""
    from bitbench.engines.left_over import end_left_over

    try:
        ended = end_left_over()
    except TimeoutError:
        _print_message(
            "engines that a killed run left behind cannot be ended and disturb what is measured",
            "warning",
            "yellow",
        )
        return
    if ended:
        _print_message(
            f"ended {ended} process(es) of engines that a killed run had left behind",
            "note",
            "yellow",
        )


def _fail(message: str, code: ExitCode) -> ExitCode:
    """Print the message, or with --debug the traceback of the current exception. Return the
    code."""
    if "--debug" in sys.argv[1:]:
        traceback.print_exc()
    else:
        _print_message(message)
    return _fail_as_json(message, code)


def _fail_as_json(message: str, code: ExitCode) -> ExitCode:
    """Print the error as the JSON document if the command has --json. Return the code."""
    if "--json" in sys.argv[1:]:
        from bitbench.cli.json_answers import collect_answers, format_json_answer

        name = _get_command_name()
        if name in collect_answers():
            print(format_json_answer(name, None, code, message))
    return code


def _get_command_name() -> str:
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


def _show_plugin_warnings_as_a_line() -> None:
    show_others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
        if issubclass(category, PluginWarning):
            _print_message(str(message), "warning", "yellow")
        else:
            show_others(message, category, *rest, **named)

    warnings.showwarning = show


def _print_message(message: str, kind: str = "error", style: str = "bold red") -> None:
    from bitbench.cli.terminal import Terminal

    Terminal(stderr=True).print(f"{kind}:", message, style=style, soft_wrap=True)


class _VisibleStream:
    """A stream that spells out all control characters except line breaks and tabs. `Terminal`
    writes to the stream behind it."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(escape_hidden(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # bytes would pass unchecked
            raise AttributeError(name)
        return getattr(self.rich_proxied_file, name)


@contextmanager
def visible_streams() -> Iterator[None]:
    """Spell out control characters on standard error, and on standard output if it is a terminal. A
    file or a pipe gets the data unchanged."""
    stdout = sys.stdout
    stderr = sys.stderr
    if stdout.isatty():
        sys.stdout = cast("TextIO", _VisibleStream(stdout))
    sys.stderr = cast("TextIO", _VisibleStream(stderr))
    try:
        yield
    finally:
        sys.stdout = stdout
        sys.stderr = stderr
