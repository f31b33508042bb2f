"""Test the download of LJSpeech from a local server: interruptions, wrong content, resuming."""

import hashlib
import http.server
import io
import re
import shutil
import tarfile
import threading

import pytest
from corpora import contents, make_corpus, refusal

from corpus import download
from corpus.download import download_corpus


class Server(http.server.ThreadingHTTPServer):
    """Serve `body` at any URL. The attributes simulate server failures."""

    def __init__(self, body):
        super().__init__(("127.0.0.1", 0), Handler)
        self.body = body
        self.ranges = True  # true if the server supports Range requests
        # number of bytes after which a response is cut off, or None
        self.drop_after = None
        self.statuses = []  # HTTP error codes of the first responses
        self.asked = []  # the Range header of each request
        self.sent = 0  # total number of content bytes in all responses
        self.url = f"http://127.0.0.1:{self.server_address[1]}/files/LJSpeech-1.1.tar.bz2"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server, asked = self.server, self.headers.get("Range")
        server.asked.append(asked)
        if server.statuses:
            self.send_error(server.statuses.pop(0))
            return
        start = 0
        if asked and server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            if start >= len(server.body):
                self.send_error(416)
                return
            self.send_response(206)
            last = len(server.body) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{last + 1}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(server.body) - start))
        self.end_headers()
        content = server.body[start:][: server.drop_after]
        self.wfile.write(content)
        server.sent += len(content)

    def log_message(self, *_):
        pass


def make_archive(tmp_path, more=()):
    """Return LJSpeech-1.1.tar.bz2 with ten clips and the (member, content) pairs in `more`, as
    bytes."""
    corpus = make_corpus(tmp_path / "source" / "LJSpeech-1.1")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:bz2") as tar:
        tar.add(corpus, "LJSpeech-1.1")
        for member, content in more:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setattr(download, "FIRST_WAIT", 0.0)
    monkeypatch.setattr(download, "UNPACKED_BYTES", 1_000_000)
    servers = []

    def start(body, expected=None):
        """Start a server for `body`.

        The download must have the size and the hash of `expected`, which defaults to `body`.
        """
        expected = body if expected is None else expected
        servers.append(Server(body))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr(download, "URL", servers[-1].url)
        monkeypatch.setattr(download, "ARCHIVE_BYTES", len(expected))
        monkeypatch.setattr(download, "SHA256", hashlib.sha256(expected).hexdigest())
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def assert_whole(corpus, tmp_path):
    source = contents(tmp_path / "source" / "LJSpeech-1.1")
    assert len(source) == 11
    assert contents(corpus) == source


def names_in(folder):
    return {path.name for path in folder.iterdir()}


def test_download_verifies_and_unpacks_the_archive_once(tmp_path, serve, capsys):
    server = serve(make_archive(tmp_path))
    corpus = tmp_path / "new folder" / "speech"
    download_corpus(corpus)
    assert_whole(corpus, tmp_path)
    assert names_in(corpus.parent) == {"speech", "LJSpeech-1.1.tar.bz2"}
    download_corpus(corpus)
    assert "already exists" in capsys.readouterr().out
    shutil.rmtree(corpus)
    download_corpus(corpus)  # this call unpacks the existing archive again
    assert_whole(corpus, tmp_path)
    assert server.asked == ["bytes=0-"]


def test_download_resumes_when_the_connection_drops(tmp_path, serve, capsys):
    server = serve(make_archive(tmp_path))
    size = len(server.body)
    # The connection drops more than TRIES times, but each response adds bytes.
    server.drop_after = size // 8
    download_corpus(tmp_path / "data")
    assert_whole(tmp_path / "data", tmp_path)
    step = size // 8
    assert server.asked[:3] == ["bytes=0-", f"bytes={step}-", f"bytes={2 * step}-"]
    assert len(server.asked) > download.TRIES
    assert server.sent == size  # the server has sent no byte twice
    assert "trying again" in capsys.readouterr().err


def test_download_starts_again_when_the_server_cannot_resume(tmp_path, serve):
    server = serve(make_archive(tmp_path))
    server.ranges = False
    (tmp_path / "LJSpeech-1.1.tar.bz2.part").write_bytes(b"x" * 1000)
    download_corpus(tmp_path / "data")
    assert_whole(tmp_path / "data", tmp_path)
    assert server.asked == ["bytes=1000-"]


def test_download_fails_when_the_connection_always_drops(tmp_path, serve):
    server = serve(make_archive(tmp_path))
    server.ranges, server.drop_after = False, 2000
    message = refusal(download_corpus, tmp_path / "data", error=ConnectionError)
    part = tmp_path / "LJSpeech-1.1.tar.bz2.part"
    assert f"{part} contains 2,000 of {len(server.body):,} bytes" in message
    assert part.stat().st_size == 2000
    assert len(server.asked) == 1 + download.TRIES


def test_download_tries_again_when_the_server_returns_an_error(tmp_path, serve):
    server = serve(make_archive(tmp_path))
    server.statuses = [503, 429]
    download_corpus(tmp_path / "data")
    assert_whole(tmp_path / "data", tmp_path)
    server.statuses, server.asked = [404], []
    assert "404" in refusal(download_corpus, tmp_path / "other" / "data")
    assert len(server.asked) == 1


@pytest.mark.parametrize("there", [False, True])
def test_downloaded_archive_is_rejected_when_its_hash_is_wrong(tmp_path, serve, there):
    whole = make_archive(tmp_path)
    changed = whole[:-100] + bytes(100)
    server = serve(changed, whole)
    if there:  # the complete archive already exists
        (tmp_path / "LJSpeech-1.1.tar.bz2").write_bytes(changed)
    message = refusal(download_corpus, tmp_path / "data")
    assert hashlib.sha256(changed).hexdigest() in message
    assert f"expected {hashlib.sha256(whole).hexdigest()}" in message
    assert "LJSpeech-1.1.tar.bz2.broken" in message
    assert names_in(tmp_path) == {"source", "LJSpeech-1.1.tar.bz2.broken"}
    server.body = whole
    download_corpus(tmp_path / "data")
    assert_whole(tmp_path / "data", tmp_path)


def test_archive_members_cannot_be_written_outside_the_folder(tmp_path, serve):
    serve(make_archive(tmp_path, [(tarfile.TarInfo("../escaped.txt"), b"outside")]))
    assert "outside" in refusal(download_corpus, tmp_path / "data")
    assert names_in(tmp_path) == {"source", "LJSpeech-1.1.tar.bz2"}
    assert not list(tmp_path.rglob("escaped.txt"))


def test_download_resumes_when_the_program_was_killed(tmp_path, serve):
    """If the program was killed while unpacking, the next download must not treat the unpacked
    files as the complete corpus."""
    server = serve(make_archive(tmp_path))
    (tmp_path / "LJSpeech-1.1.tar.bz2.part").write_bytes(server.body[:1000])
    half = tmp_path / ".data.unpacking" / "LJSpeech-1.1"
    half.mkdir(parents=True)
    (half / "metadata.csv").write_text("half")
    (half / "stray.wav").touch()
    (tmp_path / "data").mkdir()  # an empty folder must be accepted
    download_corpus(tmp_path / "data")
    assert_whole(tmp_path / "data", tmp_path)
    assert server.asked == ["bytes=1000-"]
    assert names_in(tmp_path) == {"source", "data", "LJSpeech-1.1.tar.bz2"}


def test_download_does_not_start_when_the_disk_is_too_small_or_the_folder_has_files(
    tmp_path, serve, monkeypatch
):
    server = serve(make_archive(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    assert str(tmp_path / "mine") in refusal(download_corpus, tmp_path / "mine")
    assert contents(tmp_path / "mine") == {"thesis.txt": b"years of work"}
    usage = shutil.disk_usage(tmp_path)._replace(free=900_000)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: usage)
    assert "0.00 GB free" in refusal(download_corpus, tmp_path / "data")
    assert server.asked == []
