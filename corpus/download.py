"""Fetch the public LJSpeech-1.1 archive, verify and unpack it: `prepare_ljspeech.py --download`."""

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

from errors import UserError
from progress import progress_bar

URL = "https://data.keithito.com/data/speech/LJSpeech-1.1.tar.bz2"
ARCHIVE_BYTES = 2_748_572_632
SHA256 = "be1a30453f28eb8dd26af4101ae40cbf2c50413b1bb21936cbcdc6fae3de8aa5"
UNPACKED_BYTES = 3_850_000_000  # room that the 13,100 wavs and the texts take on a disk

CHUNK = 1 << 20  # bytes read at a time
TIMEOUT = 60  # seconds without a byte until a connection counts as lost
TRIES = 5  # connections in a row without a new byte
FIRST_WAIT = 1.0  # seconds before the second try; doubled for each further one
LOST = (  # what a lost connection raises, but no OSError of the disk
    *(urllib.error.URLError, http.client.HTTPException),
    *(ConnectionError, TimeoutError, ssl.SSLError),
)


def download_corpus(
    corpus: str | Path,
    url: str = URL,
    archive_bytes: int = ARCHIVE_BYTES,
    sha256: str = SHA256,
    unpacked_bytes: int = UNPACKED_BYTES,
) -> None:
    """Fetch the archive at `url` into the parent of `corpus` and unpack it as `corpus`, which
    appears whole or not at all. A folder that holds a metadata.csv is left as it is. What arrives
    is kept in a `.part` file, from which a later call resumes.

    UserError where `corpus` holds something else, the disk is too full, the server has no such file
    or another one, or the archive is broken or names files outside its folder. ConnectionError
    after `TRIES` connections in a row without a new byte.
    """
    corpus = Path(corpus).absolute()
    if (corpus / "metadata.csv").is_file():
        print(f"{corpus} already exists: nothing to download")
        return
    if corpus.exists() and (not corpus.is_dir() or any(corpus.iterdir())):
        raise UserError(
            f"{corpus} exists and holds no metadata.csv, so it is not LJSpeech; nothing was "
            "changed. Name a new folder, or delete this one first"
        )
    corpus.parent.mkdir(parents=True, exist_ok=True)
    archive = corpus.parent / url.rpartition("/")[2]
    part = archive.with_name(archive.name + ".part")
    fetched = archive_bytes if archive.exists() else _size(part)
    needed = max(0, archive_bytes - fetched) + unpacked_bytes
    free = shutil.disk_usage(corpus.parent).free
    if free < needed:
        raise UserError(
            f"{corpus.parent}: {free / 1e9:.2f} GB free, {needed / 1e9:.2f} GB needed for the "
            "archive and the unpacked corpus; make room or name a folder on another disk"
        )
    if archive.exists():
        print(f"{archive} already exists: nothing to download")
        _verify(archive, sha256)
    else:
        _fetch(url, part, archive_bytes)
        _verify(part, sha256)
        os.replace(part, archive)
    _unpack(archive, corpus)
    print(f"Unpacked {corpus}; {archive} can be deleted")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _fetch(url: str, part: Path, size: int) -> None:
    """Receive into `part`, over as many connections as it takes, until it has `size` bytes."""
    failures, furthest = 0, _size(part)
    verb = f"Resuming at {furthest / 1e6:.1f} MB:" if furthest else "Downloading"
    print(f"{verb} {url} ({size / 1e6:.1f} MB) into {part.parent}", flush=True)
    with progress_bar("Downloading", size, "B", unit_scale=True, initial=furthest) as bar:
        while _size(part) < size:
            try:
                _receive(url, part, size, bar)
            except LOST as error:
                failures = 0 if _size(part) > furthest else failures + 1
                furthest = max(furthest, _size(part))
                if failures == TRIES:
                    raise ConnectionError(
                        f"{url}: {error}, {TRIES} times in a row; {furthest:,} of {size:,} bytes "
                        f"are in {part}. Check the network and run the same command to resume"
                    ) from None
                wait = FIRST_WAIT * 2 ** max(0, failures - 1)
                print(f"{error}; trying again in {wait:g} s", file=sys.stderr, flush=True)
                time.sleep(wait)


def _receive(url: str, part: Path, size: int, bar: tqdm) -> None:
    """Append what one connection brings; LOST if it breaks off."""
    start = _size(part)
    headers = {"User-Agent": "prepare_ljspeech"} | ({"Range": f"bytes={start}-"} if start else {})
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code >= 500 or error.code in (408, 429):
            raise  # it may pass
        raise UserError(f"{url}: {error}; check the address, or delete {part}") from None
    with response:
        if response.status == 206:
            total = response.headers.get("Content-Range", "").rpartition("/")[2]
        else:  # the whole file: the first connection, or a server that cannot resume
            start, total = 0, response.headers.get("Content-Length", "")
        if total.isdigit() and int(total) != size:
            raise UserError(
                f"{url}: the server has {int(total):,} bytes, expected {size:,}; it is another "
                "file, so nothing was downloaded"
            )
        bar.update(start - bar.n)
        with open(part, "ab" if start else "wb") as file:
            # One byte beyond the size is enough to tell that there are too many.
            while chunk := response.read(min(CHUNK, size + 1 - file.tell())):
                file.write(chunk)
                bar.update(len(chunk))
    if _size(part) < size:
        raise ConnectionError("the connection ended early")


def _verify(path: Path, sha256: str) -> None:
    """Raise UserError, and rename the file to `.broken`, unless it has this hash."""
    print(f"Verifying {path}", flush=True)
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest == sha256:
        return
    broken = path.with_name(path.name.removesuffix(".part") + ".broken")
    os.replace(path, broken)
    raise UserError(
        f"{path}: SHA-256 {digest}, expected {sha256}; the file is broken and now named "
        f"{broken.name}: delete it and run the same command to download it again"
    )


def _unpack(archive: Path, corpus: Path) -> None:
    """Unpack beside `corpus`, then move the archive's folder into its place."""
    building = corpus.parent / f".{corpus.name}.unpacking"
    shutil.rmtree(building, ignore_errors=True)  # of a run that was killed
    building.mkdir()
    try:
        bar = progress_bar("Unpacking", archive.stat().st_size, "B", unit_scale=True)
        with open(archive, "rb") as file, bar, tarfile.open(fileobj=file, mode="r|*") as tar:
            for member in tar:
                tar.extract(member, building, filter="data")  # Python 3.11.4 or newer
                bar.update(file.tell() - bar.n)
        folder = building / archive.name.partition(".tar")[0]
        if not (folder / "metadata.csv").is_file():
            raise UserError(f"{archive}: holds no {folder.name}/metadata.csv; nothing was kept")
        if corpus.exists():
            corpus.rmdir()  # empty
        os.replace(folder, corpus)
    except (tarfile.TarError, EOFError) as error:
        raise UserError(f"{archive}: not unpacked ({error}); nothing was kept") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
