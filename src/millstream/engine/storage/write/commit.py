"""Adding one version to a Delta log: completely or not at all, and never over another writer's version."""

from __future__ import annotations

import errno
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from millstream.engine.storage.location import LOG_DIRECTORY
from millstream.engine.storage.log.actions import Json, LogCommit
from millstream.engine.storage.log.log_files import commit_name
from millstream.engine.storage.log.table_log import TableLog, TableState
from millstream.engine.storage.model import Commit, Txn
from millstream.engine.storage.write.durable import sync, sync_files
from millstream.errors import Code, MillstreamError

ENGINE = "millstream"

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def put_if_absent(root: Path, version: int, actions: Iterable[Json], *, is_durable: bool = False) -> bool:
    """Write the commit unless the version exists; readers see the whole file or none.

    Args:
        is_durable: this holds even after a power cut.
    """
    log = root / LOG_DIRECTORY
    target = log / commit_name(version)
    text = "".join(json.dumps(a, separators=(",", ":"), ensure_ascii=False) + "\n" for a in actions)
    draft = log / f".{uuid.uuid4()}.draft"
    draft.write_text(text, encoding="utf-8")
    if is_durable:
        sync(draft)
    try:
        os.link(draft, target)
    except FileExistsError:
        return False
    except OSError as e:
        if e.errno not in _NO_HARD_LINKS:
            raise
        return _put_exclusively(target, text)
    finally:
        draft.unlink()
    return True


def _put_exclusively(target: Path, text: str) -> bool:
    try:
        with target.open("x", encoding="utf-8") as handle:
            handle.write(text)
    except FileExistsError:
        return False
    return True


def commit_info(
    operation: str,
    read_version: int,
    metrics: Mapping[str, int],
    metadata: Mapping[str, object],
    mode: str = "Append",
) -> Json:
    """The `commitInfo` action; Delta requires all metrics as strings."""
    return {
        "commitInfo": {
            "timestamp": int(time.time() * 1000),
            "operation": operation,
            "operationParameters": {"mode": mode, "partitionBy": "[]"} if operation == "WRITE" else {},
            "readVersion": read_version,
            "isolationLevel": "Serializable",
            "isBlindAppend": operation == "WRITE" and mode == "Append",
            "operationMetrics": {name: str(count) for name, count in metrics.items()},
            "userMetadata": json.dumps(metadata, separators=(",", ":"), sort_keys=True),
            "engineInfo": ENGINE,
            "txnId": str(uuid.uuid4()),
        }
    }


def txn_action(txn: Txn) -> Json:
    """The action that records the transaction's number."""
    return {"txn": {"appId": txn.app_id, "version": txn.version, "lastUpdated": int(time.time() * 1000)}}


def already_done(log: TableLog, state: TableState, txn: Txn) -> Commit | None:
    """The commit that an earlier call made for this transaction, if any."""
    recorded = state.transactions.get(txn.app_id)
    if recorded is None or recorded < txn.version:
        return None
    earlier = log.commit_of(txn.app_id, txn.version)
    return Commit(earlier.version if earlier else state.version, repeated=True)


def commit_next(
    log: TableLog,
    root: Path,
    state: TableState,
    txn: Txn,
    actions: list[Json],
    is_harmless: Callable[[LogCommit], bool],
) -> Commit | int:
    """Commit `actions` as the next version; after other new commits only if they are harmless.

    Returns:
        The version written, or the existing commit if another process made this transaction meanwhile.

    Raises:
        MillstreamError: `COMMIT_CONFLICT`.
    """
    version = state.version
    if txn.is_durable:
        sync_files(root, actions)
    txn.permit()
    while not put_if_absent(root, version + 1, actions, is_durable=txn.is_durable):
        other = log.commits(version, version + 1)[0]
        if other.transactions.get(txn.app_id, -1) >= txn.version:
            return Commit(other.version, repeated=True)
        if not is_harmless(other):
            raise conflict(log.path, other)
        version += 1
        txn.permit()
    return version + 1


def changes_nothing(other: LogCommit) -> bool:
    """Whether row positions are still valid after a commit: properties of other applications, empty commits."""
    return not (other.touches_files or other.changes or other.metadata or other.protocol)


def keeps_schema(other: LogCommit) -> bool:
    """Whether an append is still correct after a commit."""
    return not (other.metadata or other.protocol)


def conflict(path: str, other: LogCommit) -> MillstreamError:
    """The error for a table that changed while a change was computed for an earlier version."""
    return MillstreamError(
        Code.COMMIT_CONFLICT,
        f"{path} was changed by {other.info.get('operation') or 'another writer'} at version {other.version}",
        hint="only refreshes may write a stream table's storage; refresh again",
    )


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Turn the errors of a full or read-only disk into a coded error."""
    try:
        yield
    except OSError as e:
        raise MillstreamError(
            Code.LAKE_UNWRITABLE,
            f"cannot write {path}: {e.strerror or e}",
            hint="check the directory's permissions and the free space",
        ) from e
