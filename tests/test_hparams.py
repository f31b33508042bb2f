"""Settings: what `name=value` becomes, what is refused and how, and the reference's defaults."""

import ast
import dataclasses
import inspect
import typing
from dataclasses import asdict, fields
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

import batching
import hparams
from errors import UserError
from hparams import HParams, check_symbols, create_hparams, describe, hparams_from_dict
from model import Tacotron2

# From the published description of NVIDIA's recipe and its configuration, not from hparams.py.
REFERENCE_DEFAULTS = {
    "epochs": 500,
    "iters_per_checkpoint": 1000,
    "seed": 1234,
    "ignore_layers": ("embedding.weight",),
    "load_mel_from_disk": False,
    "text_cleaners": ("english_cleaners",),
    "sampling_rate": 22050,
    "filter_length": 1024,
    "hop_length": 256,
    "win_length": 1024,
    "n_mel_channels": 80,
    "mel_fmin": 0.0,
    "mel_fmax": 8000.0,
    "n_symbols": 148,
    "symbols_embedding_dim": 512,
    "encoder_kernel_size": 5,
    "encoder_n_convolutions": 3,
    "encoder_embedding_dim": 512,
    "n_frames_per_step": 1,
    "decoder_rnn_dim": 1024,
    "prenet_dim": 256,
    "max_decoder_steps": 1000,
    "gate_threshold": 0.5,
    "p_attention_dropout": 0.1,
    "p_decoder_dropout": 0.1,
    "attention_rnn_dim": 1024,
    "attention_dim": 128,
    "attention_location_n_filters": 32,
    "attention_location_kernel_size": 31,
    "postnet_embedding_dim": 512,
    "postnet_kernel_size": 5,
    "postnet_n_convolutions": 5,
    "learning_rate": 0.001,
    "weight_decay": 0.000001,
    "grad_clip_thresh": 1.0,
    "batch_size": 64,
    "mask_padding": True,
    "learning_rate_schedule": "constant",
    "p_prenet_dropout": 0.5,
    "loss": "padded",
}
# The recipe of Ge et al. and of this project where the reference has no such setting.
OWN_DEFAULTS = {
    "batching_strategy": "semi_sorted",
    "local_randomization_factor": 0.1,
    "bucket_size": 1024,
    "num_bins": 58,
    "num_buckets": 10,
    "dynamic_batch_size": True,
    "batch_capacity": None,
    "batch_randomization": True,
    "random_epochs": 0,
    "attention_location_gradient": True,
    "prepare_trainset_per_epoch": True,
    "epochs_per_validation": 2,
    "validation_batch_size": 16,
    "log_interval": 10,
    "precision": "fp32",
    "win_time": None,
    "hop_time": None,
}


def refusal(overrides, base=None):
    with pytest.raises(ValueError, match="hyper-parameters refused:") as caught:
        create_hparams(overrides, base)
    return str(caught.value)


# ---------------------------------------------------------------------------- conversion


@pytest.mark.parametrize(
    ("override", "name", "expected"),
    [
        ("learning_rate=1", "learning_rate", 1.0),
        ("learning_rate=1e-4", "learning_rate", 0.0001),
        ("learning_rate=.5", "learning_rate", 0.5),
        ("mel_fmin=0", "mel_fmin", 0.0),
        ("batch_size=32", "batch_size", 32),
        ("iters_per_checkpoint=1e6", "iters_per_checkpoint", 1_000_000),
        ("batch_size=+16", "batch_size", 16),
        ("epochs=2.0", "epochs", 2),
        ("seed=9007199254740993", "seed", 9007199254740993),  # more digits than a float holds
        ("seed=0", "seed", 0),
        ("mask_padding=False", "mask_padding", False),
        ("mask_padding=false", "mask_padding", False),
        ("mask_padding=0", "mask_padding", False),
        ("mask_padding=no", "mask_padding", False),
        ("load_mel_from_disk=True", "load_mel_from_disk", True),
        ("load_mel_from_disk=true", "load_mel_from_disk", True),
        ("load_mel_from_disk=1", "load_mel_from_disk", True),
        ("load_mel_from_disk=yes", "load_mel_from_disk", True),
        ("batch_capacity=20000", "batch_capacity", 20000),
        ("batch_capacity=None", "batch_capacity", None),
        ("batch_capacity=none", "batch_capacity", None),
        ("win_time=50", "win_time", 50.0),
        ("loss=unpadded", "loss", "unpadded"),
        ("training_files=a folder/list=1.txt", "training_files", "a folder/list=1.txt"),
        ("text_cleaners=[english_cleaners]", "text_cleaners", ("english_cleaners",)),
        ("text_cleaners=basic_cleaners", "text_cleaners", ("basic_cleaners",)),
        ("text_cleaners=[a,b]", "text_cleaners", ("a", "b")),
        ("text_cleaners=[ a , b ]", "text_cleaners", ("a", "b")),
        ("text_cleaners=['a',\"b\"]", "text_cleaners", ("a", "b")),
        ("ignore_layers=[]", "ignore_layers", ()),
    ],
)
def test_a_value_takes_the_annotated_type(override, name, expected):
    value = getattr(create_hparams(override), name)
    assert value == expected
    assert type(value) is type(expected)


def test_every_setting_can_be_overridden_from_its_own_text():
    """Every annotated type converts: the printed default reads back as the same value."""
    for field in dataclasses.fields(HParams):
        default = getattr(HParams(), field.name)
        text = f"[{','.join(default)}]" if isinstance(default, tuple) else str(default)
        base = HParams(batch_capacity=10**6) if field.name == "batch_capacity" else HParams()
        value = getattr(create_hparams(f"{field.name}={text}", base), field.name)
        assert value == default, field.name
        assert type(value) is type(default), field.name


def test_commas_inside_a_list_do_not_end_it():
    h = create_hparams("text_cleaners=[a,b],batch_size=8,ignore_layers=[x.weight,y.bias],seed=1")
    assert (h.text_cleaners, h.ignore_layers) == (("a", "b"), ("x.weight", "y.bias"))
    assert (h.batch_size, h.seed) == (8, 1)


@pytest.mark.parametrize("nothing", [None, "", " ", ",", " , "])
def test_no_overrides_are_the_defaults(nothing):
    assert create_hparams(nothing) == HParams()


def test_spaces_around_names_and_values_do_not_count():
    h = create_hparams(" batch_size = 8 , loss = unpadded ,")
    assert (h.batch_size, h.loss) == (8, "unpadded")


# ---------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("batch_sise", "batch_size"),
        ("learning_rat", "learning_rate"),
        ("gate_treshold", "gate_threshold"),
        ("n_mel_channel", "n_mel_channels"),
        ("batching_strategi", "batching_strategy"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, nearest):
    message = refusal(f"{name}=1")
    assert f"{name}: " in message
    assert f"did you mean {nearest}?" in message


def test_an_unknown_name_near_nothing_says_where_the_names_are():
    message = refusal("zzzzzzzz=1")
    assert "did you mean" not in message
    assert "hparams.py" in message


def test_the_last_value_of_a_name_counts_so_that_scripts_can_append():
    assert create_hparams("seed=1,batch_size=8,seed=2").seed == 2


def test_all_problems_are_listed_together():
    message = refusal(
        "batch_sise=3,fp16_run=True,epochs=many,mask_padding=perhaps,learning_rate=-1,"
        "nonsense,win_time=50,win_length=1024,precision=fp61"
    )
    lines = message.splitlines()[1:]
    expected = [
        ("batch_sise", "batch_size"),
        ("fp16_run", "precision=fp16"),
        ("epochs=many", "whole number"),
        ("mask_padding=perhaps", "True or False"),
        ("learning_rate=-1", "greater than 0"),
        ("'nonsense'", "not name=value"),
        ("win_time and win_length", "keep one"),
        ("precision=fp61", "fp16"),
    ]
    for words in expected:
        assert sum(all(word in line for word in words) for line in lines) == 1, (words, message)
    assert len(lines) == len(expected), message


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("batch_size=1.5", "whole number"),
        ("batch_size=None", "whole number"),
        ("batch_size=0", "greater than 0"),
        ("batch_size=inf", "whole number"),
        ("seed=-1", "at least 0"),
        ("learning_rate=fast", "a number"),
        ("learning_rate=nan", "finite"),
        ("learning_rate=0", "greater than 0"),
        ("weight_decay=-1e-6", "at least 0"),
        ("hop_time=inf", "finite"),
        ("hop_time=-1", "greater than 0"),
        ("p_prenet_dropout=1", "[0, 1)"),
        ("p_attention_dropout=-0.1", "[0, 1)"),
        ("mask_padding=2", "True or False"),
        ("batching_strategy=semisorted", "did you mean semi_sorted?"),
        ("learning_rate_schedule=exponentil", "did you mean exponential?"),
        ("loss=average", "padded, unpadded"),
        ("win_length=2048", "filter_length=1024"),
        ("mel_fmax=12000", "11025"),
        ("mel_fmin=9000", "mel_fmin < mel_fmax"),
        ("encoder_embedding_dim=511", "even"),
        ("encoder_kernel_size=4", "odd"),
        ("attention_location_kernel_size=30", "odd"),
        ("postnet_kernel_size=2", "odd"),
        ("postnet_n_convolutions=1", "at least 2"),
        ("batch_capacity=1000,dynamic_batch_size=False", "dynamic_batch_size"),
        ("bucket_size=32,batching_strategy=bucket", "batch_size=64"),
        ("random_epochs=2,prepare_trainset_per_epoch=False", "repeats the first epoch"),
        ("random_epochs=2,batch_capacity=90000", "leave one of them out"),
        ("random_epochs=-1", "random_epochs=-1"),
        ("text_cleaners=[]", "at least one"),
    ],
)
def test_a_bad_value_is_refused_and_named(override, words):
    message = refusal(override)
    assert words in message
    assert override.split(",")[0].split("=")[0] in message


def test_retired_names_of_the_reference_explain_themselves():
    assert len(hparams.RETIRED) > 5
    known = {field.name for field in dataclasses.fields(HParams)}
    for name, instead in hparams.RETIRED.items():
        assert name not in known
        assert f"{name}: this recipe has no such setting: {instead}" in refusal(f"{name}=1")
    for name in ("fp16_run", "distributed_run", "cudnn_benchmark", "max_wav_value"):
        assert name in hparams.RETIRED  # flags that the reference's users pass


def test_a_saved_setting_that_is_no_more_is_refused_if_it_changed_the_training():
    assert hparams_from_dict({"learning_rate_batch_exponent": 0.0}) == HParams()
    with pytest.raises(UserError, match=r"batch_exponent=0\.5: .*any more; use the version"):
        hparams_from_dict({"learning_rate_batch_exponent": 0.5})


def test_values_set_in_code_are_checked_too():
    with pytest.raises(ValueError, match=r"batch_size=2\.0: expected int") as caught:
        HParams(batch_size=2.0, seed=True, text_cleaners=["list"], batch_capacity="x")
    for name in ("seed=True", "text_cleaners=['list']", "batch_capacity='x'"):
        assert name in str(caught.value)
    with pytest.raises(ValueError, match="create_hparams"):
        HParams(hop_time=12.5)  # the length does not follow it
    assert HParams(learning_rate=1).learning_rate == 1


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        HParams().batch_size = 1


# ---------------------------------------------------------------------------- settings files


@pytest.fixture
def settings(tmp_path):
    """Writes a settings file and returns the override that names it."""

    def write(text, name="settings.txt"):
        (tmp_path / name).write_bytes(text.encode())
        return f"@{tmp_path / name}"

    return write


def test_a_settings_file_is_applied_at_its_place_and_later_overrides_win(settings):
    first = settings("batch_size=8\nseed=1\n")
    second = settings("seed=5\n", "second.txt")
    h = create_hparams(f"seed=2,epochs=3,{first}")
    assert (h.batch_size, h.seed, h.epochs) == (8, 1, 3)
    assert create_hparams(f"{first},seed=2").seed == 2
    assert create_hparams(f"{first},{second}").seed == 5
    assert create_hparams(f"{second},{first}").seed == 1
    assert create_hparams(first, create_hparams("epochs=7")).epochs == 7


def test_blank_lines_comments_and_blanks_in_a_settings_file_do_not_count(settings):
    h = create_hparams(
        settings(
            "\ufeff# a corpus\r\n\r\n  training_files = my lists/a,b#1.txt  # its clips\r\n"
            "text_cleaners=[a, b] \r\n#seed=3\r\nwin_time=50"
        )
    )
    assert h.training_files == "my lists/a,b#1.txt"  # a line holds one override, commas included
    assert (h.text_cleaners, h.seed, h.win_length) == (("a", "b"), 1234, 1103)
    assert create_hparams(settings("\n# nothing\n")) == HParams()


def test_every_problem_of_a_settings_file_is_named_with_its_line(settings):
    name = settings(
        "batch_sise=3\n\nfp16_run=True\nepochs=many\nnonsense\nseed=-1\nmel_fmax=12000\n"
        "hop_time=10\nhop_length=200\n"
    )
    message = refusal(f"{name},batch_size=0.5")
    lines = message.splitlines()[1:]
    expected = {1: "batch_size?", 3: "precision=fp16", 4: "whole number", 5: "not name=value"}
    expected |= {6: "at least 0", 8: "keep one"}
    for number, words in expected.items():
        (line,) = (line for line in lines if line.startswith(f"  {name[1:]}:{number}: "))
        assert words in line
    assert "  batch_size=0.5: expected a whole number" in lines
    assert len(lines) == len(expected) + 1
    # What two settings say together is named by the line of the one from the file.
    name = settings("\nmel_fmax=12000")
    assert f"{name[1:]}:2: mel_fmin=0.0, mel_fmax=12000.0: expected" in refusal(name)
    assert f"{name[1:]}:2" not in refusal(f"{name},mel_fmax=13000")  # overridden since


def test_a_settings_file_that_cannot_be_read_is_named_beside_the_other_problems(settings, tmp_path):
    (tmp_path / "latin.txt").write_bytes("a=1\nb=\u00e2".encode("latin-1"))
    message = refusal(f"@{tmp_path}/gone.txt,@{tmp_path}/latin.txt,@{tmp_path},batch_size=x")
    missing, latin, folder, value = message.splitlines()[1:]
    assert f"{tmp_path}/gone.txt: no such file of settings" in missing
    assert f"{tmp_path}/latin.txt: not readable as UTF-8 text" in latin
    assert "in line 2" in latin
    assert f"{tmp_path}: a folder, expected a file" in folder
    assert "batch_size=x" in value


def test_override_lines_are_what_a_settings_file_holds(settings):
    overrides = f"seed=1,{settings('batch_size=8 # few')},text_cleaners=[a,b],"
    assert hparams.override_lines(overrides) == ["seed=1", "batch_size=8", "text_cleaners=[a,b]"]


# ---------------------------------------------------------------------------- times and lengths


def lengths_of(h):
    return h.win_length, h.hop_length, h.filter_length


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("win_time=50,hop_time=12.5", (1103, 276, 2048)),  # 1102.5 and 275.625: rounded up
        ("win_time=50", (1103, 256, 2048)),
        ("hop_time=12.5", (1024, 276, 1024)),
        ("hop_time=10", (1024, 221, 1024)),  # 220.5
        ("win_time=50,hop_time=12.5,sampling_rate=16000", (800, 200, 1024)),
        ("win_time=64,hop_time=16,sampling_rate=16000", (1024, 256, 1024)),  # exact: not 1025
        ("win_time=50,filter_length=4096", (1103, 256, 4096)),
    ],
)
def test_times_become_lengths(overrides, expected):
    assert lengths_of(create_hparams(overrides)) == expected


def test_whole_products_of_time_and_rate_are_not_rounded_up():
    for rate in (8000, 16000, 22050, 24000, 44100, 48000):
        for samples in range(1, 3000, 7):
            assert hparams.milliseconds_to_samples(samples * 1000 / rate, rate) == samples
            half = hparams.milliseconds_to_samples((samples + 0.5) * 1000 / rate, rate)
            assert half == samples + 1


@pytest.mark.parametrize(
    ("time", "length"), [("win_time=50", "win_length=1024"), ("hop_time=12.5", "hop_length=256")]
)
def test_a_time_beside_its_length_is_refused(time, length):
    names = time.split("=")[0], length.split("=")[0]
    for overrides in (f"{time},{length}", f"{length},{time}"):
        assert f"{names[0]} and {names[1]} are both given; keep one" in refusal(overrides)


def test_overrides_build_on_a_base():
    base = create_hparams("batch_size=8,learning_rate=0.1")
    h = create_hparams("learning_rate=0.2", base)
    assert (h.batch_size, h.learning_rate) == (8, 0.2)
    assert base.learning_rate == 0.1


def test_a_later_length_replaces_an_earlier_time():
    base = create_hparams("win_time=50,hop_time=12.5")
    h = create_hparams("hop_length=200,win_length=800", base)
    assert lengths_of(h)[:2] == (800, 200)
    assert (h.win_time, h.hop_time) == (None, None)


def test_a_later_time_replaces_an_earlier_length():
    h = create_hparams("win_time=50", create_hparams("win_length=800,filter_length=1024"))
    assert lengths_of(h) == (1103, 256, 2048)


def test_a_later_rate_moves_the_lengths_with_the_times():
    base = create_hparams("win_time=50,hop_time=12.5")
    assert lengths_of(create_hparams("sampling_rate=16000", base)) == (800, 200, 1024)


def test_an_unrelated_override_leaves_the_filter_alone():
    base = create_hparams("win_time=50,filter_length=4096")
    assert create_hparams("batch_size=8", base).filter_length == 4096


# ---------------------------------------------------------------------------- saved settings


def test_saved_settings_load_again():
    h = create_hparams("win_time=50,hop_time=12.5,text_cleaners=[a,b],batch_capacity=9000")
    saved = dataclasses.asdict(h)
    assert hparams_from_dict(saved) == h
    assert hparams_from_dict(saved | {"text_cleaners": ["a", "b"]}) == h  # JSON has no tuples


def test_saved_settings_of_another_version_load():
    saved = dataclasses.asdict(create_hparams("batch_size=8"))
    del saved["num_bins"]  # this version learnt it later
    saved["a_setting_of_long_ago"] = 3
    h = hparams_from_dict(saved)
    assert h == create_hparams("batch_size=8")
    assert hparams_from_dict({}) == HParams()


def test_saved_settings_are_checked():
    with pytest.raises(ValueError, match="batch_size=-1"):
        hparams_from_dict({"batch_size": -1})


def test_the_description_stars_what_differs_from_the_defaults():
    lines = describe(create_hparams("batch_size=8,text_cleaners=[a,b]")).splitlines()
    assert len(lines) == len(dataclasses.fields(HParams))
    assert {line for line in lines if line.startswith("*")} == {
        "* batch_size = 8",
        "* text_cleaners = ['a', 'b']",
    }
    assert "  seed = 1234" in lines


# ---------------------------------------------------------------------------- defaults and the file


@pytest.mark.parametrize("expected", [REFERENCE_DEFAULTS, OWN_DEFAULTS], ids=["reference", "own"])
def test_the_defaults_are_the_published_ones(expected):
    h = HParams()
    assert {name: getattr(h, name) for name in expected} == expected


def test_the_strategies_are_those_of_batching():
    assert hparams.STRATEGIES == batching.STRATEGIES


def test_the_arguments_of_plan_epoch_are_settings_of_the_same_type():
    hints = typing.get_type_hints(HParams)
    parameters = inspect.signature(batching.plan_epoch).parameters
    for name in set(parameters) - {"lengths", "strategy", "seed", "epoch", "known_orders"}:
        assert name in hints
    for name in ("bucket_size", "num_bins", "num_buckets", "local_randomization_factor"):
        assert getattr(HParams(), name) == parameters[name].default


def test_every_hyper_parameter_is_one_line_with_a_comment():
    source = Path(hparams.__file__).read_text(encoding="utf-8")
    (table,) = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == "HParams"
    ]
    lines = source.splitlines()
    settings = [node for node in table.body if isinstance(node, ast.AnnAssign)]
    assert len(settings) == len(dataclasses.fields(HParams))
    for node in settings:
        assert node.lineno == node.end_lineno, f"{node.target.id} takes several lines"
        comment = lines[node.lineno - 1][node.end_col_offset :].strip()
        assert comment.startswith("# "), f"{node.target.id} has no comment"
        assert len(comment) > 8, f"{node.target.id}: {comment!r} says nothing"


# ---------------------------------------------------------------------------- absurd values


@pytest.mark.parametrize(
    "override",
    [
        "batch_capacity=1e300",
        "batch_size=1e300",
        "bucket_size=1e300",
        "num_buckets=1e15",
        "seed=" + "9" * 30,
        "seed=" + "9" * 400,
        "win_time=1e308",
        "hop_time=1e300",
        "sampling_rate=1e300",
        "hop_length=1e30",
        "filter_length=1e12",
        "n_mel_channels=1e12",
        "epochs=1e30",
    ],
)
def test_absurd_values_are_refused_by_name_before_anything_is_computed_with_them(override):
    name = override.partition("=")[0]
    with pytest.raises(UserError, match=rf"(?m)^  {name}=.*(at most|whole number)") as refusal:
        create_hparams(override)
    assert len(str(refusal.value).splitlines()[1].removeprefix(f"  {override}")) < 120


@pytest.mark.parametrize("name", ["seed", "epochs", "mel_fmax", "win_time"])
def test_saved_settings_with_numbers_of_400_digits_are_refused(name):
    with pytest.raises(UserError, match=rf"{name}=\(a number of some 400 digits\)"):
        hparams_from_dict({name: 10**400 - 1})


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("decoder_rnn_dim=1e9", "decoder_rnn_dim=1000000000, attention_rnn_dim=1024"),
        ("symbols_embedding_dim=1e9", "n_symbols=148, symbols_embedding_dim=1000000000"),
        ("postnet_n_convolutions=1e6", "postnet_n_convolutions=1000000"),
        ("attention_location_kernel_size=99999999999", "attention_location_kernel_size="),
    ],
)
def test_a_model_of_terabytes_is_refused_with_its_settings_and_memory(override, named):
    with pytest.raises(UserError, match=r"GB in training; at most 1e\+10 weights") as refusal:
        create_hparams(override)
    assert named in str(refusal.value)


@pytest.mark.parametrize("override", ["", "decoder_rnn_dim=300,prenet_dim=64,n_frames_per_step=3"])
def test_weights_are_those_of_the_model_but_for_biases(override):
    chosen = create_hparams(override)
    model = Tacotron2(chosen)
    matrices = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    # The reference's gate and attention have a few rows more.
    assert sum(hparams._weights(chosen).values()) == pytest.approx(matrices, rel=0.001)


def test_fewer_symbols_than_texts_are_made_of_are_refused():
    with pytest.raises(UserError, match="n_symbols=147: must be at least 148"):
        check_symbols(create_hparams("n_symbols=147"))
    check_symbols(create_hparams("n_symbols=148"))


VALUES = st.one_of(
    st.text(max_size=20),
    st.integers().map(str),
    st.integers(0, 10**4).map(lambda digits: "7" * digits),
    st.floats().map(str),
    st.sampled_from(["None", "True", "[", "[]", "[a,b", "1e400", "-0", "1_0", "\0", "@x", "٣"]),
)


@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
@hypothesis.given(name=st.sampled_from([f.name for f in fields(HParams)]), text=VALUES)
def test_any_text_is_a_value_or_refused_by_the_name_of_its_setting(name, text):
    text = text.replace(",", "").replace("\n", "")
    accepted, message = None, ""
    try:
        accepted = create_hparams(f"{name}={text}")
    except UserError as refusal:
        message = str(refusal)
    assert accepted is None or hparams_from_dict(asdict(accepted)) == accepted
    assert accepted is not None or name.removesuffix("_time").removesuffix("_length") in message
