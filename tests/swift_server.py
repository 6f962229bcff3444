"""A real S3 server for tests: OpenStack Swift with its s3api, from Debian's packages.

One account, container and object server and a proxy, each a process, in a folder of their own and
on free ports. `make system-packages` installs what is needed.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from free_ports import free_ports
from s3_faults import ConditionalProxy

ACCESS_KEY, SECRET_KEY, REGION = "test:tester", "testing", "us-east-1"
PROGRAMS = ("swift-proxy-server", "swift-account-server", "swift-container-server")
PACKAGES = "swift-proxy swift-account swift-container swift-object"
_PYTHON = "/usr/bin/python3"
"""Debian's, which has the `swift` package."""
_ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
"""Nothing of the project's own Python."""
_START_TIMEOUT = 30.0

_SWIFT = """\
[swift-hash]
swift_hash_path_suffix = vagen
swift_hash_path_prefix = tests
[storage-policy:0]
name = one
default = yes
"""
_STORAGE = """\
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = {workers}
devices = {devices}
mount_check = false
swift_dir = {folder}
user = {user}
log_name = {kind}
log_address = {folder}/no-syslog
fallocate_reserve = 0
disable_fallocate = true
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""
_PROXY = """\
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = {workers}
swift_dir = {folder}
user = {user}
log_address = {folder}/no-syslog
[pipeline:main]
pipeline = catch_errors cache listing_formats s3api tempauth bulk slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
allow_account_management = true
account_autocreate = true
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = {secret} .admin
[filter:s3api]
use = egg:swift#s3api
location = {region}
min_segment_size = 5242880
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{memcache}
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:bulk]
use = egg:swift#bulk
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
"""
_RINGS = """
import sys
from swift.common.ring import RingBuilder
for kind, port in zip(("account", "container", "object"), sys.argv[2:]):
    builder = RingBuilder(4, 1, 0)
    builder.add_dev({"region": 1, "zone": 1, "ip": "127.0.0.1", "port": int(port),
                     "device": "sda1", "weight": 1.0})
    builder.rebalance()
    builder.get_ring().save(f"{sys.argv[1]}/{kind}.ring.gz")
"""


def missing() -> str | None:
    """Why there can be no server on this machine; None if there can."""
    if any(shutil.which(program) is None for program in PROGRAMS):
        return f"OpenStack Swift is not installed: `make system-packages` ({PACKAGES})"
    return None


class SwiftServer:
    """The server: runs inside the `with` block.

    Args:
        folder: Empty; its file system takes extended attributes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        ports = free_ports(5)
        self._ports = dict(
            zip(("account", "container", "object", "proxy", "memcache"), ports, strict=True)
        )
        self.bare_endpoint = f"http://127.0.0.1:{self._ports['proxy']}"
        """Without conditional writes."""
        self._proxy = ConditionalProxy(self.bare_endpoint, self.client)
        self.endpoint = self._proxy.endpoint

    def __enter__(self) -> "SwiftServer":
        self._configure()
        for kind in ("account", "container", "object", "proxy"):
            with (self.folder / f"{kind}.log").open("wb") as log:
                self._processes.append(
                    subprocess.Popen(
                        [f"/usr/bin/swift-{kind}-server", str(self.folder / f"{kind}.conf"), "-v"],
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                        env=_ENVIRONMENT,
                    )
                )
        self._await()
        self._proxy.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.__exit__()
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # pytest keeps its folders for a while; gigabytes are not worth it.
        shutil.rmtree(self.folder / "devices")

    def environment(self) -> dict[str, str]:
        """What boto3 reads: address, region and keys."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        """A client of boto3, apart from the code under test."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.bare_endpoint,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )

    def new_bucket(self) -> str:
        """Makes a bucket; returns its URI."""
        name = f"bucket-{uuid.uuid4().hex[:8]}"
        self.client().create_bucket(Bucket=name)
        return f"s3://{name}"

    def _configure(self) -> None:
        (self.folder / "devices" / "sda1").mkdir(parents=True)
        (self.folder / "swift.conf").write_text(_SWIFT)
        common: dict[str, object] = {
            "folder": self.folder,
            "devices": self.folder / "devices",
            "user": getpass.getuser(),
            "region": REGION,
            "secret": SECRET_KEY,
            "memcache": self._ports["memcache"],
        }
        for kind in ("account", "container", "object"):
            # Processes fork no workers: what is killed is gone.
            text = _STORAGE.format(kind=kind, port=self._ports[kind], workers=0, **common)
            (self.folder / f"{kind}.conf").write_text(text)
        subprocess.run(
            [_PYTHON, "-c", _RINGS, str(self.folder), *map(str, self._ports.values())],
            check=True,
            env=_ENVIRONMENT,
        )
        text = _PROXY.format(port=self._ports["proxy"], workers=0, **common)
        (self.folder / "proxy.conf").write_text(text)

    def _await(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        for kind in ("account", "container", "object", "proxy"):
            while not _answers(self._ports[kind]):
                assert time.monotonic() < deadline, (self.folder / f"{kind}.log").read_text()
                time.sleep(0.05)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
