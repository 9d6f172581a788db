"""The script that draws figures in a page: vega, vega-lite and vega-embed, as vl-convert carries them."""

from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from bitbench.reports.charts.svg_process import VEGA_LITE
from bitbench.util.errors import StoreError
from bitbench.util.safe_files import SafeFolder


def vega_bundle(home: Path) -> str:
    """About 900 kB. Joining it takes seconds, so it is kept in the home's cache until vl-convert changes."""
    kept = f"cache/vega-{version('vl-convert-python')}-{VEGA_LITE}.js"
    if (home / kept).is_file():
        return (home / kept).read_text(encoding="utf-8")
    import vl_convert

    joined = vl_convert.javascript_bundle(vl_version=VEGA_LITE)  # type: ignore[call-arg]  # its stub asks for more
    script = str(joined).replace("</script", "<\\/script").replace("\r", "")
    with suppress(StoreError):  # a home that cannot be written to costs only time
        SafeFolder(home).write(kept, script)
    return script
