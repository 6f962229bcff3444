"""The table as CSV, Markdown and LaTeX."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

CellTexts = Mapping[str, str]

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    }
)


def as_csv(tables: Mapping[str, Sequence[CellTexts]], first: str = "environment") -> str:
    """All tables as one, with the environment in the first column."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = _columns(row for rows in tables.values() for row in rows)
    writer.writerow([first, *columns])
    for environment, rows in tables.items():
        writer.writerows([environment, *(row.get(name, "") for name in columns)] for row in rows)
    return out.getvalue()


def as_markdown(tables: Mapping[str, Sequence[CellTexts]]) -> str:
    """A table per environment, without empty columns."""
    parts = []
    for environment, rows in tables.items():
        columns = _filled(rows)
        lines = [
            columns,
            ["---"] * len(columns),
            *([row.get(name, "") for name in columns] for row in rows),
        ]
        body = "\n".join(
            "| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines
        )
        parts.append(f"### {environment}\n\n{body}\n")
    return "\n".join(parts)


def as_latex(tables: Mapping[str, Sequence[CellTexts]]) -> str:
    """A `tabular` per environment, without empty columns; needs `booktabs`."""
    parts = []
    for environment, rows in tables.items():
        columns = _filled(rows)

        def line(cells: Sequence[str]) -> str:
            return " & ".join(cell.translate(_LATEX) for cell in cells) + r" \\"

        body = "\n".join(line([row.get(name, "") for name in columns]) for row in rows)
        parts.append(
            f"% {environment}\n\\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}\n\\toprule\n"
            f"{line(columns)}\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"
        )
    return "\n".join(parts)


def _columns(rows: Iterable[CellTexts]) -> list[str]:
    return [*dict.fromkeys(name for row in rows for name in row)]


def _filled(rows: Sequence[CellTexts]) -> list[str]:
    return [name for name in _columns(rows) if any(row.get(name) for row in rows)]
