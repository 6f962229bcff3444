"""The report of a calibration: metrics, and disagreements as pictures and text."""

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

from vagen.envs.images import png_url
from vagen.judge.calibration.measure import Calibration, Judged
from vagen.judge.calibration.writer import TextKind

_MAX_SHOWN = 24
"""Number of disagreements to show per environment."""
_COLUMNS = (
    ("statements", "{:.0f}"),
    ("absent", "{:.0f}"),
    ("precision", "{:.4f}"),
    ("recall", "{:.4f}"),
    ("unread", "{:.4f}"),
    ("kappa", "{:.4f}"),
    ("chance", "{:.3f}"),
    ("refused", "{:.4f}"),
    ("paid", "{:.4f}"),
)
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { border: 1px solid #ccc; padding: .3rem .6rem; text-align: right; }
td:first-child, th:first-child { text-align: left; }
figure { display: inline-block; margin: .5rem; width: 20rem; vertical-align: top; }
figure img { width: 12rem; image-rendering: pixelated; }
pre { white-space: pre-wrap; background: #f5f5f5; padding: .5rem; }
"""


def write_report(folder: Path, title: str, found: Mapping[str, Calibration]) -> tuple[Path, Path]:
    """Writes `calibration.md` and `calibration.html`; returns their paths.

    Pictures of disagreements are in `pictures/`, and embedded in the HTML.
    """
    markdown, page = [f"# {title}", ""], [f"<h1>{html.escape(title)}</h1>"]
    markdown += _markdown_table(found)
    page.append(_html_table(found))
    for name, calibration in found.items():
        markdown += [f"## {name}", "", *_details(calibration), ""]
        page += [f"<h2>{html.escape(name)}</h2>", "<ul>"]
        page += [f"<li>{html.escape(line[2:])}</li>" for line in _details(calibration)]
        page += ["</ul>", "<h3>Disagreements</h3>"]
        markdown += ["### Disagreements", ""]
        shown = disagreements(calibration.judged)
        if not shown:
            markdown += ["None.", ""]
            page.append("<p>None.</p>")
        for number, each in enumerate(shown, start=1):
            picture = _picture(calibration.env_name, each)
            said = f"{each.sample.kind} ({each.sample.wording}), score {each.score:.3f}"
            said += f", {', '.join(each.flags)}" if each.flags else ""
            if picture is not None:
                path = folder / "pictures" / f"{name}-{number:02d}.png"
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(picture)
                markdown += [f"![{name} {number}](pictures/{path.name})", ""]
            markdown += [f"{number}. {said}", "", *_indented(each.sample.text), ""]
            page.append(_figure(picture, said, each.sample.text))
    files = folder / "calibration.md", folder / "calibration.html"
    files[0].write_text("\n".join(markdown).rstrip() + "\n")
    body = "\n".join(page)
    files[1].write_text(
        f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title>"
        f"<style>{_STYLE}</style>\n{body}\n"
    )
    return files


def disagreements(judged: Sequence[Judged]) -> list[Judged]:
    """A sample of mistakes of every kind and wording; accepted false statements come first."""
    mistakes = [each for each in judged if each.is_mistake]
    seen: dict[tuple[TextKind, str], int] = {}
    ranked: list[tuple[int, bool, Judged]] = []
    for each in mistakes:
        key = each.sample.kind, each.sample.wording
        seen[key] = seen.get(key, 0) + 1
        ranked.append((seen[key], each.sample.kind is TextKind.TRUE, each))
    ranked.sort(key=lambda item: item[:2])
    return [each for *_, each in ranked[:_MAX_SHOWN]]


def _cells(calibration: Calibration) -> list[str]:
    values = [(getattr(calibration, name), form) for name, form in _COLUMNS]
    return ["–" if value is None else form.format(value) for value, form in values]


def _markdown_table(found: Mapping[str, Calibration]) -> list[str]:
    names = [name for name, _ in _COLUMNS]
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(_cells(each)) + " |" for name, each in found.items()]
    return [*lines, ""]


def _html_table(found: Mapping[str, Calibration]) -> str:
    head = "".join(f"<th>{name}</th>" for name, _ in _COLUMNS)
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td>"
        + "".join(f"<td>{cell}</td>" for cell in _cells(each))
        + "</tr>"
        for name, each in found.items()
    )
    return f"<table><tr><th></th>{head}</tr>{rows}</table>"


def _details(calibration: Calibration) -> list[str]:
    worst, score = calibration.worst_attack
    return [
        f"- Mean score: {_list(calibration.mean_scores)}.",
        f"- Mean information score: {_list(calibration.information)}.",
        f"- Adversarial patterns: {calibration.attack_patterns}; the one that earned most is "
        f"{worst}, with {score:.3f} (chance {calibration.chance:.3f}).",
        f"- Recall by wording: {_list(calibration.recall_by_wording)}.",
        f"- Refusals: {_list(calibration.flags)}.",
        f"- Cost: {_list(calibration.cost)}.",
    ]


def _list(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items()) or "none"


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines() or [""]]


def _picture(env_name: str, judged: Judged) -> bytes | None:
    frame = judged.sample.scene.picture(env_name)
    if frame is None:
        return None
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "PNG")
    return buffer.getvalue()


def _figure(picture: bytes | None, said: str, text: str) -> str:
    image = ""
    if picture is not None:
        image = f'<img alt="the state" src="{png_url(picture)}">'
    return (
        f"<figure>{image}<figcaption>{html.escape(said)}</figcaption>"
        f"<pre>{html.escape(text)}</pre></figure>"
    )
