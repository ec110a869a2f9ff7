"""The documented layout of frames, byte by byte: a change of the format must be a decision."""

import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.persistence.frame import (
    FRAME_SIZE,
    HEADER_SIZE,
    FileHeader,
    FormatError,
    decode_head,
    encode_records,
    encode_seal,
    payload_matches,
)

HEADER = FileHeader(b"\x01\x02\x03\x04", 0x0A0B0C0D, 77)


def test_header_bytes_are_as_documented() -> None:
    """A header has the documented fields at offsets 0, 8, 10, 12, 16, 20 and 28."""
    body = b"\x89MSLOG\r\n" + struct.pack("<HH", 1, 32) + b"\x01\x02\x03\x04" + struct.pack("<IQ", 0x0A0B0C0D, 77)
    assert HEADER.encode() == body + struct.pack("<I", crc32(body))
    assert len(HEADER.encode()) == HEADER_SIZE
    assert FileHeader.decode(HEADER.encode()) == HEADER
    assert HEADER.identity == "01020304" + "0d0c0b0a"


def test_frame_bytes_are_as_documented() -> None:
    """A frame has the documented fields at offsets 0, 4, 8, 12, 16, 20 and 24."""
    head = struct.pack("<III", 5, 9, 3)
    head_crc = crc32(head, 0x0A0B0C0D)
    frame = b"\x01\x02\x03\x04" + head + struct.pack("<II", head_crc, crc32(b"hello", head_crc)) + b"hello"
    assert b"".join(encode_records(HEADER, [b"hello"], 9, 7)) == frame
    seal = encode_seal(HEADER, 9)
    assert seal[:16] == b"\x01\x02\x03\x04" + struct.pack("<III", 0, 9, 0)
    assert len(seal) == FRAME_SIZE == len(frame) - 5


def test_a_frame_tells_how_many_records_were_durable() -> None:
    """A frame holds the number of durable records before it, which proves that damage before it is not a torn write."""
    pieces = b"".join(encode_records(HEADER, [b"a", b"b"], 9, 7))
    heads = [decode_head(HEADER, pieces, at) for at in (0, FRAME_SIZE + 1)]
    assert [(head.number, head.proven) for head in heads] == [(9, 7), (10, 7)]
    assert decode_head(HEADER, encode_seal(HEADER, 9), 0).proven == 9


@given(st.binary(), st.integers(0, 2**31), st.integers(0, 2**31))
def test_any_payload_comes_back(payload: bytes, number: int, behind: int) -> None:
    """A payload of any bytes comes back unchanged."""
    data = b"".join(encode_records(HEADER, [payload], number, max(0, number - behind)))
    head = decode_head(HEADER, data, 0)
    assert (head.length, head.number) == (len(payload), number)
    middle = len(payload) // 2
    assert payload_matches(head, [payload[:middle], payload[middle:]])
    assert not payload_matches(head, [payload, b"\0"])


@given(st.binary(max_size=80))
def test_no_other_bytes_are_a_frame_or_a_header(data: bytes) -> None:
    """Reading bytes that are not a log raises the documented error or finds nothing."""
    assert decode_head(HEADER, data, 0) is None
    with pytest.raises(FormatError):
        FileHeader.decode(data)


def test_frames_of_another_file_are_no_frames() -> None:
    """Frames of another file are not accepted, since each file has its own mark and seed."""
    frame = b"".join(encode_records(HEADER, [b"x"], 0, 0))
    assert decode_head(FileHeader(HEADER.mark, 1, 77), frame, 0) is None
    assert decode_head(FileHeader(b"\x09\x02\x03\x04", HEADER.seed, 77), frame, 0) is None


def test_a_new_header_has_no_zero_in_its_mark() -> None:
    """A file's mark has no zero byte, so a stretch of zeros, which crashes leave, never looks like a frame's start."""
    assert 0 not in FileHeader.new(1, bytes).mark


@pytest.mark.parametrize(("length", "number", "unsynced"), [(1, 0, 0), (2**31, 0, 1), (0, 3, 5)])
def test_impossible_heads_are_no_heads(length: int, number: int, unsynced: int) -> None:
    """A seal with a payload, too long a payload, or too many unsynced records is refused, despite a valid CRC."""
    head = struct.pack("<III", length, number, unsynced)
    head_crc = crc32(head, HEADER.seed)
    frame = HEADER.mark + head + struct.pack("<II", head_crc, crc32(b"", head_crc))
    assert decode_head(HEADER, frame + bytes(10), 0) is None
