"""Where a lake and its catalog are found, and that a library says nothing unasked. None of it needs Spark."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

import millstream
from millstream import Code, MillstreamError


def test_the_environment_names_the_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLSTREAM_LAKE", str(tmp_path / "named"))
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "millstream.toml").write_text("[millstream]\nmax_consecutive_errors = 7\n")
    with millstream.connect() as ms:
        assert ms._settings.max_consecutive_errors == 7  # of the lake that is named
    with millstream.connect(tmp_path / "given"):
        assert (tmp_path / "given" / "millstream.db").exists()
    monkeypatch.setenv("MILLSTREAM_LAKE", "")
    with millstream.connect():
        assert (tmp_path / "lake" / "millstream.db").exists()
    assert (tmp_path / "named" / "millstream.db").exists()


def test_the_environment_holds_the_address_of_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "millstream.toml"
    config.write_text('[millstream]\ncatalog_url = "env:SOME_CATALOG"\n')
    monkeypatch.setenv("SOME_CATALOG", f"sqlite:///{tmp_path / 'elsewhere.db'}")
    with millstream.connect(tmp_path / "lake", config=config) as ms:
        assert ms.status() == []
    assert (tmp_path / "elsewhere.db").exists()
    assert not (tmp_path / "lake" / "millstream.db").exists()


@pytest.mark.parametrize("value", [None, "", "secret words"])
def test_an_address_that_is_none_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    config = tmp_path / "millstream.toml"
    config.write_text('[millstream]\ncatalog_url = "env:SOME_CATALOG"\n')
    monkeypatch.delenv("SOME_CATALOG", raising=False)
    if value is not None:
        monkeypatch.setenv("SOME_CATALOG", value)
    with pytest.raises(MillstreamError) as caught:
        millstream.connect(tmp_path / "lake", config=config)
    assert caught.value.code is Code.SETTING_INVALID
    assert "SOME_CATALOG" in caught.value.message
    assert "secret" not in str(caught.value)


def test_a_library_is_silent_unless_logging_is_configured() -> None:
    assert any(isinstance(h, logging.NullHandler) for h in logging.getLogger("millstream").handlers)
    code = "import logging, millstream; millstream.connect; logging.getLogger('millstream.refresh').warning('heard')"
    silent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert silent.stderr == ""
    loud = subprocess.run(
        [sys.executable, "-c", f"import logging; logging.basicConfig(level='INFO'); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "heard" in loud.stderr
