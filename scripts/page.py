"""Run a web demo: type a text, listen to the speech and see its alignment and mel spectrogram.

    python scripts/page.py --checkpoint runs/ljspeech/best.pt
    python scripts/page.py --checkpoint runs/table2              # every run in this folder
    python scripts/page.py --checkpoint runs/a runs/b/checkpoint_9000.pt --port 7861
    python scripts/page.py --checkpoint voice                    # a voice of export_voice.py
    python scripts/page.py --checkpoint voice --vocoder FILE.onnx  # instead of Griffin-Lim
    make page                                                    # the voice of this repository

Install requirements/page.txt first. Each full-size model needs about 110 MB of memory.

By default only this machine can open the web demo. To open it from other machines, add --host, and
list the names or addresses that browsers use for this machine:
--host 0.0.0.0 --allow-host studio.lan 192.168.1.5
"""

from project_root import ROOT

import asyncio
import errno
import html
import itertools
import json
import logging
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import h11
import uvicorn
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from export.loading import load_synthesizer
from tacotron2_voice.outputs import write_speech
from tacotron2_voice.speakers import chosen_index, listed
from tacotron2_voice.synthesizer import Synthesizer
from tacotron2_voice.text.spoken_numbers import ENGLISH, sentence_of
from tacotron2_voice.utils.arguments import at_least_one, checked, make_parser, whole_number
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.plots import draw_mels
from tacotron2_voice.utils.program import run_program
from tacotron2_voice.utterance import prepare_utterance
from tacotron2_voice.vocoder import load_vocoder
from tacotron2_voice.voice import DESCRIPTION_FILE as VOICE

# not imported from training.checkpoint, because the web demo runs voices without torch
BEST = "best.pt"
TEMPLATE = ROOT / "scripts" / "templates" / "page.html"
MAX_CHARACTERS = 5000  # largest number of characters per text, before cleaning
MAX_SYMBOLS = 1000  # most symbols per text, after cleaning: about a minute of speech
MAX_PAUSES_SECONDS = 30.0  # longest total time of the [pause] tags of a text
MAX_WAITING = 20  # most waiting requests; texts are synthesized one at a time
KEPT_RESULTS = 100  # number of newest results whose files are kept
MAX_REQUEST_BYTES = 2**16
GRACE_SECONDS = 0.5  # time to finish responses after Ctrl-C
# Browsers load nothing from other sites, and other sites cannot embed this one.
HEADERS = [
    ("content-security-policy", "default-src 'self' 'unsafe-inline'; frame-ancestors 'none'"),
    ("cross-origin-resource-policy", "same-origin"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
]


def find_checkpoints(paths: list[Path]) -> dict[str, Path]:
    """Return a dictionary from the names that the web demo shows to the checkpoints.

    The name is `ljspeech` for ljspeech/best.pt, and `rand, seed 0` for rand/seed_0/best.pt. If two
    checkpoints would have the same name, the name of the second checkpoint is its whole path.

    Args:
        paths: checkpoints, voices, folders of runs, or folders that contain runs (NAME/seed_N).

    Raises:
        UserError if a folder contains no checkpoint and no voice.
    """
    by_name: dict[str, Path] = {}
    for path in map(Path.absolute, paths):
        checkpoints = [path / name for name in (BEST, VOICE) if (path / name).exists()]
        if not checkpoints:
            runs = path.glob(f"*/seed_*/{BEST}")
            checkpoints = sorted(runs, key=lambda p: (p.parts[-3], len(p.parts[-2]), p.parts[-2]))
        if path.is_dir() and not checkpoints:
            raise UserError(
                f"{path}: this folder contains no checkpoint and no voice "
                f"(expected {BEST}, NAME/seed_N/{BEST} or {VOICE})"
            )
        for checkpoint in checkpoints or [path]:  # load_synthesizer reports a missing file
            *_, experiment, name, file = checkpoint.parts
            if name.startswith("seed_"):
                name = f"{experiment}, {name.replace('_', ' ')}"
            if file not in (BEST, VOICE):
                name = f"{name}/{file}"
            if name in by_name:
                name = str(checkpoint)
            # The HTML is UTF-8, but a path can contain other bytes.
            by_name[os.fsencode(name).decode(errors="replace")] = checkpoint
    return by_name


class Inputs(BaseModel):
    """The content of a request."""

    text: str
    checkpoint: str  # name of the checkpoint in the web demo
    speaker: str | None = None  # required if the model has several speakers


@dataclass
class Reader:
    """Synthesize texts and write the results into files, with one folder per text."""

    synthesizers: dict[str, Synthesizer]
    folder: Path
    numbers: str | None = None  # set if the model can only speak numbers: their language
    max_symbols: int | None = None  # longer texts are split into chunks
    results: int = 0

    def read(self, inputs: Inputs) -> dict[str, str | list[str]]:
        """Synthesize a text.

        Returns:
            Notes, warnings, and the URLs of the audio and of two plots.

        Raises:
            UserError if the text cannot be spoken, or if the checkpoint or speaker does not exist.
        """
        text = " ".join(inputs.text.split())
        synthesizer = self.synthesizers.get(inputs.checkpoint)
        if not text:
            raise UserError("The text is empty. Type a text first.")
        if synthesizer is None:
            raise UserError("This checkpoint does not exist. Choose a checkpoint from the list.")
        speakers = synthesizer.settings.speakers
        if inputs.speaker not in (None, *speakers):
            expected = f"expected {listed(speakers)}" if speakers else "the model has one speaker"
            raise UserError(f"{inputs.checkpoint}: this speaker does not exist ({expected}).")
        # the length is checked before cleaning, which is slow for long texts
        if len(text) > MAX_CHARACTERS:
            raise UserError(
                f"The text is too long: {len(text):,} characters "
                f"(expected at most {MAX_CHARACTERS:,}). Shorten it."
            )
        if self.numbers:
            text = sentence_of(text, self.numbers)
        utterance = prepare_utterance(text, synthesizer.settings)
        if len(utterance) > MAX_SYMBOLS:
            raise UserError(
                f"The text is too long: {len(utterance):,} symbols after cleaning "
                f"(expected at most {MAX_SYMBOLS:,}). Shorten it."
            )
        if utterance.pause_seconds > MAX_PAUSES_SECONDS:
            raise UserError(
                f"The pauses are too long: {utterance.pause_seconds:g} s in total "
                f"(expected at most {MAX_PAUSES_SECONDS:g} s). Shorten them."
            )
        options = {"max_symbols": self.max_symbols, "speaker": inputs.speaker}
        speech = synthesizer.synthesize(utterance, **options)
        notes = self._make_folder()
        # Browsers use this name when a user saves the files.
        name = f"{inputs.checkpoint} {inputs.speaker or ''}"
        base = f"{self.results}/{re.sub('[^0-9A-Za-z]+', '-', name).strip('-')}"
        write_speech(self.folder / base, speech, synthesizer.settings.table)
        draw_mels(mel=speech.mel).savefig(self.folder / f"{base}-mel.png")
        return {
            "notes": [f"{speech.seconds:.2f} s of audio", *speech.notes, *notes],
            "warnings": speech.warnings,
            "audio": f"results/{base}.wav",
            "alignment": f"results/{base}.png",
            "mel": f"results/{base}-mel.png",
        }

    def _make_folder(self) -> list[str]:
        """Make the folder of the next result, and delete the folder of the oldest result.

        Returns:
            Notes for the user about files that another program deleted or added in the folder of
            results.
        """
        notes = []
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, parents=True)
            notes.append("the folder of results was deleted, so it was created again")
        for number in itertools.count(self.results + 1):
            try:
                (self.folder / str(number)).mkdir()
                break
            except FileExistsError:
                notes.append(f"result {number} already existed, so it was kept")
        for old in range(self.results, number):
            shutil.rmtree(self.folder / str(old + 1 - KEPT_RESULTS), ignore_errors=True)
        self.results = number
        return notes


def options_of(synthesizers: dict[str, Synthesizer], first: str | None) -> str:
    """Return the HTML of the menu of checkpoints.

    If a model has several speakers, its option contains their names as JSON, with the speaker
    `first` at the beginning.

    Raises:
        UserError if no model has the speaker `first`.
    """
    if first is not None:
        all_speakers = [
            speaker
            for synthesizer in synthesizers.values()
            for speaker in synthesizer.settings.speakers
        ]
        index = chosen_index(first, all_speakers, ", ".join(synthesizers))
        first = None if index is None else all_speakers[index]
    options = []
    for name, synthesizer in synthesizers.items():
        speakers = sorted(synthesizer.settings.speakers, key=lambda speaker: speaker != first)
        data = ""
        if len(speakers) > 1:
            data = f' data-speakers="{html.escape(json.dumps(speakers))}"'
        options.append(f"<option{data}>{html.escape(name)}</option>")
    return "".join(options)


def in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def make_app(reader: Reader, hosts: list[str], first_speaker: str | None = None) -> Starlette:
    """Return the web application: the page (/), synthesis (POST /speak) and the files (/results).

    Args:
        hosts: names and addresses by which browsers may open the web demo. Other names are
            rejected, because another site could make its own name point to this machine.
        first_speaker: the speaker that is chosen when the web demo opens.

    Raises:
        UserError if no model has the speaker `first_speaker`.
    """
    turn = asyncio.Lock()
    waiting = 0
    template = TEMPLATE.read_text(encoding="utf-8")
    page = template.replace("<!-- options -->", options_of(reader.synthesizers, first_speaker))

    def show(request: Request) -> Response:
        return HTMLResponse(page)

    async def speak(request: Request) -> Response:
        nonlocal waiting
        own = request.headers.get("host", "")
        if request.headers.get("origin", f"//{own}").partition("//")[2] != own:
            return JSONResponse({"problem": "The request comes from another site."}, 403)
        try:
            # The whole request is read before it waits for its turn, so that a slow client does not
            # delay others.
            content = await request.body()
        except (ClientDisconnect, asyncio.CancelledError):
            return Response(status_code=400)
        if waiting >= MAX_WAITING:
            return JSONResponse({"problem": "Too many texts are waiting. Try again later."}, 503)
        waiting += 1
        try:
            inputs = Inputs.model_validate_json(content)
            async with turn:
                return JSONResponse(await run_in_threadpool(reader.read, inputs))
        except ValidationError:
            problem = "The request is wrong (expected a text and the name of a checkpoint)."
            return JSONResponse({"problem": problem}, 400)
        except UserError as error:
            return JSONResponse({"problem": str(error)}, 422)
        except OSError as error:
            return JSONResponse({"problem": f"The audio could not be written: {error}"}, 507)
        except asyncio.CancelledError:
            return JSONResponse({"problem": "The web demo was stopped."}, 503)
        finally:
            waiting -= 1

    routes = [Route("/", show), Route("/speak", speak, methods=["POST"])]
    files = StaticFiles(directory=reader.folder)
    files.config_checked = True  # status 404 instead of 500 if the folder was deleted
    app = Starlette(routes=[*routes, Mount("/results", files)])
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=MAX_REQUEST_BYTES)
    names = [in_address(host).lower() for host in ("localhost", "127.0.0.1", "::1", *hosts)]
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=names)
    return app


class Shorten(logging.Filter):
    """Keep the log short when a client breaks the protocol or opens too many connections."""

    last = 0.0  # time of the last message about too many connections

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, h11.ProtocolError):
            record.msg = f"warning: a client sent an invalid request: {error}"
            record.exc_info = None
        if isinstance(error, OSError):  # accept() then fails thousands of times per second
            record.msg = f"warning: new connections wait until old ones close: {error}"
            record.exc_info = None
            is_new = record.created > self.last + 10
            self.last = record.created
            return is_new
        return True


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        UserError if the address does not belong to this machine, or if the port is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        expected = "a free port; --port 0 chooses one"
        if error.errno != errno.EADDRINUSE:
            expected = "an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all addresses"
        raise UserError(f"--host {host} --port {port}: {reason} (expected {expected})") from None


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    checkpoint_help = "speak with these checkpoints, folders of runs, or voices"
    add("--checkpoint", type=Path, nargs="+", required=True, metavar="C", help=checkpoint_help)
    is_name = lambda name: "*" not in name and name.encode("idna")  # noqa: E731
    name = checked(str, "a host name or address, without *", is_name)
    add("--host", type=name, default="127.0.0.1", help="listen here (default: %(default)s)")
    host_help = "accept these names of this machine in the URL"
    add("--allow-host", type=name, nargs="+", default=[], metavar="NAME", help=host_help)
    port_help = "listen on this port; 0: any free port (default: %(default)s)"
    add("--port", type=whole_number(0, 65_535), default=7860, help=port_help)
    hparams_help = "change settings, for example gate_threshold=0.4"
    add("--hparams", default="", metavar="name=value,...", help=hparams_help)
    vocoder_help = "use this ONNX vocoder instead of Griffin-Lim"
    add("--vocoder", metavar="FILE", help=vocoder_help)
    speaker_help = "choose this speaker when the web demo opens, for models with several speakers"
    add("--speaker", metavar="NAME", help=speaker_help)
    limit_help = "split longer texts into chunks (default: the longest training text)"
    add("--max-symbols", type=at_least_one, metavar="N", help=limit_help)
    numbers_help = (
        f"accept only numbers, in digits or in words of this language (without a value: {ENGLISH})"
    )
    add("--numbers", nargs="?", const=ENGLISH, metavar="LANGUAGE", help=numbers_help)
    args = parser.parse_args(arguments)
    # sys.exit lets the temporary folder be deleted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if args.host not in ("localhost", "::1") and not args.host.startswith("127."):
        names = ", ".join(["localhost", args.host, *args.allow_host])
        print(
            f"note: --host {args.host}: everybody who can reach this machine can use the web demo "
            f"(names: {names})"
        )
    paths = find_checkpoints(args.checkpoint)
    with (
        # checked here, so that errors appear before the models are loaded
        open_socket(args.host, args.port) as opened,
        tempfile.TemporaryDirectory(prefix="page-") as folder,
    ):
        synthesizers = {name: load_synthesizer(path, args.hparams) for name, path in paths.items()}
        if args.vocoder:
            for synthesizer in synthesizers.values():
                synthesizer.vocoder = load_vocoder(args.vocoder, synthesizer.settings)
        reader = Reader(synthesizers, Path(folder), args.numbers, args.max_symbols)
        app = make_app(reader, [args.host, *args.allow_host], args.speaker)
        config = uvicorn.Config(app, headers=HEADERS)
        config.timeout_graceful_shutdown = GRACE_SECONDS  # type: ignore[assignment]
        for logger in ("uvicorn.error", "asyncio"):
            logging.getLogger(logger).addFilter(Shorten())
        port = opened.getsockname()[1]
        print(f"Open http://{in_address(args.host)}:{port} in a browser.", flush=True)
        try:
            uvicorn.Server(config).run([opened])
        except (KeyboardInterrupt, SystemExit) as stop:
            shutil.rmtree(folder, ignore_errors=True)
            code = stop.code if isinstance(stop, SystemExit) else 128 + signal.SIGINT
            sys.stdout.flush()
            # sys.exit would wait until the current text has been synthesized
            os._exit(int(code or 0))


if __name__ == "__main__":
    run_program(main)
