"""A page to listen on: type a text, hear and see the speech of checkpoints and voices.

    python scripts/page.py --checkpoint runs/ljspeech/best.pt
    python scripts/page.py --checkpoint runs/table2              every run of it, by name and seed
    python scripts/page.py --checkpoint runs/a runs/b/checkpoint_9000.pt --port 7861
    python scripts/page.py --checkpoint voice                    a folder of export_voice.py
    python scripts/page.py --checkpoint voice --vocoder FILE.onnx  in place of Griffin-Lim
    make page                                                    the recipe's own voice

It needs requirements/page.txt, and some 110 MB of memory for each full-size model. Only this
machine can open the page, unless --host says otherwise. Then give the names, or addresses, that
browsers open it by: --host 0.0.0.0 --allow-host studio.lan 192.168.1.5
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

BEST = "best.pt"  # of training.checkpoint, which imports torch: voices do without
TEMPLATE = ROOT / "scripts" / "templates" / "page.html"
MAX_CHARACTERS = 5000  # of a text, of which cleaning may leave few symbols
MAX_SYMBOLS = 1000  # of a text, about a minute of speech
MAX_PAUSES_SECONDS = 30.0  # that a text asks for; others wait meanwhile
MAX_WAITING = 20  # requests; one is synthesized at a time
KEPT_RESULTS = 100  # the newest; files of older ones are deleted
MAX_REQUEST_BYTES = 2**16
GRACE_SECONDS = 0.5  # for answers that are begun, after Ctrl-C
HEADERS = [  # the browser loads nothing from elsewhere, and no other site shows what is here
    ("content-security-policy", "default-src 'self' 'unsafe-inline'; frame-ancestors 'none'"),
    ("cross-origin-resource-policy", "same-origin"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
]


def find_checkpoints(paths: list[Path]) -> dict[str, Path]:
    """Checkpoints by the names that the page shows: `ljspeech` for ljspeech/best.pt, `rand, seed 0`
    for rand/seed_0/best.pt, the whole path where the name is taken. A folder stands for its
    best.pt, a voice, or the best.pt of a study's runs in it; UserError if it holds none."""
    by_name: dict[str, Path] = {}
    for path in map(Path.absolute, paths):
        runs = path.glob(f"*/seed_*/{BEST}")
        checkpoints = sorted(runs, key=lambda p: (p.parts[-3], len(p.parts[-2]), p.parts[-2]))
        checkpoints = [path / x for x in (BEST, VOICE) if (path / x).exists()] or checkpoints
        if path.is_dir() and not checkpoints:
            neither = f"holds neither {BEST} nor NAME/seed_N/{BEST} nor {VOICE}"
            fix = "name a checkpoint, a run's folder, one of runs, or a voice"
            raise UserError(f"{path}: {neither}; {fix}")
        for checkpoint in checkpoints or [path]:  # load_synthesizer reports a missing file
            *_, experiment, name, file = checkpoint.parts
            if name.startswith("seed_"):
                name = f"{experiment}, {name.replace('_', ' ')}"
            name = name if file in (BEST, VOICE) else f"{name}/{file}"
            name = str(checkpoint) if name in by_name else name
            # A page is UTF-8; a path may hold other bytes.
            by_name[os.fsencode(name).decode(errors="replace")] = checkpoint
    return by_name


class Inputs(BaseModel):
    """What a request holds."""

    text: str
    checkpoint: str  # its name on the page
    speaker: str | None = None  # one of the model's, where it has several


@dataclass
class Reader:
    """Synthesizes texts into files, in a folder for each."""

    speakers: dict[str, Synthesizer]
    folder: Path
    numbers: str | None = None  # the language of models that only know spoken numbers
    max_symbols: int | None = None  # longer texts are split
    results: int = 0

    def read(self, inputs: Inputs) -> dict[str, str | list[str]]:
        """What the page shows: notes, warnings, and the addresses of a sound and two pictures;
        UserError for a text, or the name of a checkpoint or speaker, that cannot be spoken."""
        text, speaker = " ".join(inputs.text.split()), self.speakers.get(inputs.checkpoint)
        if not text:
            raise UserError("There is no text yet: type one first.")
        if speaker is None:
            raise UserError("No such checkpoint on this page: choose one of the list.")
        names = speaker.settings.speakers
        if inputs.speaker not in (names if len(names) > 1 else (None, *names)):
            known = f"knows {listed(names)}" if names else "has one voice"
            what = f"No such speaker: {inputs.checkpoint} {known}"
            raise UserError(f"{what}. Choose one of the list.")
        if len(text) > MAX_CHARACTERS:  # before it is cleaned, which takes long then
            long = f"The text is too long: {len(text):,} characters"
            raise UserError(f"{long}, and this page accepts {MAX_CHARACTERS:,}. Shorten it.")
        text = sentence_of(text, self.numbers) if self.numbers else text
        utterance = prepare_utterance(text, speaker.settings)
        if len(utterance) > MAX_SYMBOLS:
            long = f"The text is too long: {len(utterance):,} symbols after cleaning"
            raise UserError(f"{long}, and this page accepts {MAX_SYMBOLS:,}. Shorten it.")
        if utterance.pause_seconds > MAX_PAUSES_SECONDS:
            long = f"The pauses are too long: {utterance.pause_seconds:g} s together"
            raise UserError(f"{long}, and this page accepts {MAX_PAUSES_SECONDS:g}. Shorten them.")
        options = {"max_symbols": self.max_symbols, "speaker": inputs.speaker}
        speech = speaker.synthesize(utterance, **options)
        notes = self._make_folder()
        # The name is what a browser saves the files as.
        name = f"{inputs.checkpoint} {inputs.speaker or ''}"
        base = f"{self.results}/{re.sub('[^0-9A-Za-z]+', '-', name).strip('-')}"
        write_speech(self.folder / base, speech, speaker.settings.table)
        draw_mels(mel=speech.mel).savefig(self.folder / f"{base}-mel.png")
        return {
            "notes": [f"{speech.seconds:.2f} s of sound", *speech.notes, *notes],
            "warnings": speech.warnings,
            "sound": f"results/{base}.wav",
            "alignment": f"results/{base}.png",
            "mel": f"results/{base}-mel.png",
        }

    def _make_folder(self) -> list[str]:
        """Make the folder of the next result, delete that of the oldest, and return what was odd:
        somebody else may have cleaned up, or have files there."""
        notes = []
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, parents=True)
            notes.append("the folder of results was gone, with the earlier sounds: made again")
        for number in itertools.count(self.results + 1):
            try:
                (self.folder / str(number)).mkdir()
                break
            except FileExistsError:
                notes.append(f"result {number} was there already: left as it is")
        for old in range(self.results, number):
            shutil.rmtree(self.folder / str(old + 1 - KEPT_RESULTS), ignore_errors=True)
        self.results = number
        return notes


def options_of(speakers: dict[str, Synthesizer], first: str | None) -> str:
    """The page's menu of checkpoints. Those of several speakers have their names, as JSON, and the
    one called `first` before the others. UserError if there is a `first` that none knows."""
    options = []
    if first is not None:
        everyone = [who for speaker in speakers.values() for who in speaker.settings.speakers]
        index = chosen_index(first, everyone, ", ".join(speakers))
        first = None if index is None else everyone[index]
    for name, speaker in speakers.items():
        known, data = sorted(speaker.settings.speakers, key=lambda who: who != first), ""
        if len(known) > 1:
            data = f' data-speakers="{html.escape(json.dumps(known))}"'
        options.append(f"<option{data}>{html.escape(name)}</option>")
    return "".join(options)


def in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def make_app(reader: Reader, hosts: list[str], first_speaker: str | None = None) -> Starlette:
    """The page (/), what a checkpoint makes of a text (POST /speak), and the files (/results).
    Requests by other names than `hosts` are refused: pages of other sites may resolve theirs to
    this machine. UserError if no checkpoint knows the `first_speaker` of the menu."""
    turn, waiting = asyncio.Lock(), 0
    template = TEMPLATE.read_text(encoding="utf-8")
    page = template.replace("<!-- options -->", options_of(reader.speakers, first_speaker))

    def show(request: Request) -> Response:
        return HTMLResponse(page)

    async def speak(request: Request) -> Response:
        nonlocal waiting
        own = request.headers.get("host", "")
        if request.headers.get("origin", f"//{own}").partition("//")[2] != own:
            return JSONResponse({"problem": "requested by a page of another site"}, 403)
        try:
            content = await request.body()  # first: a slow client keeps no others waiting
        except (ClientDisconnect, asyncio.CancelledError):  # or the page ends
            return Response(status_code=400)
        if waiting >= MAX_WAITING:
            return JSONResponse({"problem": "Too many texts are waiting: try again later."}, 503)
        waiting += 1
        try:
            inputs = Inputs.model_validate_json(content)
            async with turn:
                return JSONResponse(await run_in_threadpool(reader.read, inputs))
        except ValidationError:
            return JSONResponse({"problem": "expected a text and the name of a checkpoint"}, 400)
        except UserError as error:
            return JSONResponse({"problem": str(error)}, 422)
        except OSError as error:
            fix = f"Make room, or make {reader.folder} a folder that can be written."
            return JSONResponse({"problem": f"The sound could not be written: {error}. {fix}"}, 507)
        except asyncio.CancelledError:
            return JSONResponse({"problem": "The page was closed."}, 503)
        finally:
            waiting -= 1

    routes = [Route("/", show), Route("/speak", speak, methods=["POST"])]
    files = StaticFiles(directory=reader.folder)
    files.config_checked = True  # or it is an error of the server when the folder is gone
    app = Starlette(routes=[*routes, Mount("/results", files)])
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=MAX_REQUEST_BYTES)
    names = [in_address(host).lower() for host in ("localhost", "127.0.0.1", "::1", *hosts)]
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=names)
    return app


class Shorten(logging.Filter):
    """Lets a client that breaks the protocol or off, or opens more connections than there are
    descriptors, fill no log."""

    last = 0.0  # when it was said that there are too many connections

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, h11.ProtocolError):
            record.msg, record.exc_info = f"a client's fault: {error}", None
        if isinstance(error, OSError):  # accept fails thousands of times a second
            record.msg, record.exc_info = f"connections wait for others to close: {error}", None
            is_new, self.last = record.created > self.last + 10, record.created
            return is_new
        return True


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; UserError if the address is no one of this machine, or the port taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        fix = "take another port (--port 0 is any free one)"
        if error.errno != errno.EADDRINUSE:
            fix = "name an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them"
        raise UserError(f"--host {host} --port {port}: {reason}; {fix}") from None


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    checkpoint_help = "a checkpoint, a run's folder, a folder of runs, or a voice"
    add("--checkpoint", type=Path, nargs="+", required=True, metavar="C", help=checkpoint_help)
    is_name = lambda name: "*" not in name and name.encode("idna")  # noqa: E731
    name = checked(str, "a host name or address, without *", is_name)
    add("--host", type=name, default="127.0.0.1", help="default: %(default)s")
    host_help = "other names of this machine, by which browsers may open the page"
    add("--allow-host", type=name, nargs="+", default=[], metavar="NAME", help=host_help)
    port_help = "default: %(default)s; 0: any free one"
    add("--port", type=whole_number(0, 65_535), default=7860, help=port_help)
    add("--hparams", default="", help="for example gate_threshold=0.4")
    add(
        "--vocoder",
        metavar="FILE",
        help="an ONNX file in place of Griffin-Lim (docs/guides/deploy.md)",
    )
    speaker_help = "the speaker who is chosen at first, of a model of several"
    add("--speaker", metavar="NAME", help=speaker_help)
    limit_help = "synthesize longer texts in parts; default: the longest training text"
    add("--max-symbols", type=at_least_one, metavar="N", help=limit_help)
    numbers_help = f"accept numbers only, in this language ({ENGLISH}), for the demo's model"
    add("--numbers", nargs="?", const=ENGLISH, metavar="LANGUAGE", help=numbers_help)
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and delete the files
    if args.host not in ("localhost", "::1") and not args.host.startswith("127."):
        names = ", ".join(["localhost", args.host, *args.allow_host])
        print(f"--host {args.host}: anyone who can reach this machine can use the page, by {names}")
    paths = find_checkpoints(args.checkpoint)
    with (
        open_socket(args.host, args.port) as opened,  # before models load
        tempfile.TemporaryDirectory(prefix="page-") as folder,
    ):
        speakers = {name: load_synthesizer(path, args.hparams) for name, path in paths.items()}
        for speaker in speakers.values() if args.vocoder else ():
            speaker.vocoder = load_vocoder(args.vocoder, speaker.settings)
        reader = Reader(speakers, Path(folder), args.numbers, args.max_symbols)
        app = make_app(reader, [args.host, *args.allow_host], args.speaker)
        config = uvicorn.Config(app, headers=HEADERS)
        config.timeout_graceful_shutdown = GRACE_SECONDS  # type: ignore[assignment]
        for logger in ("uvicorn.error", "asyncio"):
            logging.getLogger(logger).addFilter(Shorten())
        host, port = in_address(args.host), opened.getsockname()[1]
        print(f"open http://{host}:{port} in a browser", flush=True)
        try:
            uvicorn.Server(config).run([opened])
        except (KeyboardInterrupt, SystemExit) as stop:
            shutil.rmtree(folder, ignore_errors=True)
            code = stop.code if isinstance(stop, SystemExit) else 128 + signal.SIGINT
            sys.stdout.flush()
            os._exit(int(code or 0))  # Python would wait for a text that is being synthesized


if __name__ == "__main__":
    run_program(main)
