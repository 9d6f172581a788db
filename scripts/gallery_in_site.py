"""A hook of mkdocs: pages link to the gallery as the repository has it, and the site has the reports as HTML.

`../examples/gallery/twins/report/report.md` becomes `gallery/twins/report/index.html`: the same report, made from the
study's records. A report without records stays the Markdown page that it is.
"""

import re
from functools import cache
from pathlib import Path

from gallery_pages import GALLERY, study_folders, study_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

made = cache(study_page)  # once, while `scripts/docs serve` builds the site again and again


def on_files(files: Files, config: MkDocsConfig) -> Files:
    studies = study_folders(GALLERY)
    for study in studies:
        files.append(File.generated(config, name_in_site(study / "report" / "index.html"), content=made(study)))
    with_page = {study / "report" / "report.md" for study in studies}
    for path in sorted({*GALLERY.rglob("*.svg"), *GALLERY.rglob("report.md")} - with_page):
        files.append(File.generated(config, name_in_site(path), abs_src_path=str(path)))
    return files


def name_in_site(path: Path) -> str:
    return f"gallery/{path.relative_to(GALLERY).as_posix()}"


def on_page_markdown(markdown: str, **_: object) -> str:
    of_site = markdown.replace("](../examples/gallery/", "](gallery/")
    return re.sub(r"\]\((gallery/[^)#\s]*)/report/report\.md", r"](\1/report/index.html", of_site)
