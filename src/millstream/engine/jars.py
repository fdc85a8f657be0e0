"""Finds Java and Delta's jars; the jars are downloaded once, and then used offline.

delta-spark's wheel contains no jars. By default, Spark's resolver downloads 33 of them, including second copies of
Hadoop, Parquet and log4j, and runs again at every start. Spark lacks only five; those are kept in a cache directory.

`python -m millstream.engine.jars` checks Java and downloads the jars, for `make setup` and for images that are built
with a network and run without one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyspark

from millstream.errors import Code, MillstreamError

JAVA_MINIMUM = 17
DELTA_VERSION = "4.4.0"
COORDINATES = f"io.delta:delta-spark_4.2_2.13:{DELTA_VERSION}"
JAR_NAMES = tuple(
    f"{artifact}-{DELTA_VERSION}.jar"
    for artifact in (
        "delta-spark_4.2_2.13",
        "delta-storage",
        "delta-kernel-api",
        "delta-kernel-defaults",
        "delta-kernel-unitycatalog",
    )
)
ENVIRONMENT = "MILLSTREAM_JARS"

# Everything below Delta that Spark ships itself, or that only Unity Catalog needs; Ivy reads these as globs.
_EXCLUDED = "org.*:*,com.*:*,javax.*:*,commons-*:*,io.airlift:*,io.unitycatalog:*"
_RESOLVE_TIMEOUT_SECONDS = 600


def spark_home() -> Path:
    """Where Spark's scripts and jars are: SPARK_HOME, or the installed pyspark."""
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def check_java() -> None:
    """Make sure that the Java that Spark will start is new enough.

    Raises:
        MillstreamError: JAVA_MISSING, with a message that says what to do.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java"))) if home else shutil.which("java")
    if java is None:
        raise _java_missing(f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH")
    version = _java_version(Path(java))
    if version is None:
        raise _java_missing(f"{java} does not run")
    if version < JAVA_MINIMUM:
        raise _java_missing(f"{java} is version {version}")


def find_jars(directory: str | Path | None = None) -> list[Path]:
    """Delta's jars, unless Spark has them.

    Looks in `directory` (the setting `jars`), in $MILLSTREAM_JARS, among Spark's own jars and in the cache; if none of
    them has the jars, runs Spark's resolver, which honours the user's Ivy settings and ~/.m2.

    Raises:
        MillstreamError: JARS_UNRESOLVED (or JAVA_MISSING, as the resolver needs Java).
    """
    for given, source in ((directory, "the setting jars"), (os.environ.get(ENVIRONMENT), ENVIRONMENT)):
        if given:
            return _from_directory(Path(given).expanduser(), source)
    if any((spark_home() / "jars").glob("delta-spark_*.jar")):
        return []
    cache = cache_directory()
    found, missing = _look(cache)
    if not missing:
        return found
    check_java()
    return _fill(cache)


def cache_directory() -> Path:
    """The directory with the jars for this Delta and Spark version."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "millstream" / "jars" / f"delta-{DELTA_VERSION}-spark-4.2_2.13"


def main() -> int:
    """Check Java, download the jars, and print where they are."""
    try:
        check_java()
        jars = find_jars()
    except MillstreamError as e:
        print(e.message, file=sys.stderr)
        return 1
    print(f"Delta {DELTA_VERSION}: {jars[0].parent if jars else 'among the jars of Spark'}")
    return 0


def _java_version(java: Path) -> int | None:
    """The major version, from the `release` file of the installation if there is one, which needs no process."""
    release = java.resolve().parent.parent / "release"
    with contextlib.suppress(OSError):
        if match := re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release.read_text(errors="replace"), re.MULTILINE):
            return int(match[1])
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        run = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
        if match := re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout):
            return int(match[1])
    return None


def _java_missing(why: str) -> MillstreamError:
    return MillstreamError(
        Code.JAVA_MISSING,
        f"Spark needs Java {JAVA_MINIMUM} or newer, but {why}: install one (on Debian or Ubuntu the package "
        f"openjdk-{JAVA_MINIMUM}-jre-headless or newer) or set JAVA_HOME to one.",
    )


def _look(directory: Path) -> tuple[list[Path], list[str]]:
    """The jars in a directory, with or without Ivy's prefix `io.delta_`, and the names of missing ones."""
    found: list[Path] = []
    missing: list[str] = []
    for name in JAR_NAMES:
        path = next((p for p in (directory / name, directory / f"io.delta_{name}") if p.is_file()), None)
        if path:
            found.append(path)
        else:
            missing.append(name)
    return found, missing


def _from_directory(directory: Path, source: str) -> list[Path]:
    found, missing = _look(directory)
    if missing:
        raise _unresolved(f"the directory {directory} ({source}) lacks {', '.join(missing)}")
    return found


def _fill(cache: Path) -> list[Path]:
    """Download into the cache. One process does it, others wait; the directory appears complete or not at all."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with _locked(cache.parent / f".{cache.name}.lock"):
            found, missing = _look(cache)
            if not missing:
                return found
            resolved = _resolve()
            staging = Path(tempfile.mkdtemp(prefix=f".{cache.name}.", dir=cache.parent))
            try:
                for path in resolved:
                    shutil.copyfile(path, staging / path.name.removeprefix("io.delta_"))
                staging.chmod(0o755)
                shutil.rmtree(cache, ignore_errors=True)  # incomplete: a jar was removed from it
                staging.rename(cache)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except OSError as e:
        raise _unresolved(f"the cache {cache} cannot be written ({e.strerror or e})") from e
    return _look(cache)[0]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _resolve() -> list[Path]:
    """Download the jars with Spark's own resolver, which then runs Ivy's version command, the smallest main class."""
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        *("--master", "local[1]"),
        *("--packages", COORDINATES),
        *("--exclude-packages", _EXCLUDED),
        *("--class", "org.apache.ivy.Main"),
        *("spark-internal", "-version"),
    ]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_RESOLVE_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise _unresolved(f"Spark's resolver failed ({type(e).__name__})") from e
    said = run.stderr + run.stdout
    stored = re.search(r"^The jars for the packages stored in: (.+)$", said, re.MULTILINE)
    found, missing = _look(Path(stored[1].strip())) if stored else ([], list(JAR_NAMES))
    if run.returncode != 0 or missing:
        error = _unresolved("Spark's resolver did not find them in its caches or repositories")
        error.add_note(said[-4000:])
        raise error
    return found


def _unresolved(why: str) -> MillstreamError:
    return MillstreamError(
        Code.JARS_UNRESOLVED,
        f"Delta's jars are missing because {why}: give this machine access to a Maven repository that has "
        f"{COORDINATES}, or put that jar, delta-storage and delta-kernel-api, -defaults and -unitycatalog of the same "
        f"version into one directory and set {ENVIRONMENT} to it.",
    )


if __name__ == "__main__":
    sys.exit(main())
