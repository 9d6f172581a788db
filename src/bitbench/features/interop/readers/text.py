"""Text as it was meant: files that went through the wrong encoding, and tables drawn with characters."""

import re

from bitbench.features.interop.types import ImportFileError

# UTF-8 read as Windows-1252 shows its lead bytes as these letters: `Â±` for ±, `â€“` for –, `ðŸ¥‡` for a medal.
_TRACES = re.compile(r"[ÂÃâð][\u0080-\u00ff\u0100-\u2fff]")
SMALLEST, LARGEST = 1e-18, 1e18  # of any figure, in any unit
MIS_ENCODED = "Its text was UTF-8 that had been read as Windows-1252; it was repaired."


def decoded(content: bytes) -> tuple[str, bool]:
    """The text, and whether its encoding had to be repaired."""
    text = content.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    repaired = "\n".join(_repaired(line) if _TRACES.search(line) else line for line in text.split("\n"))
    return repaired, repaired != text


def _repaired(line: str) -> str:
    raw = bytearray()
    for char in line:
        try:
            raw += char.encode("cp1252")
        except UnicodeEncodeError:
            if ord(char) > 0xFF:  # never came from one byte: this line is as it was meant
                return line
            raw.append(ord(char))
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return line


def table_row(line: str) -> list[str]:
    """The cells of a line of a Markdown table or of a grid table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def figure(text: str) -> float | None:
    """`1,526.74 tok/s` → 1526.74; None for `N/A`, `-` and 0.00, which stands for "not measured"."""
    found = re.match(r"\s*([0-9][0-9,]*\.?[0-9]*)", text)
    value = float(found.group(1).replace(",", "")) if found else 0.0
    return measurable(value) if value else None


def measurable(value: float) -> float:
    """Raises ImportFileError for what nothing can measure, and sums and squares could not hold."""
    if not SMALLEST <= value <= LARGEST:
        shown = (
            f"a number of {len(str(value)):,} digits" if isinstance(value, int) and value > LARGEST else f"{value:g}"
        )
        raise ImportFileError(f"it contains {shown}, which no tool measures")
    return float(value)
