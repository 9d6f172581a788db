"""A load node's side: one part of a trial's requests, and what is told about it. Rows stay here until they are asked
for."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from pydantic import ValidationError

from bitbench import __version__
from bitbench.features.fleet.messages import Message, message
from bitbench.features.fleet.orders import LOAD_ORDER_FORMAT, LoadOrder
from bitbench.features.fleet.part_report import PartReport
from bitbench.features.fleet.serving import Node
from bitbench.loadgen.frames import WorkerTask, decode_task
from bitbench.loadgen.inputs import hash_files
from bitbench.util.errors import FleetError
from bitbench.util.safe_files import SafeFolder, open_to_read

PIECE_BYTES = 8 * 2**20  # of a file of rows on its way: a sign of life fits between two pieces
_ROWS = "rows.parquet"


@dataclass(frozen=True)
class LoadPart:
    order: LoadOrder
    task: WorkerTask

    @property
    def id(self) -> str:
        return self.order.id

    @classmethod
    def read(cls, asked: Message) -> "LoadPart":
        """Raises FleetError, which repeats nothing of what was sent: a key is in it."""
        try:
            return cls(LoadOrder.model_validate_json(asked.header.record), decode_task(asked.parts[0]))
        except (ValidationError, IndexError):
            said = f"it does not understand the order; is its bitbench ({__version__}) the driver's?"
            raise FleetError(said) from None

    def require_same(self) -> None:
        """Raises FleetError where this machine would send something else than the others think."""
        order, workload = self.order, self.task.job.workload
        here = {"orders": str(LOAD_ORDER_FORMAT), "bitbench": __version__, "numpy": np.__version__}
        there = {"orders": str(order.format), "bitbench": order.bitbench, "numpy": order.numpy}
        differing = [f"{name} {here[name]} instead of {there[name]}" for name in here if here[name] != there[name]]
        try:
            files = hash_files([workload], self.task.job.folder)
        except OSError as error:
            raise FleetError(f"{error.filename} cannot be read there: {error.strerror}") from None
        differing += [f"another {name}" for name in order.files if files.get(name) != order.files[name]]
        if differing:
            raise FleetError(f"it is not set up like the driver ({'; '.join(differing)})")

    def results(self, node: Node) -> Iterator[Message]:
        """Its report, then its rows piece by piece, each when it is asked for."""
        self.require_same()
        task = self.task

        def choose_zero() -> float:
            node.say_started()
            return node.wait_for_zero()

        result = node.load.run_part(task.job, task.part, choose_zero, node.tell if task.report else None)
        with tempfile.TemporaryDirectory(prefix="bitbench-load-") as place:
            with SafeFolder(Path(place)).replacing(_ROWS, 0o600) as file:
                pq.write_table(result.requests, file, compression="zstd", write_page_checksum=True)
            report = PartReport.of(result)
            del result
            yield message("draft", draft="load", order=self.id, seq=0, record=report.model_dump_json())
            with open_to_read(Path(place) / _ROWS) as file:
                seq = 1
                while piece := file.read(PIECE_BYTES):
                    yield message("draft", piece, draft="rows", order=self.id, seq=seq)
                    seq += 1
