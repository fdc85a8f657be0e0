"""Chooses the small files that a commit folds into the file it writes, so that small commits do not leave many files.

The rule is that of a size-tiered log: fold if there are more than `MAX_SMALL_FILES`, smallest first, and stop before a
file that is much larger than all folded so far, so that a row is rewritten a logarithmic number of times.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.engine.storage.log.actions import DataFile

MAX_SMALL_FILES = 16
SMALL_ROWS = 32_768
SMALL_BYTES = 8 << 20
_STEP = 2


def to_fold(files: Iterable[tuple[DataFile, int]], new_rows: int) -> list[DataFile]:
    """The files to fold, of `(file, rows that will be live)` pairs.

    >>> def file(rows): return DataFile(f"{rows}", 100, True, {"stats": f'{{"numRecords":{rows}}}'}), rows
    >>> [f.path for f in to_fold([file(10 + i) for i in range(17)] + [file(9000)], new_rows=5)][:3]
    ['10', '11', '12']
    >>> to_fold([file(10 + i) for i in range(16)], new_rows=5)
    []
    """
    small = [(live, file) for file, live in files if live <= SMALL_ROWS and file.size <= SMALL_BYTES]
    if len(small) <= MAX_SMALL_FILES:
        return []
    small.sort(key=lambda pair: pair[0])
    folded: list[DataFile] = []
    rows = max(1, new_rows)
    for live, file in small:
        if live > _STEP * rows and len(small) - len(folded) <= MAX_SMALL_FILES // 2:
            break
        rows += live
        folded.append(file)
    return folded
