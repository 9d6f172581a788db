"""The one door to a folder that may be a stranger's."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from bitbench.util.errors import StoreError
from bitbench.util.files import SafeFolder, open_to_read
from tests.strangers import dangling_link, link_to_file, link_to_folder, pipe

OUTSIDE = ("..", "../x", "a/../../x", "a/..", "/tmp/x", "", ".", "a\0b")
ACTIONS: dict[str, Callable[[SafeFolder, str], object]] = {
    "write": lambda folder, name: folder.write(name, "new"),
    "append": lambda folder, name: folder.append(name, b"new"),
    "create": lambda folder, name: folder.create(name),
}


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: str, action: str) -> None:
    folder = tmp_path / "in"
    with pytest.raises(StoreError, match="is not a file name"):
        ACTIONS[action](SafeFolder(folder), name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("trap", "said"),
    [
        (link_to_file, "is a link instead of a plain file"),
        (link_to_folder, "is a link instead of a plain file"),
        (dangling_link, "is a link instead of a plain file"),
        (pipe, "is a pipe or a device instead of a plain file"),
    ],
)
@pytest.mark.parametrize("action", ACTIONS)
def test_what_is_no_plain_file_is_refused_with_what_to_do(
    tmp_path: Path, trap: Callable[[Path, Path], None], said: str, action: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "outside").mkdir()
    trap(tmp_path / "in" / "a.txt", tmp_path / "outside")
    with pytest.raises(StoreError, match=f"a.txt {said}; remove it, or use another folder"):
        ACTIONS[action](SafeFolder(tmp_path / "in"), "a.txt")


def test_the_folder_that_a_person_names_may_be_their_link_and_none_below_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "named").symlink_to(tmp_path / "real")
    assert SafeFolder(tmp_path / "named").write("a/b.txt", "x").read_text() == "x"
    (tmp_path / "real" / "below").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="below is a link instead of a folder"):
        SafeFolder(tmp_path / "named").write("below/b.txt", "x")


def test_a_file_in_a_studys_folder_is_contained_by_it_and_any_other_by_its_own(
    tmp_path: Path,
) -> None:
    study = tmp_path / "study"
    study.mkdir()
    (study / "away").symlink_to(tmp_path)
    folder, name = SafeFolder.around(study / "away" / "out.md", study)
    with pytest.raises(StoreError, match="away is a link instead of a folder"):
        folder.write(name, "x")
    folder, name = SafeFolder.around(tmp_path / "new" / "out.md", study)
    assert folder.write(name, "x") == tmp_path / "new" / "out.md"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = SafeFolder(tmp_path)
    folder.write("a.txt", "old")
    with suppress(KeyboardInterrupt), folder.open_replacement("a.txt") as file:
        file.write(b"ne")
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_a_folder_is_removed_without_what_its_links_lead_to(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "x").write_text("x")
    (tmp_path / "in" / "doomed").mkdir(parents=True)
    (tmp_path / "in" / "doomed" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "kept")
    folder = SafeFolder(tmp_path / "in")
    folder.remove_folder("doomed")
    folder.remove_folder("doomed")
    with pytest.raises(StoreError, match="link is a link instead of a folder"):
        folder.remove_folder("link")
    with pytest.raises(StoreError, match="link is a link instead of a folder"):
        folder.remove_matching("link", re.compile("x"))
    assert (tmp_path / "kept" / "x").exists()


def test_a_device_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "records").symlink_to("/dev/zero")
    with pytest.raises(StoreError, match="records is a link instead of a plain file"):
        open_to_read(tmp_path / "records")
