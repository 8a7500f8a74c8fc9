"""Checks the tests: makes small mistakes in named functions, one at a time, and sees whether a test fails.

    python scripts/mutate.py                        every target of scripts/mutations.toml
    python scripts/mutate.py rounding stream        these
    python scripts/mutate.py rounding --list        only what would be changed
    python scripts/mutate.py space --sample 30      30 of a target's mistakes, the same ones each time
    python scripts/mutate.py --again build/mutants/mutants.json     what has survived, with new tests
    python scripts/mutate.py pool --since 6f897e1   only in lines that have changed since that commit

A mistake ("mutant") is a comparison that includes its bound or not, another operator, a constant that is one more, min
for max, a condition turned round, a statement left out, and the like. Tests see it in a copy of the source tree,
or in memory (scripts/mutation_server.py); the working tree is never changed. What no test notices is listed
("survived"), unless the table of targets says why it makes no difference.
"""

import argparse
import ast
import copy
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_name("mutations.toml")
SERVER = Path(__file__).with_name("mutation_server.py")

BOUNDS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPPOSITES = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn,
             ast.NotIn: ast.In}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}  # fmt: skip
TWINS = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any",
         "floor": "ceil", "ceil": "floor"}  # fmt: skip
Target = dict[str, Any]  # of the table
Limits = dict[str, float]  # of a run of tests: "seconds" by the clock, and seconds of the "processor"
DROPPED = {"sqrt", "abs", "square", "sorted", "rint", "round"}  # f(x) -> x


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Args:
        function: where, "f" or "Class.method".
        line: its line's number.
        source: that line as it is.
        change: what it becomes, in words.
        start, stop: the bytes of the file that are replaced.
        text: by what.
    """

    function: str
    line: int
    source: str
    change: str
    start: int
    stop: int
    text: str


def functions(tree: ast.Module, names: list[str]) -> Iterator[tuple[str, ast.AST]]:
    """The named functions, methods and all methods of named classes, with their names; none named: all there are."""
    found: dict[str, ast.AST] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    found[f"{node.name}.{inner.name}"] = inner
    for name in names or found:
        matching = [key for key in found if key == name or key.startswith(f"{name}.")]
        if not matching:
            raise SystemExit(f"there is no function {name}; there are: {', '.join(found)}")
        for key in matching:
            yield key, found[key]


def changes(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """What may stand in a node's place, and what that is in words."""
    if isinstance(node, ast.Compare):
        for at, op in enumerate(node.ops):
            other = BOUNDS.get(type(op)) or OPPOSITES.get(type(op))
            if other is not None:
                changed = copy.deepcopy(node)
                changed.ops[at] = other()
                yield changed, f"{ast.unparse(node)} -> {ast.unparse(changed)}"
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        changed_op = copy.deepcopy(node)
        changed_op.op = OPERATORS[type(node.op)]()
        yield changed_op, f"{ast.unparse(node)} -> {ast.unparse(changed_op)}"
    elif isinstance(node, ast.BoolOp):
        swapped = copy.deepcopy(node)
        swapped.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield swapped, f"{ast.unparse(node)} -> {ast.unparse(swapped)}"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub, ast.Invert)):
        yield node.operand, f"{ast.unparse(node)} -> {ast.unparse(node.operand)}"
    elif isinstance(node, ast.Constant):
        value = another(node.value)
        if value is not None:
            yield ast.Constant(value), f"{node.value!r} -> {value!r}"
    elif isinstance(node, ast.Call):
        yield from other_calls(node)
    elif isinstance(node, ast.AugAssign):
        yield ast.Pass(), f"without: {ast.unparse(node)}"
        if type(node.op) in OPERATORS:
            changed_aug = copy.deepcopy(node)
            changed_aug.op = OPERATORS[type(node.op)]()
            yield changed_aug, f"{ast.unparse(node)} -> {ast.unparse(changed_aug)}"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass(), f"without: {ast.unparse(node)}"


def other_calls(node: ast.Call) -> Iterator[tuple[ast.AST, str]]:
    """`min` for `max` and the like, and a function left out."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in TWINS:
        changed = copy.deepcopy(node)
        if isinstance(changed.func, ast.Attribute):
            changed.func.attr = TWINS[name]
        elif isinstance(changed.func, ast.Name):
            changed.func.id = TWINS[name]
        yield changed, f"{ast.unparse(node)} -> {ast.unparse(changed)}"
    if name in DROPPED:
        inner = node.args[0] if node.args else node.func.value if isinstance(node.func, ast.Attribute) else None
        if inner is not None:
            yield inner, f"{ast.unparse(node)} -> {ast.unparse(inner)}"


def another(value: Any) -> Any:
    """Another constant, None where none is tried."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return 0 if value == 1 else value + 1
    if isinstance(value, float):
        return 2 * value if value else 1.0
    return None


def conditions(node: ast.AST) -> list[ast.expr]:
    """The conditions that a node decides by."""
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        return [node.test]
    return list(node.ifs) if isinstance(node, ast.comprehension) else []


def worth(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes in which a mistake would change what is computed: no docstrings, types, or texts of errors."""
    yield node
    for name, child in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(node, (ast.Raise, ast.JoinedStr)):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":  # says what always holds
            continue
        for one in child if isinstance(child, list) else [child]:
            if isinstance(one, ast.AST):
                yield from worth(one)


def mutants(path: Path, names: list[str]) -> list[Mutant]:
    """All mistakes that are tried in a file's named functions."""
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    begins = [0]
    for line in lines:
        begins.append(begins[-1] + len(line))
    found: dict[tuple[int, int, str], Mutant] = {}

    def add(function: str, node: ast.AST, made: ast.AST, change: str) -> None:
        start = begins[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        stop = begins[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        text = ast.unparse(made)
        if isinstance(made, ast.expr) and not isinstance(made, (ast.Constant, ast.Name, ast.Call)):
            text = f"({text})"
        line = node.lineno  # type: ignore[attr-defined]
        source = lines[line - 1].decode().strip()
        mutant = Mutant(function, line, source, change, start, stop, text)
        found.setdefault((start, stop, ast.unparse(made)), mutant)

    for function, root in functions(ast.parse(data), names):
        for node in worth(root):
            for made, change in changes(node):
                add(function, node, made, change)
            for test in conditions(node):
                if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                    continue  # leaving out the `not` is that
                negated = ast.UnaryOp(ast.Not(), test)
                add(function, test, negated, f"condition turned round: {ast.unparse(test)}")
    return sorted(found.values(), key=lambda m: (m.line, m.start, m.stop))


# -- running tests ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What a run of tests has come to.

    Args:
        outcome: "passed", "killed", "timeout", "unfit" (the code can't be swapped) or "broken".
        seconds: that it took.
        processor: seconds of the processor's time.
    """

    outcome: str
    seconds: float = 0.0
    processor: float = 0.0

    @property
    def limits(self) -> Limits:
        """What tests with a mistake may take, where these were without: a busy machine alone reaches neither."""
        return {"seconds": max(120.0, 40 * self.seconds), "processor": max(5.0, 10 * self.processor)}


UNFIT = Found("unfit")
OPEN = ("survived", "broken")  # somebody should look at it
FIRST: Limits = {"seconds": 3600.0, "processor": 1800.0}  # of runs without a mistake


class Server:
    """A copy of the source tree, and a process that runs tests with it (scripts/mutation_server.py)."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "tests.log"
        shutil.copytree(ROOT / "src", folder / "src", copy_function=_copy)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        self._process = subprocess.Popen([sys.executable, str(SERVER)], stdin=-1, stdout=-1, text=True, env=environment)
        self._stamp = time.time()
        self._ready: Target | None = None  # the target that it is prepared for

    def run(self, target: Target, data: bytes, limits: Limits) -> Found:
        """Run a target's tests with its file's content replaced."""
        self._finish()
        path = self.folder / target["file"]
        before = path.read_bytes()
        try:
            self._write(path, data)
            return self._order({"tests": target["tests"], **limits})
        finally:
            self._write(path, before)

    def swapped(self, target: Target, mutant: "Mutant | None", data: bytes, limits: Limits) -> Found:
        """The same with a function's code replaced in memory, without a mutant as it is; "unfit": it can't be done."""
        tests = target["tests"]
        if self._ready is not target:
            self._finish()
            self._ready = target
            order = {"prepare": True, "file": str(self.folder / target["file"]), "tests": tests, **limits}
            if self._order(order).outcome != "passed":
                self._finish()
                return UNFIT
        text = None if mutant is None else data.decode()
        name = None if mutant is None else mutant.function
        return self._order({"tests": tests, **limits, "text": text, "function": name})

    def _finish(self) -> None:
        """Be prepared for no target any more."""
        if self._ready is not None:
            self._order({"finish": True})
            self._ready = None

    def _order(self, order: dict[str, Any]) -> Found:
        """Have an order carried out."""
        assert self._process.stdin is not None and self._process.stdout is not None
        order |= {"folder": str(self.folder / "src"), "log": str(self.log)} if "finish" not in order else {}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        code, *took = json.loads(self._process.stdout.readline())
        # 1: a test failed; 2 to 4: a module could not be imported, which somebody would notice too
        names = {0: "passed", 1: "killed", 2: "killed", 3: "killed", 4: "killed", 98: "unfit", -1000: "timeout"}
        return Found(names.get(code, "killed" if code < 0 else "broken"), *took)

    def _write(self, path: Path, data: bytes) -> None:
        """With a time of its own, by which Python and numba know what of theirs is stale."""
        path.write_bytes(data)
        self._stamp += 7
        os.utime(path, (self._stamp, self._stamp))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _copy(source: str, target: str) -> None:
    """Code and compiled code with its times; the rest (models) as links."""
    if Path(source).suffix in (".py", ".pyc", ".nbi", ".nbc", ".toml"):
        shutil.copy2(source, target)
    else:
        Path(target).symlink_to(source)


# -- all of it -------------------------------------------------------------------------------------------------------


def explained(target: Target, mutant: Mutant) -> str | None:
    """Why a mutant makes no difference, if the table says so."""
    for one in target.get("equivalent", ()):
        if one["change"] == mutant.change and one.get("line", mutant.source) == mutant.source:
            return str(one["why"])
    return None


def drawn(made: list[Mutant], sample: int | None) -> list[Mutant]:
    """So many of a list, in its order, the same ones each time; all without a number."""
    if sample is None or sample >= len(made):
        return made
    chosen = sorted(random.Random(0).sample(range(len(made)), sample))
    return [made[at] for at in chosen]


def changed_since(commit: str, file: str, root: Path = ROOT) -> set[int]:
    """The numbers of a file's lines that are not as they were in a commit."""
    words = ["git", "diff", "--unified=0", "--no-ext-diff", "--no-color", commit, "--", file]
    said = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True).stdout
    found: set[int] = set()
    for first, count in re.findall(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", said, re.MULTILINE):
        found.update(range(int(first), int(first) + int(count or 1)))
    return found


def touching(made: list[Mutant], path: Path, lines: set[int]) -> list[Mutant]:
    """Those whose place in a file is on some of its lines."""
    data = path.read_bytes()
    return [m for m in made if not lines.isdisjoint(range(m.line, m.line + 1 + data.count(b"\n", m.start, m.stop)))]


def tried(
    name: str, target: Target, sample: int | None = None, report: Path | None = None, since: str | None = None
) -> list[Mutant]:
    """A target's mutants: all, or a sample, or those in changed lines, or those that have survived in a report."""
    made = mutants(ROOT / target["file"], target.get("functions", []))
    if since is not None:
        made = touching(made, ROOT / target["file"], changed_since(since, target["file"]))
    made = drawn(made, sample)
    if report is None:
        return made
    lines = [line for line in json.loads(report.read_text(encoding="utf-8")) if line["outcome"] in OPEN]
    left = {(line["target"], line["function"], line["source"], line["change"]) for line in lines}
    return [mutant for mutant in made if (name, mutant.function, mutant.source, mutant.change) in left]


def check(
    name: str, target: Target, made: list[Mutant], servers: "queue.Queue[Server]", jobs: int
) -> list[dict[str, Any]]:
    """Try a target's mutants; a line of the report for each."""
    data = (ROOT / target["file"]).read_bytes()
    first = servers.get()
    as_it_is = first.run(target, data, FIRST)  # what is compiled once is compiled now
    if as_it_is.outcome != "passed":
        log = first.log.read_text()[-3000:]
        raise SystemExit(f"{name}: the tests do not pass as it is ({as_it_is.outcome}):\n{log}")
    in_memory = first.swapped(target, None, data, FIRST)  # without the imports: a loop without end is known sooner
    swaps = in_memory.outcome == "passed"
    servers.put(first)
    took = (in_memory if swaps else as_it_is).processor
    print(f"{name}: {len(made)} mutants, {took:.1f} s of the processor each if nothing fails", flush=True)

    def one(mutant: Mutant, swap: bool) -> Found:
        server = servers.get()
        try:
            changed = data[: mutant.start] + mutant.text.encode() + data[mutant.stop :]
            if swap:
                return server.swapped(target, mutant, changed, in_memory.limits)
            return server.run(target, changed, as_it_is.limits)
        finally:
            servers.put(server)

    def left(so_far: Found, mutant: Mutant) -> bool:
        unseen = so_far.outcome == "passed" and explained(target, mutant) is None
        return unseen or so_far.outcome in ("unfit", "broken")

    with ThreadPoolExecutor(jobs) as pool:
        found = dict(zip(made, pool.map(one, made, [True] * len(made)), strict=True)) if swaps else {}
        rest = [mutant for mutant in made if left(found.get(mutant, UNFIT), mutant)]
        for mutant in rest if swaps else ():  # said now: what follows takes long
            print(f"  to be seen whole: {target['file']}:{mutant.line} {mutant.function}: {mutant.change}", flush=True)
        found |= zip(rest, pool.map(one, rest, [False] * len(rest)), strict=True)
    return [line_of(name, target, mutant, found[mutant]) for mutant in made]


def line_of(name: str, target: Target, mutant: Mutant, found: Found) -> dict[str, Any]:
    """A mutant's line of the report; said at once if somebody should look at it."""
    outcome = "survived" if found.outcome == "passed" else found.outcome
    why = explained(target, mutant) if outcome == "survived" else None
    line = {"target": name, "file": target["file"], **asdict(mutant), **asdict(found), "outcome": outcome}
    if why is not None:
        line |= {"outcome": "equivalent", "why": why}
    if line["outcome"] in OPEN:
        print(f"  {outcome}: {target['file']}:{mutant.line} {mutant.function}: {mutant.change}", flush=True)
    return line


def report(lines: list[dict[str, Any]]) -> str:
    """A readable list: how many of each outcome, then what survived and what makes no difference."""
    text = []
    for name in dict.fromkeys(line["target"] for line in lines):
        counts = Counter(line["outcome"] for line in lines if line["target"] == name)
        text.append(f"{name}: " + ", ".join(f"{counts[k]} {k}" for k in sorted(counts)))
    for outcome in ("survived", "broken", "timeout", "equivalent"):
        chosen = [line for line in lines if line["outcome"] == outcome]
        text += ["", f"{outcome}:"] if chosen else []
        for line in chosen:
            text.append(f"  {line['file']}:{line['line']} {line['function']}: {line['change']}")
            text += [f"      {line['why']}"] if "why" in line else []
    return "\n".join(text) + "\n"


def save(lines: list[dict[str, Any]], out: Path) -> str:
    """Write the report into a folder; what is readable of it is returned."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "mutants.json").write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
    text = report(lines)
    (out / "mutants.txt").write_text(text, encoding="utf-8")
    return text


def main() -> int:
    """Entry point: 1 if something survived that the table does not explain."""
    parser = argparse.ArgumentParser(description="Check the tests by small mistakes in the code.")
    parser.add_argument("targets", nargs="*", help="targets of the table; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--sample", type=int, help="mutants of a target, the same ones each time; default: all")
    parser.add_argument("--again", type=Path, metavar="REPORT", help="mutants.json: only what has survived there")
    parser.add_argument("--since", metavar="COMMIT", help="only mutants in lines that have changed since")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutants", help="folder for the report")
    parser.add_argument("--list", action="store_true", help="say what would be changed, and stop")
    options = parser.parse_args()
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    unknown = set(options.targets) - set(table)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(table)}")
    chosen = {
        name: tried(name, table[name], options.sample, options.again, options.since)
        for name in options.targets or table
    }
    if options.list:
        for name, made in chosen.items():
            for mutant in made:
                print(f"{name} {table[name]['file']}:{mutant.line} {mutant.function}: {mutant.change}")
        return 0
    lines: list[dict[str, Any]] = []
    servers: queue.Queue[Server] = queue.Queue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        all_servers = [Server(Path(folder) / str(n)) for n in range(options.jobs)]
        for server in all_servers:
            servers.put(server)
        try:
            for name, made in chosen.items():
                lines += check(name, table[name], made, servers, options.jobs) if made else []
                text = save(lines, options.out)  # after each target: a run of hours may be stopped
        finally:
            for server in all_servers:
                server.close()
    print(f"\n{text}\n{options.out}/mutants.json, .txt")
    return 1 if any(line["outcome"] in OPEN for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
