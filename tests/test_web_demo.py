"""Test the web demo (tacotron2_voice/server/page.html) in headless Chromium."""

import shutil

import pytest
from servers import SENTENCES, PausedVoice, running, wait_until

from tacotron2_voice.server.app import Access
from tacotron2_voice.voice import Voice

playwright = pytest.importorskip("playwright.sync_api", reason="needs requirements/dev.txt")


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    page = browser.new_page()
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda message: page.problems.append(message.text))
    page.set_default_timeout(20_000)
    yield page
    page.close()


@pytest.fixture
def voice(voices):
    return Voice(voices.int8[0])


def test_web_demo_can_be_used_with_the_keyboard_alone(page, voice, tmp_path):
    with running(voice) as server:
        page.goto(server.address)
        page.wait_for_selector("option", state="attached")
        page.keyboard.type("A dog came. It sat * down.")  # the text field already has the focus
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#result:not([hidden])")
        assert "s of audio" in page.get_by_role("status").inner_text()
        assert "'*'" in page.locator(".warning").first.inner_text()
        assert "decoder steps" in page.locator("#alignment").get_attribute("aria-label")
        assert page.evaluate("document.querySelector('audio').duration") > 0.1
        sizes = page.evaluate("[...document.querySelectorAll('canvas')].map((x) => x.height)")
        assert sizes[1] == 80
        with page.expect_download() as download:
            page.get_by_role("link", name="Download").click()
        download.value.save_as(tmp_path / "speech.wav")
    content = (tmp_path / "speech.wav").read_bytes()
    assert int.from_bytes(content[40:44], "little") == len(content) - 44
    assert page.problems == []


def test_every_field_of_the_web_demo_has_a_label_and_is_reached_by_the_tab_key(page, voice):
    with running(voice) as server:
        page.goto(server.address)
        names = []
        for _ in range(6):
            names.append(page.evaluate("document.activeElement.labels?.[0]?.innerText"))
            page.keyboard.press("Tab")
    expected = ("Text", "Speaker", "Speed", "Seed", "Pause between chunks (seconds)")
    assert [name.strip().splitlines()[0] for name in names[:5]] == [*expected]


def test_synthesis_stops_when_the_stop_button_of_the_web_demo_is_pressed(page, voices):
    voice = PausedVoice(voices.int8[0])
    with running(voice) as server:
        page.goto(server.address)
        page.get_by_label("Text").fill(SENTENCES)
        page.get_by_role("button", name="Synthesize").click()
        wait_until(lambda: page.get_by_role("status").inner_text() and server.workers.num_texts)
        page.get_by_role("button", name="Stop").click()
        page.get_by_text("Stopped.").wait_for()
        wait_until(lambda: server.workers.num_texts == 0)
        assert page.get_by_role("button", name="Synthesize").is_enabled()


def test_web_demo_shows_an_error_when_the_text_cannot_be_spoken(page, voice):
    with running(voice) as server:
        page.goto(server.address)
        page.get_by_label("Text").fill("...")
        page.get_by_role("button", name="Synthesize").click()
        page.locator("#status.problem").wait_for()
        assert "..." in page.get_by_role("status").inner_text()


def test_web_demo_lists_speakers_when_the_user_has_entered_the_key_of_the_server(page, voice):
    with running(voice, Access(api_key="secret")) as server:
        page.goto(server.address)
        page.get_by_label("API key").fill("wrong")
        page.keyboard.press("Tab")
        page.get_by_text("Error: the API key").wait_for()
        page.get_by_label("API key").fill("secret")
        page.keyboard.press("Tab")
        page.wait_for_selector("option", state="attached")
        page.get_by_label("Text").fill("A dog came.")
        page.get_by_role("button", name="Synthesize").click()
        page.wait_for_selector("#result:not([hidden])")


def test_web_demo_loads_nothing_from_other_sites(page, voice):
    addresses = []
    page.on("request", lambda request: addresses.append(request.url))
    with running(voice) as server:
        page.goto(server.address)
        page.wait_for_selector("option", state="attached")
        assert all(address.startswith(server.address) for address in addresses)
