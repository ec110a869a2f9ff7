"""The native core writes and reads frames exactly as the Python code does, whole or damaged."""

from random import Random

import pytest

from millstream.persistence.frame import MAGIC, FileHeader, py_decode_run, py_encode_records
from support import campaign, needs

native = needs.native_core()


def some(random: Random) -> tuple[FileHeader, list[bytes], int, int]:
    """Return a file's header, payloads of both size classes of the reader, and their position."""
    header = FileHeader(random.randbytes(4), random.getrandbits(32), 1, MAGIC)
    payloads = [
        random.randbytes(random.choice([0, 1, 7, 8, 9, random.randrange(70), 1023, 1024, 4097])) for _ in range(5)
    ]
    index = random.choice([0, 1, random.getrandbits(20), 2**32 - 5])
    return header, payloads, index, random.randint(max(0, index - 9), index)


def test_both_make_the_same_frames() -> None:
    """The native core and the Python code write the same bytes."""
    for seed in range(300):
        header, payloads, index, durable = some(Random(seed))
        mine = b"".join(py_encode_records(header, payloads, index, durable))
        assert b"".join(native.encode_records(header, payloads, index, durable)) == mine, seed


def test_both_make_the_same_checksum_of_every_size() -> None:
    """The native core and the Python code write the same frame of a payload of each size below 1,100 bytes."""
    random = Random(1)
    header = FileHeader(random.randbytes(4), random.getrandbits(32), 1, MAGIC)
    for size in range(1100):
        payload = random.randbytes(size)
        mine = b"".join(py_encode_records(header, [payload], 0, 0))
        assert b"".join(native.encode_records(header, [payload], 0, 0)) == mine, size


def damaged(seed: int) -> tuple[int, bool]:
    """Read damaged frames with both, which must agree; return the number of payloads and the reading's end flag."""
    random = Random(seed)
    header, payloads, index, durable = some(random)
    data = bytearray(b"".join(py_encode_records(header, payloads, index, durable)))
    if random.random() < 0.3:
        seal = FileHeader(header.mark, header.seed, 1)
        data += b"".join(py_encode_records(seal, [b""], index + 5, index + 6)) if index < 2**32 - 5 else b""
    if random.random() < 0.5:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    if random.random() < 0.5:
        del data[random.randrange(len(data)) :]
    found = py_decode_run(header, bytes(data), index)
    assert native.decode_run(header, bytes(data), index) == found, seed
    return len(found[0]), found[2]


def test_both_read_the_same_of_what_is_damaged() -> None:
    """Both readers stop at the same place in frames cut short, changed, or followed by another file's bytes."""
    assert len({damaged(seed) for seed in range(2000)}) > 6


def five_thousand(piece: int) -> int:
    """Run a piece of the campaign."""
    return len([damaged(seed) for seed in range(piece * 5000, piece * 5000 + 5000)])


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_both_read_the_same_of_many_that_are_damaged() -> None:
    """Both readers stop at the same place in 200,000 damaged files."""
    campaign.run("frame-twins", five_thousand, range(1, 41), unit="runs of frames")


def test_what_fits_into_no_frame_is_refused() -> None:
    """A number beyond its field or a payload that is not bytes raises an error, and no frame is made."""
    header = FileHeader(b"mark", 7, 1, MAGIC)
    for index, durable in [(2**32, 0), (-1, 0), (0, 2), (2**32 - 1, -1)]:
        with pytest.raises(OverflowError):
            native.encode_records(header, [b"a"], index, durable)
    with pytest.raises(TypeError):
        native.encode_records(header, ["a"], 0, 0)
    with pytest.raises(TypeError):
        native.decode_run(FileHeader("text", 7, 1, MAGIC), b"", 0)  # type: ignore[arg-type] # what is tested
    with pytest.raises(OverflowError):
        native.decode_run(FileHeader(b"mark", 2**32, 1, MAGIC), b"", 0)
