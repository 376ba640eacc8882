"""The gallery in a real browser: built once from a part of the zoo, opened from disk."""

import base64
import gzip
import json
import re

import browser
import numpy as np
import pytest

import nttzoo
from nttzoo import data, zoo
from nttzoo.cli import main
from nttzoo.codegen.wasm import toolchain
from nttzoo.errors import ExportError


def compiler():
    try:
        return toolchain.find()
    except ExportError:
        return None


needs_compiler = pytest.mark.skipif(not compiler(), reason="no compiler for WebAssembly")
NAMES = ["conv4-cifar10-1pct-layerwise", "lenet300-fashion_mnist-1pct-global", "lenet300-mnist-1pct-global"]
NAMES += ["lenet300-mnist-3pct-global", "lenet5-mnist-3pct-global"]
FIRST = "lenet300-mnist-1pct-global"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A gallery of five networks."""
    patch = pytest.MonkeyPatch()
    patch.setattr(zoo, "list_models", lambda: NAMES)
    folder = tmp_path_factory.mktemp("site")
    main(["gallery", "--out", str(folder)])
    patch.undo()
    return folder / "index.html"


def facts_of(path):
    packed = re.search(r'id="bytes-facts">(.*?)</script>', path.read_text())[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


@pytest.fixture(scope="module")
def chromium(site):
    with browser.started() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def tab(chromium, site):
    with browser.opened(chromium, site) as tab:
        tab.page.wait_for_selector(".answer:nth-child(4)")
        yield tab


def at_home(tab):
    tab.page.evaluate("location.hash = '#/'")
    tab.page.wait_for_selector("#zoo")
    return tab.page


def rows(page):
    return page.locator("[data-zoo] tbody tr.entry").evaluate_all("rows => rows.map((row) => row.dataset.name)")


pytestmark = [browser.needed, needs_compiler, pytest.mark.slow]


def test_the_table_filters_and_sorts(tab):
    page = at_home(tab)
    assert sorted(rows(page)) == sorted(NAMES)
    page.fill("[aria-label='Search networks']", "lenet300 mnist-1pct")
    assert rows(page) == ["lenet300-fashion_mnist-1pct-global", FIRST]
    page.fill("[aria-label='Search networks']", "nothing like that")
    assert rows(page) == []
    assert "No network matches" in page.inner_text("[data-zoo]")
    page.fill("[aria-label='Search networks']", "")
    page.select_option("label:has-text('Data set') select", "mnist")
    assert len(rows(page)) == 3
    page.click("th button:has-text('Test accuracy')")
    assert rows(page) == ["lenet5-mnist-3pct-global", "lenet300-mnist-3pct-global", FIRST]
    assert page.get_attribute("th:has-text('Test accuracy')", "aria-sort") == "descending"
    page.select_option("label:has-text('Data set') select", "")
    page.click("th button:has-text('Network')")


def test_a_point_of_the_plot_opens_its_network_by_keyboard(tab):
    page = at_home(tab)
    point = page.locator(f".chart a[href='#/{FIRST}']").first
    assert "95.36 %" in point.get_attribute("aria-label")
    point.focus()
    assert FIRST in page.inner_text(".tip.on")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"[data-network='{FIRST}'][data-ready]")
    assert "2,662" in page.inner_text(".facts")


def test_the_pointer_names_and_opens_the_network_under_it(tab):
    """Points lie close together: each one's middle is its own."""
    page = at_home(tab)
    for chart in range(2):
        points = page.locator("#zoo .chart").nth(chart).locator("a")
        for k in range(points.count()):
            link = points.nth(k)
            link.scroll_into_view_if_needed()
            box = link.locator("circle, path").first.bounding_box()
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            assert page.inner_text(".tip.on") == link.get_attribute("aria-label")
    wanted = link.get_attribute("href").removeprefix("#/")
    page.mouse.down()
    page.mouse.up()
    page.wait_for_selector(f"[data-network='{wanted}'][data-ready]")


def test_plots_show_the_data_set_that_is_chosen(tab):
    page = at_home(tab)
    chosen = page.locator(".sets [aria-pressed=true]")
    assert chosen.inner_text() == "mnist"
    page.focus(".sets button:has-text('cifar10')")
    page.keyboard.press("Enter")
    assert chosen.inner_text() == "cifar10"
    assert page.evaluate("document.activeElement.textContent") == "cifar10"
    name, _, facts = page.locator("#zoo .chart a").first.get_attribute("aria-label").partition(": ")
    assert f"{nttzoo.info(name).summary()['test_accuracy']:.2%}".replace("%", " %") in facts
    assert nttzoo.info(name).dataset == "cifar10"
    page.click(".sets button:has-text('mnist')")


def test_the_keyboard_goes_from_top_to_bottom(tab):
    """The skip link stays on the page where it is; a section that was asked for is read next."""
    page = at_home(tab)
    page.evaluate(f"location.hash = '#/{FIRST}'")
    page.wait_for_selector(f"[data-network='{FIRST}'][data-ready]")
    page.focus(".skip")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.locator(f"[data-network='{FIRST}']").count() == 1
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "← The zoo"
    page.keyboard.press("Enter")
    page.wait_for_selector("#zoo")
    assert page.evaluate("document.activeElement.id") == "zoo-title"
    seen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.textContent"))
    assert "Search networks" in seen
    assert seen.index("Search networks") < seen.index("Test accuracy")
    assert all(seen), "something without a name can be focused"


# Of every text: how its color and that of what lies behind it differ (WCAG 2.2, 1.4.3).
CONTRASTS = """() => {
  const channel = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const rgb = (text) => text.match(/[\\d.]+/g).map((v) => (text.startsWith("color(") ? 255 * v : Number(v)));
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = rgb(getComputedStyle(node).backgroundColor);
      if (color.length < 4 || color[3] > 0.5) return color;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || node.closest("script, style, noscript") || !node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    const [a, b] = [light(rgb(node.closest("svg") ? style.fill : style.color)), light(behind(node))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), text.data.trim().slice(0, 30)]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read(chromium, site, scheme):
    with browser.opened(chromium, site, scheme=scheme) as tab:
        tab.page.wait_for_selector(".answer:nth-child(4)")
        for place in ("#/", f"#/{FIRST}", "#/conv4-cifar10-1pct-layerwise"):
            tab.page.evaluate(f"location.hash = '{place}'")
            tab.page.wait_for_selector("#zoo" if place == "#/" else "[data-ready]")
            found = tab.page.evaluate(CONTRASTS)
            assert len(found) > 40
            assert min(found)[0] >= 4.5, (place, sorted(found)[:5])


def thinned(image):
    """The skeleton of a digit, one pixel wide (Zhang and Suen, 1984)."""
    ink = np.pad(image > 96, 1).astype(int)
    changed = True
    while changed:
        changed = False
        for first in (True, False):
            gone = []
            for y, x in np.argwhere(ink):
                ring = [ink[y + dy, x + dx] for dy, dx in RING]
                steps = sum(a == 0 and b == 1 for a, b in zip(ring, ring[1:] + ring[:1], strict=True))
                n, _, e, _, s, _, w, _ = ring
                open_sides = n * e * s == 0 and e * s * w == 0 if first else n * e * w == 0 and n * s * w == 0
                if 2 <= sum(ring) <= 6 and steps == 1 and open_sides:
                    gone.append((y, x))
            for place in gone:
                ink[place] = 0
            changed |= bool(gone)
    return {(int(y) - 1, int(x) - 1) for y, x in np.argwhere(ink)}


RING = [(-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1)]


def strokes(image):
    """A digit as lines that a hand could draw: from end to end along its skeleton."""
    left, found = thinned(image), []
    while left:
        near = {spot: [(spot[0] + dy, spot[1] + dx) for dy, dx in RING] for spot in left}
        at = min(left, key=lambda spot: (sum(other in left for other in near[spot]), spot))
        stroke = [at]
        left.discard(at)
        while following := [other for other in near[at] if other in left]:
            at = min(following, key=lambda other: abs(other[0] - at[0]) + abs(other[1] - at[1]))
            stroke.append(at)
            left.discard(at)
        found.append(stroke)
    return found


def draw(page, image):
    box = page.locator("#draw [data-pad]").bounding_box()
    scale = box["width"] / 28

    def spot(place):
        return box["x"] + scale * (place[1] + 0.5), box["y"] + scale * (place[0] + 0.5)

    for stroke in strokes(image):
        page.mouse.move(*spot(stroke[0]))
        page.mouse.down()
        for place in [*stroke[1::2], stroke[-1]]:
            page.mouse.move(*spot(place))
        page.mouse.up()


def test_drawn_digits_are_what_they_are(tab):
    page = at_home(tab)
    page.evaluate("scrollTo(0, 0)")
    test = data.load("mnist5k").test
    right = np.zeros(4, int)
    wanted = [np.flatnonzero(test.labels == label)[k] for label in (3, 0, 7) for k in range(3)]
    for place in wanted:
        page.click("#draw button:has-text('Clear')")
        draw(page, test.images[place, :, :, 0])
        answers = page.locator("#draw [data-digit]").all_inner_texts()
        right += [int(answer == str(test.labels[place])) for answer in answers]
    ntt1, ntt3, random, lenet5 = right
    assert min(ntt1, ntt3, lenet5) >= 8, right
    assert random < ntt1
    tab.until("document.querySelector('#draw .cost').textContent.includes('µs')")


def test_training_raises_the_accuracy_and_can_be_paused_and_reset(tab):
    page = at_home(tab)
    page.click("[data-start]")
    tab.until("parseFloat(document.querySelector('[data-accuracy=ntt]').textContent) > 80")
    page.click("[data-start]")
    assert page.inner_text("[data-start]") == "Continue"
    page.wait_for_timeout(300)
    before = page.inner_text("[data-progress]")
    accuracy = {
        key: float(page.inner_text(f"[data-accuracy={key}]").split()[0]) for key in ("ntt", "random", "shuffled")
    }
    assert accuracy["ntt"] > accuracy["random"]
    assert f"NTT {accuracy['ntt']} %" in page.locator("#learn [role=status]").inner_text()
    page.wait_for_timeout(500)
    assert page.inner_text("[data-progress]") == before
    page.click("#learn button:has-text('Reset')")
    tab.until("document.querySelector('[data-progress]').textContent.startsWith('step 0 ')")
    assert float(page.inner_text("[data-accuracy=ntt]").split()[0]) < 40


def test_pictures_can_be_given_to_networks_on_color_images(tab, tmp_path):
    name = "conv4-cifar10-1pct-layerwise"
    tab.page.evaluate(f"location.hash = '#/{name}'")
    tab.page.wait_for_selector(f"[data-network='{name}'][data-ready]")
    import matplotlib.image

    picture = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)
    matplotlib.image.imsave(tmp_path / "picture.png", picture)
    tab.page.set_input_files("input[type=file]", tmp_path / "picture.png")
    tab.until("document.querySelector('[data-digit]').textContent !== ''")
    assert tab.page.inner_text("[data-digit]") in data.SOURCES["cifar10"].classes
    (tmp_path / "no.png").write_text("no picture")
    tab.page.set_input_files("input[type=file]", tmp_path / "no.png")
    tab.page.wait_for_selector("text=is not a picture")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(chromium, site, scheme):
    with browser.opened(chromium, site, width=390, height=844, scheme=scheme) as tab:
        for place in ("#/", f"#/{FIRST}", "#/conv4-cifar10-1pct-layerwise", "#/no-such-network"):
            tab.page.evaluate(f"location.hash = '{place}'")
            tab.page.wait_for_timeout(400)
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390, place


def test_the_page_is_small_and_complete(site):
    assert site.stat().st_size < 5_000_000
    facts = facts_of(site)
    assert [entry["name"] for entry in facts["networks"]] == NAMES
    assert [player["label"] for player in facts["players"]] == [
        "NTT, 1 %",
        "NTT, 3 %",
        "random mask, 1 %",
        "LeNet-5, 3 %",
    ]
    text = site.read_text()
    assert not re.search(r"(?:src|href)=[\"']https?:", text)
