"""Which scripts start a training apart from the planned one, by the forms that people publish."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.inventory.cluster import Cluster
from clusterctl.plan.command.own_world import Problem, words_of
from clusterctl.plan.effective import effective
from clusterctl.plan.options import Options
from tests.plan.conftest import node

LAB = Cluster(name="lab", nodes=(node(0), node(1)))
ONE = Cluster(name="lab", nodes=(node(0),))
ONCE = Options(launcher="direct", procs_per_node=1)


def problems(
    script: str,
    command: str = "bash run.sh",
    cluster: Cluster = LAB,
    options: Options = ONCE,
    files: Mapping[str, str] = MappingProxyType({}),
) -> list[Problem]:
    job = effective(cluster, replace(options, command=tuple(shlex.split(command))))
    texts = {"run.sh": script, **files}
    return words_of(job, lambda name: texts.get(name.removeprefix("./"), "")).problems


WRONG = {
    "standalone": ("torchrun --standalone --nproc_per_node 8 t.py", 1, "--standalone"),
    "one node": ("torchrun --nnodes=1 --nproc-per-node=8 t.py", 1, "starts 1 node"),
    "one node, by a range": ("torchrun --nnodes=1:1 t.py", 1, "starts 1:1 nodes"),
    "other number of nodes": ("torchrun --nnodes=4 t.py", 1, "the run has 2 nodes"),
    "endpoint at localhost": (
        ("#!/bin/bash\nset -e\n\ntorchrun --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d \\\n"
        "  --rdzv-id=j --rdzv-endpoint=localhost:29500 t.py"),
        4,
        "meet at localhost:29500",
    ),
    "endpoint of its own": (
        'torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint "$(hostname):29500" t.py',
        1,
        "meet at $(hostname):29500",
    ),
    "endpoint in a variable": (
        "HEAD=127.0.0.1\ntorchrun --nnodes $NNODES --node-rank $NODE_RANK --master-addr $HEAD t.py",
        2,
        "meet at 127.0.0.1",
    ),
    "static flags and c10d": (
        ("torchrun --nnodes=2 --node_rank=$NODE_RANK --master_addr=$MASTER_ADDR"
        " --master_port=29500 --rdzv_backend=c10d --nproc_per_node=1 t.py"),
        1,
        "torchrun ignores --master-addr",
    ),
    "the same rank everywhere": (
        "torchrun --nnodes=2 --node-rank=0 --master-addr=10.0.0.1 t.py",
        1,
        "the node rank 0 on every node",
    ),
    "node rank as an argument": (
        "torchrun --nnodes=2 --node-rank=$1 --master-addr=$MASTER_ADDR t.py",
        1,
        "the node rank 0 on every node",
    ),
    "megatron": (
        ("GPUS_PER_NODE=8\nMASTER_ADDR=localhost\nMASTER_PORT=6000\nNUM_NODES=1\n"
        'ARGS=(\n  --nproc_per_node $GPUS_PER_NODE\n  --nnodes $NUM_NODES --node_rank "$NODE_RANK"'
        "\n  --master_addr $MASTER_ADDR\n)\ntorchrun ${ARGS[@]} pretrain.py ${@:1}"),
        2,
        "sets MASTER_ADDR=localhost on every node",
    ),
    "arguments over several lines": (
        ('N=4\nARGS="\n    --nproc_per_node $N \\\n    --nnodes 1 \\\n\t--master_port 6001\n"\n'
        "torchrun $ARGS finetune.py \\\n  --lr 1"),
        7,
        "starts 1 node",
    ),
    "an endpoint of one machine": (
        ("A=expandable \\\ntorchrun --nproc_per_node=2 --rdzv_backend c10d"
        ' --rdzv_endpoint="localhost:0" --role rank --tee 3 -m pkg.train "$@"'),
        1,
        "meet at localhost:0",
    ),
    "in a loop": (
        "rank=1\nfor m in a b; do\n  torchrun --nnodes=2 --node_rank=${rank} t.py --m $m\ndone",
        3,
        "the node rank 1 on every node",
    ),
    "a module": ("NNODES=1 python -m llamafactory.cli train a.yaml", 1, "sets NNODES=1"),
    "number of nodes": ("NNODES=1\ntorchrun --nnodes $NNODES t.py", 1, "sets NNODES=1"),
    "node rank": ("export NODE_RANK=0\nllamafactory-cli train a.yaml", 1, "sets NODE_RANK=0"),
    "a word that is not given": ("NODE_RANK=$2\ntorchrun t.py", 1, "NODE_RANK= (to nothing)"),
    "node rank in front": (
        "NNODES=2 NODE_RANK=0 MASTER_ADDR=$MASTER_ADDR llamafactory-cli train a.yaml",
        1,
        "sets NODE_RANK=0",
    ),
    "quoted in a variable": (
        'LAUNCH="torchrun --standalone"\n$LAUNCH t.py', 2, "--standalone"
    ),
    "path in a variable": ("T=/v/bin/torchrun\n$T --standalone t.py", 2, "--standalone"),
    "python in a variable": (
        ("PYTHON=${PYTHON:-python}\nPYTHONPATH=$(pwd):$PYTHONPATH python -m"
        " torch.distributed.launch --nnodes=1 t.py"),
        2,
        "starts 1 node",
    ),
    "bash -c": ("bash -c 'cd /w && torchrun --standalone t.py'", 1, "--standalone"),
    "docker": ("docker run --rm img torchrun --nproc-per-node 8 t.py", 1, "does not get NNODES"),
    "conda": ("conda run -n ft torchrun --standalone t.py", 1, "--standalone"),
    "uv": ("exec uv run torchrun --standalone t.py", 1, "--standalone"),
    "flock": ("flock -w 5 /tmp/l torchrun --standalone t.py", 1, "--standalone"),
    "flock -c": ("flock /tmp/l -c 'torchrun --standalone t.py'", 1, "--standalone"),
    "strace": ("strace -f -o out torchrun --standalone t.py", 1, "--standalone"),
    "script": ("script -qc 'torchrun --standalone t.py' log", 1, "--standalone"),
    "hatch": ("hatch -e gpu run torchrun --standalone t.py", 1, "--standalone"),
    "uvx": ("uvx --with torch torchrun --standalone t.py", 1, "--standalone"),
    "which": ('"$(which torchrun)" --standalone t.py', 1, "--standalone"),
    "command -v": ("`command -v python` -m torch.distributed.run --standalone t.py", 1,
        "--standalone"),
    "a date in front": ("X=$(date +%s) torchrun --standalone t.py", 1, "--standalone"),
    "deepspeed": ("deepspeed --num_gpus 8 t.py", 1, "deepspeed does not read NNODES"),
    "accelerate": ("accelerate launch --num_processes 8 t.py", 1, "does not read NNODES"),
    "accelerate, one machine": (
        "accelerate launch --num_machines 1 --num_processes 8 t.py", 1, "starts 1 node"
    ),
    "composer": ("composer -n 8 t.py", 1, "takes WORLD_SIZE"),
    "accelerate with DeepSpeed": (
        ("accelerate launch --use_deepspeed --num_machines $NNODES --machine_rank $NODE_RANK"
        " --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT t.py"),
        1,
        "by pdsh",
    ),
    "accelerate, same rank": (
        ("accelerate launch --num_machines $NNODES --machine_rank 0"
        " --main_process_ip $MASTER_ADDR t.py"),
        1,
        "the node rank 0",
    ),
    "torchtune": ("tune run --nnodes 1 --nproc_per_node 8 lora --config a", 1, "starts 1 node"),
    "ssh": (
        'for h in n1 n2; do ssh $h "cd /w; torchrun --nnodes=2 --node_rank=$r t.py" & done; wait',
        1,
        "ssh starts torchrun on other machines",
    ),
    "ssh, unquoted": ("for h in a b; do\n ssh -p 22 $h torchrun t.py\ndone", 2, "ssh starts"),
    "pdsh": ("pdsh -w n[0-1] 'bash /w/train.sh'", 1, "pdsh starts bash on other machines"),
    "ssh, a node": ("ssh me@10.0.0.1 'cd /w && python t.py'", 1, "ssh starts python"),
    "hostfile": ("deepspeed --hostfile hf t.py", 1, "deepspeed starts ranks on other machines"),
    "mpirun": ("mpirun -np 16 -H a:8,b:8 python t.py", 1, "mpirun starts ranks on other machines"),
    "srun": ("srun torchrun --nproc-per-node 8 t.py", 1, "srun starts ranks on other machines"),
    "behind checks of arguments": (
        ("[ $# -ge 1 ] || exit 1\nif [ -z $1 ]; then echo usage; exit 2; fi\ncd src || exit\n"
        "torchrun --standalone t.py"),
        4,
        "--standalone",
    ),
    "mpirun, this machine": (
        "mpirun -np 8 -H localhost:4,127.0.0.1:4 python t.py", 1, "ranks of this node only"
    ),
    "a short sleep": ("torchrun t.py &\nsleep 5", 1, "torchrun is left in the background"),
    "background": (
        ("nohup torchrun --nproc_per_node 2 --nnodes $NNODES --node_rank $NODE_RANK t.py"
        " > t_$NODE_RANK.log 2>&1 &\necho started $!"),
        1,
        "torchrun is left in the background",
    ),
    "tmux": ("tmux new-session -d -s t 'torchrun t.py'", 1, "left in the background"),
}  # fmt: skip


@pytest.mark.parametrize("form", WRONG)
def test_a_script_that_would_train_apart_is_refused_by_its_line(form: str) -> None:
    script, line, words = WRONG[form]
    found = problems(script, "bash run.sh 0")
    assert (found[0].where, found[0].fatal) == (f"run.sh:{line}", True), found
    assert words in found[0].message
    assert found[0].hint


RIGHT = {
    "flags of ours": 'torchrun --nnodes "$NNODES" --node-rank "$NODE_RANK" --master-addr'
    ' "$MASTER_ADDR" --master-port "$MASTER_PORT" --nproc-per-node 8 t.py',
    "by the environment": "torchrun --nproc-per-node 8 t.py",
    "defaults that are not used": "NNODES=${NNODES:-1}\nNODE_RANK=${NODE_RANK:-0}\n"
    "MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}\n"
    "torchrun --nnodes=$NNODES --node_rank=$NODE_RANK --master_addr=$MASTER_ADDR t.py",
    "mmlab": 'CONFIG=$1\nGPUS=$2\nNNODES=${NNODES:-1}\nNODE_RANK=${NODE_RANK:-0}\n'
    'PORT=${PORT:-29500}\nMASTER_ADDR=${MASTER_ADDR:-"127.0.0.1"}\n'
    'PYTHONPATH="$(dirname $0)/..":$PYTHONPATH \\\npython -m torch.distributed.launch \\\n'
    "  --nnodes=$NNODES --node_rank=$NODE_RANK --master_addr=$MASTER_ADDR \\\n"
    '  --nproc_per_node=$GPUS --master_port=$PORT $(dirname "$0")/train.py $CONFIG ${@:3}',
    "defaults in front": ': "${NNODES:=1}"\n: "${NODE_RANK:=0}"\n: "${N:=8}"\n'
    ': "${MASTER_ADDR:=127.0.0.1}"\nWORLD_SIZE=$((N * NNODES))\n'
    "exec torchrun --nnodes=$NNODES --node_rank=$NODE_RANK --nproc_per_node=$N"
    ' --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" t.py "$@"',
    "the right number": "NNODES=2\ntorchrun --nnodes $NNODES t.py",
    "a range": "torchrun --nnodes=1:4 --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:29500 t.py",
    "c10d with an endpoint": "torchrun --nnodes 2 --node_rank 0 --rdzv-backend c10d"
    ' --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT" t.py',
    "comment": "# torchrun --standalone t.py\npython t.py  # nohup torchrun &",
    "help": 'echo "usage: torchrun --standalone t.py"\n'
    "printf 'deepspeed --hostfile h\\n'\npython t.py --deepspeed ds.json",
    "heredoc": "cat <<EOF\ntorchrun --standalone t.py\nEOF\npython t.py",
    "install": "pip install deepspeed\nuv pip install torchrun\nwhich torchrun",
    "a monitor in the background": "tensorboard --logdir x &\ntorchrun t.py",
    "waited for": "torchrun t.py &\nPID=$!\nwait $PID",
    "files over ssh": "ssh $H mkdir -p /w\nscp a $H:/w\ntorchrun t.py",
    "look up by srun": "IP=$(srun -N 1 hostname --ip-address)\nsrun hostname\ntorchrun t.py",
    "llamafactory": "FORCE_TORCHRUN=1 llamafactory-cli train a.yaml",
    "swift": "NPROC_PER_NODE=8 NNODES=$NNODES swift sft --model m",
    "accelerate": 'accelerate launch --num_machines "$NNODES" --machine_rank "$NODE_RANK"'
    ' --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" t.py',
    "accelerate with DeepSpeed": "accelerate launch --use_deepspeed --num_machines $NNODES"
    " --machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR"
    " --deepspeed_multinode_launcher standard --deepspeed_config_file ds.json t.py",
    "composer": "composer -n 8 --world_size 16 t.py",
    "docker with flags": "docker run --rm img torchrun --nnodes $NNODES --node-rank $NODE_RANK"
    " --master-addr $MASTER_ADDR t.py",
    "a sleep at the end": "torchrun t.py &\nsleep infinity",
    "a long sleep at the end": "torchrun t.py &\nsleep 5m",
    "a loop at the end": "torchrun t.py &\nwhile true; do sleep 1; done",
    "deepspeed without ssh": "deepspeed --no_ssh --node_rank $NODE_RANK --hostfile hf t.py",
}  # fmt: skip


@pytest.mark.parametrize("form", RIGHT)
def test_a_script_that_takes_the_plans_values_is_left_alone(form: str) -> None:
    assert problems(RIGHT[form], "bash run.sh config.py 4") == []


@pytest.mark.parametrize(
    "form",
    ["standalone", "one node", "one node, by a range", "endpoint at localhost", "deepspeed",
     "static flags and c10d", "megatron", "accelerate", "node rank", "docker", "hostfile",
     "mpirun", "srun"],
)  # fmt: skip
def test_on_one_node_it_is_no_problem(form: str) -> None:
    assert problems(WRONG[form][0], cluster=ONE) == []


def test_what_ends_with_the_script_is_a_problem_on_one_node_too() -> None:
    assert problems(WRONG["background"][0], cluster=ONE)


UNSURE = {
    "a choice": "if [ $NNODES -gt 1 ]; then\n torchrun t.py\nelse\n torchrun --standalone t.py\nfi",
    "a test": "[ -z $SLURM_JOB_ID ] && torchrun --standalone t.py",
    "a block behind a test": "[ -n $ONE ] && { echo one; torchrun --standalone t.py; }",
    "a function": "single() { torchrun --standalone t.py; }\nmulti() { torchrun t.py; }\nmulti",
    "an exit before": "if [ $NNODES -gt 1 ]; then\n  torchrun --nnodes=$NNODES t.py\n  exit $?\n"
    "fi\ntorchrun --standalone t.py",
    "an exec before": "[ $NNODES -gt 1 ] && exec torchrun t.py\ntorchrun --standalone t.py",
    "another's fallback": 'NODES=($(scontrol show hostnames "$SLURM_JOB_NODELIST" 2>/dev/null ||'
    " echo localhost))\nexport MASTER_ADDR=${NODES[0]}\n"
    "torchrun --nnodes=$NNODES --node-rank=$NODE_RANK --master-addr=$MASTER_ADDR t.py",
    "another's default": "torchrun --nnodes 2 --node-rank=${SLURM_NODEID:-0} t.py",
    "arguments": "NNODES=1\nMASTER_ADDR=localhost\nwhile getopts n:m: o; do case $o in\n"
    "  n) NNODES=$OPTARG;;\n  m) MASTER_ADDR=$OPTARG;;\nesac; done\ntorchrun --nnodes $NNODES t.py",
    "input": "NODE_RANK=0\nread -r NODE_RANK < rank\ntorchrun t.py",
    "a tool with variables": "NNODES=1 NODE_RANK=0 python convert.py\ntorchrun t.py",
    "ssh elsewhere": "ssh login.example.com torchrun t.py",
    "ssh to a variable": "ssh $STORAGE python index.py",
    "a tool in the background": "python -m http.server &\necho started",
    "an address": "torchrun --nnodes 2 --master-addr=${HEAD_IP:-localhost} t.py",
    "an assignment of what is unknown": "MASTER_ADDR=$(scontrol show hostnames | head -n1)\n",
}


@pytest.mark.parametrize("form", UNSURE)
def test_what_a_condition_or_a_default_decides_is_left_to_the_run(form: str) -> None:
    assert problems(UNSURE[form]) == []


@pytest.mark.parametrize("flags", ["--config_file fsdp.yaml", "--machine_rank 0"])
def test_what_a_config_of_accelerate_may_have_is_a_warning(flags: str) -> None:
    found = problems(f"accelerate launch {flags} t.py")
    assert found
    assert not any(each.fatal for each in found)


@pytest.mark.parametrize("word", ["source", "."])
def test_a_script_that_another_one_reads_is_read_too(word: str) -> None:
    (found,) = problems(f"{word} common.sh", files={"common.sh": "torchrun --standalone t.py"})
    assert (found.where, found.fatal) == ("common.sh:1", True)


@pytest.mark.parametrize(
    "line",
    ["torchrun --nproc-per-node 8 t.py", "accelerate launch t.py", "deepspeed t.py",
     "llamafactory-cli train a.yaml", "swift sft --model m", "uv run torchrun t.py",
     "docker run img torchrun t.py", "$TORCHRUN t.py"],
)  # fmt: skip
def test_a_launcher_in_a_script_of_every_rank_is_refused(line: str) -> None:
    found = problems(f"TORCHRUN=torchrun\n{line}", options=Options())
    assert found[0].message.startswith("every rank runs this script, and so starts")
    again = "clusterctl launch --launcher direct --procs-per-node 1 -- bash run.sh"
    assert again in found[0].hint
    assert (found[0].where, found[0].fatal) == ("run.sh:2", True)


def test_every_rank_keeps_its_own_rank() -> None:
    found = problems("export RANK=0\nexport WORLD_SIZE=1\npython t.py", options=Options())
    assert [each.where for each in found if each.fatal] == ["run.sh:1", "run.sh:2"]
    assert problems("export RANK=0\nexport WORLD_SIZE=8\ntorchrun t.py") == []


def test_the_command_to_type_has_the_ranks_that_were_typed() -> None:
    script = "export NCCL_DEBUG=INFO\ntorchrun --standalone --nproc_per_node 4 t.py --lr $1 a"
    (found,) = problems(script, "bash run.sh 2")
    assert found.hint.splitlines() == [
        "remove --standalone",
        "or without the script: clusterctl launch --gpus 4 --env NCCL_DEBUG=INFO -- t.py --lr 2 a",
    ]
    (found,) = problems(script, "bash run.sh 2", options=Options())
    assert found.hint.splitlines()[0].startswith(
        "to run it once per node: remove --standalone; then"
    )
    assert found.hint.splitlines()[1].endswith("--gpus 4 --env NCCL_DEBUG=INFO -- t.py --lr 2 a")


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (
            "accelerate launch --use_fsdp --fsdp_version 2 --num_processes 16 t.py",
            "--launcher accelerate '--launcher-args=--use_fsdp --fsdp-version 2' --gpus 8 -- t.py",
        ),
        (
            "accelerate launch --config_file fsdp.yaml --num_processes 4 t.py --a",
            "--launcher accelerate '--launcher-args=--config-file fsdp.yaml' --gpus 2 -- t.py --a",
        ),
        (
            "accelerate launch --use_deepspeed --zero_stage 3 t.py",
            "--launcher accelerate '--launcher-args=--use_deepspeed --zero-stage 3' -- t.py",
        ),
        ("deepspeed --num_gpus 4 --save_pid t.py --deepspeed ds.json",
         "--gpus 4 -- t.py --deepspeed ds.json"),
    ],
)  # fmt: skip
def test_a_script_keeps_how_the_ranks_train(line: str, command: str) -> None:
    for options in (ONCE, Options()):
        last = problems(line, options=options)[-1].hint.splitlines()[-1]
        assert last == f"or without the script: clusterctl launch {command}"


def test_no_command_is_made_of_what_only_the_node_knows() -> None:
    for script in ("torchrun --standalone t.py $ARGS", "cd src\ntorchrun --standalone t.py"):
        (found,) = problems(script)
        assert found.hint == "remove --standalone"


def test_a_default_among_its_words_leaves_a_launcher_certain() -> None:
    script = "if true; then n=$(nvidia-smi -L | wc -l); fi\ntorchrun --nproc-per-node=$n t.py"
    (found,) = problems(script, options=Options())
    assert found.fatal


def test_the_driver_of_ray_runs_once() -> None:
    assert problems("torchrun --standalone t.py", options=Options(launcher="ray")) == []


@pytest.mark.parametrize(
    "command",
    ["bash -e run.sh", "./run.sh", "nohup bash run.sh", "env A=1 sh run.sh", "bash outer.sh",
     "conda run -n x bash run.sh", "bash job.slurm", "./start", "bash -c 'bash run.sh'"],
)  # fmt: skip
def test_the_scripts_of_a_command_are_found(command: str) -> None:
    inner = "echo\ntorchrun --standalone t.py"
    files = {
        "outer.sh": "set -e\nbash ./run.sh 1", "job.slurm": inner, "start": f"#!/bin/sh\n{inner}",
    }  # fmt: skip
    assert [each.message for each in problems(inner, command, files=files)] == [
        "torchrun --standalone: each node would train alone"
    ]


@pytest.mark.parametrize(
    ("move", "where"),
    [("cd /opt/other", ""), ("cd src", "src/run.sh:1"), ("pushd ./src/", "src/run.sh:1"),
     ("cd none", ""), ("cd $HOME/x", ""), ("cd ..", ""), ("cd src; cd -", ""),
     ('cd "$(dirname "$0")"', "run.sh:1"), ("bash -c 'cd src && make'", "run.sh:1"),
     ("(cd none && make)", "run.sh:1"), ("(cd none; (cd x)); cd src", "src/run.sh:1"),
     ("cd src; (cd ..)", "src/run.sh:1"), ("(cd none; cd src)", "run.sh:1"),
     ("(cd src; (cd x); bash run.sh); cd none", "src/run.sh:1"),
     ("cd /code", "run.sh:1"), ("cd /code/src/", "src/run.sh:1"), ("cd ~/src", ""),
     ("cd /code/none", ""), ("cd /code/src; cd /codes", ""), ("cd /code/$X; cd ..", "")],
)  # fmt: skip
def test_a_script_is_read_in_the_folder_that_it_is_started_in(move: str, where: str) -> None:
    inner = "torchrun --standalone t.py"
    files = {"src/run.sh": inner, "go.sh": f"{move}\nbash run.sh"}
    commands = ["bash go.sh"]
    if "'" not in move and "dirname" not in move:
        commands.append(f"bash -c '{move} && ./run.sh'")
    for command in commands:
        found = problems(inner, command, files=files)
        assert [each.where.removeprefix("./") for each in found] == [where][: bool(where)]
        assert not any(
            "or without the script" in each.hint for each in found if each.where.startswith("src/")
        )


@pytest.mark.parametrize(
    "command",
    ["bash -c \"bash -c '(cd none)'; (bash run.sh)\"", "bash -c \"bash -c 'cd none'; bash run.sh\"",
     "bash -c 'eval \"(cd none)\"; (bash run.sh)'", "bash -c \"ssh h 'cd none'; bash run.sh\""],
)  # fmt: skip
def test_a_shell_within_a_command_moves_itself_only(command: str) -> None:
    assert [each.where for each in problems("torchrun --standalone t.py", command)] == ["run.sh:1"]


@pytest.mark.parametrize("command", ["bash /code/run.sh", "bash -c 'cd /tmp; /code/run.sh'"])
def test_a_script_in_workdir_is_read_here_and_named_as_here(command: str) -> None:
    (found,) = problems("torchrun --standalone t.py", command)
    assert found.where == "run.sh:1"


def test_a_script_that_only_a_condition_starts_is_left_to_the_run() -> None:
    files = {"one.sh": "torchrun --standalone t.py"}
    assert problems("[ $NNODES -gt 1 ] || bash one.sh", files=files) == []


def test_the_command_itself_is_judged_if_it_runs_once_per_node() -> None:
    (found,) = problems("", "torchrun --standalone --nproc-per-node 2 t.py")
    assert (found.where, found.fatal) == ("command", True)
    assert found.hint.endswith("clusterctl launch --gpus 2 -- t.py")
    assert problems("", "torchrun --nproc-per-node 2 t.py") == []


def test_the_programs_of_a_script_are_found() -> None:
    job = effective(LAB, Options(command=("bash", "run.sh")))
    texts = {"run.sh": "torchrun a.py --x\npython -u b.py 1\npython -m c\necho d.py"}
    programs = words_of(job, lambda name: texts.get(name, "")).programs
    assert programs == [("a.py", "--x"), ("b.py", "1")]


@given(st.text(), st.lists(st.sampled_from(list(WRONG)), max_size=4))
def test_no_script_breaks_it(text: str, forms: list[str]) -> None:
    for options in (ONCE, Options()):
        problems("\n".join([*(WRONG[form][0] for form in forms), text]), options=options)
