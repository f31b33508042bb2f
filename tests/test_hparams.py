"""Test the conversion and rejection of settings (`name=value`), and NVIDIA's defaults."""

import dataclasses
import inspect
import subprocess
import sys
import typing

import hypothesis
import pytest
from helpers import ROOT
from hypothesis import strategies as st

import hparams
import length_batching
from hparams import (
    HParams,
    create_hparams,
    hparams_from_dict,
    symbols_path,
)
from tacotron2_voice.settings import (
    VoiceSettings,
    describe,
    settings_from_dict,
    types_of,
    values_of,
)
from tacotron2_voice.utils.errors import UserError

# These values come from NVIDIA's published recipe, not from hparams.py.
# The model sizes are missing here, because test_model.py compares the shapes of all weights.
PUBLISHED = {
    "epochs": 500,
    "iters_per_checkpoint": 1000,
    "seed": 1234,
    "load_mel_from_disk": False,
    "sampling_rate": 22050,
    "filter_length": 1024,
    "hop_length": 256,
    "win_length": 1024,
    "n_mel_channels": 80,
    "mel_fmin": 0.0,
    "mel_fmax": 8000.0,
    "n_frames_per_step": 1,
    "gate_threshold": 0.5,
    "p_attention_dropout": 0.1,
    "p_decoder_dropout": 0.1,
    "learning_rate": 0.001,
    "weight_decay": 0.000001,
    "grad_clip_thresh": 1.0,
    "batch_size": 64,
    "mask_padding": True,
    "learning_rate_schedule": "constant",
    "p_prenet_dropout": 0.5,
    "loss": "padded",
    # NVIDIA's recipe lacks these settings. The values come from Ge et al.
    "batching_strategy": "semi_sorted",
    "local_randomization_factor": 0.1,
    "bucket_size": 1024,
    "num_bins": 58,
    "dynamic_batch_size": True,
    "batch_capacity": None,
    "batch_randomization": True,
}
NAMES = [field.name for field in dataclasses.fields(HParams)]


def refusal(overrides, base=None):
    with pytest.raises(UserError) as caught:
        create_hparams(overrides, base)
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("learning_rate=1", 1.0),
        ("iters_per_checkpoint=1e6", 1_000_000),
        ("seed=9007199254740993", 9007199254740993),  # a float cannot represent this number exactly
        ("mask_padding=yes", True),
        ("mask_padding=False", False),
        ("batch_capacity=None", None),
        ("win_time=50", 50.0),
        ("loss=unpadded", "unpadded"),
        ("training_files=a folder/list=1.txt", "a folder/list=1.txt"),
        ("text_cleaners=basic_cleaners", ("basic_cleaners",)),
        ("text_cleaners=[ 'a' , \"b\" ]", ("a", "b")),
        ("ignore_layers=[]", ()),
    ],
)
def test_values_of_settings_are_converted_to_the_annotated_type(override, expected):
    value = getattr(create_hparams(override), override.split("=")[0])
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("drop_last", None),  # the error must not suggest hop_length
        ("--batch-size", "batch_size"),
        ("learning_rte", "learning_rate"),
    ],
)
def test_error_suggests_a_similar_setting_when_a_setting_is_unknown(name, answer):
    message = refusal(f"{name}=1")
    assert f"{name}: unknown setting" in message
    assert ("did you mean" in message) == (answer is not None)
    assert answer is None or f"{answer}?" in message


def test_path_of_the_symbol_table_is_defined_when_the_training_filelist_is_not_set():
    """A missing filelist causes an error only when the program reads the filelist."""
    table = symbols_path(create_hparams("training_files=,symbols=corpus"))
    assert table.name == "symbols.json"


def test_printed_default_settings_can_be_parsed_again():
    for name in NAMES:
        default = getattr(HParams(), name)
        text = f"[{','.join(default)}]" if isinstance(default, tuple) else str(default)
        assert create_hparams(f"{name}={text}") == HParams(), name


def test_overrides_of_settings_can_be_separated_by_commas_and_spaces():
    h = create_hparams(" text_cleaners=[a,b] , batch_size = 8, ignore_layers=[x.weight,y.bias],")
    assert (h.text_cleaners, h.ignore_layers) == (("a", "b"), ("x.weight", "y.bias"))
    assert h.batch_size == 8
    for nothing in (None, "", " ", " , "):
        assert create_hparams(nothing, h) == h
    # Only the last override has an effect.
    assert create_hparams("batch_size=3,batch_size=2", h).batch_size == 2


def test_error_lists_all_problems_of_the_settings():
    message = refusal(
        "batch_sise=3,zzzzzzzz=1,fp16_run=True,epochs=many,mask_padding=perhaps,learning_rate=-1,nonsense,win_time=50,"
        "win_length=1024,precision=fp61,batching_strategy=semisorted,mel_fmax=12000"
    )
    lines = message.splitlines()[1:]
    expected = [
        ("batch_sise: ", "batch_size?"),
        ("zzzzzzzz", "unknown"),
        ("fp16_run", "use precision=fp16"),
        ("epochs=many", "an integer"),
        ("mask_padding=perhaps", "True or False"),
        ("learning_rate=-1", "greater than 0"),
        ("'nonsense'", "name=value"),
        ("win_time and win_length", "only one"),
        ("precision=fp61", "'fp16'"),
        ("batching_strategy='semisorted'", "did you mean 'semi_sorted'"),
        ("mel_fmax=12000", "11025"),
    ]
    for words in expected:
        assert sum(all(word in line for word in words) for line in lines) == 1, (words, message)
    assert len(lines) == len(expected), message


NVIDIA_NAMES = """
    epochs iters_per_checkpoint seed dynamic_loss_scaling fp16_run distributed_run dist_backend
    dist_url cudnn_enabled cudnn_benchmark ignore_layers load_mel_from_disk training_files
    validation_files text_cleaners max_wav_value sampling_rate filter_length hop_length win_length
    n_mel_channels mel_fmin mel_fmax n_symbols symbols_embedding_dim encoder_kernel_size
    encoder_n_convolutions encoder_embedding_dim n_frames_per_step decoder_rnn_dim prenet_dim
    max_decoder_steps gate_threshold p_attention_dropout p_decoder_dropout attention_rnn_dim
    attention_dim attention_location_n_filters attention_location_kernel_size
    postnet_embedding_dim postnet_kernel_size postnet_n_convolutions use_saved_learning_rate
    learning_rate weight_decay grad_clip_thresh batch_size mask_padding
"""


def test_every_nvidia_setting_exists_or_has_a_replacement():
    """If a setting of NVIDIA's recipe does not exist here, the error names its replacement."""
    for name in {*NVIDIA_NAMES.split()} - types_of(HParams).keys():
        message = refusal(f"{name}=1")
        assert f"{name}: cannot be set; " in message
        assert "unknown" not in message


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("batch_size=0", "greater than or equal to 1"),
        ("learning_rate=nan", "finite"),
        ("p_prenet_dropout=1", "less than 1"),
        ("win_length=2048", "filter_length=1024"),
        ("encoder_embedding_dim=511", "multiple of 2"),
        ("postnet_kernel_size=2", "odd"),
        ("bucket_size=32,batching_strategy=bucket", "batch_size=64"),
        ("text_cleaners=[]", "at least one"),
        ("seed=" + "9" * 400, "less than or equal"),
    ],
    ids=lambda text: text[:40],
)
def test_error_names_the_setting_when_its_value_is_invalid(override, words):
    message = refusal(override)
    assert words in message
    assert override.split("=")[0] in message
    assert len(max(message.splitlines(), key=len)) < 300


def test_settings_are_checked_when_they_are_set_in_code():
    with pytest.raises(
        UserError, match=r"batch_size=2\.0: Input should be a valid integer"
    ) as caught:
        HParams(batch_size=2.0, seed=True, text_cleaners=["list"], batch_capacity="x")
    for name in ("seed=True", "text_cleaners=['list']", "batch_capacity=x"):
        assert name in str(caught.value)
    with pytest.raises(UserError, match=r"hop_time=12\.5: .*expected 276 samples"):
        HParams(hop_time=12.5)  # unlike in an override, hop_time does not set hop_length
    with pytest.raises(dataclasses.FrozenInstanceError):
        HParams().batch_size = 1
    assert HParams(learning_rate=1).learning_rate == 1


VALUES = st.one_of(
    st.text(max_size=20),
    st.integers().map(str),
    st.integers(0, 10**4).map(lambda digits: "7" * digits),
    st.floats().map(str),
    st.sampled_from(["None", "True", "[", "[]", "[a,b", "1e400", "-0", "1_0", "\0", "@x", "٣"]),
)


@hypothesis.settings(max_examples=60, derandomize=True)
@hypothesis.given(name=st.sampled_from(NAMES), text=VALUES)
def test_override_is_converted_or_the_error_names_the_setting(name, text):
    text = text.replace(",", "").replace("\n", "")
    accepted, message = None, ""
    try:
        accepted = create_hparams(f"{name}={text}")
    except UserError as refused:
        message = str(refused)
    assert accepted is None or hparams_from_dict(dataclasses.asdict(accepted)) == accepted
    assert accepted is not None or name.removesuffix("_time").removesuffix("_length") in message


def test_settings_are_checked_when_pydantic_is_missing():
    """Without pydantic, values are still converted, and rules are still checked. A note says that
    the ranges of values are not checked."""
    script = (
        "import sys; sys.modules['pydantic'] = None; sys.path.insert(0, '.')\n"
        "import importlib.util\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name == 'pydantic' else found(name)\n"
        "from hparams import create_hparams\n"
        "h = create_hparams('batch_size=32,learning_rate=-1,win_time=50,text_cleaners=[a,b]')\n"
        "print(h.batch_size, h.learning_rate, h.win_length, h.text_cleaners)\n"
        "create_hparams('batch_size=0,mel_fmax=12000')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert run.stdout == "32 -1.0 1103 ('a', 'b')\n"
    assert run.stderr.count("note: pydantic is not installed") == 1
    assert "mel_fmax=12000.0: expected" in run.stderr
    assert "batch_size=0: expected a whole number of at least 1" in run.stderr


@pytest.fixture
def settings(tmp_path):
    """Return a function that writes a settings file and returns its override `@PATH`."""

    def write(text, name="settings.txt"):
        (tmp_path / name).write_bytes(text.encode())
        return f"@{tmp_path / name}"

    return write


def test_last_value_is_used_when_settings_files_and_overrides_set_the_same_setting(settings):
    first = settings("batch_size=8\nseed=1\n")
    second = settings("seed=5\n", "second.txt")
    h = create_hparams(f"seed=2,epochs=3,{first}")
    assert (h.batch_size, h.seed, h.epochs) == (8, 1, 3)
    assert create_hparams(f"{first},seed=2").seed == 2
    assert create_hparams(f"{first},{second}").seed == 5
    assert create_hparams(first, create_hparams("epochs=7")).epochs == 7
    lines = hparams.override_lines(f"epochs=3,{first},text_cleaners=[a,b],")
    assert lines == ["epochs=3", "batch_size=8", "seed=1", "text_cleaners=[a,b]"]


def test_settings_file_ignores_comments_and_empty_lines(settings):
    h = create_hparams(
        settings(
            "\ufeff# a corpus\r\n\r\n  training_files = my lists/a,b#1.txt  # its clips\r\n"
            "text_cleaners=[a, b] \r\n#seed=3\r\nwin_time=50"
        )
    )
    # Each line contains one override, so commas belong to the value.
    assert h.training_files == "my lists/a,b#1.txt"
    assert (h.text_cleaners, h.seed, h.win_length) == (("a", "b"), 1234, 1103)


def test_error_reports_the_line_number_when_a_settings_file_has_a_problem(settings, tmp_path):
    name = settings("batch_sise=3\n\nepochs=many\nnonsense\nseed=-1\nmel_fmax=12000\n")
    message = refusal(f"{name},batch_size=0.5,@{tmp_path}/gone.txt,@{tmp_path}")
    lines = message.splitlines()[1:]
    expected = {1: "batch_size?", 3: "an integer", 4: "name=value", 5: "equal to 0", 6: "11025"}
    for number, words in expected.items():
        (line,) = (line for line in lines if line.startswith(f"  {name[1:]}:{number}: "))
        assert words in line
    assert any("batch_size=0.5: " in line for line in lines)
    assert any("gone.txt: no such settings file" in line for line in lines)
    assert any(f"{tmp_path}: a folder" in line for line in lines)
    assert len(lines) == len(expected) + 3
    # A later override can replace an invalid value.
    assert f"{name[1:]}:6" not in refusal(f"{name},mel_fmax=13000")


BY_TIME = "win_time=50,hop_time=12.5"


@pytest.mark.parametrize(
    ("before", "overrides", "expected"),
    [
        ("", BY_TIME, (1103, 276, 2048)),  # 1102.5 and 275.625 samples are rounded up
        # 64 ms are exactly 1024 samples and must not be rounded up to 1025.
        ("", "win_time=64,hop_time=16,sampling_rate=16000", (1024, 256, 1024)),
        ("", "win_time=50,filter_length=4096", (1103, 256, 4096)),
        (BY_TIME, "hop_length=200,win_length=800", (800, 200, 2048)),
        (BY_TIME, "sampling_rate=16000", (800, 200, 1024)),
        ("win_length=800,filter_length=1024", "win_time=50", (1103, 256, 2048)),
        ("win_time=50,filter_length=4096", "batch_size=8", (1103, 256, 4096)),
    ],
)
def test_time_settings_are_converted_to_lengths_in_samples(before, overrides, expected):
    """A later override replaces an earlier override."""
    h = create_hparams(overrides, create_hparams(before))
    assert (h.win_length, h.hop_length, h.filter_length) == expected


def test_saved_settings_can_be_loaded_again():
    h = create_hparams("win_time=50,hop_time=12.5,text_cleaners=[a,b],batch_capacity=9000")
    saved = dataclasses.asdict(h)
    assert hparams_from_dict(saved) == h
    # JSON stores tuples as lists.
    assert hparams_from_dict(saved | {"text_cleaners": ["a", "b"]}) == h
    # NVIDIA's checkpoints contain settings with other names.
    theirs = HParams(batch_size=8, text_cleaners=("english_cleaners",))
    assert hparams_from_dict({"batch_size": 8, "a_name_of_others": 3}) == theirs


def test_settings_description_marks_values_that_differ_from_defaults():
    lines = describe(create_hparams("batch_size=8,text_cleaners=[a,b]")).splitlines()
    starred = {line for line in lines if line.startswith("*")}
    assert starred == {"* batch_size = 8", "* text_cleaners = ['a', 'b']"}
    assert len(lines) == len(NAMES)


def test_default_settings_equal_the_published_values():
    assert {name: getattr(HParams(), name) for name in PUBLISHED} == PUBLISHED


def test_every_argument_of_plan_epoch_that_speech_training_needs_is_a_setting():
    parameters = inspect.signature(length_batching.plan_epoch).parameters
    others = {"lengths", "strategy", "epoch"}
    # Training on clips of speech does not need the following arguments of plan_epoch.
    others |= {"max_clips", "too_long", "cost"}
    others |= {"group_sizes", "draw", "draw_weights"}
    assert set(parameters) - others <= set(typing.get_type_hints(HParams))
    assert hparams.batching_options(HParams()).keys() == set(parameters) - others | {"strategy"}
    for parameter in length_batching.PARAMETERS:
        assert getattr(HParams(), parameter.name) == parameters[parameter.name].default
    for strategy in length_batching.STRATEGIES:
        assert HParams(batching_strategy=strategy).batching_strategy == strategy


def test_problem_of_a_setting_is_reported_once_when_it_occurs_in_several_lines(tmp_path):
    path = tmp_path / "settings.txt"
    path.write_text("".join(f"batch_size=x{i}\n" for i in range(2000)))
    with pytest.raises(UserError) as caught:
        create_hparams(f"@{path}")
    first, *others = str(caught.value).splitlines()[1:]
    assert first.startswith(f"  {path}:1: ")
    assert others[0].startswith("    the same in 1,999 more: settings.txt:2, settings.txt:3, ")
    assert len(others) == 1


def test_every_voice_setting_is_a_recipe_setting_with_the_same_type():
    voice = typing.get_type_hints(VoiceSettings, include_extras=True)
    recipe = typing.get_type_hints(HParams, include_extras=True)
    assert {name: recipe[name] for name in voice} == voice
    own = HParams.__annotations__
    assert {field.name for field in dataclasses.fields(VoiceSettings)} <= own.keys()


def test_voice_settings_are_rejected_when_a_setting_is_missing():
    values = values_of(create_hparams("win_time=50"))
    settings = settings_from_dict(VoiceSettings, values)
    assert settings.win_length == 1103
    assert type(settings) is VoiceSettings
    del values["hop_length"]
    with pytest.raises(UserError, match="hop_length"):
        settings_from_dict(VoiceSettings, values)
