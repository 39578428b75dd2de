"""If a cluster does not answer, an error should be raised within seconds; Ray itself tries for
minutes.
"""

from __future__ import annotations

import signal
import socket
import threading
import time

import pytest

from dml_core import DmlError, registry
from dml_train.cluster import ray_cluster
from dml_train.cluster.ray_cluster import RayCluster

pytest.importorskip("ray", reason="Ray isn't installed, or has no wheel for this platform")


def refused(address: str) -> str:
    with pytest.raises(DmlError) as error, RayCluster(address).connect(registry(), None):
        pass
    return str(error.value)


def test_a_wrong_address_and_a_closed_port_are_named():
    for address in ("nonsense", "ray://127.0.0.1:10001", "127.0.0.1:", ":6379"):
        assert f"is {address!r}; expected HOST:PORT" in refused(address)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        for address in (f"127.0.0.1:{closed.getsockname()[1]}", "127.0.0.1:99999"):
            assert f"no Ray cluster answers at {address}" in refused(address)


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["silent", "web server"]
)
def test_a_port_of_another_server_is_named(answer, monkeypatch):
    monkeypatch.setattr(ray_cluster, "_SECONDS_TO_ANSWER", 0.5)
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            connection.sendall(answer)
            done.wait()
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        start = time.monotonic()
        assert "no Ray cluster answers at 127.0.0.1" in refused(
            f"127.0.0.1:{server.getsockname()[1]}"
        )
        assert time.monotonic() - start < 30
        done.set()
        thread.join()


def test_ctrl_c_while_ray_starts_waits_until_ray_can_be_shut_down(monkeypatch, request):
    import ray

    # A shell starts background jobs with this signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    calls = []

    def init(**options):
        calls.append("begin")
        signal.raise_signal(
            signal.SIGINT
        )  # here, Ray would leave threads that crash Python when it exits
        calls.append("end")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append("shut down"))
    with pytest.raises(KeyboardInterrupt), RayCluster().connect(registry(), None):
        calls.append("work")
    assert calls == ["begin", "end", "shut down"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
