"""step_costs.py: its terms and its fit against formulas written out here, and its file."""

import ast
import json
from dataclasses import asdict, fields
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.step_costs import COST_SETTINGS, TERMS, MeasuredStep, fit, read_costs, write_costs
from errors import UserError
from hparams import HParams

ROOT = Path(__file__).resolve().parent.parent
SHAPES = list(product((1, 2, 4, 16), (80, 201, 801), (10, 80, 190)))  # clips, frames, symbols


def seconds_of(b, t, n) -> float:
    """A step's cost written out: each term of the documented form, 1 frame a decoder step."""
    return (
        0.01 + 2e-5 * n + 6e-4 * t + (2e-4 * t if b > 1 else 0) + 4e-5 * b * n
        + 5e-5 * b * t + 8e-7 * b * t * n
    )  # fmt: skip


def bytes_of(b, t, n) -> int:
    return 400_000_000 + 20_000 * t + 27_000 * b * t + 900 * b * t * n


def measured(shapes=SHAPES, seconds=seconds_of, memory=bytes_of, held_out=()) -> list[MeasuredStep]:
    return [
        MeasuredStep(*shape, seconds(*shape), memory(*shape), 3, held_out=shape in held_out)
        for shape in shapes
    ]


def fitted(measurements=None, frames_per_step: int = 1):
    return fit(
        measured() if measurements is None else measurements,
        {"n_frames_per_step": frames_per_step, "decoder_rnn_dim": 128},
        {"device": "cpu", "threads": 1},
        "cpu, fp32, 2026-11-21",
    )


# ---------------------------------------------------------------------------- the fit


def test_the_fit_finds_the_coefficients_of_measurements_without_noise():
    costs = fitted()
    expected = (0.01, 2e-5, 6e-4, 2e-4, 4e-5, 5e-5, 8e-7)
    assert list(costs.seconds_per_term) == list(TERMS)
    np.testing.assert_allclose(list(costs.seconds_per_term.values()), expected, rtol=1e-6)
    expected = (4e8, 0, 2e4, 0, 0, 2.7e4, 900)
    np.testing.assert_allclose(list(costs.bytes_per_term.values()), expected, rtol=1e-6, atol=1e-3)


def test_it_predicts_shapes_that_were_never_measured():
    costs = fitted()
    shapes = [(3, 500, 60), (1, 100, 20), (150, 90, 25)]
    clips, frames, symbols = np.array(shapes).T
    expected = [seconds_of(*shape) for shape in shapes]
    np.testing.assert_allclose(costs.seconds(clips, frames, symbols), expected, rtol=1e-6)
    expected = [bytes_of(*shape) for shape in shapes]
    np.testing.assert_allclose(costs.bytes(clips, frames, symbols), expected, rtol=1e-6)


def test_numbers_and_arrays_broadcast():
    costs = fitted()
    assert costs.seconds(2, 300, np.array([10, 20, 30])).shape == (3,)
    assert float(costs.seconds(2, 300, 20)) == pytest.approx(seconds_of(2, 300, 20))


def test_with_two_frames_a_step_an_odd_length_costs_a_whole_step():
    costs = fitted(
        measured(seconds=lambda b, t, n: seconds_of(b, -(-t // 2), n)), frames_per_step=2
    )
    assert float(costs.seconds(4, 301, 50)) == pytest.approx(seconds_of(4, 151, 50))
    assert float(costs.seconds(4, 301, 50)) == float(costs.seconds(4, 302, 50))


def test_errors_are_weighed_relative_to_what_was_measured():
    """Every shape measured twice, as y and 2 y: of all c y, the sum of (c - 1)^2 + (c / 2 - 1)^2
    is least at c = 1.2; absolute errors would give c = 1.5."""
    double = measured(seconds=lambda *shape: 2 * seconds_of(*shape))
    costs = fitted(measured() + double)
    for shape in SHAPES:
        assert float(costs.seconds(*shape)) == pytest.approx(1.2 * seconds_of(*shape))


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10**6))
def test_no_coefficient_is_negative_whatever_was_measured(seed):
    rng = np.random.default_rng(seed)
    noisy = measured(
        seconds=lambda *_: float(rng.exponential()) + 1e-6,
        memory=lambda *_: int(rng.integers(1, 10**9)),
    )
    costs = fitted(noisy)
    assert min(*costs.seconds_per_term.values(), *costs.bytes_per_term.values()) >= 0
    assert np.isfinite([*costs.seconds_per_term.values(), *costs.bytes_per_term.values()]).all()


def test_held_out_points_do_not_move_the_fit_and_tell_its_error():
    held_out = [(4, 201, 80), (16, 201, 80), (2, 201, 10)]
    factors = dict(zip(held_out, (0.5, 0.8, 1.0), strict=True))  # predicted 2, 1.25, 1 times that
    costs = fitted(
        measured(seconds=lambda *s: factors.get(s, 1) * seconds_of(*s), held_out=held_out)
    )
    assert float(costs.seconds(4, 201, 80)) == pytest.approx(seconds_of(4, 201, 80))
    errors = costs.held_out_errors
    assert errors["points"] == 3
    assert errors["seconds"] == pytest.approx({"median": 0.25, "largest": 1.0})
    assert errors["bytes"]["largest"] < 1e-6


@pytest.mark.parametrize(
    "shapes",
    [
        [],
        [(4, 100, 10)] * 20,
        [s for s in SHAPES if s[0] > 1],  # nothing tells what one clip alone costs
        [s for s in SHAPES if s[0] <= 2],  # nor what a clip more does
        [s for s in SHAPES if s[1] == 80],
        [s for s in SHAPES if s[2] == 10],
    ],
)
def test_shapes_that_cannot_tell_the_terms_apart_are_refused(shapes):
    with pytest.raises(ValueError, match=f"{len(shapes)} batch shapes cannot tell the 7 terms"):
        fitted(measured(shapes))


def test_without_measured_memory_there_is_a_model_of_time_alone():
    costs = fitted(measured(memory=lambda *_: None))
    assert costs.bytes_per_term is None
    assert costs.held_out_errors["bytes"] is None
    with pytest.raises(UserError, match="memory was not measured"):
        costs.bytes(1, 100, 10)
    assert "memory" not in costs.formula()


def test_the_formula_names_every_term_with_its_coefficient():
    lines = fitted().formula().splitlines()
    assert [line.split(" µs ")[1] for line in lines if "µs" in line] == list(TERMS)
    assert "  +    600.000 µs per decoder step" in lines
    assert "  + 400,000.000 kB per batch" in lines
    assert "  +      27.000 kB per clip and decoder step" in lines


# ---------------------------------------------------------------------------- settings


def test_settings_that_change_a_step_are_told():
    costs = fitted()
    assert costs.differing({"n_frames_per_step": 1, "decoder_rnn_dim": 128, "batch_size": 3}) == []
    assert costs.differing({"n_frames_per_step": 2, "decoder_rnn_dim": 128}) == [
        "n_frames_per_step=2, measured with 1"
    ]


def test_every_setting_that_shapes_the_model_is_among_those_compared():
    free = {  # read by the model, but without a say in what a training step costs
        "max_decoder_steps",
        "gate_threshold",
        "p_prenet_dropout",
        "p_attention_dropout",
        "p_decoder_dropout",
    }
    names = {field.name for field in fields(HParams)}
    assert names >= set(COST_SETTINGS)
    read = {
        node.attr
        for node in ast.walk(ast.parse((ROOT / "model.py").read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("h", "hparams")
    }
    assert {"encoder_embedding_dim", "decoder_rnn_dim"} <= read
    assert read - free <= set(COST_SETTINGS)


# ---------------------------------------------------------------------------- the file


def test_costs_come_back_from_their_file_as_they_were(tmp_path):
    path = tmp_path / "costs.json"
    for memory in (bytes_of, lambda *_: None):
        costs = fitted(measured(memory=memory, held_out=[(4, 201, 80)]))
        write_costs(costs, path)
        assert read_costs(path) == costs
        assert [p.name for p in tmp_path.iterdir()] == ["costs.json"]
    lines = path.read_text(encoding="utf-8").splitlines()
    assert sum('"clips": ' in line for line in lines) == len(SHAPES)  # a measurement a line


def changed(**changes):
    return lambda values: values | changes


ONE = asdict(MeasuredStep(1, 1, 1, 1.0, None, 1))
REFUSED = {
    "other format": (
        changed(format="step costs, version 9"),
        "version 9', expected 'training step",
    ),
    "a list": (lambda values: [values], "expected an object"),
    "an entry missing": (lambda v: {k: v[k] for k in v if k != "hparams"}, "hparams is missing"),
    "an entry too many": (changed(colour="red"), "colour is not known"),
    "no text": (changed(description=3), "description=3, expected a valid string"),
    "a term missing": (
        changed(seconds_per_term={"per batch": 1.0}),
        "seconds_per_term: expected a number for each of: per batch; per symbol",
    ),
    "a negative term": (
        changed(bytes_per_term=dict.fromkeys(TERMS, -2.0)),
        "bytes_per_term.per batch=-2.0, expected a number of at least 0",
    ),
    "no number": (
        changed(seconds_per_term=dict.fromkeys(TERMS, "fast")),
        "seconds_per_term.per batch='fast', expected a valid number",
    ),
    "infinite": (
        changed(seconds_per_term=dict.fromkeys(TERMS, float("inf"))),
        "seconds_per_term.per batch=inf, expected a finite number",
    ),
    "no frames per step": (changed(hparams={}), "hparams.n_frames_per_step=None, expected"),
    "no errors": (changed(held_out_errors=None), "held_out_errors=None, expected"),
    "other measurements": (changed(measurements=[{"clips": 1}]), "measurements.0.frames is miss"),
    "a size of 0": (changed(measurements=[ONE, ONE | {"clips": 0}]), "measurements.1: MeasuredSt"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_of_anything_else_is_refused_in_one_message(case, tmp_path):
    change, message = REFUSED[case]
    path = tmp_path / "costs.json"
    write_costs(fitted(), path)
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(change(values)), encoding="utf-8")
    with pytest.raises(UserError, match="step_cost") as error:
        read_costs(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", [b"", b"{", b"id,frames\n", b"\xff\xfe"])
def test_a_file_that_is_no_json_is_refused(content, tmp_path):
    path = tmp_path / "costs.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not a file of step costs"):
        read_costs(path)
    with pytest.raises(UserError, match="no such file; measure the costs"):
        read_costs(tmp_path / "none.json")
    with pytest.raises(UserError, match="cannot be read"):
        read_costs(tmp_path)


@pytest.mark.parametrize("number", [400 * "9", 5000 * "9", "1e300"])
def test_numbers_that_nothing_can_be_computed_with_are_refused(number, tmp_path):
    path = tmp_path / "costs.json"
    write_costs(fitted(), path)
    text = path.read_text(encoding="utf-8").replace('"repeats": ', f'"repeats": {number}', 1)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="not a file of step costs") as refusal:
        read_costs(path)
    assert len(str(refusal.value)) < 600
