"""What the parts of `vagen plan` share: tables, sizes as text, and the refusal."""

from typing import TYPE_CHECKING

from vagen.config import ConfigError

if TYPE_CHECKING:
    from rich.table import Table


class DoesNotFitError(ConfigError):
    """An experiment that needs more than there is."""


def table(title: str, rows: dict[str, str]) -> "Table":
    """Names and texts under a title."""
    from rich.table import Table
    from rich.text import Text

    made = Table(show_header=False, title=title, title_justify="left", box=None)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, text in rows.items():
        made.add_row(name, Text(text))
    return made


def bytes_text(count: float) -> str:
    """A number of bytes in the largest unit that keeps it at 1 or more."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
