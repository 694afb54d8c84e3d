"""The plan: who gets which ranks, what is run where, and who said so."""

from __future__ import annotations

import json
import pkgutil
from dataclasses import replace
from typing import get_args

import pytest

from clusterctl.errors import LaunchRefused, UsageError
from clusterctl.facts.network.ports import Listener
from clusterctl.facts.software.python import Python
from clusterctl.inventory.cluster import Job, LauncherName, Ssh
from clusterctl.network.ports import RAS_PORTS, choose_ras_port
from clusterctl.plan import launchers
from clusterctl.plan.launchers import LAUNCHERS
from clusterctl.plan.options import Options
from clusterctl.plan.plan import NodePlan, Variable
from clusterctl.wire import plain
from tests.plan.conftest import GPUS, Planner, facts, infiniband, node


def variable(planned: NodePlan, name: str) -> Variable:
    return next(each for each in planned.env if each.name == name)


def values(planned: NodePlan) -> dict[str, str | None]:
    return {each.name: each.value for each in planned.env}


def test_ranks_go_on_from_node_to_node_whatever_each_has(plan: Planner) -> None:
    made = plan()
    assert [list(each.ranks) for each in made.nodes] == [
        [*range(8)], [8, 9, 10, 11], [*range(12, 20)],
    ]  # fmt: skip
    assert made.world_size == 20
    assert [each.node_rank for each in made.nodes] == [0, 1, 2]
    assert made.master.node == "n0"
    assert [each.node for each in made.workers] == ["n1", "n2"]


def test_torchrun_is_called_by_address_on_every_node(plan: Planner) -> None:
    assert plan().node("n1").command_line == (
        "/venv/bin/python", "-m", "torch.distributed.run",
        "--nnodes=3", "--node-rank=1", "--nproc-per-node=4",
        "--master-addr=10.0.0.0", "--master-port=29500", "--local-addr=10.0.0.1",
        "--log-dir=/var/tmp/clusterctl-1000/lab/lab-1/n1/torchrun",
        "--no-python", "/venv/bin/python", "-m", "train", "--lr", "1e-4",
    )  # fmt: skip


def test_c10d_agents_meet_at_the_masters_address_under_the_runs_name(plan: Planner) -> None:
    job = Job(command=("x.py",), launcher_args=("--rdzv_backend=c10d", "--rdzv-conf=timeout=60"))
    made = plan(job=job)
    assert (made.launcher_decides, made.min_nodes) == (False, 0)
    words = made.node("n1").launcher_argv
    assert words[3:8] == (
        "--nnodes=3", "--nproc-per-node=4", "--rdzv-backend=c10d", "--rdzv-id=lab-1",
        "--rdzv-endpoint=10.0.0.0:29500",
    )  # fmt: skip
    assert "--rdzv-conf=timeout=60,is_host=false" in words
    assert "--rdzv-conf=timeout=60,is_host=true" in made.master.launcher_argv
    assert not any(word.startswith(("--node-rank", "--master")) for word in words)


def test_an_elastic_run_needs_its_fewest_nodes_only(plan: Planner) -> None:
    made = plan(job=Job(command=("x.py",), launcher_args=("--nnodes", "2:4")))
    assert (made.launcher_decides, made.min_nodes) == (True, 2)
    assert "--rdzv-conf=is_host=true" in made.master.launcher_argv
    assert values(made.master)["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    for nnodes in ("4:5", "1:2"):
        with pytest.raises(UsageError, match="found 3"):
            plan(job=Job(command=("x.py",), launcher_args=(f"--nnodes={nnodes}",)))


def test_a_folder_of_the_jobs_own_for_torchruns_files_counts(plan: Planner) -> None:
    own = plan(job=Job(command=("x.py",), env=(("PET_LOG_DIR", "/logs"),))).master
    assert not any(word.startswith("--log-dir") for word in own.launcher_argv)
    given = plan(job=Job(command=("x.py",), launcher_args=("--log-dir=/logs",))).master
    assert given.launcher_argv[-2] == "--log-dir=/logs"  # the last one counts


def test_launcher_args_pass_through_and_restarts_let_the_launcher_decide(plan: Planner) -> None:
    job = Job(command=("train.py",), launcher_args=("--max-restarts=2", "--tee", "3"))
    made = plan(job=job)
    assert made.launcher_decides
    assert made.master.launcher_argv[-4:] == ("--max-restarts=2", "--tee", "3", "--no-python")
    limited = plan(options=Options(max_restarts=1))
    assert limited.launcher_decides
    assert "--max-restarts=1" in limited.master.launcher_argv
    for harmless in ((), ("--max-restarts=0",), ("--max_restarts", "0")):
        assert not plan(job=Job(command=("x.py",), launcher_args=harmless)).launcher_decides
    assert plan(job=Job(command=("x.py",), launcher_args=("--max_restarts", "3"))).launcher_decides


def test_no_restarts_is_a_choice_too(plan: Planner) -> None:
    job = Job(command=("x.py",), launcher_args=("--max-restarts=2",))
    made = plan(job=job, options=Options(max_restarts=0))
    assert not made.launcher_decides
    assert made.master.launcher_argv[-3:-1] == ("--max-restarts=2", "--max-restarts=0")
    assert not plan(options=Options(launcher="direct", max_restarts=0)).launcher_decides


@pytest.mark.parametrize(
    ("options", "origin"),
    [
        (Options(), "job.command"),
        (Options(command=("x.py",)), "after `--`"),
        (Options(command=("x.py",), origins={"command": "run lab-0"}), "run lab-0"),
    ],
)
def test_the_command_and_where_it_came_from(plan: Planner, options: Options, origin: str) -> None:
    settings = {each.name: each for each in plan(options=options).settings}
    assert settings["command"].origin == origin


def test_direct_has_no_engine_and_sets_what_torch_reads(plan: Planner) -> None:
    job = Job(command=("train.py",), launcher_args=("--tee=3",))
    made = plan(job=job, options=Options(launcher="direct"))
    assert made.node("n1").command_line == ("/venv/bin/python", "train.py")
    env = values(made.node("n1"))
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.0", "29500")
    assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["NODE_RANK"]) == ("20", "4", "1")
    assert env["RANK"] is None
    assert "MASTER_ADDR" not in values(plan().node("n1"))


def accelerates(plan: Planner, *args: str, gpus: int | None = 4, **known: object) -> list[str]:
    job = Job(command=("-m", "axolotl.cli.train", "config.yml"), launcher_args=args)
    options = Options(launcher="accelerate", gpus=gpus)
    job = replace(job, launcher="accelerate")
    return list(
        plan(
            job=job,
            options=options,
            known={f"n{n}": facts(n, each, **known) for n, each in enumerate((8, 4, 8))},
        )
        .node("n1")
        .command_line
    )


def test_accelerate_is_called_with_the_plans_counts_and_addresses(plan: Planner) -> None:
    assert accelerates(plan) == [
        "/venv/bin/python", "-m", "accelerate.commands.launch",
        "--num_machines=3", "--num_processes=12", "--machine_rank=1",
        "--main_process_ip=10.0.0.0", "--main_process_port=29500",
        "--rdzv_backend=static", "--same_network", "--deepspeed_multinode_launcher=standard",
        "--log_dir=/var/tmp/clusterctl-1000/lab/lab-1/n1/torchrun", "--multi_gpu",
        "--no_python", "/venv/bin/python", "-m", "axolotl.cli.train", "config.yml",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "config", "added"),
    [
        ((), (), True),
        ((), (("distributed_type", "NO"),), True),
        ((), (("distributed_type", "FSDP"),), False),
        (("--config_file", "fsdp.yaml"), (), False),
        (("--config-file=fsdp.yaml",), (("distributed_type", "MULTI_CPU"),), True),
        (("--use_deepspeed",), (), False),
        (("--use-fsdp",), (("distributed_type", "NO"),), False),
    ],
)
def test_what_the_user_configured_for_accelerate_decides_how_ranks_train(
    plan: Planner, args: tuple[str, ...], config: tuple[tuple[str, str], ...], *, added: bool
) -> None:
    words = accelerates(plan, *args, launcher_config=config)
    assert ("--multi_gpu" in words) == added
    assert all(word in words for word in args)


def test_accelerate_on_cpus_and_with_a_single_rank(plan: Planner) -> None:
    assert "--multi_gpu" in accelerates(plan, gpus=0)
    options = Options(launcher="accelerate", gpus=0)
    made = plan(options=options, nodes=(node(0),)).master
    assert "--cpu" in made.launcher_argv
    found = values(made)
    assert (found["RANK"], found["WORLD_SIZE"], found["ACCELERATE_USE_CPU"]) == ("0", "1", "true")
    assert "RANK" not in values(plan(options=options).master)  # torch's agent sets it


def test_accelerate_with_nodes_of_different_size_is_refused(plan: Planner) -> None:
    with pytest.raises(LaunchRefused, match="found 8 on n0, 4 on n1, 8 on n2") as refused:
        accelerates(plan, gpus=None)
    assert "--launcher torchrun (or direct)" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        (("-m", "train"), ("/venv/bin/python", "-m", "train")),
        (("-c", "pass"), ("/venv/bin/python", "-c", "pass")),
        (("a b/train.py", "x"), ("/venv/bin/python", "a b/train.py", "x")),
        (("nsys", "profile", "python"), ("nsys", "profile", "python")),
        (("./train.sh",), ("./train.sh",)),
    ],
)
def test_a_module_an_option_or_a_py_file_is_the_interpreters(
    plan: Planner, command: tuple[str, ...], argv: tuple[str, ...]
) -> None:
    assert plan(options=Options(command=command)).master.argv == argv


def test_the_interpreter_is_the_inventorys_else_the_one_found(plan: Planner) -> None:
    nodes = (node(0, python=None), node(1, python="python3"), node(2))
    made = plan(nodes=nodes)
    assert [each.argv[0] for each in made.nodes] == [
        "/usr/bin/python3.11", "python3", "/venv/bin/python",
    ]  # fmt: skip
    assert [each.path_first for each in made.nodes] == ["/usr/bin", None, "/venv/bin"]


def test_each_node_has_its_own_network_variables_with_the_reason(plan: Planner) -> None:
    known = {f"n{n}": facts(n, 1, rdma=infiniband()) for n in range(3)}
    planned = plan(known=known).node("n2")
    env = values(planned)
    assert (env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"]) == ("=eth2", "eth2")
    assert env["NCCL_IB_HCA"] == "=mlx5_0"
    chosen = variable(planned, "NCCL_SOCKET_IFNAME")
    assert chosen.layer == "chosen"
    assert "the only subnet that all 3 nodes share" in chosen.origin


def test_what_the_person_sets_wins_and_the_flag_over_the_file(plan: Planner) -> None:
    job = Job(
        command=("x.py",),
        env=(("NCCL_SOCKET_IFNAME", "bond0"), ("A", "job"), ("OMP_NUM_THREADS", "9")),
        env_from=("HF_TOKEN",),
    )
    options = Options(
        env=(("A", "flag"), ("NCCL_DEBUG", "WARN")), debug=True, origins={"env": "--env"}
    )
    planned = plan(job=job, options=options).master
    env = values(planned)
    assert (env["NCCL_SOCKET_IFNAME"], env["A"], env["OMP_NUM_THREADS"]) == ("bond0", "flag", "9")
    assert env["NCCL_DEBUG"] == "WARN"
    assert [each.layer for each in planned.env if each.name == "NCCL_SOCKET_IFNAME"] == ["asked"]
    assert (variable(planned, "A").origin, variable(planned, "OMP_NUM_THREADS").origin) == (
        "--env", "job.env",
    )  # fmt: skip
    secret = variable(planned, "HF_TOKEN")
    assert (secret.value, secret.origin) == (None, "env_from: read at launch")
    assert len({each.name for each in planned.env}) == len(planned.env)


def test_debug_makes_nccl_talk_into_the_runs_own_folder(plan: Planner) -> None:
    planned = plan(options=Options(debug=True)).node("n1")
    env = values(planned)
    assert (env["NCCL_DEBUG"], env["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,NET")
    assert env["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"
    folder = "/var/tmp/clusterctl-1000/lab/lab-1/n1"
    assert env["NCCL_DEBUG_FILE"] == f"{folder}/nccl/%h.%p.log"
    assert planned.state == folder
    assert variable(planned, "NCCL_DEBUG").origin == "--debug"
    assert "NCCL_DEBUG" not in values(plan().master)


def test_without_gpus_there_are_cpu_processes(plan: Planner) -> None:
    nodes = (node(0, gpus=0, procs=3), node(1, gpus=0), node(2))
    known = {"n0": facts(0, 8), "n1": facts(1, 0), "n2": facts(2, 0)}
    made = plan(nodes=nodes, known=known)
    assert [(each.procs, each.device) for each in made.nodes] == [
        (3, "cpu"), (1, "cpu"), (1, "cpu"),
    ]  # fmt: skip
    assert made.nodes[0].procs_origin == "the inventory's procs"
    assert values(made.nodes[0])["CUDA_VISIBLE_DEVICES"] == ""
    assert values(made.nodes[0])["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in values(made.nodes[1])


@pytest.mark.parametrize(
    ("installed", "told"),
    [
        ("peft==0.21 torch==2.13.0 zipp==1", "true"),
        ("torch==2.13.0 torch_npu==2.7.1", None),
        ("peft==0.21 torch==2.13.0+xpu", None),
    ],
)
def test_accelerate_is_told_of_cpu_ranks_and_finds_other_accelerators_itself(
    plan: Planner, installed: str, told: str | None
) -> None:
    python = Python(asked="python3", found=True, executable="/p", everything=installed)
    made = plan(nodes=(node(0, gpus=0),), known={"n0": facts(0, 0, python=python)})
    assert values(made.master).get("ACCELERATE_USE_CPU") == told
    assert "ACCELERATE_USE_CPU" not in values(plan().master)


def test_fewer_gpus_can_be_asked_for_and_never_more_than_there_are(plan: Planner) -> None:
    options = Options(gpus=6, origins={"gpus": "CLUSTERCTL_GPUS"})
    made = plan(options=options)
    assert [each.procs for each in made.nodes] == [6, 4, 6]
    assert [each.procs_origin for each in made.nodes] == [
        "CLUSTERCTL_GPUS", "the GPUs found", "CLUSTERCTL_GPUS",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "launcher", [name for name, launcher in LAUNCHERS.items() if not launcher.one_driver]
)
def test_fewer_ranks_than_gpus_see_all_gpus_that_are_asked_for(
    plan: Planner, launcher: LauncherName
) -> None:
    def seen(options: Options) -> list[tuple[int, str | None]]:
        made = plan(options=replace(options, launcher=launcher), nodes=(node(0),))
        return [(one.procs, values(one).get("CUDA_VISIBLE_DEVICES")) for one in made.nodes]

    assert seen(Options(procs_per_node=1)) == [(1, None)]
    assert seen(Options(procs_per_node=2)) == [(2, None)]
    assert seen(Options(procs_per_node=1, gpus=8)) == [(1, None)]
    assert seen(Options(procs_per_node=1, gpus=4)) == [(1, "0,1,2,3")]
    assert seen(Options(procs_per_node=1, gpus=0)) == [(1, "")]
    assert seen(Options(gpus=4)) == [(4, None)]


def test_the_port_and_where_it_came_from(plan: Planner) -> None:
    settings = {each.name: each for each in plan().settings}
    assert (settings["master_port"].value, settings["master_port"].origin) == (
        "29500", "PyTorch's default",
    )  # fmt: skip
    settings = {each.name: each for each in plan(master_port=29500).settings}
    assert settings["master_port"].origin == "network.master_port"
    made = plan(options=Options(master_port=4000), master_port=29500)
    settings = {each.name: each for each in made.settings}
    assert (made.master_port, settings["master_port"].origin) == (4000, "--master-port")
    assert "--master-port=4000" in made.node("n2").launcher_argv


def test_ray_starts_one_driver_and_the_other_nodes_serve_it(plan: Planner) -> None:
    job = Job(command=("train.py",), launcher="ray", launcher_args=("--num-cpus=4",))
    made = plan(job=job)
    assert made.world_size == 1
    assert [list(each.ranks) for each in made.nodes] == [[0], [], []]
    assert [each.ends_with_master for each in made.nodes] == [False, True, True]
    assert [each.command_line for each in made.nodes] == [n.launcher_argv for n in made.nodes]
    assert [each.driver for each in made.nodes] == [("/venv/bin/python", "train.py"), (), ()]
    everywhere = (
        "--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0",
        "--block", "--num-cpus=4",
    )  # fmt: skip
    start = ("/venv/bin/python", "-m", "ray.scripts.scripts", "start")
    assert made.master.launcher_argv == (
        *start, "--head", "--port=29500", "--include-dashboard=false",
        "--node-ip-address=10.0.0.0", "--node-name=n0", "--num-gpus=8", *everywhere,
    )  # fmt: skip
    assert made.node("n1").launcher_argv == (
        *start, "--address=10.0.0.0:29500",
        "--node-ip-address=10.0.0.1", "--node-name=n1", "--num-gpus=4", *everywhere,
    )  # fmt: skip
    for each in made.nodes:
        assert values(each)["RAY_ADDRESS"] == "10.0.0.0:29500"
        # Ray's own workers would inherit them, and torch would believe them.
        assert not values(each).keys() & {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"}
    assert variable(made.master, "RAY_USAGE_STATS_ENABLED").layer == "built-in"
    own = plan(job=replace(job, env=(("RAY_USAGE_STATS_ENABLED", "1"),))).master
    assert values(own)["RAY_USAGE_STATS_ENABLED"] == "1"
    cpus = plan(job=job, options=Options(gpus=0)).master
    assert "--num-gpus=0" in cpus.launcher_argv
    assert cpus.procs == 1


def test_with_a_ray_that_exists_only_the_driver_is_started(plan: Planner) -> None:
    job = Job(command=("train.py",), launcher="ray", ray_address="ray://10.9.9.9:10001")
    made = plan(job=job)
    assert [each.node for each in made.nodes] == ["n0"]
    assert made.master.command_line == ("/venv/bin/python", "train.py")
    assert values(made.master)["RAY_ADDRESS"] == "ray://10.9.9.9:10001"
    assert not made.master.launcher_program
    assert not made.master.driver
    assert not made.gathers
    assert len(plan(job=replace(job, launcher="direct")).nodes) == len(GPUS)


def test_a_driver_is_one_process_whatever_is_asked_for(plan: Planner) -> None:
    with pytest.raises(UsageError, match="ray starts the command once"):
        plan(options=Options(launcher="ray", procs_per_node=2))


def test_every_launcher_of_the_format_can_be_launched_with() -> None:
    assert set(LAUNCHERS) == set(get_args(LauncherName))


def test_what_cannot_be_planned_is_refused(plan: Planner) -> None:
    with pytest.raises(UsageError, match="no command"):
        plan(job=Job())
    with pytest.raises(UsageError, match=f"expected one of {', '.join(LAUNCHERS)}, found mpi"):
        plan(options=Options(launcher="mpi"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="direct does not restart"):
        plan(options=Options(launcher="direct", max_restarts=1))
    unknown = {f"n{n}": replace(facts(n, 1), gpus=None) for n in range(3)}
    with pytest.raises(LaunchRefused, match="n0: the number of its GPUs"):
        plan(known=unknown)


def test_nodes_on_one_machine_have_a_lock_each(plan: Planner) -> None:
    assert {each.lock for each in plan().nodes} == {"clusterctl-run"}
    nodes = (node(0, ssh=Ssh(port=2201)), node(1, ssh=Ssh(port=2202)), node(2))
    made = plan(nodes=nodes, same_machine=True)
    assert [each.lock for each in made.nodes] == [
        "clusterctl-run-2201", "clusterctl-run-2202", "clusterctl-run-n2",
    ]  # fmt: skip


def test_a_plan_is_json(plan: Planner) -> None:
    document = json.loads(json.dumps(plain(plan())))
    assert document["schema"] == 1
    assert document["nodes"][1]["first_rank"] == 8


def test_an_inventory_can_name_every_launcher() -> None:
    assert set(LAUNCHERS) <= set(get_args(LauncherName))


def test_every_file_of_a_launcher_is_registered() -> None:
    modules = {module.name for module in pkgutil.iter_modules(launchers.__path__)}
    assert modules - {"interface"} == set(LAUNCHERS)


def test_ranks_on_gpus_tell_what_nccl_and_the_flight_recorder_know(plan: Planner) -> None:
    made = plan().node("n1")
    address = variable(made, "NCCL_RAS_ADDR")
    assert address.layer == "built-in", "the node's own and the job's win"
    host, _, port = str(address.value).rpartition(":")
    assert (host, int(port) in RAS_PORTS) == ("127.0.0.1", True)
    prefix = "/var/tmp/clusterctl-1000/lab/lab-1/n1/recorder_"
    assert values(made)["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] == prefix
    assert values(made)["TORCH_FR_DUMP_TEMP_FILE"] == prefix
    given = (("NCCL_RAS_ADDR", "h:1"), ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/t/fr_"))
    own = values(plan(job=Job(command=("x.py",), env=given)).master)
    assert own["NCCL_RAS_ADDR"] == "h:1"
    assert "TORCH_FR_DUMP_TEMP_FILE" not in own, "torch would not read the one that is given"
    docker = ("docker", "run", "image")
    for command, wrap in (("x.py", docker), ("x.py", ("sudo", "-E")), ("x.sh", ())):
        job = Job(command=(command,), launcher="direct", wrap=wrap)
        boxed = values(plan(job=job).master)
        assert "NCCL_RAS_ADDR" in boxed
        assert not {name for name in boxed if name.startswith("TORCH_")}, "it may run elsewhere"
    for command in ("/venv/bin/python3.12", "python"):
        job = Job(command=(command, "x.py"))
        assert "TORCH_FR_DUMP_TEMP_FILE" in values(plan(job=job).master)
    cpu = values(plan(nodes=tuple(node(n, gpus=0, procs=1) for n in range(3))).master)
    assert not {name for name in cpu if name.startswith(("NCCL_RAS", "TORCH_"))}


def test_runs_on_one_machine_ask_nccl_at_different_ports() -> None:
    known = facts(0, 8)
    ports = {choose_ras_port(f"lab-{n}", known) for n in range(20)}
    assert len(ports) >= 19
    first = choose_ras_port("lab-1", known)
    taken = replace(known, listeners=(Listener(port=first, address="127.0.0.1"),))
    assert choose_ras_port("lab-1", taken) in set(RAS_PORTS) - {first}
    full = replace(known, listeners=tuple(Listener(port=p, address="::1") for p in RAS_PORTS))
    assert choose_ras_port("lab-1", full) == first
