"""scripts/page.py: which checkpoints it speaks with, what it refuses, and its page over HTTP."""

import asyncio
import json
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import speaking
import synthesize
from errors import UserError
from scripts import page
from speaking import load_speaker

QUICK = "gate_threshold=2,max_decoder_steps=3"


@pytest.fixture
def quick_sound(monkeypatch):
    """Sound that depends on the mel alone, in no time, and empty pictures."""
    monkeypatch.setattr(
        speaking, "griffin_lim", lambda mel, _: mel.mean(0).numpy().repeat(256) / 20
    )
    monkeypatch.setattr(speaking, "draw_alignment", lambda *_: Figure((1, 1)))
    monkeypatch.setattr(page, "draw_mel", lambda _: Figure((1, 1)))


@pytest.fixture
def reader(checkpoint_path, tmp_path, quick_sound):
    (tmp_path / "results").mkdir()
    speakers = {name: load_speaker(checkpoint_path, QUICK) for name in ("rand, seed 0", "b", "c")}
    return page.Reader(speakers, tmp_path / "results")


# ---------------------------------------------------------------------------- checkpoints


def test_checkpoints_are_named_by_run_and_those_of_a_table_2_folder_by_experiment_and_seed(
    tmp_path,
):
    for run in ("rand/seed_10", "rand/seed_2", "ssb_dbs_br/seed_0", "alone"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "best.pt").touch()
    alone, older = tmp_path / "alone", tmp_path / "alone" / "checkpoint_7.pt"
    found = page.checkpoints_of([alone, older, tmp_path])
    assert found == {
        "alone": alone / "best.pt",
        "alone/checkpoint_7.pt": older,
        "rand, seed 2": tmp_path / "rand/seed_2/best.pt",
        "rand, seed 10": tmp_path / "rand/seed_10/best.pt",
        "ssb_dbs_br, seed 0": tmp_path / "ssb_dbs_br/seed_0/best.pt",
    }
    assert list(found)[2:4] == ["rand, seed 2", "rand, seed 10"]
    seed = tmp_path / "rand" / "seed_2"
    assert page.checkpoints_of([seed]) == {"rand, seed 2": seed / "best.pt"}
    (tmp_path / "b" / "alone").mkdir(parents=True)
    other = tmp_path / "b" / "alone" / "best.pt"
    assert page.checkpoints_of([alone / "best.pt", other]) == {
        str(path): path for path in (alone / "best.pt", other)
    }
    with pytest.raises(UserError) as refused:
        page.checkpoints_of([tmp_path / "b", tmp_path / "rand", tmp_path])
    lines = str(refused.value).split("\n")
    assert [line.split(":")[0] for line in lines] == [str(tmp_path / "b"), str(tmp_path / "rand")]
    assert all("holds neither best.pt nor NAME/seed_N/best.pt" in line for line in lines)


def test_what_keeps_the_page_from_opening_is_a_line_each(checkpoint_path, tmp_path, monkeypatch):
    damaged = tmp_path / "damaged.pt"
    damaged.write_bytes(b"PK\x03\x04 not a checkpoint")
    checkpoints = [str(damaged), str(tmp_path / "missing.pt"), str(checkpoint_path)]

    def ended(*arguments: str) -> list[str]:
        with pytest.raises(SystemExit) as stop:
            page.main(["--checkpoint", *checkpoints, "--port", "0", *arguments])
        return str(stop.value).split("\n")

    monkeypatch.setattr(page.signal, "signal", lambda *_: None)
    monkeypatch.setattr(page, "find_spec", lambda _: True)
    first, second = ended()
    assert first.startswith(f"page.py: {damaged}: ")
    assert second == f"{tmp_path / 'missing.pt'}: no such checkpoint"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        [line] = ended("--port", str(taken.getsockname()[1]))
        assert "Address already in use; choose another --port" in line
    [line] = ended("--port", "99999")
    assert "choose a --port from 0 to 65535" in line
    monkeypatch.setattr(page, "find_spec", lambda _: None)
    assert ended() == ["page.py: Gradio is not installed: pip install -r requirements-page.txt"]


# ---------------------------------------------------------------------------- speaking


def test_a_text_sounds_on_the_page_as_synthesize_writes_it(reader, checkpoint_path, tmp_path):
    text, out = "A dog came. It sat down.", tmp_path / "out"
    reader.max_symbols = 16
    results = list(reader.read(f" A dog\ncame.  {text[12:]}", ["c", "rand, seed 0"]))
    synthesize.main(
        [
            *("--checkpoint", str(checkpoint_path), "--text", text, "-o", str(out)),
            *("--hparams", QUICK, "--max-symbols", "16"),
        ]
    )
    for result in results:
        assert result.wav.read_bytes() == (out / "0001.wav").read_bytes()
        assert min(path.stat().st_size for path in (result.alignment, result.mel)) > 0
        assert result.notes[1] == "in 2 parts of 11 to 12 symbols (--max-symbols 16)"
        assert "part 1 of 2 ('a dog came.'): no stop within 3 steps" in " ".join(result.warnings)
    assert [result.wav.name for result in results] == ["1-c.wav", "2-rand-seed-0.wav"]


def test_symbols_that_the_model_does_not_know_are_named(reader):
    [result] = reader.read("It costs % <b>", ["b"])
    assert result.warnings[0] == "no symbol of the model stands for '%', '<', '>': left out"


@pytest.mark.parametrize(
    ("text", "names", "message"),
    [
        (" \n", ["b"], "There is no text yet: type one first."),
        ("...", ["b"], "'...' leaves nothing to speak after cleaning"),
        ("%", ["b"], "leaves nothing to speak"),
        ("seven " * 167, ["b"], "too long: 1,001 symbols after cleaning, and this page speaks "),
        ("a", [], "0 checkpoints are chosen: choose 1 to 4."),
        ("a", list("bbbbb"), "5 checkpoints are chosen: choose 1 to 4."),
    ],
)
def test_a_text_that_cannot_be_spoken_is_refused_before_any_speech(reader, text, names, message):
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        next(reader.read(text, names))
    assert list(reader.folder.iterdir()) == []


def test_a_model_of_numbers_is_given_the_words_of_its_language(reader, monkeypatch):
    reader.numbers, spoken = True, []
    monkeypatch.setattr(page, "sequence_to_speak", lambda text, _: spoken.append(text) or [1, 2, 3])
    next(reader.read("four thousand AND seventy-two", ["b"]))
    assert spoken == ["Four thousand seventy two."]
    with pytest.raises(UserError, match="it does not know hello"):
        next(reader.read("hello", ["b"]))


def test_each_answer_has_files_of_its_own_and_only_the_newest_are_kept(reader, monkeypatch):
    monkeypatch.setattr(page, "KEPT_ANSWERS", 2)
    answers = [next(reader.read(text, ["b"])) for text in ("a", "b", "c")]
    assert [answer.wav.exists() for answer in answers] == [False, True, True]
    assert len({answer.wav for answer in answers}) == 3


# ---------------------------------------------------------------------------- the gate


async def knock(gate, method: str, path: str, headers: dict, body: bytes) -> tuple[int, bytes]:
    """Status and body of a gate's response."""
    sent, pieces = [], [body[:10], body[10:]]

    async def receive():
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message):
        sent.append(message)

    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": encoded}
    await gate(scope, receive, send)
    assert {name for name, _ in sent[0]["headers"]} >= {b"content-security-policy"}
    return sent[0]["status"], sent[1]["body"]


async def echo(scope, receive, send) -> None:
    """The application behind the gate: answers with the body that reaches it."""
    body = (await receive())["body"] if scope["method"] == "POST" else b""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


SPEAK = "/gradio_api/call/speak"
HERE = {"host": "127.0.0.1:7860"}
GOOD = {"data": ["4,072", ["rand, seed 0"]]}
NAMED = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}


@pytest.mark.parametrize(
    ("method", "path", "headers", "value", "status"),
    [
        ("GET", "/", HERE, None, 200),
        ("GET", "/assets/index.js", HERE, None, 200),
        ("GET", "/gradio_api/queue/data", HERE, None, 200),
        ("GET", "/gradio_api/file={results}/1/a.wav", HERE, None, 200),
        ("POST", SPEAK, HERE, GOOD, 200),
        ("POST", SPEAK, HERE | {"origin": "http://127.0.0.1:7860"}, GOOD, 200),
        ("POST", SPEAK, {"host": "localhost:7860"}, GOOD, 200),
        ("GET", "/gradio_api/file={results}", HERE, None, 403),
        ("GET", "/gradio_api/file={results}/../model.pt", HERE, None, 403),
        ("GET", "/gradio_api/file={results}/link", HERE, None, 403),
        ("GET", "/gradio_api/file={results}/none.wav", HERE, None, 403),
        ("GET", "/gradio_api/file={results}/\0", HERE, None, 403),
        ("GET", "/gradio_api/file=/etc/passwd", HERE, None, 403),
        ("GET", "/gradio_api/file=requirements.txt", HERE, None, 403),
        ("GET", "/gradio_api/file=https://example.org/", HERE, None, 403),
        ("GET", "/gradio_api/file/etc/passwd", HERE, None, 403),
        ("GET", "/gradio_api/proxy=https://example.org/", HERE, None, 403),
        ("GET", "/static/../../etc/passwd", HERE, None, 403),
        ("GET", "/gradio_api/runs", HERE, None, 403),
        ("GET", "/monitoring", HERE, None, 403),
        ("GET", "/docs", HERE, None, 403),
        ("PUT", "/", HERE, None, 403),
        ("POST", "/gradio_api/upload", HERE, {}, 403),
        ("POST", "/gradio_api/component_server", HERE, {}, 403),
        ("POST", SPEAK, HERE, {"data": [NAMED, []]}, 403),
        ("POST", SPEAK, HERE, {"data": ["a", [NAMED]]}, 403),
        ("POST", SPEAK, HERE, {"data": NAMED}, 403),
        ("POST", SPEAK, HERE, {"data": [[["a"]], 7]}, 403),
        ("POST", SPEAK, HERE, ["a"], 403),
        ("POST", SPEAK, HERE, {"data": ["a" * 70_000, []]}, 403),
        ("POST", SPEAK, HERE | {"origin": "http://example.org"}, GOOD, 403),
        ("POST", SPEAK, {"host": "example.org:7860"}, GOOD, 403),
        ("GET", "/", {}, None, 403),
    ],
)
def test_the_gate_lets_texts_in_and_results_out(method, path, headers, value, status, tmp_path):
    results = tmp_path / "results"
    (results / "1").mkdir(parents=True)
    for file in (results / "1" / "a.wav", tmp_path / "model.pt"):
        file.touch()
    (results / "link").symlink_to(tmp_path / "model.pt")
    gate = page.Gate(echo, results, "127.0.0.1")
    body = b"" if value is None else json.dumps(value).encode()
    path = path.replace("{results}", str(results))
    answered, returned = asyncio.run(knock(gate, method, path, headers, body))
    assert answered == status
    assert (returned == body) == (status == 200)  # else the reason, in words


def test_a_page_for_other_machines_goes_by_any_name_of_this_one(tmp_path):
    gate = page.Gate(echo, tmp_path, "0.0.0.0")
    assert asyncio.run(knock(gate, "GET", "/", {"host": "studio.lan:7860"}, b""))[0] == 200
    assert [page.is_local(host) for host in ("::1", "localhost", "127.0.0.2")] == [True] * 3
    assert not any(page.is_local(host) for host in ("0.0.0.0", "::", "", "192.168.1.7", "a.org"))


# ---------------------------------------------------------------------------- over HTTP

needs_gradio = pytest.mark.skipif(
    page.find_spec("gradio") is None, reason="pip install -r requirements-page.txt"
)


@pytest.fixture
def address(reader, monkeypatch):
    """The page of `reader`, served in a thread of this process; nothing else is connected to."""
    for name in ("GRADIO_ANALYTICS_ENABLED", "GRADIO_TEMP_DIR", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "")  # put back at the end
    strangers, connect = [], socket.socket.connect

    def local_connect(self, target):
        if target[0] != "127.0.0.1":
            strangers.append(target)
            raise OSError("not to be connected to")
        return connect(self, target)

    monkeypatch.setattr(socket.socket, "connect", local_connect)
    with page.served(reader, page.open_socket("127.0.0.1", 0), reader.folder) as address:
        yield address
    assert strangers == []
    assert "the page's server" not in {thread.name for thread in threading.enumerate()}


def fetch(url: str, value: object = None) -> tuple[int, bytes]:
    data = None if value is None else json.dumps(value).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def speak(address: str, *inputs: object) -> list:
    """The outputs of the page's endpoint: a message, then five for each of its columns."""
    status, event = fetch(address + SPEAK, {"data": inputs})
    assert status == 200
    stream = fetch(f"{address}{SPEAK}/{json.loads(event)['event_id']}")[1].decode()
    *_, last = (part for part in stream.split("\n\n") if part)
    assert last.startswith("event: complete\ndata: ")
    return json.loads(last.removeprefix("event: complete\ndata: "))


@needs_gradio
def test_the_page_speaks_answers_in_words_and_keeps_other_files_to_itself(
    address, reader, checkpoint_path
):
    status, html = fetch(address)
    assert status == 200
    assert b"Listen" in html
    message, *columns = speak(address, "A dog. <b>", ["b", "c"])
    assert message["visible"] is False
    sounds = []
    for column, words, *files in (columns[i : i + 5] for i in (0, 5)):
        assert column["visible"] is True
        assert '<p class="warning">no stop within 3 steps' in words
        assert "&lt;" in words  # what a user types is no HTML
        for file in files:
            path = Path(file["path"])
            assert path.is_relative_to(reader.folder)
            assert fetch(file["url"]) == (200, path.read_bytes())
        sounds.append(Path(files[0]["path"]))
    assert [sound.name for sound in sounds] == ["1-b.wav", "2-c.wav"]
    assert columns[10]["visible"] is False  # a third column, of which there is no result

    message, *columns = speak(address, "...", ["b"])
    assert "leaves nothing to speak" in message["value"]
    assert [column["visible"] for column in columns[::5]] == [False] * 3

    secrets = [checkpoint_path, Path("/etc/passwd"), Path(page.__file__)]
    for secret in [*secrets, reader.folder / ".." / checkpoint_path.name]:
        url = f"{address}/gradio_api/file={urllib.parse.quote(str(secret), safe='')}"
        assert fetch(url)[0] == 403
    named = {"path": str(checkpoint_path), "meta": {"_type": "gradio.FileData"}}
    assert fetch(address + SPEAK, {"data": [named, ["b"]]})[0] == 403
    assert fetch(f"{address}/gradio_api/upload", {})[0] == 403
    assert not list(reader.folder.rglob("*.pt"))


@needs_gradio
def test_ctrl_c_ends_the_page_and_leaves_nothing_behind(
    checkpoint_path, tmp_path, monkeypatch, capsys
):
    for name in ("GRADIO_ANALYTICS_ENABLED", "GRADIO_TEMP_DIR", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(page.signal, "signal", lambda *_: None)
    monkeypatch.setattr(page.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()

    def wait() -> None:
        printed.append(capsys.readouterr().out)
        raise KeyboardInterrupt

    printed = []
    monkeypatch.setattr(page, "wait_for_ctrl_c", wait)
    with pytest.raises(KeyboardInterrupt):  # of which environment.py makes one line
        page.main(["--checkpoint", str(checkpoint_path), "--port", "0"])
    assert printed[0].startswith("listen at http://127.0.0.1:")
    assert list((tmp_path / "temporary").iterdir()) == []
