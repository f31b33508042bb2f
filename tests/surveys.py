"""A single survey of a corpus, for tests."""

from analysis.survey import Survey, Surveyor


def survey(
    lengths, batch_size, strategy, *, seed=0, frames_per_step=1, costs=None, symbols=None, **options
) -> Survey:
    known = {"frames_per_step": frames_per_step, "costs": costs, "symbols": symbols}
    return Surveyor(lengths, seed=seed, **known).survey(batch_size, strategy, **options)
