"""The page in a real browser: search, play, explain, drop, and what is shown when things fail."""

import base64
import io
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import COLOURS
from PIL import Image
from running import running
from scenes import balloon, bank, film, night, scene_model, sea, sunset

from ucofia.index.index import Index
from ucofia.index.storage.lock import noted_progress, writer_lock

ADVICE = "install one with: make test-browser"
sync_api = pytest.importorskip("playwright.sync_api", reason=f"playwright is missing; {ADVICE}")
NAMES = ("chromium", "chromium-browser", "google-chrome")
OWN = ".cache/ms-playwright/chromium-*/chrome-linux*/chrome"  # from: playwright install chromium
FOUND = [*filter(None, map(shutil.which, NAMES)), *map(str, Path.home().glob(OWN))]
CHROMIUM = os.environ.get("UCOFIA_BROWSER") or next(iter(FOUND), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=f"no chromium here; {ADVICE}")

QUERY = "white boat on the blue sea"
Page = Any


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("scenes")
    for name, parts in {
        "coast/sailing.mp4": (night, sea, night),
        "coast/evening.mp4": (sunset,),
        "alps/balloon.mp4": (balloon,),
        "alps/stars.mp4": (night,),
    }.items():
        film(folder / "videos" / name, parts, seconds_each=2.0)
    index = Index.create(folder / "index", scene_model(), segment=2.0, bank=bank())
    index.add(folder / "videos")
    return index


@pytest.fixture(scope="module")
def site(scenes: Index) -> Iterator[str]:
    with running(scenes) as (site, _):
        yield site


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--autoplay-policy=no-user-gesture-required"],
        )
        yield browser
        browser.close()


@pytest.fixture
def visit(chrome: Any, site: str) -> Iterator[Callable[..., Page]]:
    contexts, problems = [], []

    def opened(path: str = "/", *, at: str = site, **options: Any) -> Page:
        context = chrome.new_context(**options)
        context.set_default_timeout(90_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: _note(said, problems))
        page.goto(at + path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


def _note(said: Any, problems: list[str]) -> None:
    # Refusals by the server are part of some tests; what the page itself does wrong is not.
    if said.type == "error" and "Failed to load resource" not in said.text:
        problems.append(said.text)


def search(page: Page, text: str) -> None:
    page.fill("#q", text)
    page.press("#q", "Enter")
    page.wait_for_selector(".card .facts")


def file_names(page: Page) -> list[str]:
    return page.locator(".card h3 a").all_inner_texts()  # type: ignore[no-any-return]


def test_a_search_shows_matches_first_and_folds_the_rest(visit: Callable[..., Page]) -> None:
    page = visit()
    search(page, QUERY)
    assert page.locator("#results .card h3 a").all_inner_texts() == ["sailing"]
    word, moment = page.locator("#results .facts > span > *").all_inner_texts()
    assert word in ("Strong match", "Good match")
    assert moment.startswith("at 0:0")
    assert page.inner_text("#summary") == "1 match in 4 videos."
    assert page.inner_text("#rest-title") == "Less likely (3)"
    assert not page.locator("#rest-results .card").first.is_visible()
    page.click("#rest summary")
    assert page.locator("#rest-results .card").first.is_visible()
    assert re.search(r"\d %|\d\.\d", page.inner_text("main")) is None  # no raw numbers


def test_a_card_has_a_sharp_picture_and_plays_when_pointed_at(visit: Callable[..., Page]) -> None:
    page = visit()
    search(page, QUERY)
    page.wait_for_selector(".card .thumb.sharp")
    size = "(image) => [image.naturalWidth, image.naturalHeight]"
    assert page.eval_on_selector(".card .still", size) == [480, 270]
    assert page.locator(".card video").count() == 0
    page.hover(".card h3 a")
    page.wait_for_function("() => document.querySelector('.card video.on')?.currentTime > 2")


SHAPES = """cards => cards.map(card => {
    const box = card.querySelector(".thumb").getBoundingClientRect();
    const still = card.querySelector(".still");
    return [box.width / box.height, still.naturalWidth / still.naturalHeight, box.height];
})"""


def test_cards_have_the_shape_of_their_videos(visit: Callable[..., Page], tmp_path: Path) -> None:
    upright = [
        lambda t: balloon(t).crop((100, 0, 280, 320)),
        lambda t: sunset(t).crop((0, 0, 240, 240)),
    ]
    film(tmp_path / "videos" / "wide-one.mp4", (sea,), seconds_each=1.0)
    film(tmp_path / "videos" / "high_one.mp4", upright[:1], seconds_each=1.0)
    film(tmp_path / "videos" / "2024-05-03 square.mp4", upright[1:], seconds_each=1.0)
    index = Index.create(tmp_path / "index", scene_model())
    index.add(tmp_path / "videos")
    with running(index) as (place, _):
        page = visit("/?q=sea", at=place)
        page.wait_for_function("() => document.querySelectorAll('.thumb.sharp').length === 3")
        assert set(_titles(page)) == {"wide one", "high one", "2024-05-03 square"}
        shown = page.locator(".card").evaluate_all(SHAPES)
        assert [round(card, 1) for card, _, _ in shown] == [round(own, 1) for _, own, _ in shown]
        assert max(card for card, _, _ in shown) > 1.5 and min(card for card, _, _ in shown) < 0.7
        heights = [height for *_, height in shown]
        assert max(heights) - min(heights) < 1  # one row
        page.route("**/thumbnail?*", lambda route: route.abort())
        page.reload()  # the browser knows the shapes now, before there is a picture
        page.wait_for_selector(".card .facts")
        again = page.locator(".card").evaluate_all(SHAPES)
        assert sorted(round(card, 1) for card, _, _ in again) == sorted(
            round(card, 1) for card, _, _ in shown
        )


def test_a_click_plays_from_the_best_second(visit: Callable[..., Page], scenes: Index) -> None:
    page = visit()
    search(page, QUERY)
    hit = scenes.search(QUERY)[0]
    page.click(".card h3 a >> nth=0")
    page.wait_for_function(
        "second => document.querySelector('.viewer video.screen')?.currentTime >= second - 0.1",
        arg=hit.best_second,
    )
    assert f"play={hit.segment}" in page.url
    box = page.locator(".viewer video.screen").bounding_box()
    assert box["width"] > 0.7 * page.viewport_size["width"]
    page.click(".viewer .line", position={"x": 10, "y": 20})
    page.wait_for_function(
        "() => document.querySelector('.viewer video.screen').currentTime < 1.5"
    )


def test_why_shows_what_each_word_saw(visit: Callable[..., Page]) -> None:
    page = visit()
    search(page, QUERY)
    page.click(".card h3 a >> nth=0")
    page.wait_for_selector(".viewer[open]")
    assert not page.locator(".drawer").is_visible()
    page.keyboard.press("w")
    page.wait_for_selector(".drawer .frames img")
    assert page.locator(".word").all_inner_texts() == QUERY.split()
    assert page.locator(".frames button.heavy").count() >= 1
    page.hover(".word:has-text('sea')")
    assert "“sea” looked at" in page.inner_text(".drawer .looked >> nth=0")
    assert page.locator(".lens svg rect").count() >= 1
    page.hover(".viewer h2")
    assert "Point at a word" in page.inner_text(".drawer .looked >> nth=0")
    page.keyboard.press("w")
    assert not page.locator(".drawer").is_visible()


def test_patches_keep_to_the_small_picture_where_that_comes_late(
    visit: Callable[..., Page],
) -> None:
    page = visit()
    search(page, QUERY)
    page.click(".card h3 a >> nth=0")
    page.wait_for_selector(".viewer[open]")

    def late(route: Any) -> None:
        time.sleep(0.5)
        route.continue_()

    page.route("**/media/*/frames/*", late)
    page.keyboard.press("w")
    page.wait_for_function(
        "() => { const still = document.querySelector('.lens img');"
        " return still?.complete && still.src.includes('size=large'); }"
    )
    box = page.locator(".lens").bounding_box()  # this model sees the middle of a frame in 16:9
    assert box["width"] == pytest.approx(box["height"], rel=0.02)


def test_moments_keep_the_shape_of_their_pictures(visit: Callable[..., Page]) -> None:
    wide = io.BytesIO()
    Image.new("RGB", (96, 54)).save(wide, "JPEG")
    page = visit()
    search(page, QUERY)
    page.route(
        "**/media/*/frames/*",
        lambda route: route.fulfill(body=wide.getvalue(), content_type="image/jpeg"),
    )
    page.click(".card h3 a >> nth=0")
    page.keyboard.press("w")
    page.wait_for_function("() => document.querySelector('.frames img')?.naturalWidth === 96")
    box = page.locator(".frames img").first.bounding_box()
    assert box["width"] / box["height"] == pytest.approx(96 / 54, rel=0.02)


def test_a_video_that_breaks_off_is_asked_for_again(
    visit: Callable[..., Page], scenes: Index
) -> None:
    page, asked = visit(), []

    def broken(route: Any) -> None:
        asked.append(route.request.headers.get("range"))
        if route.request.method == "HEAD" or len(asked) > 1:
            route.continue_()
            return
        whole = route.fetch()
        body = whole.body()
        start = body.index(b"mdat") + 4
        end = max(body.rindex(b"moov") - 4, start)
        body = body[:start] + bytes(end - start) + body[end:]
        route.fulfill(status=206, headers=whole.headers, body=body)

    page.route(re.compile("/media/[0-9a-f]+$"), broken)
    page.goto(page.url + f"?q={QUERY}&play={scenes.search(QUERY)[0].segment}")
    with page.expect_request(lambda request: asked[1:] != []):
        pass
    screen = "document.querySelector('.viewer video.screen')"
    page.wait_for_function(f"() => {screen}?.currentTime > 2.5 && {screen}.readyState > 2")
    assert page.locator(".slideshow").count() == 0


def test_what_the_browser_cannot_play_is_shown_as_pictures(visit: Callable[..., Page]) -> None:
    page = visit()
    search(page, QUERY)
    page.route(
        re.compile("/media/[0-9a-f]+$"),
        lambda route: (
            route.fulfill(body=b"x", content_type="video/mp4")
            if route.request.method == "GET"
            else route.continue_()
        ),
    )
    page.click(".card h3 a >> nth=0")
    page.wait_for_selector(".slideshow:has-text('cannot play this kind of video')")
    shown = "() => document.querySelector('.slideshow .screen').naturalHeight"
    page.wait_for_function(f"{shown.replace('() =>', '() => (')}) >= 300")
    first = page.get_attribute(".slideshow .screen", "src")
    page.wait_for_function(
        "src => document.querySelector('.slideshow .screen').getAttribute('src') !== src",
        arg=first,
    )
    page.click(".viewer .line", position={"x": 10, "y": 20})
    assert page.inner_text(".slideshow .controls span").startswith("0:00 /")


def test_the_summary_is_one_line_and_what_is_missing_a_note(
    visit: Callable[..., Page], tmp_path: Path
) -> None:
    film(tmp_path / "v" / "sea.mp4", (sea,), seconds_each=2.0)
    film(tmp_path / "v" / "night.mp4", (night,), seconds_each=2.0)
    index = Index.create(tmp_path / "index", scene_model(), segment=2.0, bank=bank())
    index.add(tmp_path / "v")
    with running(index) as (site, _):
        page = visit(at=site)
        page.wait_for_selector("#add:has-text('Add videos')")
        (tmp_path / "v" / "night.mp4").unlink()
        search(page, QUERY)
        assert not page.is_visible("#add")  # on the first page only
        assert page.inner_text("#summary") == "1 match in 2 videos."
        assert page.inner_text("#note").startswith("1 video left out: moved, deleted")
        page.click("#home")
        page.wait_for_selector("#add:visible")
        assert not page.is_visible("#note")


def test_a_file_that_is_gone_says_so(visit: Callable[..., Page], tmp_path: Path) -> None:
    index = Index.create(tmp_path / "index", scene_model())
    path = film(tmp_path / "videos" / "sea.mp4", (sea,), seconds_each=1.0)
    index.add(path)
    with running(index) as (place, _):
        page = visit("/?q=sea", at=place)
        page.wait_for_selector(".card .facts")
        path.unlink()
        page.click(".card h3 a >> nth=0")
        page.wait_for_selector(".viewer .gone:has-text('This file is not there any more')")
        assert str(path) in page.inner_text(".viewer .gone code")
        page.keyboard.press("Escape")
        page.fill("#q", "sea ")
        page.press("#q", "Enter")
        page.wait_for_selector("#notice:has-text('not there any more')")


def test_a_dropped_picture_finds_videos_and_words(visit: Callable[..., Page]) -> None:
    page = visit()
    file = io.BytesIO()
    Image.new("RGB", (64, 48), COLOURS["black"]).save(file, "PNG")
    carried = page.evaluate_handle(
        """body => {
            const carried = new DataTransfer();
            const bytes = Uint8Array.from(atob(body), letter => letter.charCodeAt(0));
            carried.items.add(new File([bytes], "dark.png", {type: "image/png"}));
            return carried;
        }""",
        base64.b64encode(file.getvalue()).decode(),
    )
    page.dispatch_event("body", "dragenter", {"dataTransfer": carried})
    assert page.locator("#drop").is_visible()
    page.dispatch_event("body", "drop", {"dataTransfer": carried})
    page.wait_for_selector(".example .words .chip")
    assert not page.locator("#drop").is_visible()
    assert file_names(page)[0] in ("stars", "sailing")
    assert "like dark.png" in page.inner_text("#summary")


def test_a_file_that_is_no_video_is_told(visit: Callable[..., Page], tmp_path: Path) -> None:
    page = visit()
    (tmp_path / "x.txt").write_text("x")
    page.set_input_files("#file", tmp_path / "x.txt")
    assert "no picture or video" in page.inner_text("#notice")
    (tmp_path / "x.mp4").write_text("x")
    page.set_input_files("#file", tmp_path / "x.mp4")
    page.wait_for_selector("#notice.bad:has-text('cannot be used')")


def test_a_silent_server_is_told_and_asked_again(visit: Callable[..., Page]) -> None:
    page = visit()
    page.route("**/api/search?*", lambda route: route.abort())
    page.fill("#q", QUERY)
    page.press("#q", "Enter")
    page.wait_for_selector("#notice.bad:has-text('does not answer')")
    page.unroute("**/api/search?*")
    page.click("text=Try again")
    page.wait_for_selector(".card .facts")


def test_a_busy_server_is_asked_again_by_itself(visit: Callable[..., Page]) -> None:
    page, busy = visit(), []

    def once(route: Any) -> None:
        if busy:
            route.continue_()
            return
        busy.append(True)
        route.fulfill(
            status=503, json={"code": "busy", "message": "busy", "retry_after_seconds": 4}
        )

    page.route("**/api/search?*", once)
    page.fill("#q", QUERY)
    page.press("#q", "Enter")
    page.wait_for_selector("#summary:has-text('busy; trying again in 4 seconds')")
    page.wait_for_selector(".card .facts")


def test_filters_choose_and_can_be_cleared(visit: Callable[..., Page]) -> None:
    page = visit(f"/?q={QUERY}")
    page.wait_for_selector("#under option:has-text('alps')", state="attached")
    page.select_option("#under", label="videos/alps (2)")
    assert "svg" in page.eval_on_selector("#under", "one => getComputedStyle(one).backgroundImage")
    page.wait_for_function("() => document.querySelectorAll('.card .facts').length === 2")
    assert set(_titles(page)) == {"balloon", "stars"}
    page.select_option("#length", "600-")
    page.click("text=Clear the filters")
    page.wait_for_function("() => document.querySelectorAll('.card .facts').length === 4")


def test_what_matches_nothing_says_so_and_shows_what_comes_closest(
    visit: Callable[..., Page],
) -> None:
    page = visit("/?q=quarterly tax return")
    page.wait_for_selector("#summary:has-text('No match in 4 videos.')")
    assert "simpler words" in page.inner_text("#notice")
    assert page.inner_text("#results-title") == "What comes closest"
    assert page.locator(".word-match").count() == 0  # it is said once, above
    boxes = page.locator("#results .card").evaluate_all(
        "cards => cards.map(card => card.getBoundingClientRect().top)"
    )
    assert len(boxes) == 4
    assert len(set(boxes)) == 1  # one row


def test_the_number_of_videos_is_said_also_when_it_is_known_late(
    visit: Callable[..., Page],
) -> None:
    page, held = visit(), []
    page.route("**/api/info", lambda route: held.append(route))
    page.goto(page.url + f"?q={QUERY}")
    page.wait_for_selector("#summary:has-text('1 match.')")
    for route in held:
        route.continue_()
    page.wait_for_selector("#summary:has-text('1 match in 4 videos.')")


def test_similar_videos_say_what_they_are_like_and_words_for_it(
    visit: Callable[..., Page],
) -> None:
    page = visit()
    search(page, QUERY)
    page.focus(".card h3 a >> nth=0")
    page.keyboard.press("s")
    page.wait_for_selector("#summary:has-text('Videos like sailing, most alike first.')")
    assert page.inner_text("#example h2") == "sailing"
    page.wait_for_function("() => document.querySelector('#example img')?.naturalWidth > 400")
    assert "sailing" not in file_names(page)
    assert not page.locator("#not").is_visible()  # nothing was asked in words
    assert not page.locator("#sure-label").is_visible()
    video = re.search("like=([0-9a-f]+)", page.url)[1]  # type: ignore[index]
    asked = f"{re.match('http://[^/]+', page.url)[0]}/api/describe?top=8&video={video}"  # type: ignore[index]
    texts = page.request.get(asked).json()["texts"]
    fitting = [one["text"] for one in texts if one["match"] != "no match"]
    page.wait_for_function(
        "most => document.querySelectorAll('#example .chip').length === most", arg=len(fitting)
    )
    assert page.locator("#example .chip").all_inner_texts() == fitting
    search(page, QUERY)
    assert page.locator("#not").is_visible()
    assert not page.locator("#example").is_visible()


def test_the_first_page_shows_more_when_asked(visit: Callable[..., Page]) -> None:
    page = visit()
    few = re.compile(r"api/videos\?top=24")
    page.route(few, lambda route: route.continue_(url=route.request.url.replace("=24", "=3")))
    page.reload()
    page.wait_for_function("() => document.querySelectorAll('.card').length === 3")
    page.click("#more")
    page.wait_for_function("() => document.querySelectorAll('.card').length === 4")
    assert not page.locator("#more").is_visible()
    assert len(set(file_names(page))) == 4


def test_examples_that_come_late_do_not_move_the_videos(visit: Callable[..., Page]) -> None:
    page = visit()
    page.route("**/api/examples?*", lambda route: (time.sleep(1.0), route.continue_()))
    page.reload()
    top = "() => document.querySelector('#results-title').getBoundingClientRect().top"
    page.wait_for_selector("#results .card")
    before = page.evaluate(top)
    page.wait_for_selector("#examples .chip")
    assert page.evaluate(top) == before


def _titles(page: Page) -> list[str]:
    return page.locator(".card h3 a").evaluate_all("links => links.map(link => link.textContent)")  # type: ignore[no-any-return]


def test_everything_can_be_done_with_keys(visit: Callable[..., Page]) -> None:
    page = visit()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type(QUERY)
    page.keyboard.press("Enter")
    page.wait_for_selector(".card .facts")
    page.evaluate("document.getElementById('rest').open = true")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    focused = "document.activeElement.closest('.card')?.hit.path"
    assert Path(page.evaluate(focused)).stem == _titles(page)[1]
    page.keyboard.press("Enter")
    page.wait_for_selector(".viewer[open] .screen")
    page.keyboard.press("p")
    page.wait_for_selector(f".viewer h2:has-text('{_titles(page)[0]}')")
    page.keyboard.press("Escape")
    page.wait_for_selector(".viewer[open]", state="detached")
    assert Path(page.evaluate(focused)).stem == _titles(page)[0]
    page.keyboard.press("s")
    page.wait_for_selector("#summary:has-text('Videos like')")


def test_an_address_shows_the_same_to_another_person(visit: Callable[..., Page]) -> None:
    page = visit()
    search(page, QUERY)
    page.click(".card h3 a >> nth=0")
    page.wait_for_selector(".viewer .line")
    other = visit(page.url.removeprefix(re.match(r"http://[^/]+", page.url)[0]))  # type: ignore[index]
    other.wait_for_selector(".viewer .line")
    assert other.inner_text(".viewer h2") == page.inner_text(".viewer h2")
    other.keyboard.press("Escape")
    other.wait_for_selector(".viewer[open]", state="detached")
    other.wait_for_selector(".card .facts")
    assert len(_titles(other)) == 4
    page.keyboard.press("Escape")
    page.wait_for_selector(".viewer[open]", state="detached")
    page.go_back()
    page.wait_for_selector("#hero h1")


def test_recent_searches_come_back(visit: Callable[..., Page]) -> None:
    page = visit()
    search(page, QUERY)
    page.click("#home")
    page.click(f".chip:has-text('{QUERY}')")
    page.wait_for_selector(".card .facts")
    assert page.input_value("#q") == QUERY


def test_the_first_page_has_videos_and_words_to_begin_with(visit: Callable[..., Page]) -> None:
    page = visit()
    page.wait_for_selector(".card .facts", state="attached")
    assert len(file_names(page)) == 4
    assert page.evaluate("document.activeElement.id") == "q"
    page.wait_for_selector("#status:has-text('4 videos')")
    page.click("#status")
    assert "4, 12 s in all" in page.inner_text("#about")
    assert "ucofia index" in page.inner_text("#add")


def test_a_token_in_the_address_opens_and_disappears(
    visit: Callable[..., Page], scenes: Index
) -> None:
    with running(scenes, token="open sesame") as (place, _):
        page = visit("/#token=open%20sesame", at=place)
        page.wait_for_selector(".card")
        assert "sesame" not in page.url
        other = visit("/", at=place)
        other.wait_for_selector("#token[open]")
        other.fill("#token-word", "wrong")
        other.click("#token-form button")
        other.wait_for_selector("#token-wrong:has-text('not the token')")
        other.fill("#token-word", "open sesame")
        other.click("#token-form button")
        other.wait_for_selector(".card")


def test_an_empty_index_can_be_filled_here(visit: Callable[..., Page], tmp_path: Path) -> None:
    index = Index.create(tmp_path / "index", scene_model())
    film(tmp_path / "videos" / "sea.mp4", (sea,), seconds_each=1.0)
    with running(index, index_folders=(tmp_path / "videos",)) as (place, _):
        page = visit("/", at=place)
        page.wait_for_selector("#add:has-text('Add your first videos')")
        page.fill("#add input", "/")
        page.click("#add .main")
        page.wait_for_selector("#add .wrong:has-text('may be added')")
        page.fill("#add input", str(tmp_path / "videos"))
        page.click("#add .main")
        page.wait_for_selector(".card h3:has-text('sea')")


def test_the_first_page_shows_what_another_process_adds(
    visit: Callable[..., Page], tmp_path: Path
) -> None:
    index = Index.create(tmp_path / "index", scene_model())
    with running(index) as (place, _):
        page = visit("/", at=place)
        page.wait_for_selector("#status:has-text('0 videos')")
        film(tmp_path / "videos" / "sea.mp4", (sea,), seconds_each=1.0)
        Index.open(index.path, scene_model()).add(tmp_path / "videos")
        page.wait_for_selector(".card h3:has-text('sea')")
        page.wait_for_selector("#job", state="hidden")  # it does not go stale


def test_the_first_page_shows_how_far_another_process_is(
    visit: Callable[..., Page], tmp_path: Path
) -> None:
    index = Index.create(tmp_path / "index", scene_model())
    with running(index) as (place, _):
        with writer_lock(index.path, verb="add"):
            noted_progress(index.path, None)("indexing", 3, 7)
            page = visit("/", at=place)
            page.wait_for_selector("#job:has-text('Indexing: 3 of 7')")
            assert page.get_attribute("#job progress", "value") == "3"
        page.wait_for_selector("#job", state="hidden")
        assert page.inner_text("#status") == "0 videos"


def test_below_a_base_path_everything_works(visit: Callable[..., Page], scenes: Index) -> None:
    with running(scenes, base_path="/films") as (place, _):
        page = visit("/films/", at=place)
        search(page, QUERY)
        assert "/films/?q=" in page.url
        page.wait_for_selector(".card .thumb.sharp")
        page.click(".card h3 a >> nth=0")
        page.wait_for_function(
            "() => document.querySelector('.viewer video.screen')?.currentTime > 2"
        )


def test_on_a_phone_and_in_the_dark(visit: Callable[..., Page]) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
    page = visit("/", color_scheme="dark", **phone)
    page.wait_for_selector(".card")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.goto(page.url + f"?q={QUERY}")
    page.wait_for_selector(".card .facts")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(part) for part in re.findall(r"\d+", paper)) < 60
    page.click("#theme")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert min(int(part) for part in re.findall(r"\d+", paper)) > 200
    box = page.locator("#results .card").first.bounding_box()
    assert box["y"] + box["height"] < 844  # the first hit, all of it, without scrolling
    assert not page.locator("#under").is_visible()
    page.click("#filter-open")
    widths = [page.locator(name).bounding_box()["width"] for name in ("#length", "#not")]
    assert widths[0] == widths[1] > 300
    page.select_option("#length", "0-60")
    page.wait_for_selector("#filter-open:has-text('Filters (1)')")
    page.click("#filter-done")
    assert not page.locator("#under").is_visible()
    page.click(".card h3 a >> nth=0")
    page.wait_for_selector(".viewer .line")
    page.click(".viewer [title='Why this one (w)']")
    page.wait_for_selector(".viewer .word")
    assert page.evaluate("document.querySelector('.viewer').scrollWidth") <= 390
