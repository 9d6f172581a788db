"""A hook of mkdocs: pages link to the gallery as the repository has it, and the site has the reports as HTML.

`../examples/gallery/twins/report/report.md` becomes `gallery/twins/report/index.html`: the same report, made from the
study's records. A report without records stays the Markdown page that it is. Other tables, such as
`../examples/gallery/kernels/kernels.md`, become text: a page of the site would need a place in its menu.
"""

import re
from functools import cache

from gallery_pages import GALLERY, study_folders, study_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

made = cache(study_page)  # once, while `scripts/docs serve` builds the site again and again
REPORT = "report/report.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    studies = study_folders(GALLERY)
    for study in studies:
        name = study.relative_to(GALLERY).as_posix()
        files.append(
            File.generated(config, f"gallery/{name}/report/index.html", content=made(study))
        )
    with_page = {study / REPORT for study in studies}
    tables = {*GALLERY.glob("*/*.md"), *GALLERY.glob("*/*.rst")}
    for path in sorted({*GALLERY.rglob("*.svg"), *GALLERY.rglob("report.md"), *tables} - with_page):
        place = f"../examples/gallery/{path.relative_to(GALLERY).as_posix()}"
        files.append(File.generated(config, in_site(place), abs_src_path=str(path)))
    return files


def in_site(place: str) -> str:
    """Return the address in the site of a file that a page of docs/ links to."""
    name = place.replace("../examples/gallery/", "gallery/")
    if (
        name.endswith(REPORT)
        and (GALLERY.parents[1] / place[3:]).parents[1].joinpath("lock.json").exists()
    ):
        return name.removesuffix("report.md") + "index.html"
    if name.count("/") == 2 and not name.endswith("report.md"):
        return re.sub(r"\.md$", ".txt", name)
    return name


def on_page_markdown(markdown: str, **_: object) -> str:
    return re.sub(
        r"(?<=\]\()(\.\./examples/gallery/[^)#\s]*)", lambda found: in_site(found[1]), markdown
    )
