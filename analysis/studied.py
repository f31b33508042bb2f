"""What our study of learning found, to be said beside a recommendation.

docs/paper.md, "A study of learning": a small model and a synthetic voice, ten epochs. The numbers
are those of benchmarks/results/table2-small-2026-11-22-cpu/report.csv, to which a test holds them.
"""

from typing import NamedTuple

from analysis.strategies import batching_name


class Learnt(NamedTuple):
    """How far the unpadded validation loss, mean of the last four epochs, lay above RAND's."""

    per_cent: float
    standard_error: float

    def __str__(self) -> str:
        return f"by {self.per_cent:g}% ± {self.standard_error:g}"


# By strategy and whether batch sizes are dynamic, all with batch randomization.
LEARNT = {
    ("sorted", False): Learnt(83, 22),
    ("semi_sorted", False): Learnt(39, 17),
    ("bucket", False): Learnt(35, 16),
    ("alternated_sort", False): Learnt(35, 16),
    ("semi_sorted", True): Learnt(57, 16),
    ("semi_sorted_exponential", True): Learnt(54, 16),  # its factor chosen as --recommend does
}
WITH_RANDOM_EPOCHS = Learnt(12, 11)  # of semi_sorted with dynamic sizes


def what_was_learnt(strategy: str, dynamic: bool) -> str:
    """What the study says of a batching with batch randomization."""
    study = "in our small study (docs/paper.md)"
    if (strategy, dynamic) == ("random", False):
        return f"{study} most of all in equal epochs"
    name, found = batching_name(strategy, dynamic, True), LEARNT.get((strategy, dynamic))
    known = {name: found} if found else {}
    known["SSB-DBS-BR"] = LEARNT["semi_sorted", True]
    known["SSB-DBS-BR with random_epochs=2"] = WITH_RANDOM_EPOCHS
    losses = ", ".join(f"{name} {learnt}" for name, learnt in known.items())
    unknown = "" if found else "not known; "
    return f"{unknown}{study} losses after equal epochs were above RAND's: {losses}"
