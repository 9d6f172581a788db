"""Arguments in, exit code out. Every import that costs time is made by the command that needs it."""

import sys
import warnings
from typing import Any, cast

from bitbench.util.exit_codes import ExitCode

RESUMED = ("run", "load", "quality")  # which fill a folder, trial by trial; and those of features


def main() -> None:
    """The console script: a person gets one sentence, a traceback only with --debug."""
    from bitbench.cli.streams import visible_streams

    with visible_streams():
        code = _run()
        if code is ExitCode.STOPPED:
            resumes = "; finished trials are kept, and the same command resumes"
            _say(f"stopped{resumes if _can_resume(_command_word()) else ''}")
    raise SystemExit(int(code))


def _can_resume(command: str) -> bool:
    from bitbench.feature import commands

    added = commands()
    return command in RESUMED or (command in added and added[command][0].resumes)


def _run() -> ExitCode:
    from bitbench.util import machine_faults
    from bitbench.util.errors import BitbenchError

    try:
        with warnings.catch_warnings():
            _show_plugin_warnings_as_a_line()
            return _command()
    except BitbenchError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return ExitCode.STOPPED
    except Exception as error:
        if isinstance(error, OSError) and (fault := machine_faults.explain(error)) is not None:
            return _fail(f"{fault}, then repeat the command", ExitCode.UNAVAILABLE)
        said = f"unexpected {type(error).__name__}: {error}; this is a bug in bitbench; --debug shows the traceback"
        return _fail(said, ExitCode.DEFECT)


def _command() -> ExitCode:
    import typer

    from bitbench.cli.app import app

    if _command_word() and not {"--help", "--version"} & set(sys.argv[1:]):
        _end_what_is_left_over()
    # Of its errors of usage typer exports only this one; the others are beside it, in click or in a copy of it.
    usage_error = cast("type[typer.BadParameter]", typer.BadParameter.__base__)
    try:
        return ExitCode(app(standalone_mode=False) or ExitCode.DONE)  # typer gives the code of a typer.Exit
    except typer.Abort:  # a question that was left unanswered
        return ExitCode.STOPPED
    except usage_error as error:
        error.message = error.message.replace("Value error, ", "")  # what pydantic puts before our own words
        error.show()
        return _fail_as_json(error.format_message(), ExitCode.USAGE)


def _end_what_is_left_over() -> None:
    """Engines of a run that was killed together with all that guarded them."""
    from bitbench.engines.left_over import end_left_over

    try:
        if ended := end_left_over():
            _say(f"ended {ended} process(es) of engines that a killed run had left behind", "note", "yellow")
    except TimeoutError:
        _say("engines that a killed run left behind cannot be ended and disturb what is measured", "warning", "yellow")


def _fail(message: str, code: ExitCode) -> ExitCode:
    """Says it, with the traceback of the exception that is handled where --debug asks for it."""
    if "--debug" in sys.argv[1:]:
        import traceback

        traceback.print_exc()
    else:
        _say(message)
    return _fail_as_json(message, code)


def _fail_as_json(message: str, code: ExitCode) -> ExitCode:
    """A program that asked for JSON gets its one document here, too."""
    if "--json" in sys.argv[1:]:
        from bitbench.cli.json_answers import error_text, has_answer

        if has_answer(word := _command_word()):
            print(error_text(word, message, code))
    return code


def _command_word() -> str:
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


def _show_plugin_warnings_as_a_line() -> None:
    from bitbench.util.plugins import PluginWarning

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
