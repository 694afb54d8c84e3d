"""What `init` decides, of what the nodes told it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from clusterctl.facts.answers import Answer, Answers
from clusterctl.facts.storage.storage import Mount
from clusterctl.inventory.build import cluster_from_hosts
from clusterctl.verbs.init.found import (
    INTERPRETERS,
    Interpreter,
    Seen,
    choose_interpreters,
    possible_shares,
    with_workdirs,
)


def python(path: str, torch: str = "2.9.0", build: str = "12.8") -> Interpreter:
    return Interpreter(path=path, version="3.12.1", torch=torch, build=build if torch else "")


def chosen(**nodes: tuple[Interpreter, ...]) -> Mapping[str, str]:
    seen = {name: Seen(home="/root", interpreters=found) for name, found in nodes.items()}
    return {name: one.path for name, one in choose_interpreters(seen).items()}


def test_an_interpreter_needs_torch() -> None:
    assert chosen(a=(python("/usr/bin/python3", ""), python("/venv")), b=()) == {"a": "/venv"}


def test_one_that_all_nodes_have_goes_before_a_likelier_one() -> None:
    found = chosen(a=(python("/own"), python("/opt/venv")), b=(python("/opt/venv"),))
    assert found == {"a": "/opt/venv", "b": "/opt/venv"}


def test_of_two_that_all_have_the_one_with_the_same_torch_is_taken() -> None:
    a = (python("/drifted", "2.8.0"), python("/same"))
    b = (python("/drifted", "2.9.0"), python("/same"))
    assert chosen(a=a, b=b) == {"a": "/same", "b": "/same"}


def test_one_for_gpus_goes_before_one_for_cpus() -> None:
    assert chosen(a=(python("/cpu", build="cpu"), python("/gpu"))) == {"a": "/gpu"}


def test_without_a_common_one_each_node_has_its_own() -> None:
    assert chosen(a=(python("/a"),), b=(python("/b"), python("/c"))) == {"a": "/a", "b": "/b"}


def test_an_interpreter_that_took_too_long_is_named_unless_its_path_could_end_a_comment() -> None:
    lines = [json.dumps({"slow": path}) for path in ("/nfs/venv/bin/python", "/a\nnodes: []", "b")]
    answer = Answer(state="ok", data="\n".join(lines).encode())
    answers = Answers(by_key={f"command:{INTERPRETERS}": answer})
    assert Seen.of(answers).slow == ("/nfs/venv/bin/python",)


def mount(point: str, filesystem: str = "nfs4", source: str = "", options: str = "") -> Mount:
    return Mount(
        point=point,
        source=source or f"server:{point}",
        filesystem=filesystem,
        options=tuple(options.split()),
        root="/",
    )


def shares(*nodes: tuple[Mount, ...], one_machine: bool = False) -> tuple[str, ...]:
    seen = {str(at): Seen(home="/root", mounts=mounts) for at, mounts in enumerate(nodes)}
    return possible_shares(seen, one_machine=one_machine)


def test_what_all_nodes_have_mounted_may_be_shared_network_filesystems_first() -> None:
    here = (mount("/data", "ext4", "/dev/sdb1"), mount("/a/deep/export"), mount("/only-here"))
    there = (mount("/a/deep/export"), mount("/data", "ext4", "/dev/sdb1"))
    assert shares(here, there) == ("/a/deep/export", "/data")


def test_what_cannot_be_shared_is_not_tried() -> None:
    never = (
        mount("/", "ext4"), mount("/boot", "ext4"), mount("/var/lib/docker", "ext4"),
        mount("/home/a/deep", "ext4"), mount("/ro", options="ro"), mount("/scratch", "tmpfs"),
        mount("/usr/share", "nfs4"),
    )  # fmt: skip
    assert shares(never, never) == ()


def test_an_export_that_is_mounted_twice_is_tried_once() -> None:
    twice = (mount("/mnt/export", source="s:/x"), mount("/export", source="s:/x"))
    assert shares(twice, twice) == ("/export",)


def test_one_node_shares_with_nobody() -> None:
    assert shares((mount("/data"),)) == ()


def test_the_code_goes_to_the_share_or_else_home() -> None:
    cluster = cluster_from_hosts("lab", ["gpu01", "ada@gpu02"])
    seen = {"gpu01": Seen(home="/root"), "gpu02": Seen(home="/home/ada")}

    def workdirs(*shared: str) -> list[str | None]:
        changed = type(cluster)(name="lab", nodes=cluster.nodes, shared=shared)
        return [node.workdir for node in with_workdirs(changed, seen, "proj").nodes]

    assert workdirs() == ["/root/proj", "/home/ada/proj"]
    assert workdirs("/data", "/more") == ["/data/proj", "/data/proj"]
    # Homes on a share: its top is nobody's.
    assert workdirs("/home") == ["/home/proj", "/home/ada/proj"]


def test_what_a_node_lists_is_read() -> None:
    lines = [
        "a login shell's greeting",
        json.dumps({"home": "/root"}),
        json.dumps({"python": "/x", "version": "3.9.2", "build": "cpu", "torch": "2.1"}),
        json.dumps({"python": "relative"}),
        "[" * 2000,
    ]
    found = seen_of("\n".join(lines).encode())
    assert found.home == "/root"
    assert found.with_torch == (Interpreter(path="/x", version="3.9.2", torch="2.1", build="cpu"),)


@given(
    st.binary()
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["home", "python"]), inner),
    ).map(lambda value: json.dumps(value).encode())
)
def test_whatever_a_node_lists_is_no_error(data: bytes) -> None:
    choose_interpreters({"a": seen_of(data)})


def seen_of(data: bytes) -> Seen:
    return Seen.of(Answers(by_key={"command:" + INTERPRETERS: Answer(state="ok", data=data)}))
