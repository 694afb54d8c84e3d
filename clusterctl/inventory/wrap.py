"""Reads `job.wrap`: which container program it calls, and where that one's options end."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence

from clusterctl.values import dataclass

DOCKER_LIKE = frozenset({"docker", "nerdctl", "podman"})
APPTAINER_LIKE = frozenset({"apptainer", "singularity"})
_VERBS = {
    **dict.fromkeys(DOCKER_LIKE, "run"),
    **dict.fromkeys(APPTAINER_LIKE, "exec"),
}
"""The only subcommand of each program that starts a container around a command."""
_SWITCHES = frozenset(
    [
        "--detach", "--disable-content-trust", "--env-host", "--help", "--http-proxy", "--init",
        "--interactive", "--no-healthcheck", "--no-hostname", "--no-hosts", "--oom-kill-disable",
        "--privileged", "--publish-all", "--quiet", "--read-only", "--read-only-tmpfs", "--replace",
        "--rm", "--rmi", "--rootfs", "--sig-proxy", "--tls-verify", "--tty",
    ]
)  # fmt: skip
"""Long options of `run` without a value, of docker, podman and nerdctl."""
_OWN_ENVIRONMENT = frozenset({"--cleanenv", "-e", "--containall", "-C"})
"""With these apptainer passes no environment on."""
_SHORT_SWITCHES = frozenset("ditPq")
_LONG = {"-d": "--detach", "-t": "--tty", "-v": "--volume", "-w": "--workdir", "-e": "--env"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container's command: `before`, `options`, and the image with what follows."""

    program: str
    """The base name of its program."""
    before: tuple[str, ...]
    """Up to the subcommand that starts a container."""
    options: tuple[tuple[str, str], ...]
    """Options and values; the short names of some are written out."""
    after: tuple[str, ...]
    """All that follows the subcommand, as it was written."""
    image: str
    """Empty: none was found."""

    @property
    def docker_like(self) -> bool:
        """A daemon or a monitor keeps the container when the command is killed."""
        return self.program in DOCKER_LIKE

    def has(self, *names: str) -> bool:
        """Tell whether one of these options is given."""
        return any(name in names for name, _ in self.options)

    def values(self, *names: str) -> tuple[str, ...]:
        """Return the values of these options."""
        return tuple(value for name, value in self.options if name in names)


def read_container(wrap: Sequence[str]) -> Container | None:
    """Return the container's command in `job.wrap`; None: it is another program."""
    program = posixpath.basename(wrap[0]) if wrap else ""
    verb = _VERBS.get(program)
    if verb is None:
        return None
    at = wrap.index(verb) + 1 if verb in wrap else len(wrap)
    after = tuple(wrap[at:])
    if program in DOCKER_LIKE:
        options, image, _ = split_options(after)
    else:  # the image is a file; an option's value may look like one, so the last word is taken
        options, image = (), after[-1] if after else ""
    return Container(
        program=program, before=tuple(wrap[:at]), options=options, after=after, image=image
    )


def wrap_problems(wrap: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what a container's command must not be: wanted, found."""
    container = read_container(wrap)
    if container is None:
        return
    verb = _VERBS[container.program]
    if container.before[-1:] != (verb,):
        yield f"{container.program} {verb}, which starts a container around the job", wrap[-1]
        return
    if not container.image:
        yield "an image", "none"
    if container.has("--detach"):
        yield "a container in the foreground", "--detach"
    if container.has("--tty"):
        yield "no --tty: a run has no terminal", "--tty"
    for word in container.after if not container.docker_like else ():
        if word in _OWN_ENVIRONMENT:
            yield "the job's environment inside", word


def split_options(
    words: Sequence[str],
) -> tuple[tuple[tuple[str, str], ...], str, tuple[str, ...]]:
    """Return the options before the image, the image, and the command behind it."""
    found: list[tuple[str, str]] = []
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if not word.startswith("-") or word == "-":
            return tuple(found), word, tuple(left)
        if word.startswith("--"):
            if not equals and name not in _SWITCHES:
                value = next(left, "")
            found.append((name, value))
            continue
        letters = word[1:].partition("=")[0]
        switches = letters[: len(letters) - len(letters.lstrip("".join(_SHORT_SWITCHES)))]
        found += [(_LONG.get(f"-{letter}", f"-{letter}"), "") for letter in switches]
        if len(switches) < len(letters):
            name, value = f"-{letters[len(switches)]}", word[len(switches) + 2 :].removeprefix("=")
            found.append((_LONG.get(name, name), value or next(left, "")))
    return tuple(found), "", ()


def mount_targets(container: Container) -> frozenset[str]:
    """Return the paths inside that the options mount something on already."""
    volumes = (value.split(":") for value in container.values("--volume"))
    targets = {parts[1] if len(parts) > 1 else parts[0] for parts in volumes}
    for value in container.values("--mount"):
        fields: Mapping[str, str] = {
            name: text for name, _, text in (part.partition("=") for part in value.split(","))
        }
        targets |= {fields[name] for name in ("target", "dst", "destination") if name in fields}
    return frozenset(posixpath.normpath(target) for target in targets)
