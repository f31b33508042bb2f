"""Test tacotron2_voice/server/: the OpenAI client, the queue, and rejected requests."""

import base64
import io
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openai
import pytest
import soundfile
from helpers import ROOT
from prometheus_client.parser import text_string_to_metric_families
from servers import SENTENCES, PausedVoice, everything, request, running, status_of, wait_until
from starlette.testclient import TestClient

from tacotron2_voice.outputs import to_int16
from tacotron2_voice.server import connections
from tacotron2_voice.server.app import Access, make_app
from tacotron2_voice.server.command import name_of
from tacotron2_voice.server.encoding import FORMATS, Encoder
from tacotron2_voice.server.limits import Limits
from tacotron2_voice.server.metrics import Metrics
from tacotron2_voice.server.speakers import Voices
from tacotron2_voice.server.workers import Workers
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.voice import Voice

HERE = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def voice(voices):
    return Voice(voices.int8[0])


@pytest.fixture
def paused(voices):
    return PausedVoice(voices.int8[0])


@pytest.fixture(scope="module")
def server(voice):
    with running(voice) as found:
        yield found


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key="unused", max_retries=0)


def web(voice, access=None, **limits):
    """Return a client for a server in this thread."""
    workers = Workers(Limits(workers=1, **limits), Metrics())
    return TestClient(make_app(Voices({"small": voice}), workers, access or Access()), HERE)


def body(**fields):
    return {"model": "small", "voice": "default", "input": "A dog came."} | fields


def speech_of(voice, text=SENTENCES, **options):
    return np.concatenate([*voice.stream(text, **options)])


# ---------------------------------------------------------------------------- the OpenAI client


@pytest.mark.thorough
@pytest.mark.parametrize("name", FORMATS)
def test_openai_client_gets_decodable_audio_in_every_format(name, client, voice):
    response = client.audio.speech.create(
        model="tts-1", voice="alloy", input=SENTENCES, response_format=name
    )
    expected = len(speech_of(voice)) / 22050
    assert response.response.headers["content-type"].startswith(FORMATS[name].media_type)
    if name == "pcm":  # with pcm, the OpenAI API returns 16-bit samples at 24 kHz
        assert len(response.content) / 2 / 24_000 == pytest.approx(expected, abs=0.001)
        return
    audio, rate = soundfile.read(io.BytesIO(response.content))
    tolerance = 0.2 if name == "mp3" else 0.001
    assert len(audio) / rate == pytest.approx(expected, abs=tolerance)
    assert np.abs(audio).max() > 0.001


def test_openai_client_gets_the_same_audio_as_direct_synthesis(client, voice):
    response = client.audio.speech.create(
        model="small",
        voice="default",
        input=SENTENCES,
        response_format="wav",
        speed=1.25,
        extra_body={"seed": 3, "pause": 0.1, "retries": 0},
    )
    expected = speech_of(voice, speed=1.25, seed=3, pause=0.1, retries=0)
    assert response.content[44:] == to_int16(expected)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mp3", "opus", "wav", "pcm"])
def test_streaming_starts_before_the_whole_text_is_synthesized(name, paused):
    with running(paused) as server:
        client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="x")
        paused.allowed.release(8 if name == "opus" else 3)  # an Ogg page with Opus audio lasts 1 s
        request = client.audio.speech.with_streaming_response.create(
            model="small",
            voice="default",
            input=SENTENCES * 4,
            response_format=name,
            extra_body={"retries": 0},
        )
        with request as response:
            pieces = response.iter_bytes(500)
            assert len(next(pieces)) == 500
            num_chunks = paused.num_chunks
            paused.allowed.release(10_000)
            assert sum(map(len, pieces)) > 500
        assert num_chunks < paused.num_chunks


def test_openai_client_gets_server_sent_events_when_it_requests_them(client, voice):
    response = client.audio.speech.create(
        model="small",
        voice={"id": "default"},
        input=SENTENCES,
        response_format="wav",
        stream_format="sse",
        extra_body={"include": ["timings", "alignment", "mel"]},
    )
    assert response.response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.strip().split("\n\n")
    *deltas, done = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    audio = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    assert audio[44:] == to_int16(speech_of(voice))
    assert done["type"] == "speech.audio.done"
    assert done["seconds"] == pytest.approx((len(audio) - 44) / 2 / 22050, abs=0.001)
    assert [word["text"] for word in done["timings"]["words"]] == SENTENCES.split()
    assert done["mel"]["rows"] == 80
    assert len(base64.b64decode(done["mel"]["values"])) == 80 * done["mel"]["columns"]
    assert done["usage"]["output_tokens"] == sum(x["columns"] for x in done["alignment"])


def test_server_lists_its_models_and_voices(client, server):
    assert [model.id for model in client.models.list()] == ["small"]
    with urllib.request.urlopen(f"{server.address}/v1/audio/voices") as response:
        voices = json.load(response)["voices"]
    assert voices == [{"id": "default", "name": "default", "model": "small"}]


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"voice": "bob"}, openai.BadRequestError, "voice"),
        ({"input": " "}, openai.BadRequestError, "input"),
        ({"input": "..."}, openai.BadRequestError, "input"),
        ({"input": "<b>A</b>"}, openai.BadRequestError, "input"),
        ({"input": "a" * 5001}, openai.BadRequestError, "input"),
        ({"input": "A [pause 40] b [pause 40]"}, openai.BadRequestError, "input"),
        ({"response_format": "aac"}, openai.BadRequestError, "response_format"),
        ({"speed": 5}, openai.BadRequestError, "speed"),
    ],
)
def test_openai_client_raises_the_matching_error_when_a_request_is_invalid(
    fields, error, param, client
):
    with pytest.raises(error) as raised:
        client.audio.speech.create(**body(**fields))
    assert raised.value.param == param
    assert raised.value.type == "invalid_request_error"


def test_default_speaker_is_used_when_a_request_contains_the_name_of_an_openai_voice(voice):
    class Named:
        settings = type("", (), {"speakers": ("anna", "bert")})

    voices = Voices({"one": voice, "two": Named()}, speaker="bert")
    assert voices.find("two", "alloy") == (voices.synthesizers["two"], "bert")
    assert voices.find("two", "anna")[1] == "anna"
    assert voices.find("tts-1", "alloy") == (voice, None)
    assert [x["id"] for x in voices.described()] == ["default", "bert", "anna"]
    with pytest.raises(UserError, match="'bret'"):
        Voices({"two": Named()}, speaker="bret")


# ---------------------------------------------------------------------------- bad requests


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("POST", "/v1/audio/speech", {"content": b"["}, 400),
        ("POST", "/v1/audio/speech", {"content": b"[" * 60_000}, 400),
        ("POST", "/v1/audio/speech", {"content": b"\xff\x00"}, 400),
        ("POST", "/v1/audio/speech", {"content": b""}, 400),
        ("POST", "/v1/audio/speech", {"json": ["a"]}, 400),
        ("POST", "/v1/audio/speech", {"json": body(input={"path": "/etc/passwd"})}, 400),
        ("POST", "/v1/audio/speech", {"json": body(model="../../etc/passwd")}, 404),
        ("POST", "/v1/audio/speech", {"json": body(voice=["default"])}, 400),
        ("POST", "/v1/audio/speech", {"json": body(seed=-1)}, 400),
        ("POST", "/v1/audio/speech", {"json": body(seed=2**64)}, 400),
        ("POST", "/v1/audio/speech", {"json": body(seed="1")}, 400),
        ("POST", "/v1/audio/speech", {"json": body(include=["mel"] * 4)}, 400),
        ("POST", "/v1/audio/speech", {"content": json.dumps(body(speed=float("nan")))}, 400),
        ("POST", "/v1/audio/speech", {"content": json.dumps(body(input="\ud800"))}, 400),
        ("POST", "/v1/audio/speech", {"json": body(input="a" * 300_000)}, 413),
        ("GET", "/v1/audio/speech", {}, 405),
        ("POST", "/v1/models", {}, 405),
        ("GET", "/v1/nothing", {}, 404),
        ("GET", "/../pyproject.toml", {}, 404),
        ("GET", "/..%2f..%2fetc/passwd", {}, 404),
        ("GET", "/server/page.html", {}, 404),
        ("GET", f"/{'a' * 5000}", {}, 404),
        ("GET", "/health", {"headers": {"host": "example.org"}}, 400),
        ("GET", "/health", {"headers": {"host": "["}}, 400),
        ("GET", "/health", {"headers": {"host": ""}}, 400),
        ("GET", "/health", {"headers": {"host": "localhost:9"}}, 200),
        ("GET", "/health", {"headers": {"host": "Studio.lan"}}, 200),
        ("GET", "/health", {"headers": {"host": "[FE80::1]:8000"}}, 200),
        ("GET", "/health", {"headers": {"origin": "http://example.org"}}, 403),
        ("GET", "/health", {"headers": {"origin": "null"}}, 403),
        ("GET", "/health", {"headers": {"origin": HERE}}, 200),
        ("GET", "/health", {"headers": {"origin": "https://friend.org"}}, 200),
    ],
)
def test_server_returns_a_json_error_when_a_request_is_invalid(
    method, path, options, status, voice
):
    access = Access(hosts=["studio.lan", "[fe80::1]"], origins=["https://friend.org"])
    response = web(voice, access).request(method, path, **options)
    assert response.status_code == status
    if status >= 400:
        assert {"message", "type", "param", "code"} == response.json()["error"].keys()
        assert len(response.text) < 6000


def test_server_rejects_requests_without_the_key_when_a_key_is_set(voice):
    client = web(voice, Access(api_key="secret"))
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
        for path in ("/v1/models", "/metrics", "/v1/audio/voices"):
            assert client.get(path, headers=headers).status_code == 401
    right = {"authorization": "Bearer secret"}
    assert client.get("/v1/models", headers=right).status_code == 200
    assert client.post("/v1/audio/speech", json=body(), headers=right).status_code == 200
    assert client.get("/health").status_code == 200
    assert client.get("/").status_code == 200


def test_scripts_on_a_website_can_use_the_api_when_its_origin_is_allowed(voice):
    client = web(voice, Access(origins=["https://friend.org"]))
    headers = {
        "origin": "https://friend.org",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    assert client.options("/v1/audio/speech", headers=headers).status_code == 200
    response = client.post("/v1/audio/speech", json=body(), headers=headers)
    assert response.headers["access-control-allow-origin"] == "https://friend.org"
    headers["origin"] = "https://enemy.org"
    assert client.options("/v1/audio/speech", headers=headers).status_code == 400


def test_texts_are_rejected_when_the_server_accepts_only_numbers(voice):
    voices = Voices({"small": voice}, numbers="en-us")
    assert voices.prepare(voice, "4,072", Limits()).text == "Four thousand seventy two."
    with pytest.raises(UserError, match="hello"):
        voices.prepare(voice, "hello", Limits())


# ---------------------------------------------------------------------------- the queue


@pytest.mark.thorough
def test_several_clients_get_the_same_replies_as_one_client(server, client, voice):
    def speak(seed):
        text = f"Sentence {seed}. " * (1 + seed % 4)
        response = client.audio.speech.create(
            **body(input=text, response_format="wav"), extra_body={"seed": seed}
        )
        return response.content[44:] == to_int16(speech_of(voice, text, seed=seed))

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(speak, range(48)))
    assert server.workers.num_texts == 0


def test_requests_are_rejected_when_the_queue_is_full(paused):
    with running(paused, queue=1) as server:
        clients = [server.post(input=SENTENCES) for _ in range(2)]
        wait_until(lambda: server.workers.num_texts == 2)
        client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="x", max_retries=0)
        with pytest.raises(openai.RateLimitError) as raised:
            client.audio.speech.create(**body())
        assert int(raised.value.response.headers["retry-after"]) > 0
        with urllib.request.urlopen(f"{server.address}/health") as response:
            assert json.load(response)["texts"] == 2
        paused.allowed.release(10_000)
        assert [status_of(everything(client)) for client in clients] == [200, 200]
        client.audio.speech.create(**body())


def test_synthesis_stops_when_the_http_client_hangs_up(paused):
    with running(paused) as server:
        first = server.post(input=SENTENCES * 20, retries=0)
        waiting = server.post(input=SENTENCES, retries=0)
        wait_until(lambda: server.workers.num_texts == 2)
        waiting.close()
        wait_until(lambda: server.workers.num_texts == 1)
        paused.allowed.release(1)
        assert first.recv(2**16).startswith(b"HTTP/1.1 200")
        first.close()
        wait_until(lambda: server.workers.num_texts == 0)
        paused.allowed.release(10_000)
        num_chunks = paused.num_chunks
        time.sleep(0.3)
        assert paused.num_chunks <= num_chunks + 1
        assert status_of(everything(server.post(input=SENTENCES))) == 200


@pytest.mark.thorough
def test_other_clients_are_served_when_one_client_does_not_read_its_reply(voice):
    with running(voice, send_seconds=0.5) as server:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect(server.place)
        inputs = json.dumps(body(input="A dog came. " * 400, response_format="wav", speed=0.25))
        slow.sendall(request("POST /v1/audio/speech", inputs).encode())
        assert status_of(everything(server.post(input="A dog came."))) == 200
        wait_until(lambda: server.workers.num_texts == 0)
        metrics = server.workers.metrics.text().decode()
        slow.close()
    assert 'result="stalled"} 1.0' in metrics


def test_incomplete_request_is_rejected_when_it_takes_too_long(voice):
    with running(voice, body_seconds=0.2) as server:
        client = server.connect()
        client.sendall(request("POST /v1/audio/speech", "{}").encode()[:-1])
        assert status_of(everything(client)) == 408


@pytest.mark.parametrize("content", [b"", b"POST /v1/audio/speech HTTP/1.1\r\nhost: local"])
@pytest.mark.parametrize("is_second", [False, True])
def test_connection_is_closed_when_the_client_sends_an_incomplete_request(
    content, is_second, server, monkeypatch
):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
    client = server.connect()
    if is_second:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += client.recv(2**16)
    client.sendall(content)
    began = time.monotonic()
    assert everything(client) == b""
    assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\x01\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nz\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 100_000,
    ],
)
def test_server_returns_an_error_when_a_client_violates_the_protocol(content, server):
    client = server.connect()
    client.sendall(content)
    assert 400 <= status_of(everything(client)) < 500


@pytest.mark.thorough
def test_server_responds_when_there_are_many_idle_connections(server):
    clients = [server.connect() for _ in range(300)]
    for client in clients[::2]:
        client.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nhost: local")
    assert status_of(everything(server.post(input="A dog came."))) == 200
    for client in clients:
        client.close()


def test_connection_is_closed_before_the_end_of_the_reply_when_synthesis_fails(
    voice, monkeypatch, capsys
):
    monkeypatch.setattr(voice.griffin_lim, "magnitudes", lambda mel: 1 / 0)

    def broken(mels):
        yield np.zeros(10, np.float32)
        raise UserError("the audio contains NaN")

    monkeypatch.setattr(voice, "audio_pieces", broken)
    with running(voice) as server:
        response = everything(server.post(input="A dog came."))
        assert status_of(response) == 200
        assert not response.endswith(b"0\r\n\r\n")
        events = everything(server.post(input="A dog came.", stream_format="sse"))
        assert b'"type": "error"' in events
    assert "NaN" in capsys.readouterr().out


def test_server_metrics_contain_counts_of_texts_and_seconds_of_audio(voice):
    with running(voice) as server:
        everything(server.post(input="A dog came."))
        everything(server.post(input=""))
        wait_until(lambda: server.workers.num_texts == 0)
        with urllib.request.urlopen(f"{server.address}/metrics") as response:
            text = response.read().decode()
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["tacotron2_voice_requests_total", "speech", "200"] == 1
    assert samples["tacotron2_voice_requests_total", "speech", "400"] == 1
    assert samples["tacotron2_voice_first_audio_seconds_count",] == 1
    assert samples["tacotron2_voice_audio_seconds_total",] > 0.1


# ---------------------------------------------------------------------------- formats


@pytest.mark.parametrize("name", FORMATS)
def test_encoded_audio_is_complete_when_samples_arrive_in_uneven_pieces(name):
    samples = 0.3 * np.sin(np.arange(22050) * 0.05).astype(np.float32)
    pieces = np.split(samples, [0, 1, 700, 15_000, 15_000])
    encoder = Encoder(name, 22050)
    content = b"".join(encoder.add(piece) for piece in pieces) + encoder.finish()
    if name == "pcm":
        assert len(content) == 2 * 24_000
        return
    audio, rate = soundfile.read(io.BytesIO(content))
    assert len(audio) / rate == pytest.approx(1, abs=0.15 if name == "mp3" else 0.001)
    if name in ("wav", "flac"):
        np.testing.assert_allclose(audio, samples, atol=1e-4)


# ---------------------------------------------------------------------------- the program


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("nowhere.invalid", "an address of this machine"),
        ("203.0.113.7", "an address of this machine"),
        ("127.0.0.1", "a free port"),
    ],
)
def test_socket_is_rejected_when_the_host_is_unknown_or_the_port_is_in_use(host, expected):
    with connections.open_socket("127.0.0.1", 0) as used:
        port = used.getsockname()[1]
        with pytest.raises(UserError, match=rf"--host {host} --port {port}: .*{expected}"):
            connections.open_socket(host, port)


def start(*options: object, program: str = "-m tacotron2_voice serve") -> tuple:
    """Start a program, and return its process and the first line of its output."""
    words = [sys.executable, *program.split(), *map(str, options), "--port", "0"]
    process = subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    return process, line


@pytest.mark.thorough
def test_server_program_fails_when_a_voice_is_missing_or_two_names_are_equal(voices, tmp_path):
    small = voices.int8[0]
    (tmp_path / small.name).symlink_to(small)
    used = connections.open_socket("127.0.0.1", 0)
    for options, name in (
        ([tmp_path / "missing"], "missing"),
        ([small, small], small.name),
        ([small, "--speaker", "bob"], "bob"),
        ([small, "--vocoder", tmp_path / "missing.onnx"], "missing.onnx"),
        ([small, "--wyoming", used.getsockname()[1]], "--wyoming"),
    ):
        process, line = start(*options)
        assert process.wait(30) == 1
        assert "error: " in line
        assert name in line
    used.close()


@pytest.mark.thorough
def test_checkpoints_and_voices_are_served_together_under_their_names(
    voices, checkpoint_path, tmp_path
):
    run = tmp_path / "run"
    run.mkdir()
    (run / "best.pt").symlink_to(checkpoint_path)
    process, line = start(
        "--checkpoint", run / "best.pt", voices.int8[0], program="scripts/serve.py"
    )
    try:
        client = openai.OpenAI(base_url=f"{line.split()[-1]}/v1", api_key="x")
        names = [model.id for model in client.models.list()]
        assert names == ["run", "int8"]
        for name in names:
            reply = client.audio.speech.create(**body(model=name, response_format="wav"))
            assert len(reply.content) > 200
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("voices/english", "english"),
        ("voices/english/voice.json", "english"),
        ("voices/my.voice", "my.voice"),
        ("runs/a/best.pt", "a"),
        ("runs/a/checkpoint_9000.pt", "checkpoint_9000"),
    ],
)
def test_model_name_is_the_name_of_its_folder_or_run(path, name):
    assert name_of(Path(path)) == name


@pytest.mark.thorough
def test_server_program_stops_immediately_when_interrupted_during_synthesis(voices):
    endless = "gate_threshold=2,attention_rest_time=0,max_decoder_steps=10000"
    process, line = start(voices.int8[0], "--hparams", endless, "--workers", "1")
    try:
        host, _, port = line.split()[-1].removeprefix("http://").partition(":")
        inputs = json.dumps(body(model="int8", input=SENTENCES * 50))
        clients = []
        for _ in range(3):
            client = socket.create_connection((host, int(port)))
            client.sendall(request("POST /v1/audio/speech", inputs).encode())
            clients.append(client)
        time.sleep(0.5)
        process.send_signal(2)
        printed, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in printed
    assert "ERROR" not in printed
    assert printed.count("note: ") == 1
    for client in clients:
        response = everything(client)
        assert not response or status_of(response) in (200, 503)


def test_error_suggests_the_pip_extra_when_a_package_is_missing(voices):
    script = (
        "import sys; sys.modules['starlette'] = None; sys.argv = ['tacotron2-voice', 'serve', "
        f"{str(voices.int8[0])!r}]; from tacotron2_voice.__main__ import run; run()"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "[server" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_voice_can_be_shared_by_servers_in_two_threads(voice):
    found = {}

    def speak(seed):
        found[seed] = web(voice).post("/v1/audio/speech", json=body(seed=seed)).content

    threads = [threading.Thread(target=speak, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[1] != found[2]
