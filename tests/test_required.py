"""A run that insists on data must not begin without them."""

from pathlib import Path

import pytest

from tests.conftest import pytest_configure
from tests.required import missing


def test_nothing_is_required_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCOFIA_REQUIRE", raising=False)
    assert missing() == []
    pytest_configure()


def test_a_run_does_not_begin_without_what_it_requires(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UCOFIA_REQUIRE", "shared,shraed")
    monkeypatch.setenv("UCOFIA_SHARED", str(tmp_path))
    assert missing() == ["shared", "shraed"]
    with pytest.raises(pytest.UsageError, match="UCOFIA_REQUIRE: shared, shraed"):
        pytest_configure()
    for name in ("golden", "data", "paper"):
        (tmp_path / name).mkdir()
    assert missing() == ["shraed"]
