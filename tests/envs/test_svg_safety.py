"""The attack set: refused before drawing, or drawn within the limits."""

import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from svg_attacks import HEAVY, REFUSED, svg

from vagen import envs
from vagen.envs.svg import raster
from vagen.envs.svg.raster import RasterError, Rasteriser
from vagen.envs.svg.safety import MAX_BYTES, UnsafeSVG, read_document, safe_document


@pytest.mark.parametrize("name", REFUSED)
def test_an_attack_is_refused_before_drawing_and_quickly(name, monkeypatch):
    monkeypatch.setattr(Rasteriser, "_ask", lambda *_: pytest.fail("reached the renderer"))
    start = time.process_time()
    with pytest.raises(UnsafeSVG):
        raster.rasteriser(256).draw(REFUSED[name])
    assert time.process_time() - start < 0.5


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are read from /proc")
@pytest.mark.parametrize("name", HEAVY)
def test_what_is_heavy_stays_within_the_limits(name):
    drawer = Rasteriser(256, cpu_seconds=1, wall_seconds=4.0)
    drawer.draw(svg(""))  # a worker may take long to start on a busy machine
    start = time.monotonic()
    try:
        assert drawer.draw(HEAVY[name]).shape == (256, 256, 3)
    except RasterError:
        assert drawer.restarts <= 1
    assert time.monotonic() - start < 5.0
    assert drawer.draw(svg('<rect width="256" height="256" fill="red"/>'))[9, 9].tolist() == [
        255, 0, 0,
    ]  # fmt: skip
    assert drawer._worker is not None
    status = Path(f"/proc/{drawer._worker.pid}/status").read_text()
    drawer.close()
    peak = re.search(r"VmHWM:\s*(\d+) kB", status)
    assert peak is not None and int(peak[1]) * 1024 < raster.MEMORY_BYTES


def test_a_worker_that_is_too_slow_is_replaced():
    drawer = Rasteriser(64, wall_seconds=0.0)
    with pytest.raises(RasterError, match="too slow"):
        drawer.draw(svg('<rect width="9" height="9"/>'))
    assert drawer.restarts == 1
    drawer._limits = (raster.MEMORY_BYTES, 2, 20.0)
    assert drawer.draw(svg('<rect width="9" height="9"/>')).shape == (64, 64, 3)
    drawer._worker.kill()
    drawer._worker.wait()
    assert drawer.draw(svg('<rect width="8" height="9"/>')).shape == (64, 64, 3)
    drawer.close()


def test_a_worker_beyond_its_memory_or_cpu_limit_is_replaced_and_the_error_says_so():
    drawer = Rasteriser(64, memory_bytes=1)
    with pytest.raises(RasterError, match=r"exceeded its limits|not drawable"):
        drawer.draw(HEAVY["long strokes"])
    drawer.close()


def test_what_is_drawn_is_the_checked_tree_and_nothing_else():
    document = safe_document(
        svg(
            '<!-- c --><title>a &amp; b</title><rect data-x="1" aria-label="x" width="9" '
            'height="9" style="fill: red; stroke-width: 2"/>',
            'width="12" height="12" id="a" ',
        ),
        64,
    )
    assert "data-x" not in document and "title>a" not in document and "<!--" not in document
    assert 'fill="red"' in document and 'stroke-width="2"' in document
    assert 'width="64" height="64"' in document and 'viewBox="0 0 256 256"' in document
    assert document.count("xmlns") == 1


EDITORS = (
    'xmlns:inkscape="http://www.inkscape.org/namespaces/inkscape" '
    'xmlns:sodipodi="http://sodipodi.sourceforge.net/DTD/sodipodi-0.dtd" '
    'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" '
    'xmlns:dc="http://purl.org/dc/elements/1.1/" '
)


@pytest.mark.parametrize(
    ("attributes", "before", "rect"),
    [
        ('xml:space="preserve" xml:lang="en" ', "", ""),
        ('inkscape:version="1.3" sodipodi:docname="a \\ b.svg" ', "", 'inkscape:label="x//y"'),
        ('focusable="false" tabindex="0" enable-background="new 0 0 9 9" ', "", ""),
        ('style="enable-background:new 0 0 24 24;" baseProfile="tiny" ', "", ""),
        ("", "", "style=\"line-height:normal;font-family:Sans, 'Open Sans';marker:none;-x-y:1\""),
        ("", "", 'filter="none" mask="none" font-weight="bold" text-anchor="middle" id="图 1"'),
        ("", "", 'class="hover:red [&amp;]" style="width:9 !important;isolation:auto;;stray"'),
        ("", "<metadata><rdf:RDF><rdf:li>x</rdf:li></rdf:RDF></metadata>", ""),
        ("", '<sodipodi:namedview id="b"><inkscape:grid/></sodipodi:namedview>', ""),
        ("", "<metadata><g><rect/></g></metadata>", 'xlink:title="t" xlink:type="simple"'),
    ],
)
def test_what_draws_nothing_is_left_out(attributes, before, rect):
    plain = safe_document(svg('<rect width="9" height="9"/>'), 64)
    text = svg(f'{before}<rect width="9" height="9" {rect}/>', EDITORS + attributes)
    assert safe_document(text, 64) == plain


@pytest.mark.parametrize(
    "attribute",
    [
        *('filter="url(#f)"', 'style="mask:url(#m)"', 'style="mix-blend-mode:multiply"'),
        *('transform-origin="9 9"', 'requiredExtensions="x"', 'style="behavior:url(x)"'),
        *('style="foo:expression(1)"', r'style="x:u\72l(y)"', 'ping="http://a"', 'onfoo=""'),
    ],
)
def test_what_would_draw_otherwise_or_lead_elsewhere_is_not(attribute):
    with pytest.raises(UnsafeSVG, match="is not allowed"):
        read_document(svg(f'<rect width="9" height="9" {attribute}/>'))


@pytest.mark.parametrize(
    "body",
    [
        '<g fill="red" transform="translate(3,4) rotate(45 1 2)"><path d="M1.5-2e1,3 z"/></g>',
        '<defs><linearGradient id="g"><stop offset="50%" stop-color="#ff0000"/></linearGradient>'
        '</defs><rect width="50%" height="1cm" fill="url(#g)"/>',
        '<symbol id="s" viewBox="0 0 9 9"><circle r="4"/></symbol><use xlink:href="#s" x="9"/>',
        '<clipPath id="c"><circle r="40"/></clipPath><rect clip-path="url(#c)" width="9"/>',
        '<polygon points="1,2 3,4 5,6" style="fill:rgb(1, 2, 3);stroke:hsl(120, 50%, 50%);"/>',
        '<path d="M0 0 L9 9" stroke="red" stroke-dasharray="4 2" stroke-linecap="round"/>',
    ],
)
def test_ordinary_drawings_pass(body):
    document = safe_document(svg(body), 64)
    assert safe_document(document, 64) == document
    assert raster.rasteriser(64).draw(svg(body)).shape == (64, 64, 3)


def test_the_size_of_a_document_is_bounded_in_bytes():
    body = f"<title>{'é' * (MAX_BYTES // 2)}</title>"
    with pytest.raises(UnsafeSVG, match=f"at most {MAX_BYTES}"):
        read_document(svg(body))


def test_an_attack_as_an_answer_is_an_invalid_action_without_reward():
    env = envs.make("SVG", {"prompt_format": "no_think", "side": 64})
    for seed, document in enumerate(REFUSED.values()):
        _, before = env.reset(seed=seed % 3)
        _, reward, terminated, truncated, info = env.step(f"<answer>{document}</answer>")
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert info["state"] == before["state"] and not info["metrics"]["action_is_valid"]


def test_a_document_that_cannot_be_drawn_is_an_empty_sheet(monkeypatch):
    def fails(*_):
        raise RasterError("drawing the document exceeded its limits")

    env = envs.make("SVG", {"prompt_format": "no_think", "side": 64})
    env.reset(seed=0)
    document = svg('<circle r="31"/>')
    monkeypatch.setattr(env._raster, "draw", fails)
    observation, _, _, _, info = env.step(f"<answer>{document}</answer>")
    assert info["rewards"] == {"env": 0.0, "format": 0.5}
    assert np.all(observation["images"][1] == 255)
