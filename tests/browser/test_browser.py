"""The HTML page of a report in a real browser. Run `tox -e browser`. The tests fail without Chromium."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_html_report import HOSTILE, broken, hostile, many, result

from kvref_conformance.documents.results import Row, Status
from kvref_conformance.laws.core import Level
from kvref_conformance.report.page import page

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
LIGHT, DARK = "--blink-settings=preferredColorScheme=1", "--blink-settings=preferredColorScheme=0"
PHONE = "--window-size=360,740"

ASK = """<pre id="told"></pre><script>
const tell = (value) => { document.getElementById("told").textContent += value + "\\n"; };
const all = (selector) => [...document.querySelectorAll(selector)];
const shown = (selector) => all(selector).filter((e) => e.checkVisibility()).length;
const choose = (id, value) => {
  document.getElementById(id).value = value;
  document.getElementById(id).dispatchEvent(new Event("input", {bubbles: true}));
};
%s
</script></body>"""


@pytest.fixture(scope="session")
def chromium() -> str:
    found = os.environ.get("KVREF_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail(f"no Chromium: install one, or name it by KVREF_CHROMIUM; tried {', '.join(NAMES)}")
    return found


class Browser:
    def __init__(self, chromium: str, folder: Path) -> None:
        self._chromium = chromium
        self._folder = folder

    def show(self, content: bytes, *options: str, fragment: str = "") -> str:
        """The page's elements after its scripts have run, as HTML."""
        path = self._folder / "report.html"
        path.write_bytes(content)
        done = subprocess.run(
            [
                self._chromium,
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
                *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
                f"--user-data-dir={self._folder / 'profile'}",
                *(options or ("--window-size=1280,900",)),
                "--dump-dom",
                path.as_uri() + fragment,
            ],
            capture_output=True,
            timeout=60,
            check=True,
        )
        return done.stdout.decode("utf-8", "replace")

    def ask(self, content: bytes, script: str, *options: str, fragment: str = "") -> list[str]:
        """The lines that `script` writes with `tell`. It runs after the page's own scripts.

        The page's policy would block it, so `ask` removes the policy from the page.
        """
        text = re.sub("<meta http-equiv=[^>]*>", "", content.decode())
        found = self.show(text.replace("</body>", ASK % script).encode(), *options, fragment=fragment)
        told = re.search('<pre id="told">(.*?)</pre>', found, re.DOTALL)
        assert told
        return html.unescape(told[1]).split("\n")[:-1]


@pytest.fixture
def browser(chromium: str, tmp_path: Path) -> Browser:
    return Browser(chromium, tmp_path)


def small() -> bytes:
    return page(
        result(
            broken(facet="key left", expected="no key", observed="a key"),
            Row("pool.reset", Level.SAFETY, "other", Status.HOLDS),
            Row("pool.partition", Level.SAFETY, "pool", Status.HOLDS),
            Row("spec.page-positive", Level.SAFETY, "A", Status.KNOWN, message="vLLM issue 1"),
        )
    )


FILTERS = """
const headings = () => shown("#findings h2") + shown("#findings h3");
const rows = () => [shown("tr[data-area]"), shown("tr.area"), shown("article")];
const count = () => tell([...rows(), headings(), location.hash]);
count();
choose("area", "spec"); count();
choose("area", ""); choose("text", "Key LEFT reset"); count();
choose("text", ""); document.querySelector("[value=holds]").click(); count();
document.querySelector("[value=broken]").click(); count();
tell(document.getElementById("count").textContent);
choose("level", "robustness"); count();
"""


def test_filters_leave_what_is_chosen_and_are_kept_in_the_address(browser: Browser) -> None:
    assert browser.ask(small(), FILTERS) == [
        "3,2,2,4,",
        "1,1,1,2,#area=spec",
        "1,1,1,2,#q=Key+LEFT+reset",
        "2,2,2,4,#state=broken%2Cknown",
        "1,1,1,2,#state=known",
        "1 of 3 laws, 1 of 2 findings",
        "0,0,0,0,#level=robustness&state=known",
    ]


def test_all_filters_are_taken_back_at_once(browser: Browser) -> None:
    script = """
    choose("area", "spec"); choose("text", "x");
    document.querySelector("button[type=reset]").click();
    setTimeout(() => tell([shown("tr[data-area]"), shown("article"), location.hash]), 10);
    """
    assert browser.ask(small(), script, "--virtual-time-budget=2000") == ["3,2,"]


@pytest.mark.parametrize(
    ("fragment", "laws", "findings"),
    [
        ("#q=left&state=broken%2Cholds", 1, 1),
        ("#area=spec&level=safety", 1, 1),
        ("#area=pool", 2, 1),
        ("#area=nowhere&level=none", 3, 2),
        ("#state=", 0, 0),
        ("#known", 3, 2),
        ("#%E0%A4%A", 3, 2),
    ],
)
def test_a_link_keeps_the_filters(browser: Browser, fragment: str, laws: int, findings: int) -> None:
    script = "tell([shown('tr[data-area]'), shown('article')]);"
    assert browser.ask(small(), script, fragment=fragment) == [f"{laws},{findings}"]


def test_a_link_to_a_finding_opens_it(browser: Browser) -> None:
    script = "tell(all('details.story').map((e) => e.open));"
    assert browser.ask(small(), script) == ["true,false"]
    assert browser.ask(small(), script, fragment="#finding-2") == ["true,true"]


def test_an_area_can_be_chosen_by_its_link(browser: Browser) -> None:
    script = """
    const link = document.querySelector("a[data-choose=spec]");
    for (let times = 0; times < 2; times++) {
      link.click();
      tell([shown("article"), location.hash, link.hasAttribute("aria-current")]);
    }
    """
    assert browser.ask(small(), script) == ["1,#area=spec,true", "2,,false"]


def test_everything_can_be_reached_by_the_keyboard(browser: Browser) -> None:
    script = """
    document.querySelectorAll("details").forEach((e) => { e.open = true; });
    tell(all("[tabindex]").every((e) => e.tabIndex === 0));
    const focused = (e) => { e.focus(); return document.activeElement === e; };
    tell(all("a, summary, input, select, button, [tabindex]").every(focused));
    tell(all("input, select").every((e) => e.labels.length === 1));
    """
    assert browser.ask(small(), script) == ["true", "true", "true"]


def test_without_scripts_everything_is_there(browser: Browser) -> None:
    bare = re.sub(b"<script>.*?</script>", b"", small(), flags=re.DOTALL)
    script = """
    document.querySelectorAll("details").forEach((e) => { e.open = true; });
    tell([shown("article"), shown("tr[data-area]"), shown("pre code"), shown("form, button")]);
    tell([shown(".steps li"), shown(".blocks"), shown("#findings h2"), shown(".areas li")]);
    """
    assert browser.ask(bare, script) == ["2,3,1,0", "3,1,2,2"]


def test_a_program_can_be_copied(browser: Browser) -> None:
    script = """
    document.querySelector("details.program").open = true;
    const button = document.querySelector("button.copy");
    tell(button.checkVisibility());
    navigator.clipboard.writeText = async (text) => { tell(JSON.stringify(text)); };
    button.click();
    navigator.clipboard.writeText = () => { throw new Error("refused"); };
    button.click();
    tell(JSON.stringify(getSelection().toString()));
    """
    program = r'"# pool.reset\nraise SystemExit(1)"'
    assert browser.ask(small(), script) == ["true", program, program]


@pytest.mark.parametrize("text", [text for text in HOSTILE if len(text) < 1_000], ids=repr)
def test_hostile_text_does_nothing(browser: Browser, text: str) -> None:
    script = """
    tell(document.title.startsWith("kvref: "));
    tell(all("script").length);
    tell(all("img, iframe, object, embed, link, base").length);
    tell(all("*").some((e) => e.getAttributeNames().some((name) => name.startsWith("on"))));
    tell(performance.getEntriesByType("resource").length);
    """
    assert browser.ask(page(hostile(text)), script) == ["true", "2", "0", "false", "0"]


def test_the_policy_stops_what_is_not_ours(browser: Browser) -> None:
    stranger = b"<script>document.title = 'owned'</script></body>"
    found = browser.show(small().replace(b"</body>", stranger))
    assert "<title>kvref: toy 1" in found
    # Our own script has run.
    assert "3 laws, 2 findings</output>" in found


WIDTH = "tell(innerWidth); tell(document.documentElement.scrollWidth);"


def test_nothing_is_wider_than_a_phone(browser: Browser) -> None:
    row = broken(subject="A" * 300, program="x = 1  # " + "long " * 100, expected="e" * 500)
    for content in (
        page(result(row, *many(9, 3, broken_every=3, program=500, steps=80))),
        page(hostile("x" * 999)),
    ):
        width, needed = map(int, browser.ask(content, WIDTH, PHONE))
        assert needed <= width <= 500


CONTRAST = """
const light = (rgb) => {
  const [r, g, b] = rgb.match(/[\\d.]+/g).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (e) => {
  const own = getComputedStyle(e).backgroundColor;
  return own !== "rgba(0, 0, 0, 0)" || !e.parentElement ? own : behind(e.parentElement);
};
document.querySelectorAll("details").forEach((e) => { e.open = true; });
for (const e of document.querySelectorAll("main *, header *, nav *, form *")) {
  if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || e.closest("svg, select")) continue;
  const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) tell(`${e.tagName}.${e.className} ${(a + 0.05) / (b + 0.05)}`);
}
for (const bar of document.querySelectorAll("svg g")) {
  const [a, b] = [light(getComputedStyle(bar.querySelector("text")).fill),
    light(getComputedStyle(bar.querySelector("rect")).fill)].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) tell(`${bar.className.baseVal} ${(a + 0.05) / (b + 0.05)}`);
}
tell(light(getComputedStyle(document.body).backgroundColor) > 0.5);
"""


@pytest.mark.parametrize(("scheme", "bright"), [(LIGHT, "true"), (DARK, "false")])
def test_everything_can_be_read_in_both_schemes(browser: Browser, scheme: str, bright: str) -> None:
    rows = [Row("x.y", Level.SAFETY, status.value, status, message="m") for status in Status]
    drawn = list(many(4, 4, broken_every=2, program=50, steps=9))
    assert browser.ask(page(result(broken(), *rows, *drawn, notes=["n"])), CONTRAST, scheme) == [bright]


def test_the_largest_page_is_there_soon(browser: Browser) -> None:
    content = page(result(*many(120, 12, broken_every=20, program=20_000, steps=80)))
    assert len(content) > 800_000
    [milliseconds] = browser.ask(content, "tell(Math.round(performance.now()));")
    assert int(milliseconds) < 10_000
