"""Every snippet of the README runs and says what the README says."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.cli.main import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::millstream.service.definitions.ChangeFeedWarning")
def test_readme_runs_as_written(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    printed = io.StringIO()
    with redirect_stdout(printed):
        for block in blocks("python"):
            exec(compile(block, "README.md", "exec"), namespace)
    for shown in blocks("text"):
        assert shown.strip() in printed.getvalue()
    commands = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]
    ran = [shlex.split(command)[1:] for command in commands if command.startswith("millstream")]
    assert len(ran) == 5
    for arguments in ran:
        assert main(arguments) == 0, arguments


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
