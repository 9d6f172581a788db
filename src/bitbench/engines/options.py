"""A study's `args` as words of a server's command line."""

from collections.abc import Mapping

from bitbench.core.study import Argument


def spelled(args: Mapping[str, Argument]) -> dict[str, Argument]:
    """Under one spelling, so that `max_model_len`, `--max-model-len` and `no-enforce-eager` override our defaults."""
    options: dict[str, Argument] = {}
    for name, value in args.items():
        option = name.lstrip("-").replace("_", "-")
        if option.startswith("no-") and isinstance(value, bool):
            options[option.removeprefix("no-")] = not value
        else:
            options[option] = value
    return options


def command_words(options: Mapping[str, Argument]) -> list[str]:
    """`--name value`; a switch becomes `--name` or `--no-name`."""
    words: list[str] = []
    for name, value in options.items():
        words += [f"--{name}" if value else f"--no-{name}"] if isinstance(value, bool) else [f"--{name}", str(value)]
    return words
