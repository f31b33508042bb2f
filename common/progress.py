"""How far a long job is: a bar on a terminal, a plain line now and then elsewhere."""

import sys
from typing import Any, TextIO

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10  # where there is no terminal to draw a bar on
LINE = "{desc}: {n_fmt} of {total_fmt}{unit}, {rate_fmt}, {remaining} left{postfix}"


class ProgressLines(tqdm):
    """A tqdm for log files: a line from time to time instead of a bar drawn over itself."""

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if self.n and msg is None:
            print(self, flush=True)

    @classmethod
    def write(
        cls, s: str, file: TextIO | None = None, end: str = "\n", nolock: bool = False
    ) -> None:
        """What a bar prints above itself."""
        print(s, file=file, end=end, flush=True)


shown = True  # whether this process shows any


def progress_bar(title: str, total: int, unit: str, line: str = LINE, **options: Any) -> tqdm:
    """A bar to `update`; `line` is what is written without a terminal, `options` are tqdm's."""
    hidden = not shown or options.get("disable", False)
    options |= {"desc": title, "total": total, "unit": unit, "leave": False, "disable": hidden}
    if sys.stderr.isatty():
        return tqdm(**options)
    seconds = SECONDS_BETWEEN_LINES
    return ProgressLines(bar_format=line, mininterval=seconds, maxinterval=2 * seconds, **options)


duration = tqdm.format_interval  # seconds as 05:12 or 26:05:12
