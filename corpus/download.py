"""Download, verify and unpack the public corpus LJSpeech-1.1 (`prepare.py --download`).

download_corpus(Path("data/LJSpeech-1.1"))
"""

import hashlib
import http.client
import os
import shutil
import ssl
import sys
import tarfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from tqdm import tqdm

from tacotron2_voice.utils.console import progress_bar
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import naming, open_file

URL = "https://data.keithito.com/data/speech/LJSpeech-1.1.tar.bz2"
ARCHIVE_BYTES = 2_748_572_632
SHA256 = "be1a30453f28eb8dd26af4101ae40cbf2c50413b1bb21936cbcdc6fae3de8aa5"
UNPACKED_BYTES = 3_850_000_000  # size on disk of the 13,100 WAV files and the texts, in bytes

CHUNK = 1 << 20  # number of bytes of the download to read at a time
TIMEOUT = 60  # number of seconds without data after which a connection counts as lost
TRIES = 5  # number of consecutive connections without new data after which the download fails
# Seconds to wait before the second connection. The wait doubles with each further connection.
FIRST_WAIT = 1.0
# Exceptions that indicate a lost connection. OSErrors of other types come from the disk.
LOST = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)


def download_corpus(corpus: Path) -> None:
    """Download the archive into the parent folder of `corpus`, and unpack it to `corpus`.

    If `corpus` already contains a metadata.csv, nothing is downloaded. A `.part` file keeps a
    partial download, so that a later call can resume the download. If unpacking fails, `corpus` is
    not created.

    Raises:
        UserError: in any of these cases:
            - `corpus` contains files but no metadata.csv.
            - There is not enough disk space.
            - The server does not have the expected file.
            - The archive is damaged or contains paths that lead out of the folder of the archive.
        ConnectionError: if `TRIES` consecutive connections receive no new data.
    """
    corpus = corpus.absolute()
    if (corpus / "metadata.csv").is_file():
        print(f"note: {corpus} already exists: nothing to download")
        return
    if corpus.exists() and (not corpus.is_dir() or any(corpus.iterdir())):
        raise UserError(
            f"{corpus}: already exists, but contains no metadata.csv. Choose a new folder"
        )
    corpus.parent.mkdir(parents=True, exist_ok=True)
    archive = corpus.parent / URL.rpartition("/")[2]
    part = archive.with_name(archive.name + ".part")
    fetched = _size(archive) or _size(part)
    needed = max(0, ARCHIVE_BYTES - fetched) + UNPACKED_BYTES
    free = shutil.disk_usage(corpus.parent).free
    if free < needed:
        raise UserError(
            f"{corpus.parent}: not enough disk space: {free / 1e9:.2f} GB free, but the archive and "
            f"the unpacked corpus need {needed / 1e9:.2f} GB. Choose a folder on a different disk"
        )
    if not archive.exists():
        _fetch(part)
        os.replace(part, archive)
    print(f"Verifying {archive}", flush=True)
    with naming(archive), open_file(archive) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        broken = archive.with_name(archive.name + ".broken")
        os.replace(archive, broken)
        raise UserError(
            f"{archive}: damaged, SHA-256 {digest}, expected {SHA256}. The damaged file was renamed "
            f"to {broken.name}. Run the same command to download the archive again"
        )
    _unpack(archive, corpus)
    print(f"Unpacked {corpus}. You can delete {archive}")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _fetch(part: Path) -> None:
    """Download into `part` until the file contains ARCHIVE_BYTES. Reconnect if necessary."""
    failures = 0
    furthest = _size(part)
    print(f"Downloading {URL} into {part.parent}, from byte {furthest:,}", flush=True)
    with progress_bar("Downloading", ARCHIVE_BYTES, "B", unit_scale=True, initial=furthest) as bar:
        while _size(part) < ARCHIVE_BYTES:
            try:
                _receive(part, bar)
            except LOST as error:
                failures = 0 if _size(part) > furthest else failures + 1
                furthest = max(furthest, _size(part))
                if failures == TRIES:
                    raise ConnectionError(
                        f"{URL}: the download failed {TRIES} times in a row (last error: {error}). "
                        f"{part} contains {furthest:,} of {ARCHIVE_BYTES:,} bytes. Check the network "
                        "and run the same command to "
                        "resume"
                    ) from None
                wait = FIRST_WAIT * 2 ** max(0, failures - 1)
                print(f"{error}; trying again in {wait:g} s", file=sys.stderr, flush=True)
                time.sleep(wait)


def _receive(part: Path, bar: tqdm) -> None:
    """Append the data received over one connection to `part`.

    Raise one of the exceptions in LOST if the connection breaks.
    """
    start = _size(part)
    headers = {"User-Agent": "tacotron2-length-batching", "Range": f"bytes={start}-"}
    request = urllib.request.Request(URL, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()  # `close` also closes the connection
        if error.code >= 500 or error.code in (408, 429):
            raise  # the server error is temporary, so the caller tries again
        raise UserError(f"{URL}: cannot be downloaded ({error})") from None
    with response:
        if response.status != 206:  # the server does not support resuming, and sends the whole file
            start = 0
        bar.update(start - bar.n)
        with open(part, "ab") as file:
            file.truncate(start)
            while chunk := response.read(min(CHUNK, ARCHIVE_BYTES - file.tell())):
                file.write(chunk)
                bar.update(len(chunk))
    if _size(part) < ARCHIVE_BYTES:
        raise ConnectionError("the connection ended early")


def _unpack(archive: Path, corpus: Path) -> None:
    """Unpack the archive into a temporary folder next to `corpus`, then rename this folder to
    `corpus`."""
    building = corpus.parent / f".{corpus.name}.unpacking"
    shutil.rmtree(building, ignore_errors=True)  # remove leftovers of a killed process
    building.mkdir()
    try:
        bar = progress_bar("Unpacking", archive.stat().st_size, "B", unit_scale=True)
        with open_file(archive) as file, bar, tarfile.open(fileobj=file, mode="r|*") as tar:
            for member in tar:
                # The argument `filter` of `extract` requires Python 3.11.4 or newer.
                tar.extract(member, building, filter="data")
                bar.update(file.tell() - bar.n)
        folder = building / archive.name.partition(".tar")[0]
        if not (folder / "metadata.csv").is_file():
            raise UserError(
                f"{archive}: contains no {folder.name}/metadata.csv. The unpacked files were "
                "deleted"
            )
        if corpus.exists():
            corpus.rmdir()  # if `corpus` exists, it is an empty folder
        os.replace(folder, corpus)
    except (tarfile.TarError, EOFError) as error:
        raise UserError(
            f"{archive}: unpacking failed ({error}). The files unpacked so far were deleted"
        ) from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
