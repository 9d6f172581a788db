"""Arguments in, exit code out. Every import that costs time is made by the command that needs it."""

import sys


def main() -> None:
    """The console script: a person gets one sentence, a traceback only with --debug."""
    from bitbench.cli.app import app
    from bitbench.ground.errors import BitbenchError

    debug = "--debug" in sys.argv[1:]
    try:
        app()
    except BitbenchError as error:
        if debug:
            raise
        _say(str(error))
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        _say("stopped; what has ended is kept, and the same command goes on from there")
        raise SystemExit(130) from None
    except BrokenPipeError:
        raise SystemExit(141) from None
    except Exception as error:
        if debug:
            raise
        _say(f"unexpected {type(error).__name__}: {error}; this is a defect; --debug shows where it happened")
        raise SystemExit(70) from None


def _say(message: str) -> None:
    from rich.console import Console

    Console(stderr=True, highlight=False).print("error:", message, style="bold red", markup=False, soft_wrap=True)
