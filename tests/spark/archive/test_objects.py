"""An archive in an object store under every fault: each entry once, and no trim before the entries are stored.

Spark's part of a job runs in the test's process (``support.archives``), as in ``test_archive.py``. The store is moto's
server, behind a proxy (``support.objects``) that injects the faults.
"""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from obstore.exceptions import GenericError

from millstream.errors import ConfigError, MillstreamError, NotFoundError, NotLetInError, NotReachedError, StorageError
from millstream.paths import archive_place
from millstream.spark.archiving.directory import LOCK, MANIFEST, ArchiveLockedError, Folder
from millstream.spark.archiving.objects.lease import LockRecord
from millstream.spark.archiving.objects.refusals import NoConditionalPutError, ObjectStoreError, explanation
from millstream.spark.archiving.objects.storage import ONE_PUT, ObjectStorage
from millstream.spark.archiving.store import ArchiveSettings, ArchiveStore
from millstream.spark.archiving.tables.shape import FORMATS, Wanted
from millstream.spark.archiving.tables.storage import ChangedMeanwhileError
from support.archives import RAW, archive_once, held
from support.clock import own_clock
from support.console import ConsoleThread
from support.objects import KEY, SECRET, Asked, Door, Fault
from support.servers import ServerProcess
from support.streams import fill
from support.waiting import eventually

pytestmark = [pytest.mark.realserver, pytest.mark.filterwarnings("ignore:Iceberg scan planning")]


@pytest.fixture
def client(real_redis: ServerProcess) -> Iterator[redis.Redis]:
    with real_redis.client() as made:
        made.flushall()
        yield made


def wanted(form: str, folder: Path) -> Wanted:
    return Wanted(form, catalog=f"sqlite:///{folder}/catalog.db" if form == "iceberg" else None)


def numbers(place: str) -> list[int]:
    return [int(ident.partition("-")[0]) for ident, _ in held(place, "s")]


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("s3://b/x/y/", "s3://b/x/y"),
        ("s3a://b", "s3://b"),
        ("S3://b/day=1", "s3://b/day=1"),
        ("gs://b.c/x", "gs://b.c/x"),
        ("abfss://c@acc.dfs.core.windows.net/x", "abfss://c@acc.dfs.core.windows.net/x"),
        ("file:///x/y", Path("/x/y")),
        ("/x/y", Path("/x/y")),
    ],
)
def test_a_place_is_a_directory_or_one_in_a_bucket(given: str, expected: object) -> None:
    """Each documented notation of a directory or a bucket path is accepted."""
    assert archive_place(given) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("hdfs://n/x", "cannot lie at hdfs. Give s3://bucket/prefix"),
        ("http://h/x", "cannot lie at http"),
        ("redis://h/0", "cannot lie at redis"),
        ("s3://", "Write s3://bucket/prefix"),
        ("s3:/b/x", "the URL of the archive is invalid"),
        ("s3://key:secret@b/x", "credentials belong in the environment, never into the URL"),
        ("s3://b/x?y=1", "the URL of the archive is invalid"),
        ("s3://b/../x", "the URL of the archive is invalid"),
        ("s3://b/a b", "ASCII letters"),
        ("abfss://container/x", "abfss://container@account"),
        ("", "it is empty"),
    ],
)
def test_other_places_are_refused_in_one_sentence(given: str, said: str) -> None:
    """An unsupported place is refused with one line that shows no password."""
    with pytest.raises(ConfigError, match=said) as caught:
        archive_place(given)
    assert "secret" not in str(caught.value)


# --- the way of an archive -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["raw", "parquet", "delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_an_archive_in_a_bucket(
    real_redis: ServerProcess, client: redis.Redis, place: str, tmp_path: Path, form: str
) -> None:
    """Each format in a bucket holds each entry once after several runs.

    The streams are empty, and no object has a secret.
    """
    form_wanted = RAW if form == "raw" else wanted(form, tmp_path)
    for run in range(2):
        fill(client, "s", 120, first=120 * run + 1)
        archive_once(ArchiveSettings(real_redis.url, ("s",), place, per_batch=50, wanted=form_wanted), label=f"r{run}")
    assert numbers(place) == list(range(1, 241))
    assert client.xlen("s") == 0
    storage = ObjectStorage(place)
    manifest = Folder(place).read()
    named = {file.path for file in manifest.files} | {path for path, _ in manifest.retired}
    there = set(storage.list())
    assert named <= there
    assert {path for path in there if path.endswith(".parquet") and "_delta_log" not in path} == named
    for path in there:
        data = storage.read(path)
        assert KEY.encode() not in data
        assert SECRET.encode() not in data


def test_iceberg_in_a_bucket_needs_a_catalog_elsewhere(
    real_redis: ServerProcess, client: redis.Redis, place: str
) -> None:
    """Iceberg in a bucket without a separate catalog is refused before any write, since SQLite needs a disk."""
    fill(client, "s", 3)
    with pytest.raises(ConfigError, match="--catalog"):
        archive_once(ArchiveSettings(real_redis.url, ("s",), place, wanted=Wanted("iceberg")))
    assert MANIFEST not in set(ObjectStorage(place).list())
    assert client.xlen("s") == 3


def test_large_files_go_in_parts_and_are_read_in_parts(place: str, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files are uploaded and read in parts. If a part fails, the upload is aborted and no object exists."""
    module = "millstream.spark.archiving.objects"
    monkeypatch.setattr(f"{module}.storage.ONE_PUT", 1 << 20)
    monkeypatch.setattr(f"{module}.storage._PART", 5 << 20)
    assert ONE_PUT > 1 << 20
    data = random.Random(5).randbytes(12 << 20)
    storage = ObjectStorage(place)
    upload = storage.create("big")
    upload.file.write(data)
    assert upload.keep() == len(data)
    with storage.open("big") as file:
        assert file.read(10) == data[:10]
        file.seek(-5, 2)
        assert file.read() == data[-5:]
        file.seek(0)
        assert file.read() == data
    door.rule = lambda asked: (403, "AccessDenied") if "partNumber=2" in asked.query else None
    upload = storage.create("bigger")
    upload.file.write(data)
    with pytest.raises(NotLetInError, match="do not allow to put bigger"):
        upload.keep()
    upload.drop()
    assert not storage.exists("bigger")
    assert [asked.method for asked in door.asked if asked.key.endswith("/bigger")][-1] == "HEAD"
    assert "DELETE" in [asked.method for asked in door.asked if asked.key.endswith("/bigger")]


# --- conditions ------------------------------------------------------------------------------------------------------


def test_the_storage_puts_on_condition(place: str) -> None:
    """A conditional put overwrites neither an existing object nor one that changed since it was read."""
    storage = ObjectStorage(place)
    storage.put_if_absent("a/b.json", b"1")
    with pytest.raises(ChangedMeanwhileError):
        storage.put_if_absent("a/b.json", b"2")
    assert (storage.read("a/b.json"), list(storage.list()), storage.top()) == (b"1", ["a/b.json"], {"a"})
    storage.replace_if_unchanged("a/b.json", b"1", b"3")
    for old in (b"1", None):
        with pytest.raises(ChangedMeanwhileError):
            storage.replace_if_unchanged("a/b.json", old, b"4")
    with pytest.raises(ChangedMeanwhileError):
        storage.replace_if_unchanged(
            "a/b.json", b"3", b"4", lambda: storage.replace_if_unchanged("a/b.json", b"3", b"5")
        )
    assert storage.read("a/b.json") == b"5"
    upload = storage.create("a/b.json")
    with pytest.raises(FileExistsError):
        upload.keep()
    upload.drop()
    storage.delete("a/b.json")
    storage.delete("a/b.json")
    assert not storage.exists("a/b.json")
    with pytest.raises(FileNotFoundError):
        storage.read("a/b.json")


def test_an_answer_that_is_lost_is_not_another_job(place: str, door: Door) -> None:
    """If the reply to a put is lost, the store refuses the retry, and the job recognizes the object as its own."""
    storage = ObjectStorage(place)
    lost: list[Asked] = []

    def lose(asked: Asked) -> Fault | None:
        if asked.method == "PUT" and len([one for one in lost if one.key == asked.key]) < 1:
            lost.append(asked)
            return "lost"
        return None

    door.rule = lose
    storage.put_if_absent("x", b"1")
    lost.clear()
    storage.replace_if_unchanged("x", b"1", b"2")
    assert len(lost) == 1
    assert storage.read("x") == b"2"
    assert len([asked for asked in door.asked if asked.method == "PUT"]) == 4


def test_a_store_without_conditions_is_refused(real_redis: ServerProcess, place: str, door: Door) -> None:
    """A store that rejects or ignores conditional puts is refused before anything is written."""
    where = ArchiveSettings(real_redis.url, ("s",), place)
    door.rule = lambda asked: (501, "NotImplemented") if asked.conditional else None
    with pytest.raises(NoConditionalPutError, match="cannot put an object on condition"), ArchiveStore(where).open():
        pass
    door.rule = lambda asked: "unconditional" if asked.conditional else None
    with pytest.raises(NoConditionalPutError, match="whatever the condition"), ArchiveStore(where).open():
        pass
    door.as_new()
    assert not ObjectStorage(place).exists(MANIFEST)


# --- the lock --------------------------------------------------------------------------------------------------------


def quick(place: str, seconds: float) -> ObjectStorage:
    made = ObjectStorage(place)
    made.lease_seconds = seconds
    return made


def test_one_job_an_archive(place: str) -> None:
    """A second job waits for one lease renewal, then fails and names the owner. A released lock is free at once."""
    first, second = ArchiveStore(ArchiveSettings("redis://127.0.0.1:1", ("s",), place)), Folder(place)
    first.folder.storage = quick(place, 1.0)
    with first.open():
        with (
            pytest.raises(ArchiveLockedError, match=f"in use by process {os.getpid()} on .*Wait for that job"),
            second.locked(),
        ):
            pass
        assert first.folder.read().generation == 1
    with second.locked():
        assert json.loads(ObjectStorage(place).read(LOCK))["owner"]
    assert not json.loads(ObjectStorage(place).read(LOCK))["owner"]


def test_a_lock_is_not_taken_while_its_lease_lasts(place: str, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that finds a lock writes nothing while it watches. It takes the first renewal as proof of life.

    The clock is fixed, so the result does not depend on timing. The owner renews after three checks.
    """
    own_clock(monkeypatch, "millstream.spark.archiving.objects.lease", monotonic=lambda: 5.0)
    owner, watcher = ObjectStorage(place), Folder(place)
    record = LockRecord("x", "process 1 on elsewhere", "other/1/1/1", 0.2)
    owner.put_if_absent(LOCK, record.data)
    looks: list[str] = []

    def renew(asked: Asked) -> None:
        if not asked.key.endswith(LOCK) or len(looks) > 3:
            return
        looks.append(asked.method)
        if len(looks) == 3:
            looks.append("renewal")
            owner.replace_if_unchanged(LOCK, record.data, replace(record, renewed=1).data)

    door.rule = renew
    with pytest.raises(ArchiveLockedError, match="in use by process 1 on elsewhere"), watcher.locked():
        pass
    assert looks == ["GET", "GET", "GET", "renewal"]


def test_a_renewal_whose_answer_is_lost_is_our_own(place: str, door: Door, caplog: pytest.LogCaptureFixture) -> None:
    """If the reply to a lease renewal is lost during an outage, the owner still holds the lock."""
    storage, other = quick(place, 0.3), ObjectStorage(place)
    storage.patience = (0, timedelta(seconds=1))
    lost: list[Asked] = []

    def lose(asked: Asked) -> Fault | None:
        if lost or asked.method != "PUT" or not asked.key.endswith(LOCK):
            return None
        lost.append(asked)
        return "lost"

    with storage.locked(LOCK) as holder:
        assert holder is None
        door.rule = lose
        eventually(lambda: "was not renewed, which is tried again" in caplog.text)
        there = LockRecord.load(other.read(LOCK)).renewed
        eventually(lambda: LockRecord.load(other.read(LOCK)).renewed > there + 1)
    assert "was taken by another job" not in caplog.text
    assert LockRecord.load(other.read(LOCK)).owner == ""


def test_a_lock_whose_owner_is_gone_is_taken_after_its_lease(place: str) -> None:
    """A dead owner's lock is taken after its lease. A dead process of the same machine is recognized at once."""
    storage = ObjectStorage(place)
    storage.put_if_absent(LOCK, LockRecord("x", "process 1 on elsewhere", "other/1/1/1", 0.5).data)
    with storage.locked(LOCK) as holder:
        assert holder is None
    child = subprocess.run(
        [sys.executable, "-c", _KILLED, place], env={**os.environ}, check=False, capture_output=True, text=True
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    left = LockRecord.load(storage.read(LOCK))
    assert left.lease_seconds == 3000
    with storage.locked(LOCK) as holder:
        assert holder is None
    storage.replace_if_unchanged(LOCK, storage.read(LOCK), b"\xff{")
    assert LockRecord.load(storage.read(LOCK)).lease_seconds == 30


_KILLED = """
import os, signal, sys
from millstream.spark.archiving.objects.storage import ObjectStorage
storage = ObjectStorage(sys.argv[1])
storage.lease_seconds = 3000
with storage.locked("_lock") as holder:
    assert holder is None
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_an_owner_that_was_asleep_cannot_win(place: str) -> None:
    """An owner that slept past its lease is refused afterwards, and the new owner's changes stay."""
    where = ArchiveSettings("redis://127.0.0.1:1", ("s",), place)
    sleeper, other, storage = ArchiveStore(where), ArchiveStore(where), ObjectStorage(place)
    sleeper.folder.storage = quick(place, 3000)  # it renews nothing while the test lasts
    with sleeper.open():
        before = sleeper.manifest
        # As if it were on another machine, where its life cannot be seen
        storage.replace_if_unchanged(LOCK, storage.read(LOCK), LockRecord("x", "process 1 on b", "", 0.2).data)
        with other.open():
            assert other.manifest.generation == before.generation + 1
            with pytest.raises(StorageError, match="written by another job meanwhile"):
                sleeper.folder.switch(before, before)
            assert Folder(place).read() == other.manifest
            owner = LockRecord.load(storage.read(LOCK)).owner
    assert LockRecord.load(storage.read(LOCK)).owner == ""
    assert owner


def test_a_lock_is_renewed_until_another_has_it(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """A lock owner renews through an outage of the store.

    Once another job holds the lock, it reports this and stops.
    """
    storage = quick(place, 0.3)
    with storage.locked(LOCK):
        eventually(lambda: LockRecord.load(storage.read(LOCK)).renewed >= 2)
        theirs = LockRecord("x", "process 1 on b", "", 9.0).data

        def taken() -> bool:
            try:
                storage.replace_if_unchanged(LOCK, storage.read(LOCK), theirs)
            except ChangedMeanwhileError:
                return False  # it was renewed between the two
            return True

        eventually(taken)
        eventually(lambda: "was taken by another job" in caplog.text)
    assert storage.read(LOCK) == theirs


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_list_that_lags_removes_nothing_that_is_named(
    real_redis: ServerProcess, client: redis.Redis, place: str, door: Door
) -> None:
    """If object lists omit data files, the archive still has each entry, and only unnamed files are removed."""
    where = ArchiveSettings(real_redis.url, ("s",), place, per_batch=40, wanted=Wanted("delta"))
    fill(client, "s", 80)
    archive_once(where, label="r0")
    prefix = place.removeprefix("s3://lake/")
    door.unlisted = {f"{prefix}/{path}" for path in ObjectStorage(place).list() if "parquet" in path}
    storage = ObjectStorage(place)
    stray = storage.create("s/stray-0123456789abcdef.parquet")
    stray.file.write(b"of a killed job")
    stray.keep()
    fill(client, "s", 40, first=81)
    archive_once(where, label="r1")
    assert numbers(place) == list(range(1, 121))
    assert client.xlen("s") == 0
    assert not storage.exists("s/stray-0123456789abcdef.parquet")


@pytest.mark.parametrize("fault", [(500, "InternalError"), (403, "AccessDenied")])
def test_a_leftover_that_cannot_be_read_is_not_removed(
    real_redis: ServerProcess, client: redis.Redis, place: str, door: Door, fault: Fault
) -> None:
    """A leftover file that cannot be read stays, since it may be the only copy. The job ends."""
    storage, where = ObjectStorage(place), ArchiveSettings(real_redis.url, ("s",), place, wanted=Wanted())
    fill(client, "s", 5)
    archive_once(where)
    older = storage.read(MANIFEST)
    fill(client, "s", 5, first=6)
    archive_once(where)
    newer = storage.read(MANIFEST)
    before = {path for path in storage.list() if path.endswith(".parquet")}
    storage.replace_if_unchanged(MANIFEST, newer, older)
    door.rule = lambda asked: fault if asked.method == "GET" and asked.key.endswith(".parquet") else None
    store = ArchiveStore(where)
    store.folder.storage = unready = ObjectStorage(place)
    unready.patience = (0, timedelta(seconds=1))
    with pytest.raises(MillstreamError, match="get stream=s"), store.open():
        pass
    door.as_new()
    assert {path for path in storage.list() if path.endswith(".parquet")} == before


def test_a_log_that_lists_lag_behind(
    real_redis: ServerProcess, client: redis.Redis, place: str, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an object list hides Delta's newest version, the job waits for it and trims nothing meanwhile."""
    where = ArchiveSettings(real_redis.url, ("s",), place, wanted=Wanted("delta"))
    fill(client, "s", 10)
    archive_once(where, label="r0")
    prefix = place.removeprefix("s3://lake/")
    hidden = f"{prefix}/s/_delta_log/{1:020d}.json"
    door.unlisted = {hidden}
    fill(client, "s", 10, first=11)
    looks: list[float] = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            assert client.xlen("s") == 10
            door.unlisted = set()

    monkeypatch.setattr("millstream.spark.archiving.tables.delta._wait", wait)
    archive_once(where, label="r1")
    assert len(looks) == 3
    assert (numbers(place), client.xlen("s")) == (list(range(1, 21)), 0)
    door.unlisted = {f"{prefix}/s/_delta_log/{2:020d}.json"}
    fill(client, "s", 10, first=21)
    monkeypatch.setattr("millstream.spark.archiving.tables.delta._wait", looks.append)
    with pytest.raises(StorageError, match=r"lists of .* do not show its newest files yet"):
        archive_once(where, label="r2")
    assert client.xlen("s") == 10
    door.unlisted = set()
    archive_once(where, label="r3")
    assert (numbers(place), client.xlen("s")) == (list(range(1, 31)), 0)


@pytest.mark.parametrize("form", ["parquet", *(pytest.param(form, marks=pytest.mark.long) for form in FORMATS[1:])])
def test_throttling_and_cuts_are_ridden_out(
    real_redis: ServerProcess, client: redis.Redis, place: str, door: Door, tmp_path: Path, form: str
) -> None:
    """If a quarter of the requests are throttled, cut or lose their reply, each entry is archived once."""
    chance = random.Random(7)
    faults: list[Fault | None] = [(503, "SlowDown"), "cut", "lost"]
    fill(client, "s", 90)
    where = ArchiveSettings(real_redis.url, ("s",), place, per_batch=30, wanted=wanted(form, tmp_path))
    with ArchiveStore(where).open():  # the way in has no such patience
        pass
    door.rule = lambda asked: chance.choice(faults) if chance.random() < 0.25 else None
    for attempt in range(20):
        try:
            archive_once(where, label=f"r{attempt}")
            break
        except (MillstreamError, OSError):
            continue  # what Iceberg's own library reads and writes has less patience; nothing is lost
    door.as_new()
    archive_once(where, label="last")
    assert (numbers(place), client.xlen("s")) == (list(range(1, 91)), 0)


WRONG: list[tuple[str, Callable[[Asked], Fault | None], type[Exception], str]] = [
    ("credentials", lambda _: (403, "InvalidAccessKeyId"), NotLetInError, "refused the credentials"),
    ("signature", lambda _: (403, "SignatureDoesNotMatch"), NotLetInError, "refused the credentials"),
    ("expired", lambda _: (400, "ExpiredToken"), NotLetInError, "refused the credentials"),
    ("get", lambda _: (403, "AccessDenied"), NotLetInError, "do not allow to get _manifest.json"),
    (
        "put",
        lambda asked: (403, "AccessDenied") if asked.key.endswith(".parquet") and asked.method == "PUT" else None,
        NotLetInError,
        "do not allow to put s.*parquet",
    ),
    (
        "full",
        lambda asked: (403, "QuotaExceeded") if asked.key.endswith(".parquet") and asked.method == "PUT" else None,
        ObjectStoreError,
        "the store is full",
    ),
    (
        "list",
        lambda asked: (403, "AccessDenied") if asked.method == "GET" and not asked.key else None,
        NotLetInError,
        "do not allow to list",
    ),
]


@pytest.mark.parametrize(("rule", "kind", "said"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_what_a_store_refuses_is_one_sentence(
    real_redis: ServerProcess,
    client: redis.Redis,
    place: str,
    door: Door,
    rule: Callable[[Asked], Fault | None],
    kind: type[Exception],
    said: str,
) -> None:
    """If the store refuses a request, the error is one line with advice and no secret.

    Once mended, the job continues.
    """
    fill(client, "s", 10)
    where = ArchiveSettings(real_redis.url, ("s",), place)
    door.rule = rule
    with pytest.raises(kind, match=said) as caught:
        archive_once(where)
    text = str(caught.value)
    assert "\n" not in text
    assert not [word for word in (KEY, SECRET, "Debug") if word in text]
    assert client.xlen("s") == 10
    door.as_new()
    archive_once(where)
    assert (numbers(place), client.xlen("s")) == (list(range(1, 11)), 0)


def test_credentials_that_expire_before_a_table_is_written(
    real_redis: ServerProcess, client: redis.Redis, place: str, door: Door
) -> None:
    """If credentials expire before a Delta commit, the error is one line without the store's XML.

    Nothing is trimmed.
    """
    fill(client, "s", 10)
    where = ArchiveSettings(real_redis.url, ("s",), place, wanted=Wanted("delta"))
    door.rule = lambda asked: (403, "ExpiredToken") if asked.method == "GET" and "_delta_log" in asked.key else None
    with pytest.raises(
        StorageError, match=r"the delta table of stream 's' at s3://.*cannot be read or written"
    ) as caught:
        archive_once(where)
    assert not [word for word in ("\n", "<", KEY, SECRET) if word in str(caught.value)]
    assert client.xlen("s") == 10
    door.as_new()
    archive_once(where)
    assert (numbers(place), client.xlen("s")) == (list(range(1, 11)), 0)


def test_a_file_that_may_not_be_deleted_is_said(
    real_redis: ServerProcess, client: redis.Redis, place: str, door: Door
) -> None:
    """If merged files cannot be deleted, the job reports it.

    The archive stays correct, and the next job deletes them.
    """
    door.rule = lambda asked: (403, "AccessDenied") if asked.method in ("DELETE", "POST") else None
    where = ArchiveSettings(real_redis.url, ("s",), place, per_batch=10)
    fill(client, "s", 80)
    with pytest.raises(NotLetInError, match="do not allow to delete s"):
        archive_once(where)
    door.as_new()
    archive_once(where, label="y")
    assert (numbers(place), client.xlen("s")) == (list(range(1, 81)), 0)
    named = {file.path for file in Folder(place).read().files}
    assert {path for path in ObjectStorage(place).list() if path.endswith(".parquet")} == named


def test_no_bucket_and_nobody_there(real_redis: ServerProcess, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing bucket and an unreachable store each end the job at once with one line."""
    with pytest.raises(NotFoundError, match="there is no bucket 'nope': make it"):
        archive_once(ArchiveSettings(real_redis.url, ("s",), "s3://nope/x"))
    with pytest.raises(NotFoundError, match="there is no bucket 'nope'"):
        Folder("s3://nope/x").read()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(NotReachedError, match=r"the object store at http://127.0.0.1:1 does not answer"):
        Folder(place).read()
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(NotReachedError, match=r"without TLS, which is not allowed: set AWS_ALLOW_HTTP=true"):
        Folder(place).read()


@pytest.mark.parametrize(
    ("other", "prefix"),
    [("s3://lake/x", "AWS_"), ("gs://lake/x", "GOOGLE_"), ("abfss://c@a.dfs.core.windows.net/x", "AZURE_")],
)
def test_a_store_is_told_of_its_own_variables(other: str, prefix: str) -> None:
    """An error names the environment variables of the store in use, not those of another store."""
    for words in ("BadScheme", "kind: Connect", "the MissingCredentials"):
        said = str(explanation(other, "get y", GenericError(words)))
        named = re.findall(r"\b(?:AWS|GOOGLE|AZURE)_", said)
        assert {*named} <= {prefix}, said
        assert named or (prefix, words) == ("GOOGLE_", "kind: Connect")


def test_azure_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """For Azure without TLS, the error names the variable that allows it."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:1")
    other = "abfss://c@account.dfs.core.windows.net/x"
    with pytest.raises(NotReachedError, match=r"without TLS, which is not allowed: set AZURE_ALLOW_HTTP=true"):
        Folder(other).read()
    monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
    with pytest.raises(NotReachedError, match=r"at http://127.0.0.1:1 does not answer.*AZURE_STORAGE_ENDPOINT"):
        Folder(other).read()


def test_credentials_that_nobody_has() -> None:
    """If no credentials are set and the metadata service refuses, the error states that no credentials were found."""
    asked = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token - status code: 403"
    problem = explanation("s3://lake/x", "get y", GenericError(asked))
    assert isinstance(problem, NotLetInError)
    assert "no credentials were found: set those of the store in the environment" in str(problem)


def test_a_machine_that_does_not_say_whether_it_has_credentials_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the metadata service does not reply, the job stops waiting and reports that no credentials were found."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(ObjectStorage, "patience_at_first", (0, timedelta(seconds=1), timedelta(seconds=0.2)))
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as pool:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        found = pool.submit(ObjectStorage("s3://lake/x").exists, MANIFEST)
        asked, _ = silent.accept()
        with asked:
            asked.settimeout(20)  # obstore's own patience is longer
            while asked.recv(4096):
                pass
        with pytest.raises(NotLetInError, match=r"no credentials were found: set those"):
            found.result()


def test_the_console_shows_an_archive_in_a_bucket(
    real_redis: ServerProcess, client: redis.Redis, place: str, door: Door
) -> None:
    """The console shows an archive in a bucket without secrets, and reports a store that refuses or is unreachable."""
    fill(client, "s", 20)
    archive_once(ArchiveSettings(real_redis.url, ("s",), place, trim=False, wanted=Wanted()))
    fill(client, "s", 5, first=21)
    with ConsoleThread(real_redis.url, archive=place) as console:
        page = console.ask("/archive")
        facts = console.ask("/archive.json").facts
        (stream,) = facts["streams"]
        assert (facts["path"], facts["unknown"]) == (place, None)
        assert (stream["entries"], stream["waiting"], stream["kept"]) == (20, 5, 20)
        assert facts["changed_ms"] > 1_600_000_000_000
        assert f"--to {place} --dry-run" in page.text
        for rule, said in (
            (lambda _asked: (403, "AccessDenied"), "do not allow to get _manifest.json"),
            (lambda _asked: "cut", "does not answer"),
        ):
            door.rule = rule
            console.forget()
            page = console.ask("/archive")
            assert (page.status, said in page.text) == (200, True)
            assert not [word for word in (KEY, SECRET) if word in page.text]


def test_without_the_package_it_is_said(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package for object stores, the error states how to install it."""
    monkeypatch.setattr("millstream.spark.archiving.objects.storage.find_spec", lambda _name: None)
    with pytest.raises(MillstreamError, match=r"pip install 'millstream\[lake\]'"):
        Folder(place)
