"""A FastCGI application for tests: it reports its process ID and its numbers of requests and connections.

The query selects its behaviour. `sleep`: write the process ID to the file `sleeps` in the directory given as argument,
and sleep. `die`: exit before the response; `half`: exit in the middle of it. `body`: return the request body.
`complain`: write to the error stream. `flood`: send endless output. `deaf`: do not read the body. `short`: take 20 ms.
`wait`: create `sleeps`, and wait for a file `go` in the directory. `stream`: send part of a response and no end. With
the argument `forks` each connection has its own process.
"""
import ctypes
import os
import signal
import socket
import struct
import sys
import time

requests = connections = 0


def record(kind, content):
    return struct.pack("!BBHHBB", 1, kind, 1, len(content), 0, 0) + content


def read(stream):
    """One request: whether the connection is kept, its query and its body; None at the end of the connection."""
    params, body, keep = b"", b"", False
    while True:
        head = stream.read(8)
        if len(head) < 8:
            return None
        _, kind, _, length, padding, _ = struct.unpack("!BBHHBB", head)
        content = stream.read(length)
        stream.read(padding)
        if kind == 1:
            keep = content[2] & 1
        elif kind == 4 and not content and value(params, b"QUERY_STRING") == "deaf":
            time.sleep(1000)
        elif kind == 4:
            params += content
        elif kind == 5 and content:
            body += content
        elif kind == 5:
            return keep, params, body


def value(params, wanted):
    at = 0
    while at < len(params):
        lengths = []
        for _ in range(2):
            length = params[at]
            at += 1
            if length & 0x80:
                length = (length & 0x7F) << 24 | int.from_bytes(params[at : at + 3], "big")
                at += 3
            lengths.append(length)
        name = params[at : at + lengths[0]]
        found = params[at + lengths[0] : at + sum(lengths)]
        at += sum(lengths)
        if name == wanted:
            return found.decode()
    return ""


listener = socket.socket(fileno=0)
while True:
    connection, _ = listener.accept()
    connections += 1
    if "forks" in sys.argv:
        # Its children exit with it.
        if os.fork() > 0:
            connection.close()
            continue
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    stream = connection.makefile("rb")
    while (request := read(stream)) is not None:
        keep, params, body = request
        requests += 1
        query = value(params, b"QUERY_STRING")
        if query == "sleep":
            with open(os.path.join(sys.argv[1], "sleeps"), "w") as file:
                print(os.getpid(), file=file)
            time.sleep(1000)
        if query == "wait":
            open(os.path.join(sys.argv[1], "sleeps"), "w").close()
            while not os.path.exists(os.path.join(sys.argv[1], "go")):
                time.sleep(0.01)
        if query == "short":
            time.sleep(0.02)
        if query == "die":
            os._exit(3)
        answer = f"{os.getpid()} {requests} {connections} {value(params, b'SCRIPT_NAME')} {value(params, b'PATH_INFO')}"
        answer = body if query == "body" else answer.encode()
        out = record(6, b"Content-Type: text/plain\n\n")
        if query == "complain":
            out += record(7, b"something is wrong\n")
        for at in range(0, len(answer), 60000):
            out += record(6, answer[at : at + 60000])
        connection.sendall(out)
        if query == "stream":
            time.sleep(1000)
        while query == "flood":
            connection.sendall(record(6, bytes(60000)))
        if query == "half":
            os._exit(3)
        connection.sendall(record(6, b"") + record(3, bytes(8)))
        if not keep:
            break
    stream.close()
    connection.close()
    if "forks" in sys.argv:
        os._exit(0)
