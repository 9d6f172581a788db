"""The script that draws figures in a page: vega, vega-lite and vega-embed, as vl-convert carries them."""

from importlib.metadata import version
from pathlib import Path

from bitbench.report.charts.svg import VEGA_LITE


def vega_bundle(cache: Path) -> str:
    """About 900 kB. Joining it takes seconds, so it is kept in `cache` until vl-convert changes."""
    kept = cache / f"vega-{version('vl-convert-python')}-{VEGA_LITE}.js"
    if kept.is_file():
        return kept.read_text(encoding="utf-8")
    import vl_convert

    joined = vl_convert.javascript_bundle(vl_version=VEGA_LITE)  # type: ignore[call-arg]  # its stub asks for more
    script = str(joined).replace("</script", "<\\/script").replace("\r", "")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(".partial")
        partial.write_text(script, encoding="utf-8")
        partial.replace(kept)
    except OSError:
        return script  # a home that cannot be written to costs only time
    return script
