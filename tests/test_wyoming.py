"""Test the Wyoming protocol with the client of the wyoming package."""

import asyncio
import socket

import numpy as np
import pytest
from servers import SENTENCES, PausedVoice, everything, running, wait_until
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)

from tacotron2_voice.outputs import silence, to_int16
from tacotron2_voice.server import wyoming_server
from tacotron2_voice.server.connections import open_socket
from tacotron2_voice.synthesizer import PAUSE
from tacotron2_voice.voice import Voice


@pytest.fixture(scope="module")
def voice(voices):
    return Voice(voices.int8[0])


@pytest.fixture(scope="module")
def opened():
    return open_socket("127.0.0.1", 0)


@pytest.fixture(scope="module")
def port(opened):
    return opened.getsockname()[1]


@pytest.fixture(scope="module")
def server(voice, opened):
    def background(voices, workers):
        return wyoming_server.listen(opened, voices, workers)

    with running(voice, background=background, characters=500) as found:
        yield found


def talk(port, *events, until=AudioStop):
    """Send events, and return the replies.

    The replies end with an event of a type in `until`, or when the connection ends.
    """

    async def run():
        answers = []
        async with AsyncTcpClient("127.0.0.1", port, read_timeout=20) as client:
            for event in events:
                await client.write_event(event.event())
            while not answers or not until.is_type(answers[-1].type):
                answer = await client.read_event()
                if answer is None:
                    break
                answers.append(answer)
        return answers

    return asyncio.run(run())


def audio_of(events):
    return b"".join(AudioChunk.from_event(x).audio for x in events if AudioChunk.is_type(x.type))


def test_wyoming_description_lists_every_speaker_as_a_voice(server, port):
    [answer] = talk(port, Describe(), until=Info)
    [program] = Info.from_event(answer).tts
    assert program.supports_synthesize_streaming
    [found] = program.voices
    assert (found.name, found.languages, found.installed) == ("default", ["en"], True)


def test_wyoming_client_gets_the_same_audio_as_direct_synthesis(server, port, voice):
    answers = talk(port, Synthesize(SENTENCES, voice=SynthesizeVoice(name="default")))
    start = AudioStart.from_event(answers[0])
    assert (start.rate, start.width, start.channels) == (22050, 2, 1)
    assert audio_of(answers) == to_int16(np.concatenate([*voice.stream(SENTENCES)]))


def test_sentences_are_synthesized_while_the_client_is_still_sending_the_text(server, port, voice):
    async def run():
        async with AsyncTcpClient("127.0.0.1", port, read_timeout=20) as client:
            await client.write_event(SynthesizeStart().event())
            for piece in ("A dog ca", "me. It s", "at down"):
                await client.write_event(SynthesizeChunk(piece).event())
            answers = [await client.read_event()]  # an event arrives before the text is complete
            await client.write_event(SynthesizeChunk(".").event())
            await client.write_event(Synthesize("A dog came. It sat down.").event())
            await client.write_event(SynthesizeStop().event())
            while not SynthesizeStopped.is_type(answers[-1].type):
                answers.append(await client.read_event())
            return answers

    answers = asyncio.run(run())
    assert AudioStart.is_type(answers[0].type)
    assert AudioStop.is_type(answers[-2].type)
    first, second = (
        to_int16(np.concatenate([*voice.stream(text)])) for text in ("A dog came.", "It sat down.")
    )
    assert audio_of(answers) == first + silence(PAUSE, 22050) + second


@pytest.mark.parametrize("text", ["", "...", " "])
def test_wyoming_client_gets_empty_audio_when_there_is_nothing_to_speak(text, server, port):
    answers = talk(port, Synthesize(text))
    assert AudioStart.is_type(answers[0].type)
    assert audio_of(answers) == b""
    start = SynthesizeStart(), SynthesizeChunk(text), SynthesizeStop()
    assert audio_of(talk(port, *start, until=SynthesizeStopped)) == b""


@pytest.mark.parametrize(
    "event", [Synthesize("A", voice=SynthesizeVoice(name="bob")), Synthesize("a" * 501)]
)
def test_wyoming_client_gets_an_error_when_the_request_is_invalid(event, server, port):
    answers = talk(port, event)
    assert Error.from_event(answers[0]).code == "bad-request"
    assert AudioStop.is_type(answers[-1].type)


def test_connection_is_closed_when_a_streamed_text_is_too_long(server, port):
    answers = talk(port, SynthesizeStart(), SynthesizeChunk("a" * 501))
    assert [Error.from_event(answer).code for answer in answers] == ["bad-request"]


@pytest.mark.parametrize(
    "content",
    [
        b"x\n",
        b"[1]\n",
        b"{}\n",
        b'{"type": "synthesize"}\n',
        b'{"type": "synthesize", "data": {"text": 1}}\n',
        b'{"type": "synthesize", "data": []}\n',
        b'{"type": "synthesize", "data_length": 99999999999}\n',
        b'{"type": "synthesize", "data_length": "a"}\n',
        b'{"type": "synthesize", "payload_length": 1e300}\n',
        b'{"type": "synthesize-chunk", "data": {"text": "a"}}\n[\n',
        b"[" * 60_000 + b"\n",
        b"a" * 600_000,
    ],
)
def test_connection_is_closed_when_a_client_violates_the_wyoming_protocol(content, server, port):
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    client.sendall(content)
    assert everything(client) == b""
    answers = talk(port, Ping("a"), until=Pong)
    assert Pong.from_event(answers[0]).text == "a"


def test_synthesis_stops_when_the_wyoming_client_hangs_up(server, port):
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b'{"type": "synthesize", "data": {"text": "%s"}}\n' % (b"A dog. " * 70))
        client.recv(10)
    wait_until(lambda: server.workers.num_texts == 0)


def test_waiting_text_leaves_the_queue_when_the_client_hangs_up(voices):
    """In an earlier version, the text of a client that had hung up was spoken before the next
    client's text."""
    paused = PausedVoice(voices.int8[0])
    opened = open_socket("127.0.0.1", 0)
    place = opened.getsockname()[:2]

    def background(voices, workers):
        return wyoming_server.listen(opened, voices, workers)

    with running(paused, background=background) as server:
        clients = [socket.create_connection(place) for _ in range(3)]
        for client in clients:
            client.sendall(b'{"type": "synthesize", "data": {"text": "A dog."}}\n')
        wait_until(lambda: server.workers.num_texts == 3)
        for client in clients:
            client.close()
        wait_until(lambda: server.workers.num_texts == 0)
        paused.allowed.release(10_000)
