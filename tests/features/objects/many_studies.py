"""The catalogue of many studies in an object store."""

from concurrent.futures import ThreadPoolExecutor

from bitbench.features.objects.remote_folder import TABLES, write_remote_table
from bitbench.features.objects.store import ObjectStore
from bitbench.records.arrow_tables import study_arrow_table
from bitbench.records.folder import StudyFolder
from tests.gallery import TWINS

ROWS_EACH = 20
ALL_TRIALS = "SELECT count(DISTINCT folder), count(*) FROM trials JOIN studies USING (folder)"


def write_studies(store: ObjectStore, count: int) -> None:
    """What so many runs write when they end, without compacting."""
    records = StudyFolder(TWINS).read()
    tables = {table: study_arrow_table(records, table).slice(0, ROWS_EACH) for table in TABLES}

    def write(number: int) -> None:
        for table, rows in tables.items():
            write_remote_table(store, table, f"study-{number:04d}", rows)

    with ThreadPoolExecutor(8) as writers:
        list(writers.map(write, range(count)))
