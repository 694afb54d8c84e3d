"""Flags that users of other launchers try: each gets a true answer, and a command that works."""

from __future__ import annotations

import shlex

import pytest

from clusterctl.cli.shared.main import main
from clusterctl.cli.shared.parser import build_parser

PROGRAM = "-- train.py"


@pytest.mark.parametrize(
    ("typed", "instead"),
    [
        # torchrun
        ("--nnodes 2", "--nodes 2"),
        ("--nnodes=2:3", "--launcher-args=--nnodes=2:3"),
        ("--nproc-per-node 8", "--gpus 8"),
        ("--nproc_per_node=4", "--gpus 4"),
        ("--nproc-per-node=gpu", ""),
        ("--node-rank 0 --master_addr 10.0.0.1", ""),
        ("--master_port 29500", "--master-port 29500"),
        ("--max_restarts=3", "--max-restarts 3"),
        ("--rdzv-backend=c10d", "--launcher-args=--rdzv-backend=c10d"),
        ("--rdzv_endpoint gpu1:29500 --rdzv_id 7", ""),
        ("--standalone --nnodes=1", "--nodes 1"),
        (
            "--tee 3 --rdzv_conf timeout=9",
            "--launcher-args=--tee=3 --launcher-args=--rdzv_conf=timeout=9",
        ),
        # accelerate
        ("--num_machines 2 --machine_rank 0", "--nodes 2"),
        ("--num_processes 16", ""),
        ("--main_process_ip 10.0.0.1", ""),
        ("--main_process_port 29500", "--master-port 29500"),
        ("--mixed_precision bf16", "--launcher accelerate --launcher-args=--mixed_precision=bf16"),
        (
            "--launcher accelerate --config_file fsdp.yaml",
            "--launcher accelerate --launcher-args=--config_file=fsdp.yaml",
        ),
        (
            "--fsdp_sharding_strategy X",
            "--launcher accelerate --launcher-args=--fsdp_sharding_strategy=X",
        ),
        ("--multi_gpu", ""),
        ("--gpu_ids all", ""),
        ("--gpu_ids 0,1,2", "--gpus 3"),
        ("--gpu-ids=1,3", "--env CUDA_VISIBLE_DEVICES=1,3"),
        # deepspeed
        ("--num_gpus 4", "--gpus 4"),
        ("--num_nodes=2", "--nodes 2"),
        ("--include gpu1", "--nodes gpu1"),
        ("--include gpu1:0,1@gpu2:0,1", "--nodes gpu1,gpu2 --gpus 2"),
        ("--include=gpu1:2,3@gpu2:2,3", "--nodes gpu1,gpu2 --env CUDA_VISIBLE_DEVICES=2,3"),
        ("--include gpu1:0@gpu2:0,1", "--nodes gpu1,gpu2"),
        # mpirun and srun
        ("-np 16", ""),
        ("--gpus 2 -np 4 --bind-to none", "--gpus 2"),
        ("--ntasks-per-node=8", "--gpus 8"),
        ("--gpus-per-node 8", "--gpus 8"),
        ("-N 2", "--nodes 2"),
        ("--ntasks 16", ""),
        # pdsh
        ("-w gpu1,gpu2", "--nodes gpu1,gpu2"),
        ("-x gpu3", "--exclude gpu3"),
        # other words for ours
        ("--avoid --nodes 2", "--nodes 2 --exclude-quarantined"),
        ("--skip-check --hosts gpu1", "--no-check --nodes gpu1"),
        ("--background --retries 2 --exclude-nodes gpu3", "--detach --restarts 2 --exclude gpu3"),
        # a typo, and a flag of the program
        ("--nods 2", "--nodes 2"),
    ],
)
def test_a_flag_of_another_launcher_gets_the_command_to_type(
    typed: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", *shlex.split(f"{typed} {PROGRAM}")]) == 2
    problem, hint = capsys.readouterr().err.splitlines()
    assert hint == "hint: " + shlex.join(("clusterctl", "launch", *f"{instead} {PROGRAM}".split()))
    for flag in (word.partition("=")[0] for word in typed.split() if word.startswith("-")):
        assert flag in problem or flag in instead
    build_parser(["launch"]).parse_args(["launch", *instead.split()])  # it works when typed


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("--hostfile hosts.txt", "clusterctl init --from hosts.txt"),
        ("--env-from HF_TOKEN", "job: {env_from: [HF_TOKEN]} in the inventory"),
        ("--checkpoints out", "job: {checkpoints: out} in the inventory"),
        ("--partition gpu", "job: {slurm: {partition: gpu}} in the inventory"),
        ("-p gpu", "job: {slurm: {partition: gpu}} in the inventory"),
        ("--time 1-0", "job: {slurm: {time: 1-0}} in the inventory"),
        ("--python /opt/py", "defaults: {python: /opt/py} in the inventory"),
        ("--user bob", "ssh: {user: bob} in the inventory"),
        ("--ssh-key k", "ssh: {identity: k} in the inventory"),
        ("--notify x", "job: {notify: ...} in the inventory"),
        ("--ifname eth0", "network: {subnet: 10.11.7.0/24} in the inventory"),
        ("--master gpu1", "nodes: [{host: gpu1, master: true}, ...] in the inventory"),
    ],
)
def test_a_flag_that_is_no_flag_here_gets_its_place(
    typed: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", *shlex.split(f"{typed} {PROGRAM}")]) == 2
    assert capsys.readouterr().err.splitlines()[1] == f"hint: {hint}"


def test_a_key_of_the_inventory_gets_its_place_at_each_verb(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["check", "--port", "2222"])
    assert capsys.readouterr().err.splitlines()[1] == "hint: ssh: {port: 2222} in the inventory"


@pytest.mark.parametrize(
    ("typed", "instead"),
    [
        ("stop --all --yes", "stop --all"),
        ("status -y", "status"),
        ("runs --prune 0 --assume-yes", "runs --prune 0 --yes"),
    ],
)
def test_consent_is_taken_where_a_question_is_asked(
    typed: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed.split()) == 2
    assert capsys.readouterr().err.splitlines()[1] == f"hint: clusterctl {instead}"


def test_words_before_the_command_are_the_programs(capsys: pytest.CaptureFixture[str]) -> None:
    main(["launch", "--nodes", "2", "model.lr=2", "--", "train.py", "x"])
    hint = "clusterctl launch --nodes 2 -- train.py x model.lr=2"
    assert capsys.readouterr().err.splitlines()[1] == f"hint: {hint}"


def test_another_word_is_no_typo(capsys: pytest.CaptureFixture[str]) -> None:
    main(["launch", "--venv", "x"])
    assert capsys.readouterr().err.splitlines()[1] == "hint: clusterctl launch --help"


@pytest.mark.parametrize("verb", ["check", "exec", "sync"])
def test_pdsh_s_hosts_are_nodes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([verb, "-w", "gpu1"])
    assert capsys.readouterr().err.splitlines()[1] == f"hint: clusterctl {verb} --nodes gpu1"


def test_what_no_launcher_has_is_the_programs(capsys: pytest.CaptureFixture[str]) -> None:
    main(["launch", *shlex.split(f"--lr 3 --nnodes 2 {PROGRAM}")])
    hint = "clusterctl launch --nodes 2 -- train.py --lr 3"
    assert capsys.readouterr().err.splitlines()[1] == f"hint: {hint}"
