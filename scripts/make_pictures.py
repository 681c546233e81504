"""Make every picture of README and docs that shows the starter: evidence, hits, and the page.

    python scripts/make_pictures.py CLIPS [--work DIR] [--out docs/img]

CLIPS is a folder of videos for the pictures of the page, whose index is kept in DIR; evidence and
hits show the clips of `ucofia demo`, with its index. An index of another starter is made again.
Needs Chromium and playwright, as `make test-browser` installs them.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ucofia import demo
from ucofia.errors import ModelMismatchError
from ucofia.index.index import Index
from ucofia.index.results.pictures import contact_sheet
from ucofia.index.storage.location import exists
from ucofia.package_files import cache_folder

ROOT = Path(__file__).resolve().parent.parent
WORK = Path(tempfile.gettempdir(), "ucofia-pictures")
WHY = "a man in a suit talks in a car"
GOOD = (WHY, "a cartoon rabbit in a meadow", "a white parrot", "galaxies in space")
BAD = ("a man gets out of a car", "two cats", "a bicycle falls over")
PAGE = "a bicycle on a street"
WORD = "bicycle"  # of it, chosen in the drawer
DESKTOP = {"viewport": {"width": 1280, "height": 760}}
PHONE = {"viewport": {"width": 390, "height": 760}, "is_mobile": True, "has_touch": True}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clips", type=Path)
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "img")
    arguments = parser.parse_args()
    work, out = arguments.work, arguments.out
    demo.fetch(cache_folder() / "demo" / "clips")
    shown = indexed(cache_folder() / "demo" / "index", cache_folder() / "demo" / "clips")
    shown.search(WHY, top=1)[0].explain().save(out / "why.png")
    contact_sheet({text: shown.search(text, top=3) for text in GOOD}, out / "starter-good.png")
    contact_sheet({text: shown.search(text, top=3) for text in BAD}, out / "starter-bad.png")
    index = indexed(work / "page.index", arguments.clips)
    with served(index) as site:
        photograph(site, out)


def indexed(where: Path, clips: Path) -> Index:
    """Open or make an index, with the starter as it is now, and bring it up to date."""
    if exists(str(where)):
        try:
            index = Index.open(where)
            index.add(clips)
            return index
        except ModelMismatchError:
            shutil.rmtree(where)
    index = Index.create(where, "starter")
    index.add(clips)
    return index


@contextmanager
def served(index: Index) -> Iterator[str]:
    """Serve an index as a person would; yields the address of its page."""
    command = [sys.executable, "-m", "ucofia", "serve", "--port", "0", "--index", str(index.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def photograph(site: str, out: Path) -> None:
    """Take the three pictures of the page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, BROWSERS)), None)
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = searched(browser, site, DESKTOP)
        page.screenshot(path=out / "serve-results.png", clip=used(page))
        page.click("#results .card h3 a >> nth=0")
        page.wait_for_function("() => document.querySelector('.viewer video')?.currentTime > 0")
        page.evaluate("document.querySelector('.viewer video').pause()")
        page.click(".viewer [title='Why this one (w)']")
        page.click(f".word:has-text('{WORD}')")
        page.wait_for_timeout(3000)  # the sharp frame
        page.screenshot(path=out / "serve-why.png")
        phone = searched(browser, site, {**PHONE, "color_scheme": "dark"})
        phone.screenshot(path=out / "serve-phone.png")
        browser.close()


def searched(browser: Any, site: str, device: dict[str, Any]) -> Any:
    """Open the page at a search, and wait until its pictures are sharp."""
    page = browser.new_context(**device).new_page()
    page.goto(f"{site}?q={PAGE}")
    page.wait_for_selector("#results .thumb.sharp")
    page.wait_for_function("() => !document.querySelector('#results .thumb:not(.sharp)')")
    page.wait_for_timeout(1000)  # fading in
    return page


def used(page: Any) -> dict[str, float]:
    """The part of the window down to the end of the results."""
    end = page.locator("#rest").bounding_box()
    width, height = page.viewport_size["width"], page.viewport_size["height"]
    return {"x": 0, "y": 0, "width": width, "height": min(height, end["y"] + end["height"] + 16)}


if __name__ == "__main__":
    main()
