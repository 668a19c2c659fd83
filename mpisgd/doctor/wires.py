"""Which network interfaces carry TCP between hosts: by connecting."""

import fcntl
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

FLAGS_OF, ADDRESS_OF = 0x8913, 0x8915  # SIOCGIFFLAGS, SIOCGIFADDR
UP = 1
PATIENCE_S = 1.0  # for one connection


def interfaces() -> dict[str, str]:
    """Names of those that are up, each with its IPv4 address."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                packed = struct.pack("256s", name.encode()[:15])
                flags = fcntl.ioctl(asked.fileno(), FLAGS_OF, packed)
                address = fcntl.ioctl(asked.fileno(), ADDRESS_OF, packed)
                if struct.unpack_from("=H", flags, 16)[0] & UP:
                    found[name] = socket.inet_ntoa(address[20:24])
    return found


class Answering:
    """A port, on all interfaces, that answers each connection with a name; used as a context."""

    def __init__(self, name: str):
        self._name = name.encode()

    def __enter__(self) -> int:
        self._socket = socket.create_server(("", 0))
        threading.Thread(target=self._answer, daemon=True).start()
        return int(self._socket.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _answer(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    connection.sendall(self._name)


def reached(host: str, port: int, addresses: dict[str, str]) -> dict[str, str]:
    """For each interface of another host why it can't be reached; "" if it can.

    Who answers tells its name: an address such as that of docker0 is the same on every host.
    """

    def one(address: str) -> str:
        try:
            with socket.create_connection((address, port), PATIENCE_S) as connection:
                name = connection.recv(256).decode(errors="replace")
                return "" if name == host else f"{name or 'nobody'} answers, not {host}"
        except TimeoutError:
            return f"no answer in {PATIENCE_S:g} s"
        except OSError as error:
            return error.strerror or str(error)

    with ThreadPoolExecutor(max(1, len(addresses))) as threads:
        return dict(zip(addresses, threads.map(one, addresses.values()), strict=True))


def between(comm: Any, host: str, leaders: list[int]) -> list[dict[str, str]]:
    """Asked of all ranks: the first rank of each host tries every interface of the next
    host's (its own, where there is one host)."""
    with Answering(host) as port:
        told = comm.allgather((host, port, interfaces()))
        mine: list[dict[str, str]] = []
        if comm.Get_rank() in leaders:
            there = leaders[(leaders.index(comm.Get_rank()) + 1) % len(leaders)]
            other, its_port, addresses = told[there]
            if there != comm.Get_rank():
                addresses = {name: a for name, a in addresses.items() if not a.startswith("127.")}
            mine = [
                {"from": host, "to": other, "interface": name, "told": why}
                for name, why in reached(other, its_port, addresses).items()
            ]
        gathered = comm.allgather(mine)  # nobody closes its port before all have tried
    return [each for some in gathered for each in some]
