"""Hub ids, against a stand-in for the hub on loopback: one download a node, secrets, no network."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from train.config.config import Config
from train.data import hub
from train.errors import ConfigError

COMMIT = "1234567890" * 4
TOKEN = "hf_a_secret"
SPLITS = ("train", "eval")
FILES = {
    "models/org/tiny": {"config.json": b"{}", "model.safetensors": b"weights", "big.bin": b"no"},
    "models/org/old": {"config.json": b"{}", "pytorch_model.bin": b"weights"},
    "models/org/gated": {"config.json": b"{}", "model.safetensors": b"weights"},
    "datasets/org/table": {"train/0.parquet": b"PAR1", "test/0.parquet": b"PAR1", "a.csv": b"no"},
    "datasets/org/text": {"data/train.jsonl": b'{"text": "a"}\n', "README.md": b"no"},
}


class Hub(ThreadingHTTPServer):
    """As much of huggingface.co as downloading takes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.files = FILES.copy()
        self.downloads: Counter[str] = Counter()
        self.asked = 0
        self.user = ""

    @property
    def url(self) -> str:
        return f"http://{self.user}127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    """What it answers."""

    server: Hub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        self.server.asked += 1
        path = self.path.split("?")[0].strip("/")
        api = path.startswith("api/")
        kind = "datasets" if "datasets/" in path else "models"
        words = path.removeprefix("api/").removeprefix(f"{kind}/").split("/")
        name, rest = "/".join(words[:2]), words[2:]
        files = self.server.files.get(f"{kind}/{name}")
        if files is None:
            status, content = 404, b"{}"
        elif name == "org/gated" and self.headers["Authorization"] != f"Bearer {TOKEN}":
            status, content = 401, b"{}"
        elif api:
            status, content = 200, json.dumps(_about(name, files, tree="tree" in rest)).encode()
        else:
            file = "/".join(rest[2:])  # after resolve/COMMIT
            self.server.downloads[file] += with_body
            status, content = 200, files[file]
        self._send(status, content, with_body=with_body)

    def _send(self, status: int, content: bytes, *, with_body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _about(name: str, files: dict[str, bytes], *, tree: bool) -> object:
    if tree:
        return [
            {
                "type": "file",
                "path": file,
                "size": len(content),
                "oid": hashlib.sha1(content).hexdigest(),
            }
            for file, content in files.items()
        ]
    return {"id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]}


@pytest.fixture
def stand_in() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


CODE = """\
import sys
from train.data import hub
from train.config.config import Config
from train.errors import ConfigError
model, data, offline = sys.argv[1:]
config = Config(name_or_path=model, dataset_path=data, offline=offline == "offline")
hub.settle(config)
try:
    print(hub.model_folder(config))
    print(*hub.dataset_files(data, config, key="dataset_path"))
except ConfigError as error:
    print(error)
    sys.exit(2)
"""


def node(
    home: Path, stand_in: Hub, *words: str, token: str | None = None, processes: int = 1
) -> list[tuple[int, str]]:
    """Run the processes of a node; return exit code and output of each."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment |= {"HF_ENDPOINT": stand_in.url, "HF_HOME": str(home)}
    if token:
        environment["HF_TOKEN"] = token
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CODE, *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(processes)
    ]
    outputs = [process.communicate(timeout=200)[0] for process in started]
    return [(process.returncode, out) for process, out in zip(started, outputs, strict=True)]


def test_a_nodes_processes_download_once(tmp_path: Path, stand_in: Hub) -> None:
    answers = node(tmp_path, stand_in, "org/tiny", "org/text", "", processes=3)
    assert [code for code, _ in answers] == [0, 0, 0], answers
    folder, data = map(Path, answers[0][1].split())
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert data.read_bytes() == b'{"text": "a"}\n'
    assert len({out for _, out in answers}) == 1
    wanted = {"config.json": 1, "model.safetensors": 1, "data/train.jsonl": 1}
    assert dict(+stand_in.downloads) == wanted  # and nothing that training does not need


def test_the_same_weights_in_another_form_are_not_downloaded(tmp_path: Path, stand_in: Hub) -> None:
    others = ("consolidated.safetensors", "original/model.safetensors", "pytorch_model.bin")
    files = stand_in.files["models/org/tiny"] | dict.fromkeys(others, b"many gigabytes")
    stand_in.files["models/org/tiny"] = files
    ((code, out),) = node(tmp_path, stand_in, "org/tiny", "org/text", "")
    assert code == 0, out
    assert stand_in.downloads["model.safetensors"] == 1
    assert not stand_in.downloads.keys() & set(others)


def test_a_password_of_the_hubs_address_is_not_printed(tmp_path: Path, stand_in: Hub) -> None:
    stand_in.user = "me:hunter2@"
    ((code, out),) = node(tmp_path, stand_in, "org/nothing", "org/text", "")
    assert code == 2
    assert "expected org/nothing from http://127" in out
    assert "hunter2" not in out


def test_a_model_without_safetensors_on_the_hub_is_refused(tmp_path: Path, stand_in: Hub) -> None:
    ((_, out),) = node(tmp_path, stand_in, "org/old", "org/text", "")
    assert "expected *.safetensors in org/old on the hub, found none" in out
    assert "hf download org/old --local-dir FOLDER; python -m train.tools.convert_weights" in out


def test_a_data_set_of_parquet_is_downloaded(tmp_path: Path, stand_in: Hub) -> None:
    ((code, out),) = node(tmp_path, stand_in, "org/tiny", "org/table", "")
    assert code == 0, out
    _, data = map(Path, out.split())
    assert data.parts[-2:] == ("train", "0.parquet")
    assert data.read_bytes() == b"PAR1"
    assert "a.csv" not in stand_in.downloads


def test_offline_takes_what_is_there_and_asks_nobody(tmp_path: Path, stand_in: Hub) -> None:
    ((code, out),) = node(tmp_path, stand_in, "org/tiny", "org/text", "offline")
    assert code == 2
    assert "name_or_path: expected org/tiny from this machine's hub cache" in out
    assert "hint: hf download org/tiny" in out
    assert not stand_in.downloads
    node(tmp_path, stand_in, "org/tiny", "org/text", "")
    for mark in (tmp_path / "hub").glob(".clusterctl-*.json"):
        mark.unlink()
    before = dict(stand_in.downloads)
    ((code, _),) = node(tmp_path, stand_in, "org/tiny", "org/text", "offline")
    assert (code, dict(stand_in.downloads)) == (0, before)


def test_the_hint_for_a_data_set_that_is_not_here_downloads_it(
    tmp_path: Path, stand_in: Hub
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    import huggingface_hub

    home = tmp_path / "home"
    ((code, out),) = node(home, stand_in, str(model), "org/text", "offline")
    assert code == 2
    assert "dataset_path: expected org/text from this machine's hub cache, found it missing" in out
    hint = out.partition("hint: ")[2].strip()
    programs = Path(huggingface_hub.__file__).parents[4] / "bin"
    path = f"{programs}:{os.environ['PATH']}"
    environment = os.environ | {"HF_ENDPOINT": stand_in.url, "HF_HOME": str(home), "PATH": path}
    environment.pop("HF_HUB_OFFLINE", None)
    subprocess.run(["bash", "-c", hint], env=environment, check=True, timeout=100)
    ((code, out),) = node(home, stand_in, str(model), "org/text", "offline")
    assert code == 0, out
    assert out.split()[-1].endswith("data/train.jsonl")


def test_tables_of_a_hub_data_set_are_downloaded_if_it_has_nothing_else(
    tmp_path: Path, stand_in: Hub
) -> None:
    about = {"README.md": b"no", "a.csv.gz": b"text\na\n", "dataset_info.json": b"{}"}
    stand_in.files = stand_in.files | {"datasets/org/text": about}
    ((code, out),) = node(tmp_path, stand_in, "org/tiny", "org/text", "")
    assert code == 0, out
    assert out.split()[-1].endswith("a.csv.gz")
    assert "No files matched" not in out
    assert "README.md" not in stand_in.downloads


def test_several_data_sets_with_commas_may_be_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here, or there.jsonl"
    here.write_text("{}\n")
    remote = tmp_path / "hub"
    remote.mkdir()
    (remote / "a.jsonl").write_text("{}\n")
    monkeypatch.setattr(hub, "fetch", lambda *_, **__: remote)
    config = Config(name_or_path="m", dataset_path="d")
    assert hub.dataset_files(str(here), config, key="k") == (here,)
    other = tmp_path / "b.jsonl"
    other.write_text("{}\n")
    both = f"{other}, org/a"
    assert hub.is_hub_dataset(both)
    assert hub.dataset_files(both, config, key="k") == (other, remote / "a.jsonl")
    assert not hub.is_hub_dataset(f"{other},{here.parent}/*.jsonl")
    with pytest.raises(ConfigError, match=r"k: expected .*/b.jsonl once, found it again"):
        hub.dataset_files(f"{other},{tmp_path}/b*", config, key="k")


def test_a_gated_model_needs_the_token_which_is_never_shown(tmp_path: Path, stand_in: Hub) -> None:
    ((code, out),) = node(tmp_path, stand_in, "org/gated", "org/text", "")
    assert code == 2
    assert f"expected org/gated from {stand_in.url}, found HTTP 401" in out
    assert "env_from: [HF_TOKEN]" in out
    ((code, out),) = node(tmp_path, stand_in, "org/gated", "org/text", "", token=TOKEN)
    assert code == 0, out
    assert TOKEN not in out
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(TOKEN.encode() in path.read_bytes() for path in kept)


def launch(home: Path, stand_in: Hub, output: Path, *words: str) -> str:
    """Train, and return what was printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment |= {"HF_ENDPOINT": stand_in.url, "HF_HOME": str(home), "HF_TOKEN": TOKEN}
    environment |= {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "train"),
            *("--name-or-path=org/gated", "--dataset-path=org/text"),
            *("--eval-dataset-path=org/text", f"--output-dir={output}", "--max-steps=1"),
            *("--seq-len=32", *words),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.soak  # above, what is downloaded, once, and offline
@pytest.mark.torch
def test_a_model_and_data_of_the_hub_are_trained_on_and_then_without_it(
    tmp_path: Path, stand_in: Hub, tiny: Path
) -> None:
    model = {path.name: path.read_bytes() for path in (tiny / "model").iterdir()}
    data = {f"data/{name}.jsonl": (tiny / f"{name}.jsonl").read_bytes() for name in SPLITS}
    stand_in.files |= {"models/org/gated": model, "datasets/org/text": data}
    home, output = tmp_path / "home", tmp_path / "output"
    said = launch(home, stand_in, output)
    assert "done at step 1" in said
    assert "Warning" not in said
    assert "dataset_path: train.jsonl of org/text on the hub" in said
    assert "eval_dataset_path: eval.jsonl of org/text on the hub" in said
    assert set(stand_in.downloads.values()) <= {0, 1}
    assert stand_in.downloads["data/train.jsonl"] == stand_in.downloads["model.safetensors"] == 1
    asked = stand_in.asked
    said += launch(home, stand_in, tmp_path / "again", "--offline=true")
    assert "done at step 1" in said
    assert stand_in.asked == asked
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(TOKEN.encode() in content for content in (said.encode(), *kept))


def test_an_unknown_name_is_told(tmp_path: Path, stand_in: Hub) -> None:
    ((code, out),) = node(tmp_path, stand_in, "org/nothing", "org/text", "")
    assert code == 2
    assert "expected org/nothing" in out
    assert "HTTP 404" in out


@pytest.mark.parametrize(
    ("name", "found"),
    [("{}", "a folder without config.json"), ("{}/no/model", "nothing below"), ("./m", "nothing")],
)
def test_a_path_that_holds_no_model_is_told(tmp_path: Path, name: str, found: str) -> None:
    config = Config(name_or_path=name.format(tmp_path), dataset_path="d")
    with pytest.raises(ConfigError, match="name_or_path: expected a model's folder") as caught:
        hub.model_folder(config)
    assert found in str(caught.value)


def test_a_folder_with_bin_files_alone_is_refused_with_what_converts_them(tmp_path: Path) -> None:
    folder = tmp_path / "a model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    config = Config(name_or_path=str(folder), dataset_path="d")
    assert hub.model_folder(config) == folder
    (folder / "pytorch_model-00001-of-00002.bin").touch()
    with pytest.raises(ConfigError, match="found pytorch_model") as caught:
        hub.model_folder(config)
    assert f"python -m train.tools.convert_weights '{folder}'" in str(caught.value)
    (folder / "model.safetensors").touch()
    assert hub.model_folder(config) == folder


@pytest.mark.parametrize(
    ("name", "is_id"),
    [("meta-llama/Llama-3.1-8B", True), ("gpt2", True), ("./gpt2", False), ("/a/b", False),
     ("a/b/c", False), ("~/model", False), ("org/na me", False), ("org/a--b", False),
     ("a..b", False), ("model.git", False), ("a" * 5000, False), ("modèle", False)],
)  # fmt: skip
def test_a_hub_id_is_told_from_a_path(name: str, is_id: Any) -> None:
    assert hub.is_hub_id(name) is is_id


def test_a_dot_in_a_data_sets_name_makes_it_no_file() -> None:
    assert hub.is_hub_dataset("teknium/OpenHermes-2.5")
    assert not hub.is_hub_dataset("data/train.jsonl")
    assert not hub.is_hub_dataset("data/train.parquet")


def files_of(key: str) -> list[Path]:
    config = Config(name_or_path="org/m", dataset_path="org/a")
    return list(hub.dataset_files("org/a", config, key=key))


def test_splits_that_are_held_out_are_not_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "fetch", lambda *_, **__: tmp_path)
    for name in ("part-1", "part-2"):
        (tmp_path / f"{name}.jsonl").touch()
    assert [path.stem for path in files_of("dataset_path")] == ["part-1", "part-2"]
    for name in ("test", "train-00000-of-00001", "validation"):
        (tmp_path / f"{name}.jsonl").touch()
    assert [path.stem for path in files_of("dataset_path")] == ["train-00000-of-00001"]
    assert [path.stem for path in files_of("eval_dataset_path")] == ["validation"]


def test_splits_may_be_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "fetch", lambda *_, **__: tmp_path)
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jsonl").touch()
    assert files_of("dataset_path") == [tmp_path / "train" / "0.jsonl"]


def test_a_hub_data_set_of_other_files_is_told_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "fetch", lambda *_, **__: tmp_path)
    with pytest.raises(ConfigError) as caught:
        files_of("dataset_path")
    assert "found none\nhint: hf download --repo-type dataset org/a" in str(caught.value)


def test_an_evaluation_set_on_the_hub_keeps_the_hub_reachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # so that what settle sets is taken back
    monkeypatch.delenv("HF_HUB_OFFLINE")
    here = Config(name_or_path=str(tmp_path), dataset_path=str(tmp_path))
    hub.settle(replace(here, eval_dataset_path="org/text"))
    assert "HF_HUB_OFFLINE" not in os.environ
    hub.settle(here)
    assert os.environ["HF_HUB_OFFLINE"] == "1"
