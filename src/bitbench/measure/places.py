"""Where a study lies: a folder of this machine, or whatever a feature knows by the scheme of a URL."""

from pathlib import Path

from bitbench.feature import offered
from bitbench.records.folder import StudyFolder
from bitbench.util.errors import UsageError


def folder_at(place: str, home: Path) -> StudyFolder:
    """Return the study folder at a path, or at a URL such as s3://BUCKET/…/STUDY."""
    scheme, is_url, _ = place.partition("://")
    if not is_url:
        return StudyFolder(Path(place))
    stores = offered("stores")
    if scheme not in stores:
        known = ", ".join(f"{name}://" for name in stores)
        beyond = f"nor a place that begins with {known}" if known else "and no feature for URLs is installed"
        raise UsageError(f"{place} is {'neither' if known else 'not'} a folder {beyond}")
    folder: StudyFolder = stores[scheme].load()(place, home)
    return folder
