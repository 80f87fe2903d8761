"""Connections that the clients of servers share."""

import os
import socket
import subprocess
import time
import zlib


def connect(path, seconds=30):
    """Connects to the server's socket as soon as it listens, within `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
            return connection
        except OSError:
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


class Pipeline:
    """Requests sent in batches, each answered in full before the next is sent. `digest` is that of
    all answers since begin(), `longest` the seconds of the slowest batch."""

    def __init__(self, connection):
        self.connection = connection
        self.begin()

    def begin(self):
        self.digest, self.longest = 0, 0.0

    def send(self, request, size):
        """Sends a batch, and reads its answers of `size` bytes altogether."""
        began = time.monotonic()
        self.connection.sendall(request)
        while size > 0:
            piece = self.connection.recv(min(size, 1 << 18))
            if not piece:
                raise EOFError("the server closed the connection")
            size -= len(piece)
            self.digest = zlib.crc32(piece, self.digest)
        self.longest = max(self.longest, time.monotonic() - began)


def query(words, text, seconds=30):
    """Returns the output of a database's client for `text`; retries while the server starts, for up
    to `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        done = subprocess.run(words, input=text, capture_output=True, text=True, env=dict(os.environ))
        if done.returncode == 0:
            return done.stdout.strip()
        if time.monotonic() > deadline:
            raise RuntimeError(done.stderr.strip())
        time.sleep(0.05)


class Session:
    """A database's client that stays connected: the memory that its server process maps is there
    until the end."""

    def __init__(self, words):
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, text):
        """Sends `text`, and returns the one line that the client prints."""
        self.process.stdin.write(text)
        self.process.stdin.flush()
        line = self.process.stdout.readline().strip()
        if not line:
            raise EOFError("no answer from the database's client")
        return line
