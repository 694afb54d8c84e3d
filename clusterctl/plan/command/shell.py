"""Reads a shell script: the commands that it starts, with the values of its variables.

Nothing is run. What only a run would tell, such as the output of a program, stays as it is written.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from clusterctl.plan.command.shell_tokens import Token, substitution_end, tokens
from clusterctl.values import dataclass

_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?(\+?)=(.*)", re.DOTALL)
_DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset"})
_TESTS = frozenset({"[", "[[", "test", "((", "grep", "command", "which", "type"})
_READS = frozenset({"read", "getopts", "mapfile", "readarray"})
"""Commands that assign to the variables that they name."""
_CONDITIONS = frozenset({"then", "case", "function", "{?", "(?"})
"""What is open around a command that may not be run; calls of functions are not followed."""
_GOES_ON = frozenset({"else", "elif", "do", "!", "time", "{"})
"""Words after which a command follows."""
_FALLBACK = re.compile(r"\|\|\s*echo\s+[\"']?([\w.:-]+)[\"']?\s*$")
_DEEPEST = 100
"""Most conditions and loops in each other; what is deeper is not read."""
_SPACE = "\0"
"""Stands for a space within what is not known: it separates no words."""
_NOTHING = "\1"
"""Stands for `"$@"` without arguments, which is no word; `""` is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command of a script, or an assignment: it has no words, or `export` alone."""

    line: int
    words: tuple[str, ...]
    assigned: tuple[tuple[str, str], ...] = ()
    """For this command alone, unless it is an assignment."""
    certain: bool = True
    """No condition decides whether it runs."""
    sure: bool = True
    """It is certain, and no default decides what its words are."""
    background: bool = False
    apart: tuple[int, ...] = ()
    """The subshells that it is in, outermost first, numbered in the script's order."""

    @property
    def assigns(self) -> bool:
        """Tell whether it is an assignment for what follows."""
        return not self.words or (self.words[0] in _DECLARES and bool(self.assigned))

    @property
    def kept(self) -> frozenset[str]:
        """Return the variables that get another value for what follows."""
        if not self.assigns and self.words[0] not in _READS:
            return frozenset()
        return frozenset(n for n, value in self.assigned if n not in re.findall(r"\w+", value))


@dataclass(frozen=True, slots=True)
class _Value:
    words: tuple[str, ...]
    sure: bool


def read_script(
    text: str,
    variables: Mapping[str, str],
    args: tuple[str, ...] = (),
    *,
    certain: bool = True,
    subshells: Iterator[int] | None = None,
) -> tuple[Step, ...]:
    """Return the commands and assignments of a script, in its order.

    Args:
        text: of the script.
        variables: known from outside, with their values; `$NAME` as a value: it is set, to what
            only the node knows, and stays what it is if the script assigns it.
        args: of the script.
        certain: no condition decides whether it runs.
        subshells: numbers for its subshells; None: from 1.
    """
    fixed = frozenset(name for name, value in variables.items() if value == f"${name}")
    numbers = itertools.count(1) if subshells is None else subshells
    reader = _Reader(args=args, fixed=fixed, may_be_over=not certain, subshells=numbers)
    reader.values = {name: _Value((value,), sure=True) for name, value in variables.items()}
    try:
        return tuple(reader.read(text))
    except RecursionError:
        return ()


@dataclass(slots=True)
class _Reader:
    args: tuple[str, ...]
    fixed: frozenset[str]
    """Variables that keep their value."""
    subshells: Iterator[int]
    """The numbers of those to come."""
    values: dict[str, _Value] = field(default_factory=dict)
    within: list[str] = field(default_factory=list)
    """What is open: `if`, `then`, `case`, `pattern`, `for`, `function`, `{`, `(`; `{?` and `(?`
    are run on a condition."""
    apart: tuple[int, ...] = ()
    """The subshells that are open."""
    tested: bool = False
    """What comes next in this list of `&&` and `||` is run on a condition."""
    failed: bool = False
    """What comes next follows `||`."""
    may_be_over: bool = False
    """A condition may have ended the script before, and not for an error."""
    sure: bool = True
    """Nothing unsure was expanded since this was set."""

    def read(self, text: str) -> Iterator[Step]:
        steps: list[Step] = []
        raw: list[Token] = []
        for token in tokens(text):
            if token.kind == "word":
                raw.append(token)
                continue
            if self._is_outside(token, raw):
                raw = []
                continue
            steps += self._step(raw)
            raw = []
            if token.text == "&" and steps:
                steps[-1] = replace(steps[-1], background=True)
            self._operator(token.text, steps)
            if self._ends(steps) or len(self.within) > _DEEPEST:
                break
        else:
            steps += self._step(raw)
        yield from steps

    def _ends(self, steps: list[Step]) -> bool:
        """Tell whether what follows is never reached."""
        last = steps[-1] if steps else None
        opened = {"(", "pattern", *_CONDITIONS} & set(self.within)
        return bool(last and _leaves(last.words) and last.certain) and not opened

    def _may_leave(self, words: list[str]) -> bool:
        """Tell whether a command, if it runs, ends the script after all that it had to do."""
        if words[:1] == ["return"]:
            return "function" not in self.within
        status = "".join(words[1:2])
        fails = status.strip("-0").isdecimal() or (self.failed and status in {"", "$?"})
        return _leaves(words) and not (words[0] == "exit" and fails)

    def _is_outside(self, token: Token, raw: list[Token]) -> bool:
        """Handle what is no command: a pattern of `case`, and the head of a function."""
        if self.within[-1:] == ["pattern"]:
            if raw and raw[0].text == "esac":
                self.within.pop()
                return False
            if token.text == ")":
                self.within[-1] = "case"
            return True
        if token.text == "()" and len(raw) == 1:
            self.within.append("function")
            return True
        return False

    def _operator(self, text: str, steps: list[Step]) -> None:
        if self.within[-1:] == ["pattern"]:  # of the same line as `case`
            self.within[-1] = "case" if text == ")" else "pattern"
        elif text == "(":
            self.within.append("(?" if self.tested else "(")
            self.apart += (next(self.subshells),)
        elif text == ")" and {"(", "(?"} & set(self.within):
            while (opened := self.within.pop()) not in {"(", "(?"}:
                pass
            self.tested = opened == "(?"
            self.apart = self.apart[:-1]
        elif text == ";;" and self.within[-1:] == ["case"]:
            self.within[-1] = "pattern"
        self.failed = text == "||"
        if self.failed:
            self.tested = True
        elif text == "&&":
            self.tested |= bool(steps) and steps[-1].words[:1] in {(name,) for name in _TESTS}
        elif text not in {"|", "(", ")"}:
            self.tested = False

    def _step(self, raw: list[Token]) -> Iterator[Step]:
        raw = self._after_keywords(raw)
        if not raw:
            return
        conditional = self.tested or bool(_CONDITIONS & set(self.within))
        self.sure = not conditional and not self.may_be_over
        line, assigned, words = raw[0].line, list[tuple[str, str]](), list[str]()
        certain = self.sure
        for index, token in enumerate(raw):
            declares = bool(words) and words[0] in _DECLARES
            match = _ASSIGNMENT.fullmatch(token.text)
            if match and (not words or declares):
                alone = declares or all(_ASSIGNMENT.fullmatch(t.text) for t in raw[index:])
                assigned.append(self._assign(match, keep=alone, certain=certain))
            else:
                words += self.expand(token.text)
        if words and words[0] in _DECLARES and assigned:
            words = words[:1]
        if words[:1] == ["shift"] and not conditional:
            count = int(words[1]) if words[1:] and words[1].isdecimal() else 1
            self.args = self.args[count:]
        if words[:1] and words[0] in _READS:
            for name in filter(_NAME.fullmatch, words[1:]):
                assigned.append((name, "$REPLY"))
                if name not in self.fixed:
                    self.values[name] = _Value((f"${name}",), sure=True)
        if self._may_leave(words):
            self.may_be_over |= conditional
        yield Step(
            line=line,
            words=tuple(word.replace(_SPACE, " ") for word in words),
            assigned=tuple(assigned),
            certain=certain,
            sure=self.sure,
            apart=self.apart,
        )

    def _after_keywords(self, raw: list[Token]) -> list[Token]:  # noqa: C901  (one grammar)
        """Follow the reserved words that a command begins with, and return the rest."""
        while raw:
            word = raw[0].text
            if word in {"if", "while", "until"}:
                self.within.append("if" if word == "if" else "for")
            elif word == "then" and "if" in self.within:
                self.within[len(self.within) - 1 - self.within[::-1].index("if")] = "then"
            elif word in {"fi", "done", "}", "esac"}:
                self._close(word)
            elif word in {"for", "select"}:
                self.within.append("for")
                for name in raw[1:2]:
                    self.values[name.text] = _Value((f"${name.text}",), sure=True)
                return []
            elif word == "case":
                self.within.append("pattern")
                return []
            elif word == "function":
                self.within.append("function")
                raw = raw[1:]
            elif word == "{" and self.within[-1:] != ["function"]:
                self.within.append("{?" if self.tested else "{")
            elif word not in _GOES_ON and word != "then":
                return raw
            raw = raw[1:]
        return raw

    def _close(self, word: str) -> None:
        kinds = {
            "fi": ("if", "then"),
            "done": ("for",),
            "}": ("{", "{?", "function"),
            "esac": ("case", "pattern"),
        }[word]
        if set(kinds) & set(self.within):
            while (opened := self.within.pop()) not in kinds:
                pass
            self.tested |= opened == "{?"

    def _assign(self, match: re.Match[str], *, keep: bool, certain: bool) -> tuple[str, str]:
        name, adds, raw = match.groups()
        self.sure, before = True, self.sure
        if raw.startswith("("):
            items = [
                word
                for token in tokens(raw[1:].removesuffix(")"))
                if token.kind == "word"
                for word in self.expand(token.text)
            ]
        else:
            items = ["".join(self.expand(raw, splits=False))]
        value = _Value(tuple(items), sure=certain and self.sure)
        self.sure = before and self.sure
        old = self.values.get(name)
        if adds and old:
            joined = (
                (*old.words, *items) if raw.startswith("(") else ("".join((*old.words, *items)),)
            )
            value = _Value(joined, sure=value.sure and old.sure)
        if keep and name not in self.fixed:
            self.values[name] = value
        return name, " ".join(value.words).replace(_SPACE, " ")

    def expand(self, raw: str, *, splits: bool = True) -> list[str]:
        """Return the words that a word of the script becomes."""
        fields, quoted, at = [""], False, 0
        seen = False
        double = False
        while at < len(raw):
            char = raw[at]
            if char == "'" and not double:
                end = raw.find("'", at + 1)
                end = len(raw) if end < 0 else end
                fields[-1] += raw[at + 1 : end]
                at, seen = end + 1, True
            elif char == '"':
                double = quoted = not double
                at, seen = at + 1, True
            elif char == "\\":
                fields[-1] += raw[at + 1 : at + 2]
                at += 2
            elif char in "$`":
                at = self._substitute(raw, at, fields, quoted=quoted or not splits)
            else:
                fields[-1] += char
                at += 1
        if seen and fields == [""]:
            return fields
        return [field.replace(_NOTHING, "") for field in fields if field not in {"", _NOTHING}]

    def _substitute(self, raw: str, at: int, fields: list[str], *, quoted: bool) -> int:
        """Add the value of what begins here to the words, and return where it ends."""
        end = substitution_end(raw, at)
        text = raw[at:end]
        words, whole = self._value(text)
        if not quoted:
            words = [part for word in words for part in re.split(r"[ \t\n]+", word) if part] or [""]
        elif not whole:
            words = [" ".join(words)]
        fields[-1] += words[0]
        fields += words[1:]
        return end

    def _value(self, text: str) -> tuple[list[str], bool]:
        """Return the words of a substitution, and whether quotes keep them apart."""
        unknown = [text.replace(" ", _SPACE)], False
        if text.startswith(("`", "$(")):
            fallback = _FALLBACK.search(text.strip("`").removeprefix("$(").removesuffix(")"))
            self.sure &= fallback is None
            return ([fallback[1]], False) if fallback else unknown
        inner = text[2:-1] if text.startswith("${") else text[1:]
        if inner.startswith("#") and len(inner) > 1:
            name = inner[1:].partition("[")[0]
            value = self.values.get(name)
            if value is None or "[" not in inner:
                return unknown
            self.sure &= value.sure
            return [str(len(value.words))], False
        match = re.match(r"([A-Za-z_]\w*|\d+|[@*#?$!-])", inner)
        if match is None:
            return unknown
        return self._named(match[1], inner[match.end() :], unknown)

    def _named(
        self, name: str, rest: str, unknown: tuple[list[str], bool]
    ) -> tuple[list[str], bool]:
        whole = name == "@" or rest.startswith("[@]")
        words, empty = self._words_of(name), [_NOTHING if whole else ""]
        if name in "@*" and (part := re.fullmatch(r":(\d+)(?::(\d+))?", rest)):
            first = max(0, int(part[1]) - 1)
            words = (words or ())[first : first + int(part[2]) if part[2] else None]
            return list(words) or empty, whole
        if index := re.match(r"\[(@|\*|\d+)\]", rest):
            rest = rest[index.end() :]
            if words is not None and index[1].isdecimal():
                words = words[int(index[1]) : int(index[1]) + 1]
        elif words is not None and name not in "@*":
            words = words[:1]
        default = re.match(r":?([-=+?])", rest)
        if rest and not default:
            return unknown
        if default and default[1] in "-=" and (words is None or words in {(), ("",)}):
            self.sure &= name.isdecimal()  # an argument is known not to be there
            value = " ".join(self.expand(rest[default.end() :], splits=False))
            if default[1] == "=" and name not in self.fixed:
                self.values[name] = _Value((value,), sure=False)
            return [value], False
        if default and default[1] == "+":
            self.sure &= words is not None
            given = words is not None and words not in {(), ("",)}
            return (self.expand(rest[default.end() :]) if given else []) or [""], False
        return unknown if words is None else (list(words) or empty, whole)

    def _words_of(self, name: str) -> tuple[str, ...] | None:
        """Return the value of a variable or an argument; None: it is not known."""
        if name in "@*" or name.isdecimal():
            if "function" in self.within or name == "0":
                return None
            return self.args if name in "@*" else self.args[int(name) - 1 : int(name)] or ("",)
        value = self.values.get(name)
        if value is None:
            return None
        self.sure &= value.sure
        return value.words


def _leaves(words: Sequence[str]) -> bool:
    """Tell whether a command ends the script; `exec` with redirections only does not."""
    return bool(words) and (words[0] == "exit" or (words[0] == "exec" and len(words) > 1))
