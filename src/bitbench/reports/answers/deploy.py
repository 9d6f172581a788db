"""The command that serves what was chosen, to copy."""

from bitbench.reports.document.model import CodeBlock, Section
from bitbench.reports.document.words import Words, paragraph, say


def deployment_section(what: Words, command: tuple[str, ...]) -> Section:
    about = paragraph("As it was measured, prefix caching off; size context and concurrency for your own requests.")
    return Section(say("To deploy ", what), (about, CodeBlock(tuple(command_lines(command)))), in_terminal=True)


def command_lines(words: tuple[str, ...]) -> list[str]:
    """A line for each option, so that it can be read and copied at any width."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    texts = [" ".join(line) for line in lines]
    return [*(f"{text} \\" for text in texts[:-1]), texts[-1]]
