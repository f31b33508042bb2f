"""A page to listen on: text in; sound, alignment and mel out, of several checkpoints side by side.

    python scripts/page.py --checkpoint runs/ljspeech/best.pt
    python scripts/page.py --checkpoint runs/table2              every run of it, by name and seed
    python scripts/page.py --checkpoint runs/a runs/b/checkpoint_9000.pt --port 7861
    make page                                                    the demo's model

It needs Gradio (pip install -r requirements-page.txt). All checkpoints are read at the start and
stay in memory, some 110 MB for each full-size model. Ctrl-C ends the page.

Only this machine can open it, unless --host says otherwise. Of what Gradio offers, Gate lets
through what the page needs: it reads no file but the results of this page, takes no upload, and
fetches nothing from anywhere.
"""

import project_root

import argparse
import html
import ipaddress
import json
import logging
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

from analysis.arguments import at_least_one, make_parser, whole_number
from corpus.dropped_symbols import dropped_symbols
from corpus.spoken_numbers import sentence_of
from errors import UserError
from files import write_atomically
from pictures import draw_mel
from speaking import (
    Speaker,
    describe_parts,
    load_speaker,
    sequence_to_speak,
    speak_text,
    write_speech,
)
from training.checkpoint import BEST

MOST_SYMBOLS = 1000  # of a text, about a minute of speech
MOST_SPEAKERS = 4  # side by side
MOST_WAITING = 20  # texts; they are spoken one after another
KEPT_ANSWERS = 100  # the newest; older files are deleted
LARGEST_REQUEST = 2**16  # bytes
TITLE = "Listen"


# ---------------------------------------------------------------------------- checkpoints


def checkpoints_of(paths: list[Path]) -> dict[str, Path]:
    """Files to load by the names that the page has for them.

    A file stands for itself, a run's folder for its best.pt, and a folder of runs, as
    scripts/table2 leaves it, for the best.pt of each.

    Raises:
        UserError: listing the paths that hold no checkpoint.
    """
    found, problems = [], []
    for path in paths:
        if not path.is_dir():  # a missing file too, of which the reader says so
            run = _run_name(path.absolute().parent)
            found.append((run if path.name == BEST else f"{run}/{path.name}", path))
        elif (path / BEST).exists():
            found.append((_run_name(path.absolute()), path / BEST))
        elif runs := sorted(path.absolute().glob(f"*/seed_*/{BEST}"), key=_run_order):
            found += [(_run_name(run.parent), run) for run in runs]
        else:
            problems.append(
                f"{path}: holds neither {BEST} nor NAME/seed_N/{BEST}; name a checkpoint, a run's "
                "folder or a folder of runs"
            )
    if problems:
        raise UserError("\n".join(problems))
    names = [name for name, _ in found]
    return {str(path) if names.count(name) > 1 else name: path for name, path in found}


def _run_order(best: Path) -> tuple[str, int, str]:
    seed = best.parent.name.removeprefix("seed_")
    return best.parent.parent.name, int(seed) if seed.isdecimal() else 0, seed


def _run_name(run: Path) -> str:
    """A run's folder, but "rand, seed 0" for rand/seed_0."""
    if run.name.startswith("seed_"):
        return f"{run.parent.name}, {run.name.replace('_', ' ')}"
    return run.name


def load_speakers(paths: dict[str, Path], overrides: str) -> dict[str, Speaker]:
    """The models by name; UserError lists all that cannot be loaded, a line each."""
    speakers, problems = {}, []
    for name, path in paths.items():
        try:
            speakers[name] = load_speaker(path, overrides)
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("\n".join(dict.fromkeys(problems)))
    return speakers


# ---------------------------------------------------------------------------- speaking


@dataclass(frozen=True)
class Result:
    """What the page shows of a checkpoint."""

    name: str
    notes: list[str]  # how long, in how many parts
    warnings: list[str]
    wav: Path
    alignment: Path  # pictures
    mel: Path


class Reader:
    """Speaks texts into files, in a folder for each answer; no two have the same name."""

    def __init__(
        self,
        speakers: dict[str, Speaker],
        folder: Path,
        *,
        numbers: bool = False,
        max_symbols: int | None = None,
    ):
        self.speakers, self.folder = speakers, folder
        self.answers = 0
        self.numbers, self.max_symbols = numbers, max_symbols

    def read(self, text: str, names: list[str]) -> Iterator[Result]:
        """The results of a text, spoken by one of the named checkpoints after another.

        Raises:
            UserError: if there is nothing to speak, too much, or nobody to speak it.
        """
        text = " ".join(text.split())
        if not text:
            raise UserError("There is no text yet: type one first.")
        if not 1 <= len(names) <= MOST_SPEAKERS:
            raise UserError(f"{len(names)} checkpoints are chosen: choose 1 to {MOST_SPEAKERS}.")
        sentence = sentence_of(text) if self.numbers else text
        sequences = [self._sequence(sentence, self.speakers[name]) for name in names]
        self.answers += 1
        shutil.rmtree(self.folder / str(self.answers - KEPT_ANSWERS), ignore_errors=True)
        folder = self.folder / str(self.answers)
        folder.mkdir()
        for number, (name, sequence) in enumerate(zip(names, sequences, strict=True), 1):
            result = self._speak(name, sequence, folder / f"{number}-{file_name(name)}")
            dropped = dropped_symbols(sentence, tuple(self.speakers[name].hparams.text_cleaners))
            if dropped:
                shown = ", ".join(map(repr, dropped))
                result.warnings.insert(0, f"no symbol of the model stands for {shown}: left out")
            yield result

    def _sequence(self, text: str, speaker: Speaker) -> list[int]:
        sequence = sequence_to_speak(text, speaker.hparams)
        if len(sequence) > MOST_SYMBOLS:
            raise UserError(
                f"The text is too long: {len(sequence):,} symbols after cleaning, and this page "
                f"speaks at most {MOST_SYMBOLS:,}. Leave some out, or use synthesize.py."
            )
        return sequence

    def _speak(self, name: str, sequence: list[int], base: Path) -> Result:
        speaker = self.speakers[name]
        speech = speak_text(speaker, sequence, max_symbols=self.max_symbols)
        notes = [f"{write_speech(base, speech, speaker.hparams):.2f} s of sound"]
        if len(speech.parts) > 1:
            notes.append(describe_parts(speech.parts, self.max_symbols, speaker.longest_text))
        mel, picture = base.with_name(f"{base.name}-mel.png"), draw_mel(speech.mel.numpy())
        write_atomically(mel, lambda file: picture.savefig(file, format="png"))
        wav, alignment = base.with_suffix(".wav"), base.with_suffix(".png")
        return Result(name, notes, list(speech.warnings), wav, alignment, mel)


def file_name(name: str) -> str:
    """The letters and digits of a name, for a file that a browser saves."""
    return re.sub("[^0-9A-Za-z]+", "-", name).strip("-")


# ---------------------------------------------------------------------------- the page


def as_html(lines: list[str], kind: str) -> str:
    return "".join(f'<p class="{kind}">{html.escape(line)}</p>' for line in lines)


STYLE = """
.warning, .problem { border-left: 4px solid #D55E00; padding: 2px 10px; margin: 4px 0; }
.note { margin: 4px 0; }
.name { font-weight: bold; margin: 4px 0; }
"""


def build_page(reader: Reader):
    """The Gradio page of a reader: gradio.Blocks, with the endpoint /speak."""
    import gradio as gr

    names, side_by_side = list(reader.speakers), min(len(reader.speakers), MOST_SPEAKERS)

    hidden = [gr.update(visible=False), *[None] * 4]
    # They have titles. Gradio's default buttons include one that shares on the net.
    picture = {"show_label": False, "interactive": False, "buttons": ["download", "fullscreen"]}

    def shown(result: Result) -> list:
        words = as_html([result.name] if side_by_side > 1 else [], "name")
        words += as_html(result.notes, "note") + as_html(result.warnings, "warning")
        files = [str(path) for path in (result.wav, result.alignment, result.mel)]
        return [gr.update(visible=True), words, *files]

    def speak(text: str, chosen: list[str]) -> Iterator[list]:
        columns = [hidden] * side_by_side
        try:
            message = gr.update(value=as_html(["speaking ..."], "note"), visible=True)
            yield [message, *chain(*columns)]
            for place, result in enumerate(reader.read(text, chosen)):
                columns[place] = shown(result)
                yield [message, *chain(*columns)]
            message = gr.update(value="", visible=False)
        except UserError as error:
            message = gr.update(value=as_html([str(error)], "problem"), visible=True)
        yield [message, *chain(*columns)]

    with gr.Blocks(title=TITLE, analytics_enabled=False) as page:
        with gr.Row():
            text = gr.Textbox(label="text", lines=2, max_lines=6, scale=3, autofocus=True)
            chosen = gr.Dropdown(
                names,
                value=names[:2],
                label=f"checkpoints, up to {MOST_SPEAKERS}",
                multiselect=True,
                max_choices=MOST_SPEAKERS,
                visible=len(names) > 1,
                scale=2,
            )
        button = gr.Button("Speak", variant="primary")
        outputs = [gr.HTML()]  # a message
        with gr.Row():
            for _ in range(side_by_side):
                with gr.Column(visible=False) as column:
                    outputs += [
                        column,
                        gr.HTML(),
                        gr.Audio(label="sound", interactive=False, buttons=["download"]),
                        gr.Image(label="alignment", **picture),
                        gr.Image(label="mel", **picture),
                    ]
        gr.on([button.click, text.submit], speak, [text, chosen], outputs, api_name="speak")
    return page.queue(max_size=MOST_WAITING, default_concurrency_limit=1)


# ---------------------------------------------------------------------------- the server

# What a browser fetches of this page, and what an HTTP client needs to ask for speech.
READ = re.compile(
    r"/|/(?:assets|static|svelte)/.+|/(?:config|theme\.css|favicon\.ico|manifest\.json)"
    r"|/gradio_api/(?:info|app_id|startup-events|queue/(?:data|status)|heartbeat/\w+"
    r"|call/speak/\w+)/?"
)
WRITTEN = re.compile(r"/gradio_api/(?:queue/join|call/speak|cancel|reset)/?")
FILE = re.compile(r"/gradio_api/file=(.+)", re.DOTALL)
HEADERS = [
    # The browser loads nothing from elsewhere either.
    (
        b"content-security-policy",
        b"default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


class Gate:
    """An ASGI application that lets through to another what the page needs, and nothing else.

    Gradio also takes uploads, fetches addresses for those who ask, and opens a file that an input
    names as if it had been uploaded; here inputs are texts alone, and files are results alone.
    A page of elsewhere may not ask in a browser's name, under any host name.
    """

    def __init__(self, app, results: Path, host: str):
        self.app, self.results = app, results.resolve()
        self.local_only = is_local(host)

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        refusal, body = self.refusal(scope), b""
        if refusal is None and scope["method"] == "POST":
            body = await read_body(receive)
            refusal = refusal_of_body(body)
        if refusal is not None:
            await send({"type": "http.response.start", "status": 403, "headers": HEADERS})
            await send({"type": "http.response.body", "body": refusal.encode()})
            return
        waiting = [{"type": "http.request", "body": body}] if scope["method"] == "POST" else []

        async def receive_again():
            return waiting.pop() if waiting else await receive()

        async def send_with_headers(message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        await self.app(scope, receive_again, send_with_headers)

    def refusal(self, scope) -> str | None:
        """Why a request is refused, by its address and headers; None if it is not."""
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if self.local_only and not is_local(urlsplit(f"//{host}").hostname or ""):
            return f"{host}: this page is at 127.0.0.1"
        if urlsplit(headers.get(b"origin", f"//{host}")).netloc != host:
            return "asked by a page of elsewhere"
        path = scope["path"]
        if scope["method"] == "POST":
            return None if WRITTEN.fullmatch(path) else "not a part of this page"
        if scope["method"] not in ("GET", "HEAD"):
            return "only read and asked to speak"
        if name := FILE.fullmatch(path):
            return None if self.is_result(name[1]) else "this page serves its own results alone"
        return None if READ.fullmatch(path) and ".." not in path else "not a part of this page"

    def is_result(self, name: str) -> bool:
        try:
            path = Path(name).resolve()
            return Path(name).is_absolute() and path.is_relative_to(self.results) and path.is_file()
        except (OSError, ValueError, RuntimeError):  # a name too long, a zero byte, a loop of links
            return False


def is_local(host: str) -> bool:
    """Whether a host name stands for this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def read_body(receive) -> bytes:
    """The body of a request, as far as it is not much too large."""
    body, more = b"", True
    while more and len(body) <= LARGEST_REQUEST:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def refusal_of_body(body: bytes) -> str | None:
    """Why the body of a request is refused: the page's inputs are texts, and lists of texts."""
    if len(body) > LARGEST_REQUEST:
        return f"the text is too long: this page takes at most {LARGEST_REQUEST:,} bytes"
    try:
        inputs = (json.loads(body) if body else {}).get("data", [])
        if type(inputs) is not list:
            raise TypeError
        texts = [text for value in inputs for text in (value if type(value) is list else [value])]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return "not a request of this page"
    if not all(isinstance(text, str) for text in texts):
        return "not a request of this page: a text and names of checkpoints are expected"
    return None


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens; UserError if another program has the port or the host is unknown."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except PermissionError:
        problem = "permission denied; choose a --port from 1024 up"
    except socket.gaierror:
        problem = "no such host; choose another --host, 127.0.0.1 say"
    except OverflowError:
        problem = "no such port; choose a --port from 0 to 65535"
    except OSError as error:
        problem = f"{os.strerror(error.errno)}; choose another --port (or --host)"
    raise UserError(f"{host}:{port}: {problem}")


@contextmanager
def served(reader: Reader, listening: socket.socket, results: Path) -> Iterator[str]:
    """The address of a reader's page, which is there for as long as the context is."""
    os.environ |= {  # read when Gradio is imported, or a page is built
        "GRADIO_ANALYTICS_ENABLED": "False",
        "GRADIO_TEMP_DIR": str(results),
        "HF_HUB_OFFLINE": "1",
    }
    import fastapi
    import gradio as gr
    import uvicorn

    theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"])
    app = gr.mount_gradio_app(
        fastapi.FastAPI(),
        build_page(reader),
        path="/",
        theme=theme,
        css=STYLE,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        enable_monitoring=False,
    )
    host, port = listening.getsockname()[:2]
    config = uvicorn.Config(Gate(app, results, host), log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(
        target=server.run, args=([listening],), name="the page's server", daemon=True
    )
    thread.start()
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{port}"
    finally:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # answers that are cut off
        server.should_exit = server.force_exit = True  # browsers keep connections open
        thread.join(10)


def wait_for_ctrl_c() -> None:
    threading.Event().wait()


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--checkpoint",
        type=Path,
        nargs="+",
        required=True,
        metavar="C",
        help="a checkpoint, a run's folder, or a folder of runs",
    )
    parser.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    parser.add_argument(
        "--port",
        type=whole_number(0),
        default=7860,
        help="default: %(default)s; 0: any that is free",
    )
    parser.add_argument("--hparams", default="", help="for example max_decoder_steps=2000")
    parser.add_argument(
        "--max-symbols",
        type=at_least_one,
        metavar="N",
        help="speak longer texts in parts; default: the longest training text",
    )
    parser.add_argument(
        "--numbers",
        action="store_true",
        help="the models speak numbers alone, as the demo's does: other texts are refused",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and delete the files
    try:
        if find_spec("gradio") is None:
            raise UserError("Gradio is not installed: pip install -r requirements-page.txt")
        paths = checkpoints_of(args.checkpoint)
        with (
            open_socket(args.host, args.port) as listening,
            tempfile.TemporaryDirectory(prefix="page-") as folder,
        ):
            speakers = load_speakers(paths, args.hparams)
            reader = Reader(
                speakers,
                Path(folder),
                numbers=args.numbers,
                max_symbols=args.max_symbols,
            )
            with served(reader, listening, Path(folder)) as address:
                if not is_local(args.host):
                    print(f"--host {args.host}: whoever can reach this machine can use the page")
                print(f"listen at {address} (Ctrl-C ends it)", flush=True)
                wait_for_ctrl_c()
    except (UserError, OSError) as error:
        sys.exit(f"page.py: {error}")


if __name__ == "__main__":
    main()
