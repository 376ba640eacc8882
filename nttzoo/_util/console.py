"""Terminal output: tables and progress bars. The only module that uses rich."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, total: bool = False) -> str:
    """A table as plain text; the first column is left-aligned, the others right; `total` rules off the last row."""
    grid = Table(box=None, pad_edge=False, show_edge=False)
    for i, name in enumerate(columns):
        grid.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    texts = [[str(cell) for cell in row] for row in rows]
    for i, row in enumerate(texts):
        if total and i == len(texts) - 1:
            grid.add_row(*("-" * max(len(text[c]) for text in texts) for c in range(len(columns))))
        grid.add_row(*row)
    # Wide enough that a long layer name is never cut, whatever the terminal.
    console = Console(width=200, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(grid)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join([title, *lines] if title else lines)


def progress_bar(*, show: bool = True) -> Progress:
    """A progress bar with the time left; a task's field `note` stands behind it. Written to stderr."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        disable=not show,
    )


def markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
