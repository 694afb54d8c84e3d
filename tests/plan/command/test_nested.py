"""Launchers in a job's command or script are recognized, and the command to type is given."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from clusterctl.api.flags import launch_options
from clusterctl.cli.shared.launch_options import launch_flags
from clusterctl.cli.shared.parser import build_parser
from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Cluster, Job
from clusterctl.plan.command.launcher_flags import start_of
from clusterctl.plan.command.nested import require_no_launcher
from clusterctl.plan.effective import effective
from clusterctl.plan.options import Options
from tests.plan.conftest import node

LAB = Cluster(name="lab", nodes=(node(0), node(1)))


def refused(command: str, cluster: Cluster = LAB) -> UsageError:
    given = effective(cluster, Options(command=tuple(shlex.split(command))))
    with pytest.raises(UsageError) as caught:
        require_no_launcher(given)
    return caught.value


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("torchrun --nproc_per_node=4 --nnodes 2 train.py --lr 1", "--gpus 4 -- train.py --lr 1"),
        ("/venv/bin/torchrun --standalone --nproc-per-node gpu x.py", "-- x.py"),
        ("torchrun --nnodes=1 --nproc_per_node 8 x.py", "--nodes 1 --gpus 8 -- x.py"),
        ("python -m torch.distributed.run --nproc_per_node 2 -m x -q", "--gpus 2 -- -m x -q"),
        ("-m torch.distributed.launch --use_env x.py", "-- x.py"),
        ("python3.11 -u -m torch.distributed.run --no-python ./x.sh", "-- ./x.sh"),
        ("env OMP_NUM_THREADS=1 torchrun --max-restarts 3 x.py",
         "--max-restarts 3 --env OMP_NUM_THREADS=1 -- x.py"),
        ("torchrun --rdzv_endpoint h:1 --master_port 7 x.py", "--master-port 7 -- x.py"),
        ("accelerate launch --num_processes 8 --machine_rank 0 x.py a", "--gpus 4 -- x.py a"),
        (
            "accelerate launch --mixed_precision bf16 x.py",
            "--env ACCELERATE_MIXED_PRECISION=bf16 -- x.py",
        ),
        (
            "deepspeed --num_gpus=8 --hostfile hf x.py --deepspeed ds.json",
            "--gpus 8 -- x.py --deepspeed ds.json",
        ),
        ("mpirun -np 16 --allow-run-as-root python -u x.py --a", "--gpus 8 -- x.py --a"),
        ("srun --ntasks-per-node=8 python -m train", "--gpus 8 -- -m train"),
        ("mpirun -np 16 --mca btl_tcp_if_include eth0 python x.py", "--gpus 8 -- x.py"),
        ("torchrun --nproc_per_node ² x.py", "-- x.py"),
        ("env -u X torchrun x.py", "-- x.py"),
        ("python -W ignore -m torch.distributed.run x.py", "-- x.py"),
        ("python /venv/bin/torchrun x.py", "-- x.py"),
        ("torchrun --nnode=2 --nproc=4 x.py", "--gpus 4 -- x.py"),
        ("torchrun --nnodes=1:2 x.py", "--launcher-args=--nnodes=1:2 -- x.py"),
        ("torchrun --tee 3 -r 1 x.py --tee", "'--launcher-args=--tee 3 -r 1' -- x.py --tee"),
        (
            "torchrun --log_line_prefix_template r: x.py",  # torch 2.15
            "'--launcher-args=--log-line-prefix-template r:' -- x.py",
        ),
        ("accelerate launch --num_processes 8 --num_machines 1 x.py", "--nodes 1 --gpus 8 -- x.py"),
        (
            "accelerate launch --config_file fsdp.yaml --num_processes 8 x.py",
            "--launcher accelerate '--launcher-args=--config-file fsdp.yaml' --gpus 4 -- x.py",
        ),
        (
            "python -m accelerate.commands.accelerate_cli launch --config_file fsdp.yaml x.py",
            "--launcher accelerate '--launcher-args=--config-file fsdp.yaml' -- x.py",
        ),
        (
            "accelerate launch --use_fsdp --num_processes 8 --fsdp_version 2 x.py",
            "--launcher accelerate '--launcher-args=--use_fsdp --fsdp-version 2' --gpus 4 -- x.py",
        ),
        (
            "accelerate launch --use_deepspeed --zero_stage=3 --deepspeed_hostfile hf x.py",
            "--launcher accelerate '--launcher-args=--use_deepspeed --zero_stage=3' -- x.py",
        ),
        (
            "accelerate launch --mixed_precision bf16 --use_fsdp x.py",
            "--launcher accelerate '--launcher-args=--mixed-precision bf16 --use_fsdp' -- x.py",
        ),
        (
            "accelerate launch --num_cpu_threads_per_process 8 x.py",
            "--env OMP_NUM_THREADS=8 -- x.py",
        ),
        ("deepspeed --num_nodes 2 --num_gpus 8 --master_addr h --ssh_port 22 --module pkg.t --a 1",
         "--gpus 8 -- -m pkg.t --a 1"),
        ("srun -N 1 -n 8 python x.py", "--nodes 1 --gpus 8 -- x.py"),
        ("srun --ntasks-per-node=4 --gpus-per-node=8 python x.py", "--gpus 4 -- x.py"),
        ("mpirun -np 2 -npernode 1 python x.py", "--gpus 1 -- x.py"),
        ("srun -n 8 --ntasks-per-node=1 torchrun --nproc-per-node 4 x.py", "--gpus 4 -- x.py"),
        ("mpirun -x NCCL_DEBUG=INFO -x PATH x.py", "--env NCCL_DEBUG=INFO -- x.py"),
        (
            "deepspeed --include localhost:2,3 x.py",
            "--nodes 1 --env CUDA_VISIBLE_DEVICES=2,3 -- x.py",
        ),
        ("deepspeed --include a:0,1@b:0,1 x.py", "--nodes a,b --gpus 2 -- x.py"),
        ("deepspeed --include a:1@b:0 x.py", "--nodes a,b --gpus 1 -- x.py"),
        ("deepspeed -i a:2@b:2 x.py", "--nodes a,b --env CUDA_VISIBLE_DEVICES=2 -- x.py"),
        ("ds --num_gpus 2 x.py", "--gpus 2 -- x.py"),
        ("/venv/bin/deepspeed.pt x.py", "-- x.py"),
        ("deepspeed --exclude a@b x.py", "--exclude a,b -- x.py"),
        ("accelerate launch --gpu_ids 1,3 x.py", "--env CUDA_VISIBLE_DEVICES=1,3 -- x.py"),
        ("accelerate launch --gpu_ids all x.py", "-- x.py"),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 2 x.py",
         "--gpus 2 --env CUDA_VISIBLE_DEVICES=0,1 -- x.py"),
        ("nohup torchrun --nproc_per_node 2 x.py", "--gpus 2 --detach -- x.py"),
        ("screen -L -Logfile f -S s torchrun x.py", "--detach -- x.py"),
        ("nohup torchrun x.py '>' log '2>&1' '&'", "--detach -- x.py"),
        ("torchrun x.py --pad '<p>' -e 'a|b' '>log'", "-- x.py --pad '<p>' -e 'a|b'"),
        ("torchrun --tee 3 x.py '&'", "'--launcher-args=--tee 3' --detach -- x.py"),
        ("automodel --nproc-per-node 2 c.yaml --a.b=1",
         "--gpus 2 -- -m nemo_automodel.cli.app c.yaml --a.b=1"),
        ("axolotl train c.yaml --lr 1", "-- -m axolotl.cli.train c.yaml --lr 1"),
        ("axolotl train c.yaml --launcher torchrun -- --nnodes 2 --nproc_per_node 8 --rdzv_id 5",
         "--gpus 8 -- -m axolotl.cli.train c.yaml"),
        ("axolotl train c.yaml --launcher=accelerate --lr 1 -- --config_file f.yaml",
         ("--launcher accelerate '--launcher-args=--config-file f.yaml' -- -m axolotl.cli.train"
         " c.yaml --lr 1")),
        ("trl sft --model m", "-- -m trl.scripts.sft --model m"),
        ("colossalai run --nproc_per_node 4 x.py --a", "--gpus 4 -- x.py --a"),
        # argparse drops the first `--` behind the program's name.
        ("torchrun --nproc_per_node=8 -m pkg.t -- --a 1 -- b", "--gpus 8 -- -m pkg.t --a 1 -- b"),
        ("accelerate launch x.py -- --a", "-- x.py --a"),
        ("torchrun -- x.py -- --a", "-- x.py -- --a"),
        ("srun x.py -- --a", "-- x.py -- --a"),
        ("composer -n 8 x.py --a", "--gpus 8 -- x.py --a"),
        ("composer --nproc 8 --world_size 16 --node_rank 0 --master_addr h -m x --a",
         "--gpus 8 -- -m x --a"),
        ("fabric run x.py", "-- x.py"),
        ("fabric run --devices=8 --num-nodes 2 --accelerator cuda --main-address h x.py --a",
         ("--gpus 8 --env LT_DEVICES=8 --env LT_CLI_USED=1 --env LT_NUM_NODES=2"
         " --env LT_ACCELERATOR=cuda -- x.py --a")),
        ("lightning run model x.py", "-- x.py"),
        ("bash -c 'torchrun --nproc_per_node 2 x.py'", "--gpus 2 -- x.py"),
        ("bash -lc 'cd /w && A=1 torchrun x.py'", "--env A=1 -- x.py"),
    ],
)  # fmt: skip
def test_a_launcher_is_refused_with_the_command_to_type(command: str, wanted: str) -> None:
    error = refused(command)
    assert str(error).startswith("command: expected the training program, found the launcher")
    assert error.hint == f"clusterctl launch {wanted}"


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("/usr/bin/sbatch x.sh", "slurm -- train.py"),
        ("ray job submit", "ray -- train.py"),
        ("ray job submit --address=x -- python3 -m verl.main a=1", "ray -- -m verl.main a=1"),
    ],
)
def test_a_command_that_submits_a_job_is_refused(command: str, wanted: str) -> None:
    error = refused(command)
    assert "one job per rank" in str(error)
    assert error.hint == f"clusterctl launch --launcher {wanted}"


@pytest.mark.parametrize("module", ["verl.trainer.sft_trainer_ray", "openrlhf.cli.train_ppo_ray"])
def test_a_driver_of_ray_is_refused_as_the_program_of_each_rank(module: str) -> None:
    error = refused(f"A=1 python3 -m {module} trainer.nnodes=2")
    assert f"found {module}, which asks Ray for workers" in str(error)
    words = f"clusterctl launch --launcher ray --env A=1 -- -m {module} trainer.nnodes=2"
    assert error.hint == words
    options = launch_options(["-m", module], {"launcher": "ray"})
    require_no_launcher(effective(LAB, options.overrides))


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("screen -L -Logfile f -S s bash x.sh", "bash x.sh"),
        ("tmux new -d -s x 'python x.py --a'", "x.py --a"),
    ],
)
def test_a_terminal_around_the_program_is_refused(command: str, wanted: str) -> None:
    error = refused(command)
    assert "which needs a terminal or leaves the program behind" in str(error)
    assert error.hint == f"clusterctl launch --detach -- {wanted}"


def test_ms_swift_is_given_the_number_of_gpus_of_a_node() -> None:
    eight = LAB.with_nodes((node(0, gpus=8), node(1, gpus=8)))
    assert "--env NPROC_PER_NODE=8 -- swift sft" in (refused("swift sft --m", eight).hint or "")


def test_processes_on_cpus_are_no_gpus() -> None:
    cpus = LAB.with_nodes((node(0, gpus=0), node(1, gpus=0)))
    assert refused("torchrun --nproc_per_node 3 x.py", cpus).hint == (
        "clusterctl launch --procs-per-node 3 -- x.py"
    )


def test_what_has_no_counterpart_is_named() -> None:
    error = refused("torchrun --new-flag 3 --nproc_per_node=2 --other=5 x.py --tee")
    assert "clusterctl has no option for --new-flag 3 --other=5: put torchrun's" in str(error)
    assert error.hint == "clusterctl launch --gpus 2 -- x.py --tee"


@pytest.mark.parametrize(
    ("around", "place"),
    [
        (
            "docker run --rm --gpus all -v /a:/b img",
            '`wrap: [docker, run, --rm, --gpus, all, -v, "/a:/b", img]` under `job:`',
        ),
        ("singularity exec --nv img.sif", "`wrap: [singularity, exec, --nv, img.sif]` under"),
        ("srun -N 2 apptainer exec --nv img.sif", "`wrap: [apptainer, exec, --nv, img.sif]`"),
        ("uv run --with deepspeed", "`python:` in the inventory"),
        ("conda run -n ft", "`python:` in the inventory"),
        ("numactl --cpunodebind 0", "`wrap:` under `job:`"),
        ("timeout -k 5 1h", "`wrap:` under `job:`"),
        ("uvx --from torch", "`wrap:` under `job:`"),
        ("uv tool run --from torch", "`python:` in the inventory"),
        ("dotenv -f .env run --", "`wrap:` under `job:`"),
    ],
)
def test_a_launcher_behind_another_program_is_found(around: str, place: str) -> None:
    error = refused(f"{around} torchrun --nproc_per_node=2 x.py --lr 1")
    assert "found the launcher" in str(error)
    assert place in str(error)
    assert error.hint == "clusterctl launch --gpus 2 -- x.py --lr 1"


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (
            "llamafactory-cli train a.yaml",
            "--env FORCE_TORCHRUN=1 -- llamafactory-cli train a.yaml",
        ),
        (
            "FORCE_TORCHRUN=1 NNODES=2 NODE_RANK=0 MASTER_ADDR=h llamafactory-cli train a.yaml",
            "--env FORCE_TORCHRUN=1 -- llamafactory-cli train a.yaml",
        ),
        ("NPROC_PER_NODE=8 swift sft --model m", "--env NPROC_PER_NODE=8 -- swift sft --model m"),
        ("tune run --nproc_per_node 8 lora", "-- tune run --nproc_per_node 8 lora"),
    ],
)
def test_a_program_that_starts_ranks_by_the_environment_runs_once_per_node(
    command: str, wanted: str
) -> None:
    error = refused(command)
    assert "so it runs once per node" in str(error)
    assert error.hint == f"clusterctl launch --launcher direct --procs-per-node 1 {wanted}"


def test_a_variable_in_front_of_a_program_is_an_option_of_launch() -> None:
    error = refused("CUDA_VISIBLE_DEVICES=0,1 LR=2 python -u x.py --a")
    assert "found the variable CUDA_VISIBLE_DEVICES=0,1" in str(error)
    hint = "clusterctl launch --env CUDA_VISIBLE_DEVICES=0,1 --env LR=2 -- x.py --a"
    assert error.hint == hint


def test_a_program_in_a_container_without_its_rank_is_refused() -> None:
    error = refused("docker run --rm --gpus all img python x.py")
    assert "a container gets no RANK there" in str(error)
    assert error.hint == "clusterctl launch -- x.py"


@pytest.mark.parametrize(
    "command",
    ["torchrun --nproc_per_node 2 x.py", "nohup accelerate launch --config_file a.yaml x.py",
     "bash -c 'torchrun x.py'", "A=1 srun -n 8 python x.py", "torchrun --tee 3 x.py",
     "swift sft --model m", "docker run img python x.py"],
)  # fmt: skip
def test_the_command_in_the_hint_is_accepted(command: str) -> None:
    _, *flags = shlex.split(str(refused(command).hint))
    end = flags.index("--")
    args = build_parser(["launch"]).parse_args(flags[:end])
    options = launch_options(flags[end + 1 :], launch_flags(args, lambda: None))
    require_no_launcher(effective(LAB, options.overrides))


def test_the_inventorys_command_is_named_as_that() -> None:
    lab = replace(LAB, job=Job(command=("torchrun", "x.py")))
    with pytest.raises(UsageError, match=r"^job\.command: expected"):
        require_no_launcher(lab)


@pytest.mark.parametrize(
    "command",
    ["train.py --launcher torchrun", "-m train", "bash train.sh", "python -u x.py torchrun",
     "./torchrun.py", "accelerate env", "python", "", "uv pip install deepspeed", "swift build",
     "bash -c 'echo torchrun x.py'", "singularity exec img python x.py", "nohup python x.py",
     "env A=1 ./x.py", "env A=1 python x.py", "env",
     "docker run -e RANK -e WORLD_SIZE img python x.py", "uv run --with deepspeed x.py",
     "tool run x.py torchrun"],
)  # fmt: skip
def test_other_programs_are_not(command: str) -> None:
    given = effective(LAB, Options(command=tuple(shlex.split(command))))
    require_no_launcher(given)


def test_a_launcher_is_a_choice_with_a_process_a_node() -> None:
    given = effective(LAB, Options(command=("torchrun", "x.py"), procs_per_node=1))
    require_no_launcher(given)
    with pytest.raises(UsageError, match="found the launcher torchrun"):
        require_no_launcher(replace(given, job=replace(given.job, procs_per_node=2)))


def test_env_runs_no_script_by_its_name() -> None:
    error = refused("env A=1 train.py --lr 1")
    assert "found the script train.py behind env" in str(error)
    assert error.hint == "clusterctl launch --env A=1 -- train.py --lr 1"


@pytest.mark.parametrize(
    ("command", "flags", "program"),
    [
        ("torchrun --nproc 8 x.py", {"--nproc-per-node": "8"}, ("x.py",)),
        ("torchrun --n 8 x.py", {"--n": "8"}, ("x.py",)),  # of several flags
        ("torchrun --new x.py --lr 1", {"--new": ""}, ("x.py", "--lr", "1")),
        ("torchrun --new 1 x.py", {"--new": "1"}, ("x.py",)),
        ("mpirun -x A -x B x.py --lr", {"-x": "B"}, ("x.py", "--lr")),
        ("mpirun -genv A 1 x.py", {"-genv": "A=1"}, ("x.py",)),
        ("mpirun -genv A=1 x.py", {"-genv": "A=1"}, ("x.py",)),
    ],
)
def test_a_launchers_flags_end_where_the_program_begins(
    command: str, flags: dict[str, str], program: tuple[str, ...]
) -> None:
    start = start_of(tuple(command.split()))
    assert start is not None
    assert ({flag: value for flag, value, _ in start.flags}, start.program) == (flags, program)


def test_the_count_of_a_launcher_is_of_the_nodes_that_were_chosen() -> None:
    three = Cluster(name="lab", nodes=(node(1), node(2), node(3)), left_out=(node(0),))
    hint = refused("torchrun --nnodes=2 x.py", three).hint
    assert hint == "clusterctl launch --nodes 'n[1-2]' -- x.py"


def test_of_a_flag_that_is_given_twice_the_last_counts() -> None:
    start = start_of(("torchrun", "--nproc", "4", "--nproc=8", "x.py"))
    assert start is not None
    assert (start.value("--nproc-per-node"), start.value("--nnodes")) == ("8", "")
