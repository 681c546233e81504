"""However decoding ends, nobody is left waiting for it."""

import threading

import pytest

from ucofia.errors import SettingError
from ucofia.video import decode_pool
from ucofia.video.decode_pool import DecodeRequest, decode_many

REQUEST = DecodeRequest(path="a.mp4", size=16)


@pytest.mark.parametrize("workers", [0, -1])
def test_without_workers_there_is_an_error_instead_of_silence(workers: int) -> None:
    with pytest.raises(SettingError, match=f"workers is {workers}, but it must be at least 1"):
        list(decode_many([REQUEST], workers=workers))


def test_threads_that_cannot_be_had_end_the_watcher_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(workers: int) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(decode_pool, "ThreadPoolExecutor", refuse)
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="can't start"):
        list(decode_many([REQUEST]))
    assert threading.active_count() == before
