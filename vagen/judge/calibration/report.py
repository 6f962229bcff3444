"""The report of a calibration: metrics, and disagreements as pictures and text."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jinja2 import Environment

from vagen.envs.images import png_bytes, png_url
from vagen.judge.calibration.measure import Calibration, Judged
from vagen.judge.calibration.writer import TextKind

_MAX_SHOWN = 24
"""Number of disagreements to show per environment."""
_COLUMNS = {
    **dict.fromkeys(("statements", "absent"), "{:.0f}"),
    **dict.fromkeys(("precision", "recall", "unread", "kappa"), "{:.4f}"),
    "chance": "{:.3f}",
    **dict.fromkeys(("refused", "paid"), "{:.4f}"),
}
_PAGE = """<!doctype html><meta charset=utf-8><title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { border: 1px solid #ccc; padding: .3rem .6rem; text-align: right; }
td:first-child, th:first-child { text-align: left; }
figure { display: inline-block; margin: .5rem; width: 20rem; vertical-align: top; }
figure img { width: 12rem; image-rendering: pixelated; }
pre { white-space: pre-wrap; background: #f5f5f5; padding: .5rem; }
</style>
<h1>{{ title }}</h1>
<table><tr><th></th>{% for name in columns %}<th>{{ name }}</th>{% endfor %}</tr>
{% for name, row in rows.items() -%}
<tr><td>{{ name }}</td>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
{% for name, (details, mistakes) in sections.items() %}
<h2>{{ name }}</h2><ul>{% for line in details %}<li>{{ line }}</li>{% endfor %}</ul>
<h3>Disagreements</h3>
{% for picture, said, text in mistakes -%}
<figure>{% if picture %}<img alt="the state" src="{{ picture }}">{% endif %}
<figcaption>{{ said }}</figcaption><pre>{{ text }}</pre></figure>
{% else %}<p>None.</p>{% endfor %}
{% endfor %}"""


def write_report(folder: Path, title: str, found: Mapping[str, Calibration]) -> Path:
    """Writes `calibration.html`, without links to other files; returns its path."""
    rows = {
        name: [
            "–" if (value := getattr(each, column)) is None else form.format(value)
            for column, form in _COLUMNS.items()
        ]
        for name, each in found.items()
    }
    sections = {name: (_details(each), list(_mistakes(each))) for name, each in found.items()}
    page = Environment(autoescape=True).from_string(_PAGE)
    path = folder / "calibration.html"
    path.write_text(page.render(title=title, columns=_COLUMNS, rows=rows, sections=sections))
    return path


def disagreements(judged: Sequence[Judged]) -> list[Judged]:
    """A sample of mistakes of every kind and wording; accepted false statements come first."""
    seen: Counter[tuple[TextKind, str]] = Counter()
    ranked: list[tuple[int, bool, Judged]] = []
    for each in judged:
        if each.is_mistake:
            key = each.sample.kind, each.sample.wording
            seen[key] += 1
            ranked.append((seen[key], each.sample.kind is TextKind.TRUE, each))
    ranked.sort(key=lambda item: item[:2])
    return [each for *_, each in ranked[:_MAX_SHOWN]]


def _details(calibration: Calibration) -> list[str]:
    worst, score = calibration.worst_attack
    return [
        f"Mean score: {_list(calibration.mean_scores)}.",
        f"Mean information score: {_list(calibration.information)}.",
        f"Adversarial patterns: {calibration.attack_patterns}; the one that earned most is "
        f"{worst}, with {score:.3f} (chance {calibration.chance:.3f}).",
        f"Recall by wording: {_list(calibration.recall_by_wording)}.",
        f"Refusals: {_list(calibration.flags)}.",
        f"Cost: {_list(calibration.cost)}.",
    ]


def _list(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items()) or "none"


def _mistakes(calibration: Calibration) -> Iterator[tuple[str | None, str, str]]:
    """Disagreements: the address of the state's picture, if it has one, the verdict, the text."""
    for each in disagreements(calibration.judged):
        frame = each.sample.scene.picture(calibration.env_name)
        said = f"{each.sample.kind} ({each.sample.wording}), score {each.score:.3f}"
        said += f", {', '.join(each.flags)}" if each.flags else ""
        yield None if frame is None else png_url(png_bytes(frame)), said, each.sample.text
