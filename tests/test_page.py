"""Test the web demo, scripts/page.py: checkpoints, rejected input, and its responses."""

import html
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

import pytest
from helpers import ROOT, SMALL_MODEL, save_small_model, synthesize_quickly
from matplotlib.figure import Figure
from starlette.testclient import TestClient

import synthesize
from export.loading import load_synthesizer
from hparams import create_hparams
from scripts import page
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utterance import Segment, Utterance

HERE = "http://127.0.0.1:7860"
QUICK = "gate_threshold=2,max_decoder_steps=3"


@pytest.fixture
def reader(checkpoint_path, tmp_path, monkeypatch):
    """Return a Reader of two checkpoints with fast audio and empty plots."""
    synthesize_quickly(monkeypatch.setattr)
    monkeypatch.setattr(page, "draw_mels", lambda **_: Figure((1, 1)))
    (tmp_path / "results").mkdir()
    names = ("rand, seed 0", "<b>")
    synthesizers = {name: load_synthesizer(checkpoint_path, QUICK) for name in names}
    return page.Reader(synthesizers, tmp_path / "results")


@pytest.fixture
def client(reader):
    return TestClient(page.make_app(reader, ["Studio.lan", "fe80::1"]), HERE)


def asked(text: str, checkpoint: str = "<b>") -> dict[str, str]:
    return {"text": text, "checkpoint": checkpoint}


def test_checkpoints_have_names_from_run_experiment_and_seed(tmp_path):
    for run in ("rand/seed_10", "rand/seed_2", "ssb_dbs_br/seed_0", "alone", "other/alone"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "best.pt").touch()
    alone = tmp_path / "alone"
    older = alone / "checkpoint_7.pt"
    found = page.find_checkpoints([alone, older, tmp_path])
    assert list(found.items()) == [
        ("alone", alone / "best.pt"),
        ("alone/checkpoint_7.pt", older),
        ("rand, seed 2", tmp_path / "rand/seed_2/best.pt"),
        ("rand, seed 10", tmp_path / "rand/seed_10/best.pt"),
        ("ssb_dbs_br, seed 0", tmp_path / "ssb_dbs_br/seed_0/best.pt"),
    ]
    same_name = [alone / "best.pt", tmp_path / "other" / "alone" / "best.pt"]
    assert list(page.find_checkpoints(same_name)) == ["alone", str(same_name[1])]
    with pytest.raises(UserError, match=f"^{tmp_path / 'rand'}: "):
        page.find_checkpoints([tmp_path / "rand", tmp_path])


def test_web_demo_fails_when_the_port_is_in_use(checkpoint_path, monkeypatch):
    monkeypatch.setattr(page.signal, "signal", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        with pytest.raises(UserError, match=f"--port {port}: "):
            page.main(["--checkpoint", str(checkpoint_path), "--port", port])


def test_web_demo_fails_when_the_checkpoint_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(page.signal, "signal", lambda *_: None)
    with pytest.raises(UserError, match=r"missing\.pt: "):
        page.main(["--checkpoint", str(tmp_path / "missing.pt"), "--port", "0"])


def test_web_demo_speaks_with_a_vocoder(checkpoint_path, tmp_path, monkeypatch):
    used = []
    vocoder = tmp_path / "vocoder.onnx"
    monkeypatch.setattr(page.signal, "signal", lambda *_: None)
    monkeypatch.setattr(page, "load_vocoder", lambda path, settings: (path, settings.hop_length))
    monkeypatch.setattr(
        page, "make_app", lambda reader, *_: used.extend(reader.synthesizers.values())
    )
    monkeypatch.setattr(page.uvicorn, "Config", lambda *_, **__: sys.exit())
    with pytest.raises(SystemExit):
        page.main(["--checkpoint", str(checkpoint_path), "--port", "0", "--vocoder", str(vocoder)])
    [synthesizer] = used
    assert synthesizer.vocoder == (str(vocoder), synthesizer.settings.hop_length)


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_port_is_rejected_when_it_is_out_of_range(port, capsys):
    with pytest.raises(SystemExit) as stop:
        page.main(["--checkpoint", "voice", "--port", port])
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert f"--port: '{port}'" in message
    assert "65535" in message


def test_web_demo_makes_the_same_audio_as_synthesize(client, reader, checkpoint_path, tmp_path):
    reader.max_symbols = 16
    text = "A dog came. It sat * down."
    found = client.post("/speak", json=asked(f" A dog\ncame.  {text[12:]}")).json()
    out = ["-o", str(tmp_path / "out"), "--hparams", QUICK, "--max-symbols", "16"]
    synthesize.main(["--checkpoint", str(checkpoint_path), "--text", text, *out])
    assert client.get(found["audio"]).content == (tmp_path / "out" / "0001.wav").read_bytes()
    assert all(client.get(found[name]).content[1:4] == b"PNG" for name in ("alignment", "mel"))
    assert "2 chunks" in found["notes"][1]
    assert "'*' at column 20" in found["warnings"][0]
    assert "chunk 1 of 2 ('a dog came.')" in " ".join(found["warnings"])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (asked(" \n"), "empty"),
        (asked("..."), "'...'"),
        (asked("seven " * 167), "1,001 symbols"),
        (asked("seven " * 834), "5,003 characters"),
        (asked("a [pause 20][pause 20]"), "40 s"),
        (asked("a", "/etc/passwd"), "checkpoint"),
    ],
)
def test_text_is_rejected_before_synthesis_when_it_is_bad(inputs, message, client, reader):
    response = client.post("/speak", json=inputs)
    assert response.status_code == 422
    assert message in response.json()["problem"]
    assert list(reader.folder.iterdir()) == []


@pytest.fixture
def with_speakers(reader, tmp_path):
    """Return the reader with two more checkpoints: "three" has three speakers, "one" has one."""
    hparams = create_hparams(f"{SMALL_MODEL},speaker_embedding_dim=4")
    for count, name in ((3, "three"), (1, "one")):
        path = save_small_model(tmp_path / f"{name}.pt", replace(hparams, speakers=NAMES[:count]))
        reader.synthesizers[name] = load_synthesizer(path, QUICK)
    return reader


NAMES = ("<i>", "anna", "\"'&")


def test_menu_contains_speakers_when_a_checkpoint_has_several(with_speakers):
    reader = with_speakers
    shown = TestClient(page.make_app(reader, []), HERE).get("/").text
    menus = re.findall(r'<option data-speakers="([^"<>]*)">(\w+)</option>', shown)
    assert [(json.loads(html.unescape(data)), name) for data, name in menus] == [
        ([*NAMES], "three")
    ]
    assert "<option>one</option>" in shown

    shown = TestClient(page.make_app(reader, [], "anna"), HERE).get("/").text
    [menu] = re.findall(r'<option data-speakers="([^"<>]*)">three</option>', shown)
    assert json.loads(html.unescape(menu)) == ["anna", "<i>", "\"'&"]
    with pytest.raises(UserError, match="'anna'"):
        page.make_app(reader, [], "ana")


def test_request_selects_a_speaker_when_a_checkpoint_has_several(with_speakers, client):
    def speak(checkpoint, **more):
        return client.post("/speak", json=asked("a", checkpoint) | more)

    urls = [speak("three", speaker=name).json()["audio"] for name in NAMES]
    assert [url.rpartition("/")[2] for url in urls] == [
        "three-i.wav",
        "three-anna.wav",
        "three.wav",
    ]
    assert len({client.get(url).content for url in urls}) == 3
    assert speak("one").status_code == speak("one", speaker="<i>").status_code == 200
    assert speak("<b>", speaker=None).status_code == 200
    for checkpoint, more, message in (
        ("three", {}, "'<i>', 'anna', "),
        ("three", {"speaker": "Anna"}, "'anna'"),
        ("three", {"speaker": "x" * 60_000}, "three"),
        ("<b>", {"speaker": "anna"}, "<b>"),
    ):
        response = speak(checkpoint, **more)
        assert response.status_code == 422
        assert message in response.json()["problem"]
        assert len(response.text) < 300
    assert speak("three", speaker=["anna"]).status_code == 400


def test_model_gets_numbers_in_words_when_it_speaks_only_numbers(reader, monkeypatch):
    reader.numbers = "en-us"
    spoken = []
    words = Utterance([Segment([1, 2, 3])])
    monkeypatch.setattr(page, "prepare_utterance", lambda text, _: spoken.append(text) or words)
    reader.read(page.Inputs(**asked("four thousand AND seventy-two")))
    assert spoken == ["Four thousand seventy two."]
    with pytest.raises(UserError, match="hello"):
        reader.read(page.Inputs(**asked("hello")))


def test_folder_of_results_is_made_again_when_it_was_deleted(client, reader):
    before = client.post("/speak", json=asked("a")).json()
    shutil.rmtree(reader.folder)
    assert client.get(before["audio"]).status_code == 404
    again = client.post("/speak", json=asked("a")).json()
    assert "folder" in again["notes"][-1]
    assert client.get(again["audio"]).status_code == 200


def test_result_gets_the_next_number_when_files_of_somebody_else_exist(client, reader):
    (reader.folder / "1").write_text("mine")
    (reader.folder / "2").mkdir()
    made = client.post("/speak", json=asked("a")).json()
    assert made["audio"].startswith("results/3/")
    assert [note.partition(" already")[0] for note in made["notes"][-2:]] == [
        "result 1",
        "result 2",
    ]
    assert (reader.folder / "1").read_text() == "mine"
    assert client.post("/speak", json=asked("a")).json()["audio"].startswith("results/4/")


def test_response_reports_the_folder_when_results_cannot_be_written(client, reader):
    shutil.rmtree(reader.folder)
    assert client.get("results/1").status_code == 404
    reader.folder.write_text("a file")
    response = client.post("/speak", json=asked("a"))
    assert response.status_code == 507
    assert str(reader.folder) in response.json()["problem"]
    reader.folder.unlink()
    assert client.post("/speak", json=asked("a")).status_code == 200


def test_name_is_shown_when_its_path_is_not_utf8(reader, tmp_path):
    run = tmp_path / os.fsdecode(b"r\xff")
    run.mkdir()
    (run / "best.pt").touch()
    reader.synthesizers = dict.fromkeys(page.find_checkpoints([run]), reader.synthesizers["<b>"])
    client = TestClient(page.make_app(reader, []), HERE)
    assert "<option>r\ufffd</option>" in client.get("/").text
    assert client.post("/speak", json=asked("a", "r\ufffd")).status_code == 200


@pytest.mark.parametrize("option", ["--host", "--allow-host"])
def test_host_name_is_rejected_when_it_is_not_utf8(option, checkpoint_path, capsys):
    with pytest.raises(SystemExit):
        page.main(["--checkpoint", str(checkpoint_path), option, "\udcff"])
    assert f"argument {option}:" in capsys.readouterr().err


def test_old_results_are_deleted_when_there_are_too_many(client, monkeypatch):
    monkeypatch.setattr(page, "KEPT_RESULTS", 2)
    urls = [client.post("/speak", json=asked(text)).json()["audio"] for text in ("a", "b", "c")]
    assert [client.get(url).status_code for url in urls] == [404, 200, 200]


def test_web_demo_escapes_names(client):
    shown = client.get("/")
    assert "<option>rand, seed 0</option><option>&lt;b&gt;</option>" in shown.text
    assert "http" not in shown.text  # the page loads nothing from other sites


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("GET", "/", {"headers": {"host": "localhost:7860"}}, 200),
        ("GET", "/", {"headers": {"host": "studio.lan:7860"}}, 200),
        ("GET", "/", {"headers": {"host": "[FE80::1]:7860"}}, 200),
        *(("GET", "/", {"headers": {"host": x}}, 400) for x in ("example.org:7860", "", "[", "*")),
        ("GET", "/results/../model.pt", {}, 404),
        ("GET", "/results/..%2Fmodel.pt", {}, 404),
        ("GET", "/results/link", {}, 404),
        ("POST", "/speak", {"content": b"[" * 60_000}, 400),
        ("POST", "/speak", {"json": {"text": {"path": "/etc/passwd"}, "checkpoint": "b"}}, 400),
        ("POST", "/speak", {"json": asked("a" * 70_000)}, 413),
        ("POST", "/speak", {"json": asked("a"), "headers": {"origin": "http://a.org"}}, 403),
        ("POST", "/speak", {"json": asked("a"), "headers": {"origin": "http://["}}, 403),
        ("POST", "/speak", {"json": asked("a"), "headers": {"origin": HERE}}, 200),
        ("GET", f"/results/{'a' * 5000}", {}, 404),
        ("GET", "/results/audio", {"headers": {"range": "bytes=a-b"}}, 400),
    ],
)
def test_requests_are_rejected_except_texts_and_results(
    method, path, options, status, client, reader
):
    (reader.folder.parent / "model.pt").touch()
    (reader.folder / "audio").write_bytes(bytes(9))
    (reader.folder / "link").symlink_to(reader.folder.parent / "model.pt")
    answer = client.request(method, path, **options)
    assert answer.status_code == status
    assert str(reader.folder.parent) not in answer.text


def test_requests_wait_for_their_turn_or_are_rejected_when_too_many_wait(
    reader, client, monkeypatch
):
    monkeypatch.setattr(page, "MAX_WAITING", 3)
    running = 0
    most = 0
    release = threading.Event()

    def read(inputs):
        nonlocal running, most
        running += 1
        most = max(most, running)
        release.wait(60)
        running -= 1
        return {}

    monkeypatch.setattr(reader, "read", read)
    with client, ThreadPoolExecutor(4) as executor:  # with one event loop for all requests
        requests = [executor.submit(client.post, "/speak", json=asked("a")) for _ in range(4)]
        assert next(as_completed(requests)).result().status_code == 503
        release.set()
        assert sorted(request.result().status_code for request in requests) == [200] * 3 + [503]
    assert most == 1


@pytest.mark.thorough
def test_ctrl_c_stops_the_web_demo_at_once_and_deletes_its_files(checkpoint_path, tmp_path):
    """Running and waiting requests are rejected.

    Rejected requests and clients that break the protocol cause no traceback. Every response has the
    security headers.
    """
    arguments = [sys.executable, ROOT / "scripts" / "page.py", "--checkpoint", checkpoint_path]
    endless = ["--hparams", "gate_threshold=2,attention_rest_time=0", "--max-symbols", "6"]
    process = subprocess.Popen(
        [*map(str, arguments), "--port", "0", *endless],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        address = next(line for line in process.stdout if "http" in line).split()[1]
        with urllib.request.urlopen(address) as answer:
            assert set(page.HEADERS) <= set(answer.headers.items())
        assert len(list(tmp_path.glob("page-*"))) == 1
        body = json.dumps(asked("a dog. " * 140, f"{tmp_path.name}/{checkpoint_path.name}"))
        whole = f"Content-Length: {len(body)}\r\n\r\n{body}"
        clients = [
            request(address, "POST /speak", rest)
            for rest in (whole, whole, "Content-Length: 9\r\n\r\n{", CHUNKED_WRONGLY)
        ]
        with request(address, "POST /", CHUNKED_WRONGLY) as client:
            client.recv(1)
        time.sleep(0.2)  # time until the synthesis of a text has started
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=20)
        statuses = []
        for client in clients:
            with client:
                statuses.append(client.recv(99).split()[1])
    finally:
        process.kill()
    assert statuses == [b"503", b"503", b"400", b"400"]
    assert "warning: a client" in printed
    assert "Traceback" not in printed
    assert process.returncode == 130
    assert list(tmp_path.glob("page-*")) == []


CHUNKED_WRONGLY = "Transfer-Encoding: chunked\r\n\r\nzz\r\n"


def request(address: str, line: str, rest: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)), timeout=10)
    client.sendall(f"{line} HTTP/1.1\r\nHost: {host}\r\n{rest}".encode())
    return client


def test_web_demo_speaks_with_an_exported_voice_when_torch_is_missing(voices, tmp_path):
    script = f"""
import sys; sys.modules |= dict.fromkeys(["torch", "librosa", "onnx"])
from pathlib import Path; sys.path[:0] = ["scripts"]; from scripts import page
path = page.find_checkpoints([Path("{voices.int8[0]}")])["int8"]
reader = page.Reader({{"int8": page.load_synthesizer(path)}}, Path("{tmp_path}"))
print(*reader.read(page.Inputs(text="A * dog.", checkpoint="int8"))["warnings"], sep="\\n")
"""
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    dropped, blurred, *_ = run.stdout.splitlines()
    assert "'*' at column 3" in dropped
    assert "alignment" in blurred
    names = [f"1/int8{end}" for end in ("-mel.png", ".png", ".wav")]
    assert sorted(str(x.relative_to(tmp_path)) for x in tmp_path.glob("1/*")) == names


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("nowhere.invalid", "an address of this machine"),
        ("203.0.113.7", "an address of this machine"),
        ("127.0.0.1", "a free port"),
    ],
)
def test_socket_is_rejected_when_the_host_is_unknown_or_the_port_is_in_use(host, expected):
    with page.open_socket("127.0.0.1", 0) as used:
        port = used.getsockname()[1]
        with pytest.raises(UserError, match=rf"--host {host} --port {port}: .*{expected}"):
            page.open_socket(host, port)
