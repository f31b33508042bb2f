"""scripts/page.py: which checkpoints it finds, what it refuses, and its page over HTTP."""

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
from helpers import ROOT, SPEAKER, save_speaker, sound_quickly
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
    """Of two checkpoints. Sound is made of the mel alone, in no time, and pictures are empty."""
    sound_quickly(monkeypatch.setattr)
    monkeypatch.setattr(page, "draw_mels", lambda **_: Figure((1, 1)))
    (tmp_path / "results").mkdir()
    speakers = {name: load_synthesizer(checkpoint_path, QUICK) for name in ("rand, seed 0", "<b>")}
    return page.Reader(speakers, tmp_path / "results")


@pytest.fixture
def client(reader):
    return TestClient(page.make_app(reader, ["Studio.lan", "fe80::1"]), HERE)


def asked(text: str, checkpoint: str = "<b>") -> dict[str, str]:
    return {"text": text, "checkpoint": checkpoint}


def test_checkpoints_are_named_by_run_experiment_and_seed(tmp_path):
    for run in ("rand/seed_10", "rand/seed_2", "ssb_dbs_br/seed_0", "alone", "other/alone"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "best.pt").touch()
    alone, older = tmp_path / "alone", tmp_path / "alone" / "checkpoint_7.pt"
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
    with pytest.raises(UserError, match=r"^\S*rand: holds neither best\.pt nor NAME/seed_N/best"):
        page.find_checkpoints([tmp_path / "rand", tmp_path])


@pytest.mark.parametrize(
    ("path", "port", "message"),
    [("", "taken", "in use"), (".missing", "0", "missing: no such checkpoint")],
)
def test_what_keeps_the_page_from_opening_is_named(
    path, port, message, checkpoint_path, monkeypatch
):
    monkeypatch.setattr(page.signal, "signal", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = port if port == "0" else str(other.getsockname()[1])
        with pytest.raises((UserError, OSError), match=message):
            page.main(["--checkpoint", f"{checkpoint_path}{path}", "--port", port])


def test_the_page_speaks_with_a_vocoder(checkpoint_path, tmp_path, monkeypatch):
    used, vocoder = [], tmp_path / "vocoder.onnx"
    monkeypatch.setattr(page.signal, "signal", lambda *_: None)
    monkeypatch.setattr(page, "load_vocoder", lambda path, hparams: (path, hparams.hop_length))
    monkeypatch.setattr(page, "make_app", lambda reader, *_: used.extend(reader.speakers.values()))
    monkeypatch.setattr(page.uvicorn, "Config", lambda *_, **__: sys.exit())
    with pytest.raises(SystemExit):
        page.main(["--checkpoint", str(checkpoint_path), "--port", "0", "--vocoder", str(vocoder)])
    assert [speaker.vocoder for speaker in used] == [(str(vocoder), used[0].settings.hop_length)]


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_a_port_that_is_none_is_refused(port, capsys):
    with pytest.raises(SystemExit):
        page.main(["--checkpoint", "voice", "--port", port])
    assert f"--port: '{port}' (expected a whole number from 0 to 65535" in capsys.readouterr().err


def test_the_page_sounds_as_synthesize_does(client, reader, checkpoint_path, tmp_path):
    reader.max_symbols = 16
    text = "A dog came. It sat * down."
    found = client.post("/speak", json=asked(f" A dog\ncame.  {text[12:]}")).json()
    out = ["-o", str(tmp_path / "out"), "--hparams", QUICK, "--max-symbols", "16"]
    synthesize.main(["--checkpoint", str(checkpoint_path), "--text", text, *out])
    assert client.get(found["sound"]).content == (tmp_path / "out" / "0001.wav").read_bytes()
    assert all(client.get(found[name]).content[1:4] == b"PNG" for name in ("alignment", "mel"))
    assert found["notes"][1] == "split into 2 chunks of at most 16 symbols"
    assert found["warnings"][0].endswith("no symbol for it: '*' at column 20")
    assert "chunk 1 of 2 ('a dog came.'): no stop within 0.0 s" in " ".join(found["warnings"])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (asked(" \n"), "There is no text yet: type one first."),
        (asked("..."), "'...': nothing to speak after cleaning"),
        (asked("seven " * 167), "too long: 1,001 symbols after cleaning, and this page accepts"),
        (asked("seven " * 834), "too long: 5,003 characters, and this page accepts 5,000."),
        (asked("a [pause 20][pause 20]"), "The pauses are too long: 40 s together, and this page"),
        (asked("a", "/etc/passwd"), "No such checkpoint on this page"),
    ],
)
def test_a_bad_text_is_refused_before_synthesis(inputs, message, client, reader):
    refused = client.post("/speak", json=inputs)
    assert refused.status_code == 422
    assert message in refused.json()["problem"]
    assert list(reader.folder.iterdir()) == []


def test_a_menu_offers_several_speakers(reader, client, tmp_path):
    """Each checkpoint's own, none of one speaker, and what is sent is one of them."""
    sizes, names = create_hparams(f"{SPEAKER},speaker_embedding_dim=4"), ("<i>", "anna", "\"'&")
    for count, name in ((3, "three"), (1, "one")):
        hparams = replace(sizes, speakers=names[:count])
        path = save_speaker(tmp_path / f"{name}.pt", hparams)
        reader.speakers[name] = load_synthesizer(path, QUICK)
    shown = TestClient(page.make_app(reader, []), HERE).get("/").text
    menus = re.findall(r'<option data-speakers="([^"<>]*)">(\w+)</option>', shown)
    assert [(json.loads(html.unescape(data)), name) for data, name in menus] == [
        ([*names], "three")
    ]
    assert "<option>one</option>" in shown

    shown = TestClient(page.make_app(reader, [], "anna"), HERE).get("/").text
    [menu] = re.findall(r'<option data-speakers="([^"<>]*)">three</option>', shown)
    assert json.loads(html.unescape(menu)) == ["anna", "<i>", "\"'&"]
    with pytest.raises(UserError, match="did you mean 'anna'"):
        page.make_app(reader, [], "ana")

    def speak(checkpoint, **more):
        return client.post("/speak", json=asked("a", checkpoint) | more)

    sounds = [speak("three", speaker=name).json()["sound"] for name in names]
    assert [sound.rpartition("/")[2] for sound in sounds] == [
        "three-i.wav",
        "three-anna.wav",
        "three.wav",
    ]
    assert len({client.get(sound).content for sound in sounds}) == 3
    assert speak("one").status_code == speak("one", speaker="<i>").status_code == 200
    assert speak("<b>", speaker=None).status_code == 200
    for checkpoint, more, message in (
        ("three", {}, "No such speaker: three knows '<i>', 'anna', "),
        ("three", {"speaker": "Anna"}, "Choose one of the list."),
        ("three", {"speaker": "x" * 60_000}, "No such speaker: three knows "),
        ("<b>", {"speaker": "anna"}, "No such speaker: <b> has one voice. Choose"),
    ):
        refused = speak(checkpoint, **more)
        assert refused.status_code == 422
        assert message in refused.json()["problem"]
        assert len(refused.text) < 300
    assert speak("three", speaker=["anna"]).status_code == 400


def test_a_model_of_numbers_gets_numbers_in_words(reader, monkeypatch):
    reader.numbers, spoken = "en-us", []
    words = Utterance([Segment([1, 2, 3])])
    monkeypatch.setattr(page, "prepare_utterance", lambda text, _: spoken.append(text) or words)
    reader.read(page.Inputs(**asked("four thousand AND seventy-two")))
    assert spoken == ["Four thousand seventy two."]
    with pytest.raises(UserError, match="hello"):
        reader.read(page.Inputs(**asked("hello")))


def test_a_folder_that_went_away_is_made_again(client, reader):
    before = client.post("/speak", json=asked("a")).json()
    shutil.rmtree(reader.folder)
    assert client.get(before["sound"]).status_code == 404
    again = client.post("/speak", json=asked("a")).json()
    assert again["notes"][-1].startswith("the folder of results was gone")
    assert client.get(again["sound"]).status_code == 200


def test_numbers_that_are_taken_are_left_out(client, reader):
    (reader.folder / "1").write_text("mine")
    (reader.folder / "2").mkdir()
    made = client.post("/speak", json=asked("a")).json()
    assert made["sound"].startswith("results/3/")
    assert made["notes"][-2:] == [f"result {i} was there already: left as it is" for i in (1, 2)]
    assert (reader.folder / "1").read_text() == "mine"
    assert client.post("/speak", json=asked("a")).json()["sound"].startswith("results/4/")


def test_results_that_cannot_be_written_are_explained(client, reader):
    shutil.rmtree(reader.folder)
    assert client.get("results/1").status_code == 404
    reader.folder.write_text("a file")
    refused = client.post("/speak", json=asked("a"))
    assert refused.status_code == 507
    assert "could not be written" in refused.json()["problem"]
    reader.folder.unlink()
    assert client.post("/speak", json=asked("a")).status_code == 200


def test_names_of_other_bytes_are_shown(reader, tmp_path):
    run = tmp_path / os.fsdecode(b"r\xff")
    run.mkdir()
    (run / "best.pt").touch()
    reader.speakers = dict.fromkeys(page.find_checkpoints([run]), reader.speakers["<b>"])
    client = TestClient(page.make_app(reader, []), HERE)
    assert "<option>r\ufffd</option>" in client.get("/").text
    assert client.post("/speak", json=asked("a", "r\ufffd")).status_code == 200


@pytest.mark.parametrize("option", ["--host", "--allow-host"])
def test_host_names_of_other_bytes_are_refused(option, checkpoint_path, capsys):
    with pytest.raises(SystemExit):
        page.main(["--checkpoint", str(checkpoint_path), option, "\udcff"])
    assert rf"(after {option}): '\xff'" in capsys.readouterr().err


def test_only_the_newest_results_are_kept(client, monkeypatch):
    monkeypatch.setattr(page, "KEPT_RESULTS", 2)
    sounds = [client.post("/speak", json=asked(text)).json()["sound"] for text in ("a", "b", "c")]
    assert [client.get(sound).status_code for sound in sounds] == [404, 200, 200]


def test_the_page_shows_names_as_text(client):
    shown = client.get("/")
    assert "<option>rand, seed 0</option><option>&lt;b&gt;</option>" in shown.text
    assert "http" not in shown.text  # nothing is loaded from elsewhere


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
        ("GET", "/results/sound", {"headers": {"range": "bytes=a-b"}}, 400),
    ],
)
def test_requests_are_refused_but_for_texts_and_results(
    method, path, options, status, client, reader
):
    (reader.folder.parent / "model.pt").touch()
    (reader.folder / "sound").write_bytes(bytes(9))
    (reader.folder / "link").symlink_to(reader.folder.parent / "model.pt")
    answer = client.request(method, path, **options)
    assert answer.status_code == status
    assert str(reader.folder.parent) not in answer.text


def test_one_text_is_synthesized_at_a_time(reader, client, monkeypatch):
    """And requests above the limit of the queue are refused at once."""
    monkeypatch.setattr(page, "MAX_WAITING", 3)
    running, most, release = 0, 0, threading.Event()

    def read(inputs):
        nonlocal running, most
        running += 1
        most = max(most, running)
        release.wait(60)
        running -= 1
        return {}

    monkeypatch.setattr(reader, "read", read)
    with client, ThreadPoolExecutor(4) as executor:  # one event loop serves all requests
        requests = [executor.submit(client.post, "/speak", json=asked("a")) for _ in range(4)]
        assert next(as_completed(requests)).result().status_code == 503
        release.set()
        assert sorted(request.result().status_code for request in requests) == [200] * 3 + [503]
    assert most == 1


@pytest.mark.thorough
def test_ctrl_c_ends_the_page_and_leaves_nothing(checkpoint_path, tmp_path):
    """At once, though texts are being synthesized and waiting; they are refused. Neither they nor
    a client that breaks the protocol leave a traceback. And every answer has the headers."""
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
        time.sleep(0.2)  # until one of the texts is being synthesized
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=20)
        statuses = []
        for client in clients:
            with client:
                statuses.append(client.recv(99).split()[1])
    finally:
        process.kill()
    assert statuses == [b"503", b"503", b"400", b"400"]
    assert "a client's fault" in printed
    assert "Traceback" not in printed
    assert process.returncode == 130
    assert list(tmp_path.glob("page-*")) == []


CHUNKED_WRONGLY = "Transfer-Encoding: chunked\r\n\r\nzz\r\n"


def request(address: str, line: str, rest: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)), timeout=10)
    client.sendall(f"{line} HTTP/1.1\r\nHost: {host}\r\n{rest}".encode())
    return client


def test_a_voice_opens_the_page_without_torch(voices, tmp_path):
    script = f"""
import sys; sys.modules |= dict.fromkeys(["torch", "librosa", "onnx"])
from pathlib import Path; sys.path[:0] = ["scripts"]; from scripts import page
path = page.find_checkpoints([Path("{voices.int8[0]}")])["int8"]
reader = page.Reader({{"int8": page.load_synthesizer(path)}}, Path("{tmp_path}"))
print(*reader.read(page.Inputs(text="A * dog.", checkpoint="int8"))["warnings"], sep="\\n")
"""
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    dropped, formed, *_ = run.stdout.splitlines()
    assert dropped.endswith("no symbol for it: '*' at column 3")
    assert "alignment is blurred" in formed
    names = [f"1/int8{end}" for end in ("-mel.png", ".png", ".wav")]
    assert sorted(str(x.relative_to(tmp_path)) for x in tmp_path.glob("1/*")) == names


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("nowhere.invalid", "name an address of this machine"),
        ("203.0.113.7", "name an address of this machine"),
        ("127.0.0.1", r"take another port \(--port 0"),
    ],
)
def test_addresses_without_room_are_refused(host, message):
    """One that is no name, one of another machine, and a port that is taken."""
    with page.open_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"--host {host} --port {port}: .*; {message}"):
            page.open_socket(host, port)
