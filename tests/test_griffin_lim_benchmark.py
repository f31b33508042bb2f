"""benchmarks/griffin_lim.py: iterations bring the mels of spoken numbers nearer."""

import pytest

from benchmarks import griffin_lim
from corpus.synthesised import make_corpus


@pytest.mark.usefixtures("one_thread")
def test_iterations_bring_the_mels_nearer(tmp_path, capsys):
    make_corpus(tmp_path, 2)
    griffin_lim.main([str(tmp_path), "--iterations", "0,5"])
    lines = capsys.readouterr().out.splitlines()[-2:]
    (_, none, rate, far, _), (_, five, _, near, _) = (line.split("|") for line in lines)
    assert (int(none), int(five)) == (0, 5)
    assert 0 <= float(rate) < 0.5
    assert 0 < 2 * float(near) < float(far)
