"""A hook of mkdocs: pages link to the gallery as the repository has it, and the site has a copy of what they link to.

`../examples/gallery/twins/report/report.md` becomes `gallery/twins/report/index.html`, the same report as a page;
`../examples/gallery/kernels/kernels.md` becomes `gallery/kernels/kernels.txt`.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

GALLERY = Path(__file__).parents[1] / "examples" / "gallery"
SHOWN = {".html", ".svg", ".rst"}
AS_TEXT = "kernels.md"  # a table of many columns: a page of the site would need a place in its menu


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted(GALLERY.rglob("*")):
        place = path.relative_to(GALLERY)
        if path.name == AS_TEXT:
            place = place.with_suffix(".txt")
        elif path.suffix not in SHOWN:
            continue
        files.append(File.generated(config, f"gallery/{place.as_posix()}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    of_site = markdown.replace("](../examples/gallery/", "](gallery/")
    of_site = re.sub(r"\]\((gallery/[^)#\s]*)kernels\.md", r"](\1kernels.txt", of_site)
    return re.sub(r"\]\((gallery/[^)#\s]*)report\.md", r"](\1index.html", of_site)
