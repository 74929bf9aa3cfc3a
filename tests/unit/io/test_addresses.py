"""Measurements at addresses: of a web site, of an S3 store and of file://, against the same files on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.bureau_layout import write_bureau
from support.noisy_trees import MadeTree

import opendas as od
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.comparison.sources import open_source
from opendas.errors import ConfigError, EnvironmentFailure, FormatError
from opendas.files.nmf.bureau import read_bureau_levels
from opendas.files.storage.addresses import RemotePath, copied, located
from opendas.geography.frame import GQ_COLUMNS, Frame, official_codes
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons

CODES = np.array([b"440010301001001", b"440010301001002", b"440030302002001"])


class Server(SimpleHTTPRequestHandler):
    """Lists folders, sends parts of files, and answers the few requests of S3 that reading takes."""

    sent: dict[str, int]
    parts = True
    pages: ClassVar[dict[str, str]] = {}
    keys: tuple[str, ...] = ()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.answer(head=True)

    def do_GET(self) -> None:
        self.answer(head=False)

    def answer(self, *, head: bool) -> None:
        asked = urlsplit(self.path)
        if "list-type" in asked.query:
            self.list_bucket(unquote(asked.path).strip("/"), parse_qs(asked.query).get("prefix", [""])[0])
            return
        if asked.path in self.pages:
            self.send_page(self.pages[asked.path])
            return
        file = Path(self.directory, unquote(asked.path).strip("/"))
        is_store = "x-amz-date" in self.headers  # which knows no folders
        if file.is_dir() and not is_store:
            super().do_HEAD() if head else super().do_GET()  # a page of links, or on to one
            return
        if not file.is_file() or asked.path.endswith("/"):
            self.send_error(404)
            return
        data, wanted = file.read_bytes(), self.headers.get("Range")
        size = len(data)
        if wanted and self.parts:
            low, high = wanted.removeprefix("bytes=").split("-")
            data = data[int(low) : int(high) + 1]
        self.send_response(206 if wanted and self.parts else 200)
        if wanted and self.parts:
            self.send_header("Content-Range", f"bytes {wanted.removeprefix('bytes=')}/{size}")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Last-Modified", "Mon, 23 Nov 2026 00:00:00 GMT")
        self.end_headers()
        if not head:
            self.sent[file.name if "Block" not in str(file) else "Block"] = self.sent.get(
                "Block" if "Block" in str(file) else file.name, 0
            ) + len(data)
            self.wfile.write(data)

    def send_page(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if text else "text/csv")
        if text:
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def list_bucket(self, bucket: str, prefix: str) -> None:
        root = Path(self.directory, bucket)
        found = [
            (path.relative_to(root).as_posix(), path.stat().st_size)
            for path in sorted(root.rglob("*"))
            if path.is_file()
        ]
        found += [(key, 1) for key in self.keys]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>&quot;x&quot;</ETag>"
            "<LastModified>2026-11-23T00:00:00.000Z</LastModified></Contents>"
            for key, size in found
            if key.startswith(prefix)
        )
        count = sum(key.startswith(prefix) for key, _ in found)
        text = (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{count}</KeyCount>"
            f"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measurements of three blocks, in ``bucket/US_Person_PL_PROD``."""
    counts = Histogram.from_entries(
        np.arange(3), np.array([5, 130, 800]), np.array([40, 7, 90]), shape=(3, 2016)
    )
    units = {"hu": np.full(3, 50)} | {name: np.zeros(3, dtype=np.int64) for name in GQ_COLUMNS}
    units["gq3"][2] = 1
    shares = {"total": Fraction(1, 2), "detailed": Fraction(1, 2)}
    frame = Frame(CODES, official_codes(CODES, "state"), "block", units)
    tree = MadeTree(pl94_persons(), frame, counts, queries={"*": shares})
    return write_bureau(tmp_path_factory.mktemp("web") / "bucket" / "US_Person_PL_PROD", tree.draw(7))


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[type[Server], str]]:
    handler = type("Handler", (Server,), {"sent": {}, "parts": True})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder.parent.parent))) as made:
        thread = Thread(target=made.serve_forever, daemon=True)
        thread.start()
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield handler, f"127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


def address(kind: str, folder: Path, host: str) -> str:
    place = f"bucket/{folder.name}"
    return {
        "http": f"http://{host}/{place}",
        "s3": f"s3://{place}?endpoint_override={host.replace(':', '%3A')}&scheme=http&region=us-east-1",
        "file": f"file://{folder}",
    }[kind]


def told_of(place: object, out: Path) -> tuple[object, ...]:
    """Return what is said of measurements: what they are, intervals, and the bytes of a tidy export."""
    file = od.NoisyFile(place)
    tables = [file.intervals("P1", geolevel=level).to_arrow() for level in ("county", "block")]
    paths, _ = od.export_tidy(place, out)
    return od.describe_measurements(place), tables, [path.read_bytes() for path in paths]


@pytest.fixture(scope="module")
def told_of_files(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    return told_of(folder, tmp_path_factory.mktemp("here"))


@pytest.mark.parametrize("kind", ["http", "s3", "file"])
def test_measurements_at_an_address_are_those_of_the_files(
    folder, told_of_files, server, tmp_path, kind, capsys
) -> None:
    _, host = server
    place = address(kind, folder, host)
    assert told_of(place, tmp_path / "there") == told_of_files
    assert guarded(cli, ["nmf", place, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert guarded(cli, ["nmf", str(folder), "--json"]) == 0
    assert told == json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("kind", ["http", "s3"])
def test_only_the_parts_that_a_state_needs_are_fetched(folder, server, tmp_path, kind) -> None:
    """Block.parquet as one file of eighty states: row groups of other states stay where they are."""
    handler, host = server
    whole = Path(folder.parent / f"{kind}_many")
    for level in ("State", "County", "Tract", "Block_Group", "Block"):
        for part in ("DPQuery", "Constraint"):
            files = sorted((folder / f"{level}.parquet" / part).rglob("*.parquet"))
            table = pa.concat_tables([pq.read_table(file) for file in files])
            states = []
            for state in range(10, 90):
                codes = [code[0] + str(state) + code[3:] for code in table.column("geocode").to_pylist()]
                noise = np.random.default_rng(state).integers(-9, 9, 2016).tolist()
                values = [noise[: len(value)] for value in table.column("value").to_pylist()]
                one = table.set_column(table.column_names.index("geocode"), "geocode", pa.array(codes))
                at = table.column_names.index("value")
                states.append(one.set_column(at, "value", pa.array(values, table.schema.field("value").type)))
            path = whole / f"{level}.parquet" / part / "part-0.parquet"
            path.parent.mkdir(parents=True)
            pq.write_table(pa.concat_tables(states), path, row_group_size=len(table), compression="none")
    handler.sent.clear()
    place = located(address(kind, whole, host))
    levels = read_bureau_levels(place, "44")
    assert [len(level.geocodes) for level in levels] == [1, 2, 2, 2, 3]
    assert np.array_equal(levels[-1].measured.place, read_bureau_levels(whole, "44")[-1].measured.place)
    fetched = sum(handler.sent.values())
    size = sum(path.stat().st_size for path in whole.rglob("part*.parquet"))
    assert 0 < fetched < size / 2


def test_microdata_from_measurements_at_an_address_are_those_of_the_files(server, folder, tmp_path) -> None:
    """Everything public is the same but for dates; the digests of the files that were read too."""
    for out, path in (("here", folder), ("there", address("http", folder, server[1]))):
        od.estimate_published([path], tmp_path / out, workers=1)
    for name in ("mdf", "measurements", "run"):
        one, other = (tmp_path / out / "release" / name for out in ("here", "there"))
        files = [file.relative_to(one) for file in sorted(one.rglob("*")) if file.is_file()]
        assert files
        assert all((one / file).read_bytes() == (other / file).read_bytes() for file in files)


@pytest.mark.parametrize("kind", ["http", "s3", "file"])
def test_microdata_at_an_address_are_compared_as_those_on_disk(folder, server, kind) -> None:
    head = "TABBLKST,TABBLKCOU,TABTRACTCE,TABBLKGRPCE,TABBLK,RTYPE,GQTYPE_PL,VOTING_AGE,CENHISP,CENRACE"
    for name, races in (("a", ("01", "02", "63")), ("b", ("01", "07"))):
        path = folder.parent / "ppmf" / f"{name}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join([head, *(f"44,001,030100,1,1001,3,0,2,1,{race}" for race in races)]) + "\n")
    place = address(kind, folder.parent / "ppmf", server[1])
    for there, here in ((located(place), path.parent), (located(place) / "a.csv", path.parent / "a.csv")):
        one, other = (open_source(each).counts[0].estimate for each in (there, here))
        assert one.total() == other.total() == (5 if here.is_dir() else 3)
        assert len(one.unlike(other)) == 0
    with pytest.raises(ConfigError, match="no such file or folder"):
        open_source(located(place) / "c.csv")


def test_what_is_wrong_at_an_address_is_named(folder, server, tmp_path, capsys) -> None:
    handler, host = server
    with pytest.raises(ConfigError, match=r"no folder State\.parquet"):
        od.NoisyFile(f"http://{host}/bucket/nothing").intervals("P1", geolevel="county")
    with pytest.raises(EnvironmentFailure, match=r"http://127\.0\.0\.1:1/x.* cannot be used"):
        od.describe_measurements("http://127.0.0.1:1/x")
    with pytest.raises(ConfigError, match="password"):
        located("https://me:secret@host/x")
    assert guarded(cli, ["nmf", "http://127.0.0.1:1/x"]) == EnvironmentFailure.exit_code
    damaged = folder.parent / "damaged"
    for file in filter(Path.is_file, folder.rglob("*.parquet")):
        copy = damaged / file.relative_to(folder)
        if "County" not in str(file):
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    with pytest.raises(FormatError, match=r"geolevel County is missing"):
        read_bureau_levels(located(f"http://{host}/bucket/damaged"))
    part = next((damaged / "Tract.parquet" / "DPQuery").rglob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-9])
    for file in filter(Path.is_file, (folder / "County.parquet").rglob("*.parquet")):
        copy = damaged / file.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    with pytest.raises(FormatError, match=rf"{part.name} cannot be read, or is not a whole Parquet file"):
        read_bureau_levels(located(f"http://{host}/bucket/damaged"))
    handler.parts = False
    with pytest.raises(EnvironmentFailure, match="sends no parts of files"):
        od.describe_measurements(f"http://{host}/bucket/{folder.name}")


def test_an_address_is_kept_in_a_path() -> None:
    for text in ("s3://b/k?region=r&scheme=http", "file:///a/b", "https://h:8/x"):
        assert str(located(text)) == text
    inner = located("s3://b/k?region=r") / "State.parquet"
    assert isinstance(inner, RemotePath)
    assert inner.address == "s3://b/k/State.parquet?region=r"
    assert str((inner / "part").relative_to(located("s3://b/k?region=r"))) == "State.parquet/part"
    assert not isinstance(located("a/b"), RemotePath)


@pytest.mark.parametrize("name", ["%2e%2e/", "%2e%2e%2fhere.csv", "ppmf/%2e%2e/%2e%2e/here.csv", "a%00b"])
def test_a_page_of_links_leads_to_nothing_outside_of_its_folder(server, folder, name) -> None:
    """A copy would otherwise be written wherever the server says."""
    handler, host = server
    handler.pages = {"/bucket/odd/": f'<a href="{name}">a</a><a href="a.csv">a</a>'}
    (folder.parent / "odd").mkdir(exist_ok=True)
    (folder.parent / "odd" / "a.csv").write_text("a")
    (folder.parent / "here.csv").write_text("b")
    with copied(located(f"http://{host}/bucket/odd")) as here:
        found = sorted(path.relative_to(here.parent).as_posix() for path in here.parent.rglob("*"))
    assert found == ["odd", "odd/a.csv"]


@pytest.mark.parametrize("key", ["ppmf/../../here.csv", "ppmf/a/../../../here.csv"])
def test_a_store_names_no_file_outside_of_its_folder(server, folder, key) -> None:
    handler, host = server
    handler.keys = (key,)
    place = f"s3://bucket/ppmf?endpoint_override={host.replace(':', '%3A')}&scheme=http&region=us-east-1"
    with pytest.raises(EnvironmentFailure, match="do not lie below it"):
        located(place).files()


def test_folders_in_folders_have_an_end(server) -> None:
    handler, host = server
    handler.pages = {"/" + "again/" * k: '<a href="again/">again</a>' for k in range(1, 40)}
    with pytest.raises(EnvironmentFailure, match="more than 16 folders in folders"):
        located(f"http://{host}/again").files()


def test_servers_that_break_the_protocol_are_refused_in_words(server) -> None:
    handler, host = server
    handler.pages = {"/long.csv": ""}
    with pytest.raises(EnvironmentFailure, match="does not say how long it is"):
        located(f"http://{host}/long.csv").exists()
    for odd in ("http://exa mple/x", "http://h..x/a", f"http://{'a' * 70}/x"):
        with pytest.raises(EnvironmentFailure, match="cannot be used"):
            located(odd).exists()
    for nothing in ("s3://", "https://"):
        with pytest.raises(ConfigError, match="expected the name of a host or bucket"):
            located(nothing)


@pytest.mark.parametrize("option", ["X-Amz-Signature", "X-Goog-Signature", "Signature", "api_key", "sig"])
def test_a_signed_address_is_refused_before_it_stands_anywhere(option, capsys) -> None:
    assert guarded(cli, ["nmf", f"https://host/a?{option}=77Q317"]) == ConfigError.exit_code
    assert "77Q317" not in "".join(capsys.readouterr())
