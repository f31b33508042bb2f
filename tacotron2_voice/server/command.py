"""Implement the command `serve`: load the voices and start the servers.

`tacotron2-voice serve` serves exported voices. scripts/serve.py also serves checkpoints.
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import uvicorn
from threadpoolctl import threadpool_limits

from tacotron2_voice.server.app import Access, make_app
from tacotron2_voice.server.connections import (
    Connection,
    Shorten,
    in_address,
    is_local,
    open_socket,
    raise_file_limit,
)
from tacotron2_voice.server.limits import Limits
from tacotron2_voice.server.metrics import Metrics
from tacotron2_voice.server.speakers import Voices
from tacotron2_voice.server.workers import Workers
from tacotron2_voice.synthesizer import Synthesizer
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utterance import prepare_utterance
from tacotron2_voice.vocoder import load_vocoder
from tacotron2_voice.voice import DESCRIPTION_FILE

GRACE_SECONDS = 2  # after Ctrl-C, the server waits this many seconds for unfinished responses


def serve(args: argparse.Namespace, paths: list[Path], load: Callable[[Path], Synthesizer]) -> None:
    """Serve voices until the process receives SIGINT or SIGTERM.

    Args:
        args: options from `add_serve_options`.

    Raises:
        UserError: if the server cannot listen on the address, or if a voice cannot be loaded.
    """
    background = None
    with open_socket(args.host, args.port) as opened:
        voices = Voices(load_all(args, paths, load), args.speaker, args.numbers)
        limits = Limits(workers=args.workers, queue=args.queue, characters=args.max_characters)
        workers = Workers(limits, Metrics())
        if args.wyoming is not None:
            from tacotron2_voice.server.wyoming_server import listen

            wyoming_socket = open_socket(args.host, args.wyoming, "--wyoming")
            wyoming_port = wyoming_socket.getsockname()[1]
            print(f"Wyoming: tcp://{in_address(args.host)}:{wyoming_port}", flush=True)
            background = listen(wyoming_socket, voices, workers)
        access = Access(
            hosts=[in_address(host) for host in (args.host, *args.allow_host)],
            origins=args.cors,
            api_key=args.api_key,
        )
        app = make_app(voices, workers, access, background)
        raise_file_limit()
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        for logger in ("uvicorn.error", "asyncio"):
            logging.getLogger(logger).addFilter(Shorten())
        address = f"http://{in_address(args.host)}:{opened.getsockname()[1]}"
        if not is_local(args.host) and not args.api_key:
            print(
                f"note: --host {args.host}: everybody who can reach this machine can use the server"
            )
        print(f"Web demo: {address}", flush=True)
        print(f"OpenAI API: {address}/v1", flush=True)
        # Limit numpy to one thread, because each worker thread already uses a whole core.
        with threadpool_limits(1):
            server = uvicorn.Server(config)
            try:
                server.run([opened])
            except KeyboardInterrupt:
                sys.stdout.flush()
                # Do not use sys.exit, which would wait for the threads that are still synthesizing.
                os._exit(128 + signal.SIGINT)
    sys.stdout.flush()
    os._exit(0 if server.started else 1)


def load_all(
    args: argparse.Namespace, paths: list[Path], load: Callable[[Path], Synthesizer]
) -> dict[str, Synthesizer]:
    """Return {name: synthesizer} for the voices at `paths`.

    Raises:
        UserError: if two voices have the same name, or if a voice cannot be loaded.
    """
    synthesizers: dict[str, Synthesizer] = {}
    for path in paths:
        name = name_of(path)
        if name in synthesizers:
            raise UserError(
                f"{path}: another voice is also called {name!r}. Rename the folder or file."
            )
        synthesizer = load(path)
        if args.vocoder:
            synthesizer.vocoder = load_vocoder(args.vocoder, synthesizer.settings)
        if synthesizer.rules_note():
            print(synthesizer.rules_note(), file=sys.stderr, flush=True)
        warm_up(synthesizer)
        synthesizers[name] = synthesizer
    return synthesizers


def warm_up(synthesizer: Synthesizer) -> None:
    """Synthesize a short text to load the word tables, so that the first request is not slow.

    Raises:
        UserError: if the model or the vocoder returns invalid audio.
    """
    settings = synthesizer.settings
    try:
        utterance = prepare_utterance("In 1999, it was ready.", settings)
    except UserError:  # the model lacks symbols for letters in this text
        return
    speaker = settings.speakers[0] if settings.speakers else None
    for _ in synthesizer.stream(utterance, speaker=speaker, retries=0):
        pass


def name_of(path: Path) -> str:
    """Return a model's name, such as `english` for voices/english or `a` for runs/a/best.pt."""
    path = path.absolute()
    if path.name in ("best.pt", DESCRIPTION_FILE):
        path = path.parent
    return path.stem if path.suffix == ".pt" else path.name
