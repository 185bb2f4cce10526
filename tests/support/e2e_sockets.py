"""Clients on bare sockets, which can do what HTTP libraries don't: reset, stall, leave before the answer; and what the kernel says
of a server process."""

import os
import socket
import struct
from pathlib import Path
from urllib.parse import urlencode


def post(port: int, agent: str, message: str, *, receive_buffer: int | None = None, **fields: str) -> socket.socket:
    """Send a submission and read nothing."""
    body = urlencode({"message": message, **fields}).encode()
    head = (
        f"POST /agents/{agent}/runs HTTP/1.1\r\nHost: test\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return _send(port, head.encode() + body, receive_buffer)


def watch(port: int, agent: str, run_id: str, *, receive_buffer: int | None = None) -> socket.socket:
    """Ask for the events of a run and read nothing."""
    return _send(port, f"GET /agents/{agent}/runs/{run_id}/events HTTP/1.1\r\nHost: test\r\n\r\n".encode(), receive_buffer)


def _send(port: int, request: bytes, receive_buffer: int | None) -> socket.socket:
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(20)
    sock.connect(("127.0.0.1", port))
    sock.sendall(request)
    return sock


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    """What comes up to and with a mark, and whatever came along behind it."""
    read = b""
    while mark not in read:
        chunk = sock.recv(65536)
        if not chunk:
            raise AssertionError(f"the connection ended before {mark!r}: {read[-300:]!r}")
        read += chunk
    return read


def read_to_end(sock: socket.socket) -> bytes:
    read = b""
    while chunk := sock.recv(1 << 20):
        read += chunk
    return read


def reset(sock: socket.socket) -> None:
    """Close with an RST, as a crashed client or a cut network does."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def header(answer: bytes, name: str) -> str:
    for line in answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]:
        key, _, value = line.partition(":")
        if key.lower() == name:
            return value.strip()
    raise AssertionError(f"no header {name}: {answer[:400]!r}")


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def open_sockets(pid: int) -> int:
    names = [Path(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    return sum(os.readlink(name).startswith("socket:") for name in names if name.is_symlink())


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
