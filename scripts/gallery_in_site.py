"""A hook of mkdocs: pages link to the gallery as the repository has it, and the site has a copy of what they link to.

`../examples/gallery/twins/report/report.md` becomes `gallery/twins/report/index.html`, the same report as a page.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

GALLERY = Path(__file__).parents[1] / "examples" / "gallery"
SHOWN = {".html", ".svg"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted(GALLERY.rglob("*")):
        if path.suffix in SHOWN:
            name = f"gallery/{path.relative_to(GALLERY).as_posix()}"
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    of_site = markdown.replace("](../examples/gallery/", "](gallery/")
    return re.sub(r"\]\((gallery/[^)#\s]*)report\.md", r"](\1index.html", of_site)
