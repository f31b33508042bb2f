"""Measure a speech server under load: time to the first audio, throughput and memory.

    python -m benchmarks.serve --voice voices/english
    python -m benchmarks.serve --voice voices/english --vocoder voices/vocoder.onnx --minutes 12

The benchmark starts `tacotron2-voice serve` and requests the speech for every text once with a
single client. Then, for each number in --clients, the benchmark runs this number of concurrent
clients for the time set by --minutes. A client requests the next text as soon as the reply to the
previous text is complete. The benchmark checks that every reply to a concurrent client is the same
as the reply to the single client. The clients run on the same machine as the server.
"""

if not __package__:
    raise SystemExit("error: run this program as a module: python -m benchmarks.serve")


import argparse
import contextlib
import hashlib
import http.client
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.timing import publish
from tacotron2_voice.utils.arguments import list_of, make_parser, output_file, positive
from tacotron2_voice.utils.console import markdown_table
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import numbered_lines
from tacotron2_voice.utils.program import run_program

TEXTS = Path("tests/data/unseen_transcripts.txt")
JOINED = 5  # number of lines that are joined into each long text
HEADER_BYTES = 44  # size of a WAV header in bytes
TITLES = (
    "clients",
    "texts",
    "median time to first audio (s)",
    "95th percentile of time to first audio (s)",
    "seconds of audio per second",
    "wrong replies",
    "memory (MB)",
)


class Reply(NamedTuple):
    first_audio: float  # seconds from the request to the first bytes
    total: float  # seconds from the request to the last byte
    num_bytes: int
    hash: str  # hash of the audio file; "": the server returned an error


@contextlib.contextmanager
def server(args: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Start a server, and yield its address (host:port) and process ID. The context manager stops
    the server at the end of the `with` block."""
    command = [sys.executable, "-m", "tacotron2_voice", "serve", str(args.voice), "--port", "0"]
    if args.vocoder:
        command += ["--vocoder", str(args.vocoder)]
    if args.workers:
        command += ["--workers", str(args.workers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if "http://" not in line:
            raise UserError(f"the server did not start: {line.strip() or 'it printed nothing'}")
        yield line.split("http://")[1].strip(), process.pid
    finally:
        process.terminate()
        process.wait()


def speak(address: str, text: str, speaker: str) -> Reply:
    inputs = {"model": "tts-1", "voice": speaker, "input": text, "response_format": "wav"}
    began = time.perf_counter()
    connection = http.client.HTTPConnection(address)
    try:
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/audio/speech", json.dumps(inputs), headers)
        response = connection.getresponse()
        content = response.read1(2**16)
        first = time.perf_counter() - began
        digest = hashlib.sha256(content)
        num_bytes = len(content)
        while piece := response.read1(2**16):
            digest.update(piece)
            num_bytes += len(piece)
    finally:
        connection.close()
    total = time.perf_counter() - began
    is_good = response.status == 200
    return Reply(first, total, num_bytes, digest.hexdigest() if is_good else "")


def speak_together(
    address: str, texts: list[str], speaker: str, num_clients: int, seconds: float
) -> tuple[list[tuple[str, Reply]], float]:
    """Run several clients at the same time. Return (text, reply) pairs and the elapsed seconds."""
    replies: list[tuple[str, Reply]] = []
    following = itertools.cycle(texts)
    began = time.perf_counter()

    def client() -> None:
        while time.perf_counter() - began < seconds:
            text = next(following)
            replies.append((text, speak(address, text, speaker)))

    threads = [threading.Thread(target=client) for _ in range(num_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return replies, time.perf_counter() - began


def memory_of(process_id: int) -> float:
    """Return the resident memory of a process in MB."""
    status = Path(f"/proc/{process_id}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def text_mix(path: Path) -> list[str]:
    """Return one text per line of a file. Most of the returned texts are a single line. Texts 1, 6,
    11 and so on also contain the next four lines."""
    lines = [text for _, text in numbered_lines(path, "no such text file")]
    mix = []
    for index, line in enumerate(lines):
        more = lines[index + 1 : index + JOINED] if index % JOINED == 0 else []
        mix.append(" ".join([line, *more]))
    return mix


def row(num_clients: int, replies: list[Reply], seconds: float, rate: int) -> dict[str, Any]:
    """Measure the server with `num_clients` concurrent clients, and return the results."""
    firsts = [reply.first_audio for reply in replies]
    num_samples = sum((reply.num_bytes - HEADER_BYTES) // 2 for reply in replies)
    return {
        "clients": num_clients,
        "texts": len(replies),
        "first audio (s), median": f"{np.median(firsts):.2f}",
        "first audio (s), 95th percentile": f"{np.percentile(firsts, 95):.2f}",
        "seconds of audio per second": f"{num_samples / rate / seconds:.1f}",
    }


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--voice", type=Path, required=True, metavar="FOLDER", help="folder of an exported voice")
    add(
        "--speaker",
        default="alloy",
        metavar="NAME",
        help="name of the speaker (default: the server's default speaker)",
    )
    add("--vocoder", type=Path, metavar="FILE", help="use this ONNX vocoder (default: Griffin-Lim)")
    add(
        "--workers",
        type=int,
        metavar="N",
        help="number of texts that the server synthesizes at the same time "
        "(default: number of CPU cores)",
    )
    add(
        "--texts",
        type=Path,
        default=TEXTS,
        metavar="FILE",
        help="file with one text per line (default: %(default)s)",
    )
    add(
        "--clients",
        type=list_of(int),
        default=[1, 2, 4, 8, 32],
        metavar="N,N",
        help="numbers of concurrent clients (default: 1,2,4,8,32)",
    )
    add(
        "--minutes",
        type=positive,
        default=1.0,
        help="measure each number of clients for this many minutes (default: %(default)s)",
    )
    add("--first", type=int, metavar="N", help="use only the first N texts (default: all)")
    add("--json", type=output_file, metavar="FILE.json", help="also write the results to this file")
    parser.set_defaults(device=torch.device("cpu"))
    args = parser.parse_args(arguments)
    rate = json.loads((args.voice / "voice.json").read_text())["hparams"]["sampling_rate"]
    texts = text_mix(args.texts)[: args.first]
    with server(args) as (address, process_id):
        alone = {text: speak(address, text, args.speaker).hash for text in texts}
        rows = []
        num_wrong = 0
        for num_clients in args.clients:
            pairs, seconds = speak_together(
                address, texts, args.speaker, num_clients, 60 * args.minutes
            )
            wrong = sum(reply.hash != alone[text] for text, reply in pairs)
            result = row(num_clients, [reply for _, reply in pairs], seconds, rate)
            result["wrong replies"] = wrong
            result["memory (MB)"] = round(memory_of(process_id))
            rows.append(result)
            num_wrong += wrong
    table = markdown_table(TITLES, [[*result.values()] for result in rows])
    publish(args, {"rows": rows}, f"{len(texts)} texts\n{table}")
    if num_wrong:
        raise UserError(
            f"{num_wrong} replies to concurrent clients differ from the reply that a single client "
            "received for the same text"
        )


if __name__ == "__main__":
    run_program(main)
