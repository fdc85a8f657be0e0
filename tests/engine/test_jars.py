from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from millstream.engine import jars
from millstream.errors import Code, MillstreamError

RESOLVER = """\
#!/bin/sh
echo run >> {log}
sleep 0.3
mkdir -p {out}
for jar in {names}; do echo "$jar" > "{out}/io.delta_$jar"; done
echo "The jars for the packages stored in: {out}" >&2
exit {status}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory with nothing in it."""
    directory = tmp_path / "home"
    directory.mkdir()
    monkeypatch.setenv("HOME", str(directory))
    for name in ("XDG_CACHE_HOME", "MILLSTREAM_JARS", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    return directory


@pytest.fixture
def resolver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resolver:
    return Resolver(tmp_path / "spark", monkeypatch)


class Resolver:
    """A stand-in for spark-submit that counts its runs."""

    def __init__(self, spark_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.script = spark_home / "bin" / "spark-submit"
        self.script.parent.mkdir(parents=True)
        self.log = spark_home / "runs"
        monkeypatch.setenv("SPARK_HOME", str(spark_home))
        self.brings(jars.JAR_NAMES)

    def brings(self, names: tuple[str, ...], status: int = 0) -> None:
        out = self.script.parent.parent / "resolved"
        self.script.write_text(RESOLVER.format(log=self.log, out=out, names=" ".join(names), status=status))
        self.script.chmod(0o755)

    @property
    def runs(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


def put_jars(directory: Path, prefix: str = "") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in jars.JAR_NAMES:
        (directory / (prefix + name)).write_text(name)
    return directory


def java_home(directory: Path, release: str | None = None, says: str | None = None) -> Path:
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n" if says else "#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    if release:
        (directory / "release").write_text(f'IMPLEMENTOR="N"\nJAVA_VERSION="{release}"\n')
    return directory


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.1", "25-ea"])
def test_a_new_enough_java_is_accepted(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "jdk", release=version)))
    jars.check_java()


def test_java_without_a_release_file_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(java_home(tmp_path / "jdk", says='openjdk version "17.0.2" 2022-01-18') / "bin"))
    jars.check_java()


@pytest.mark.parametrize(("release", "shown"), [("11.0.2", "version 11"), ("1.8.0_402", "version 8")])
def test_an_old_java_is_named(release: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "jdk", release=release)))
    with pytest.raises(MillstreamError, match=shown) as caught:
        jars.check_java()
    assert caught.value.code is Code.JAVA_MISSING


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MillstreamError, match="no java on the PATH") as caught:
        jars.check_java()
    assert caught.value.code is Code.JAVA_MISSING
    assert "\n" not in caught.value.message


def test_a_java_home_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(MillstreamError, match="JAVA_HOME"):
        jars.check_java()


def test_a_java_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "jdk")))
    with pytest.raises(MillstreamError, match="does not run"):
        jars.check_java()


@pytest.mark.parametrize("prefix", ["", "io.delta_"])
def test_a_given_directory_is_used(prefix: str, tmp_path: Path, resolver: Resolver) -> None:
    directory = put_jars(tmp_path / "jars", prefix)
    assert [p.name.removeprefix("io.delta_") for p in jars.find_jars(directory)] == list(jars.JAR_NAMES)
    assert resolver.runs == 0


def test_the_setting_wins_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_JARS", str(put_jars(tmp_path / "environment")))
    assert jars.find_jars()[0].parent.name == "environment"
    assert jars.find_jars(str(put_jars(tmp_path / "setting")))[0].parent.name == "setting"


def test_a_given_directory_that_lacks_a_jar_is_an_error(tmp_path: Path, resolver: Resolver) -> None:
    directory = put_jars(tmp_path / "jars")
    (directory / jars.JAR_NAMES[1]).unlink()
    with pytest.raises(MillstreamError, match=jars.JAR_NAMES[1]) as caught:
        jars.find_jars(directory)
    assert caught.value.code is Code.JARS_UNRESOLVED
    assert resolver.runs == 0


def test_a_spark_that_has_delta_needs_nothing(resolver: Resolver) -> None:
    put_jars(resolver.script.parent.parent / "jars")
    assert jars.find_jars() == []


def test_resolved_once_and_then_taken_from_the_cache(home: Path, resolver: Resolver) -> None:
    first = jars.find_jars()
    assert [p.name for p in first] == list(jars.JAR_NAMES)
    assert first[0].is_relative_to(home / ".cache" / "millstream")
    assert jars.find_jars() == first
    assert resolver.runs == 1


def test_the_cache_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resolver: Resolver) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert jars.find_jars()[0].is_relative_to(tmp_path / "xdg")


def test_an_incomplete_cache_is_filled_again(resolver: Resolver) -> None:
    jars.find_jars()[2].unlink()
    assert [p.name for p in jars.find_jars()] == list(jars.JAR_NAMES)
    assert resolver.runs == 2


@pytest.mark.parametrize(("names", "status"), [(jars.JAR_NAMES[:3], 0), (jars.JAR_NAMES, 1)])
def test_a_failed_resolution_leaves_no_cache(names: tuple[str, ...], status: int, resolver: Resolver) -> None:
    resolver.brings(names, status)
    with pytest.raises(MillstreamError) as caught:
        jars.find_jars()
    assert caught.value.code is Code.JARS_UNRESOLVED
    assert jars.COORDINATES in caught.value.message
    assert "MILLSTREAM_JARS" in caught.value.message
    assert "\n" not in caught.value.message
    assert not jars.cache_directory().exists()


def test_a_cache_that_cannot_be_written(home: Path, resolver: Resolver) -> None:
    (home / ".cache").write_text("a file")
    with pytest.raises(MillstreamError, match="cannot be written") as caught:
        jars.find_jars()
    assert caught.value.code is Code.JARS_UNRESOLVED


def test_two_processes_at_once_resolve_once(resolver: Resolver) -> None:
    command = [sys.executable, "-m", "millstream.engine.jars"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1]
    assert resolver.runs == 1
    assert len(list(jars.cache_directory().iterdir())) == len(jars.JAR_NAMES)
    assert [p.name for p in jars.cache_directory().parent.iterdir() if p.is_dir()] == [jars.cache_directory().name]


def test_the_command_ends_in_one_sentence(resolver: Resolver) -> None:
    resolver.brings((), 1)
    run = subprocess.run([sys.executable, "-m", "millstream.engine.jars"], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
    assert "Traceback" not in run.stderr


@pytest.mark.spark
def test_the_real_resolver_honours_a_local_maven_repository(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = home / ".m2" / "repository"
    for jar in jars.JAR_NAMES:
        artifact = jar.removesuffix(f"-{jars.DELTA_VERSION}.jar")
        needs = jars.JAR_NAMES[1:] if artifact.startswith("delta-spark") else ()
        put_artifact(repository, artifact, [n.removesuffix(f"-{jars.DELTA_VERSION}.jar") for n in needs])
    # Java takes the home directory from the system, not from HOME.
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"-Duser.home={home}")
    assert [p.read_text() for p in jars.find_jars()] == [f"the jar {name}" for name in jars.JAR_NAMES]


def put_artifact(repository: Path, artifact: str, needs: list[str]) -> None:
    directory = repository / "io" / "delta" / artifact / jars.DELTA_VERSION
    directory.mkdir(parents=True)
    stem = directory / f"{artifact}-{jars.DELTA_VERSION}"
    Path(f"{stem}.jar").write_text(f"the jar {stem.name}.jar")
    dependencies = "".join(
        f"<dependency><groupId>io.delta</groupId><artifactId>{need}</artifactId>"
        f"<version>{jars.DELTA_VERSION}</version></dependency>"
        for need in needs
    )
    Path(f"{stem}.pom").write_text(
        textwrap.dedent(f"""\
        <project><modelVersion>4.0.0</modelVersion><groupId>io.delta</groupId><artifactId>{artifact}</artifactId>
        <version>{jars.DELTA_VERSION}</version><packaging>jar</packaging>
        <dependencies>{dependencies}</dependencies></project>
        """)
    )


def test_a_relative_xdg_cache_is_ignored(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.curdir)
    assert jars.cache_directory().is_relative_to(home)
