"""The paper's findings: its figures, ours, and whether ours bear them out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from analysis import published
from analysis.report_measures import (
    PAPER,
    MeanWithError,
    Results,
    look_up,
    reduction,
    reductions,
)
from analysis.report_tables import RANDOMIZED

BEST = "SSB-DBS-BR"  # the paper's batching
POINTS_OF_GRACE = 5  # a saving that many points below the published one is called smaller


@dataclass(frozen=True)
class Finding:
    """A claim of the paper; a line for each pair of batchings, published and ours."""

    claim: str
    published: list[str]
    ours: list[str]
    verdict: str

    @property
    def kind(self) -> str:
        """holds, fails or open, for a colour."""
        failing = ("does not", "mixed", "holds in part", "confirmed in part", "contradicted")
        if self.verdict.startswith(failing):
            return "fails"
        return "holds" if self.verdict.startswith(("holds", "confirmed")) else "open"


class Claim(NamedTuple):
    """A claim of the paper: that `key` falls from the first to the second of each pair."""

    text: str
    pairs: list[tuple[str, str]]
    key: str


_SEMI_SORTING, _RANDOMIZING, _DYNAMIC = (
    [pair[:2] for pair in pairs] for pairs in published.TABLE_4.values()
)
CLAIMS = (
    Claim(
        "Batches of clips of similar length shorten an epoch against random ones.",
        [("RAND", name) for name in ("SB-BR", "SSB-BR", "BKT-BR", "ATS-BR")],
        "minutes",
    ),
    Claim("Dynamic batch sizes (DBS) shorten it further.", _DYNAMIC, "minutes"),
    Claim(
        f"{BEST} saves {published.TABLE_3[BEST][1]:.0f} % of an epoch's time against RAND.",
        [("RAND", BEST)],
        "minutes",
    ),
    Claim("Batch randomization (BR) shortens it slightly.", list(RANDOMIZED), "minutes"),
    Claim("Semi-sorting learns better than sorting (VL3).", _SEMI_SORTING, "vl3"),
    Claim("Batch randomization lowers the loss (VL3).", _RANDOMIZING, "vl3"),
    Claim("Dynamic batch sizes lower the loss (VL3).", _DYNAMIC, "vl3"),
    Claim(
        f"{BEST} has the lowest loss of all (VL3; the three lowest are shown).",
        [(name, BEST) for name in published.TABLE_2 if name != BEST],
        "vl3",
    ),
)
SAVING, LOWEST_LOSS = CLAIMS[2], CLAIMS[-1]


def paper_findings(ours: Results) -> list[Finding]:
    """The paper's claims. `ours`: results by the name of the batching."""
    special = {SAVING.text: _saving, LOWEST_LOSS.text: _lowest_loss}
    return [
        special[claim.text](ours) if claim.text in special else _falls(ours, *claim)
        for claim in CLAIMS
    ]


def _falls(ours: Results, claim: str, pairs: Sequence[tuple[str, str]], key: str) -> Finding:
    """A claim that `key` falls from the first to the second batching of every pair."""
    published_lines, our_lines, changes = [], [], []
    for before, after in pairs:
        theirs, change = reductions(ours, before, after, key)[1]
        published_lines.append(f"{before} → {after}: {_change(theirs)}")
        our_lines.append(f"{before} → {after}: {_change(change)}")
        if not change.missing:
            changes.append(change)
    verdict = _verdict([_outcome(change) for change in changes], len(pairs))
    doubt = _doubt(changes) if key.startswith("vl") else ""
    return Finding(claim, published_lines, our_lines, verdict + doubt)


def _saving(ours: Results) -> Finding:
    """The paper's batching saves as much time as it says."""
    published_saving = published.TABLE_3[BEST][1]
    saved = reduction(ours, "RAND", BEST, "minutes")[1]
    if saved.missing:
        line, verdict = f"– ({saved.missing})", "not measured"
    else:
        line, verdict = f"{saved.mean:.2f}\u00a0%{_error(saved)}", _outcome(saved)
        if verdict == "holds" and saved.mean < published_saving - POINTS_OF_GRACE:
            verdict = "holds in part: an epoch is shorter, but by less"
    return Finding(SAVING.text, [f"{published_saving:.2f}\u00a0%"], [line], verdict)


def _lowest_loss(ours: Results) -> Finding:
    """The paper's batching has the least VL3 of its ten."""
    (published_lines, _), (our_lines, ranked) = (_ranking(results) for results in (PAPER, ours))
    verdict = "not measured"
    if len(ranked) > 1:
        best_other = next(name for name in ranked if name != BEST)
        fall = reduction(ours, best_other, BEST, "vl3")[1]
        verdict = _outcome(fall)
        if verdict == "holds" and len(ranked) < len(published.TABLE_2):
            verdict += f" among the {len(ranked)} measured"
        verdict += _doubt([fall])
    return Finding(LOWEST_LOSS.text, published_lines, our_lines or ["– (not measured)"], verdict)


def _ranking(results: Results) -> tuple[list[str], list[str]]:
    """The three lowest VL3 in words; the batchings that compare with BEST, the lowest first."""
    losses = {
        name: look_up(results, name, "vl3")
        for name in published.TABLE_2
        if name in results and not reduction(results, name, BEST, "vl3")[1].missing
    }
    ranked = sorted(losses, key=lambda name: (losses[name].mean, name))
    return [f"{n} {losses[n].mean:.3f}{_error(losses[n])}" for n in ranked[:3]], ranked


def randomization_sentence(ours: Results, decimals: int) -> str:
    """Whether BR shortens an epoch, published and ours, of SSB as in the paper's text."""
    sentences = []
    before, after = RANDOMIZED[1]
    for side, results, digits in (("The paper", PAPER, 2), ("Ours", ours, decimals)):
        shorter = reduction(results, before, after, "minutes")[1]
        if shorter.missing:
            sentences.append(f"{side}: –, {shorter.missing}.")
            continue
        old, new = (look_up(results, name, "minutes").mean for name in (before, after))
        answer = {"holds": "yes", "does not hold": "no"}.get(_outcome(shorter), "undecided")
        sentences.append(
            f"{side}: {answer}, {before} {old:.{digits}f} → {after} {new:.{digits}f} minutes "
            f"({_change(shorter)})."
        )
    return " ".join(sentences)


# ---------------------------------------------------------------------------- words


def _outcome(fall: MeanWithError) -> str:
    """Did it fall? With several seeds a change within two standard errors decides nothing."""
    if fall.standard_error is not None and abs(fall.mean) < 2 * fall.standard_error:
        return "undecided"
    return "holds" if fall.mean > 0 else "does not hold"


def _verdict(outcomes: list[str], pairs: int) -> str:
    if not outcomes:
        return "not measured"
    verdict = outcomes[0]
    if len(set(outcomes)) > 1:
        counts = [(outcomes.count(kind), kind) for kind in ("holds", "does not hold", "undecided")]
        verdict = "mixed: " + ", ".join(f"{kind} in {count}" for count, kind in counts if count)
    lacking = pairs - len(outcomes)
    return verdict + (f" ({lacking} of {pairs} not measured)" if lacking else "")


def _doubt(changes: list[MeanWithError]) -> str:
    """Losses differ between seeds too; with one seed, no one knows by how much."""
    one_seed = any(change.standard_error is None for change in changes)
    return "; one seed, may be noise" if one_seed else ""


def _change(fall: MeanWithError) -> str:
    """A fall of 5 per cent as −5.00 %."""
    if fall.missing:
        return f"– ({fall.missing})"
    return f"{-fall.mean:+.2f}".replace("-", "−") + f"\u00a0%{_error(fall)}"


def _error(value: MeanWithError) -> str:
    return "" if value.standard_error is None else f" ±\u00a0{value.standard_error:.2g}"
