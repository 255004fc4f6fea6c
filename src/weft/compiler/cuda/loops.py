"""The LLVM IR of a kernel for GPUs."""

from __future__ import annotations

from weft.compiler.cuda.cluster_rows import ClusterRowsWriter
from weft.compiler.cuda.column_folds import ColumnFoldsWriter
from weft.compiler.cuda.elements import ElementsWriter
from weft.compiler.cuda.folds import FoldsWriter
from weft.compiler.cuda.long_rows import LongRowsWriter
from weft.compiler.cuda.pairs import PairsWriter
from weft.compiler.cuda.rows import RowsWriter
from weft.compiler.cuda.scans import ScansWriter
from weft.compiler.cuda.schedule import CudaSchedule, Walk
from weft.compiler.cuda.shared_folds import SharedFoldsWriter
from weft.compiler.cuda.tiles import TilesWriter
from weft.compiler.kernel import Kernel

_WRITERS = {
    Walk.ELEMENTS: ElementsWriter,
    Walk.PAIRS: PairsWriter,
    Walk.SHARED_FOLDS: SharedFoldsWriter,
    Walk.TILES: TilesWriter,
    Walk.ROWS: RowsWriter,
    Walk.COLUMN_FOLDS: ColumnFoldsWriter,
    Walk.LONG_ROWS: LongRowsWriter,
    Walk.FOLDS: FoldsWriter,
    Walk.SCANS: ScansWriter,
}


def generate(kernel: Kernel, schedule: CudaSchedule, name: str) -> str:
    """The LLVM IR of a kernel as a module with one entry."""
    writer = ClusterRowsWriter if schedule.cluster > 1 else _WRITERS[schedule.walk]
    return writer(kernel, schedule).function(name)
