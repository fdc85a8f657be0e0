"""Settings that are read again while a lake is open."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream
from millstream.errors import Code, MillstreamError
from millstream.service.reloading import reloaded
from millstream.settings import Settings


def test_only_some_settings_take_effect() -> None:
    before = Settings(max_concurrent_refreshes=2)
    result = reloaded(before, Settings(max_concurrent_refreshes=8, direct_way="never", alert_events="stale"))
    assert result.changed == ("max_concurrent_refreshes", "alert_events")
    assert result.needs_restart == ("direct_way",)
    assert result.settings == Settings(max_concurrent_refreshes=8, alert_events="stale")
    assert reloaded(before, before).changed == ()


def test_an_open_lake_reads_its_file_again(tmp_path: Path) -> None:
    file = tmp_path / "millstream.toml"
    file.write_text("[millstream]\nmin_schedule_seconds = 10\n")
    with millstream.connect(tmp_path) as ms:
        file.write_text("[millstream]\nmin_schedule_seconds = 20\ntime_zone = 'CET'\n")
        result = ms.reload_settings()
        assert (result.changed, result.needs_restart) == (("min_schedule_seconds",), ("time_zone",))
        for text in ("min_schedule_seconds = -1", "not TOML", "alert_webhook_url = 'env:NO'"):
            file.write_text(f"[millstream]\n{text}\n")
            with pytest.raises(MillstreamError) as caught:
                ms.reload_settings()
            assert caught.value.code is Code.SETTING_INVALID
            assert ms._settings.min_schedule_seconds == 20
        file.unlink()
        assert ms.reload_settings().changed == ("min_schedule_seconds",)  # the default again
