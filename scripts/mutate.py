"""Checks the tests with mutmut: makes small mistakes in named functions, one at a time, and sees
whether a test fails.

    python scripts/mutate.py                     every target of scripts/mutations.toml
    python scripts/mutate.py rounding stream     these

mutmut (a development dependency) changes the code and runs the tests, in a copy of the tree under
build/mutants. This script lists which functions and tests belong together, and prints the mistakes
that no test noticed and that the table does not explain. The table explains a mistake by its
function and its kind, such as `number -> number`, so that it stays right when lines are rewritten.

The script leaves out mistakes in texts alone; in the details of an error beside its type; in
`strict=`, `dtype=`, `copy=`, `astype` and `cast`, which guard against a caller's mistake or spell
out a default or a type; and in devices, of which a processor has one. It exits with 1 if there is
any other.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_name("mutations.toml")
TIERS = ("not long and not slow", "not slow")
# exit codes: a test failed, or the code never ended or crashed
NOTICED = {1, 3, 24, 36, 37, 152, 255, -24, -9, -11, -15}
# left out of a comparison: texts, the details of an error, defaults that are written out
SAME = (
    re.compile(r"""[rbf]*("([^"\\]|\\.)*"|'([^'\\]|\\.)*')""", re.IGNORECASE),
    re.compile(r"raise \w+\(.*"),
    re.compile(r",? ?\b(strict|dtype|copy)=[\w.]+,?|\.astype\([\w.\"<]*\)|,? *(?=\))"),
    re.compile(r"\bcast\(\w+, "),
    re.compile(r"\.reshape\(-[12]"),  # any negative length is that of the rest
    # of one device
    re.compile(r"\.to\((None|[\w.]+\.device)\)|,? ?\bdevice=[\w.]*|kernels\.current\([\w.\[\]]*\)"),
)

COMMENT = re.compile(r"(?:^|  )# .*")
TOKEN = re.compile(
    r"""[rbf]*"(?:[^"\\]|\\.)*"|[rbf]*'(?:[^'\\]|\\.)*'|\d[\d_.]*(?:e-?\d+)?|\w+"""
    r"""|\*\*=?|//=?|<<|>>|[<>=!+\-*/%&|^@]=|->|[^\w\s]"""
)
WORDS = {"None", "True", "False", "and", "or", "not", "in", "is", "break", "continue", "return"}


def copy_tree(target: dict[str, Any], folder: Path) -> None:
    """A copy of all files that git knows or would add, with mutmut's settings for one target."""
    shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    settings = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    settings["tool"]["mutmut"] = {
        "source_paths": ["src"],
        "only_mutate": [target["file"]],
        "pytest_add_cli_args_test_selection": target["tests"],
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-x", "-m", TIERS["long" in target]],
        "also_copy": sorted(
            path.name for path in folder.iterdir() if path.name not in ("src", ".git")
        ),
        "process_isolation": "forkserver",  # torch's threads do not survive a fork
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")


def patterns(target: dict[str, Any]) -> list[str]:
    """mutmut's names of the target's functions: `x_f` for a function f, `xǁCǁm` for a method m of a
    class C.
    """
    module = ".".join(Path(target["file"]).with_suffix("").parts[1:])
    names = []
    for name in target.get("functions", ["*"]):
        of_class, dot, method = name.partition(".")
        if dot:
            names.append(f"{module}.xǁ{of_class}ǁ{method}__mutmut*")
        else:
            names += [f"{module}.x_{name}__mutmut*", f"{module}.xǁ{name}ǁ*"]
    return names if "functions" in target else [f"{module}.*"]


def changed_lines(diff: str) -> tuple[str, str]:
    """What a mistake takes away and what it puts there, without their indentation."""
    lines = [
        line
        for line in diff.splitlines()
        if line[:1] in "+-" and not line.startswith(("+++", "---"))
    ]
    gone, new = ([line[1:].strip() for line in lines if line[0] == sign] for sign in "-+")
    return " ".join(gone), " ".join(new)


def bare(line: str) -> str:
    """A line without what may differ."""
    for pattern in SAME:
        line = pattern.sub("", line)
    return line


def function_of(name: str) -> str:
    """Return the qualified name of the function that one of mutmut's names stands for.

    Args:
        name: such as `package.module.xǁClassǁmethod__mutmut_3` or `package.module.x_f__mutmut_1`.
    """
    mangled = name.rpartition(".")[2].rpartition("__mutmut_")[0]
    if mangled.startswith("xǁ"):
        return ".".join(mangled.split("ǁ")[1:])
    return mangled.removeprefix("x_")


def kind_of(gone: str, new: str) -> str:
    """Return the kind of a mistake: the two sides of the difference, without names and values.

    Args:
        gone: the line, or lines, that the mistake changes.
        new: the same with the mistake.

    Returns:
        A text such as `< -> <=`, `number -> number`, `value -> None`, `argument -> nothing` or
        `value -> value or True`.
    """
    old_tokens, new_tokens = (TOKEN.findall(COMMENT.sub("", line)) for line in (gone, new))
    start = 0
    while start < min(len(old_tokens), len(new_tokens)) and old_tokens[start] == new_tokens[start]:
        start += 1
    end = 0
    while (
        end < min(len(old_tokens), len(new_tokens)) - start
        and old_tokens[-1 - end] == new_tokens[-1 - end]
    ):
        end += 1
    before = old_tokens[start : len(old_tokens) - end]
    after = new_tokens[start : len(new_tokens) - end]
    for ending in (["or", "True"], ["and", "False"]):
        if after[-2:] == ending and len(after) > len(before):
            return f"value -> value {' '.join(ending)}"
    return f"{describe_tokens(before)} -> {describe_tokens(after)}"


def describe_tokens(tokens: list[str]) -> str:
    """Return the kind of one side of a difference."""
    if not tokens:
        return "nothing"
    if "=" in tokens:
        return "argument"
    if len(tokens) > 1:
        return "value"
    [token] = tokens
    if token[0].isdigit():
        return "number"
    if token[-1] in "\"'":
        return "text"
    if token.isidentifier() and token not in WORDS:
        return "value"
    return token


def unnoticed(target: dict[str, Any], folder: Path, mutmut: list[str]) -> Iterator[str]:
    """Yield the mistakes that no test noticed and that the table does not explain, as "- line",
    "+ line".

    The table gives the number of equivalent mistakes of a kind in a function. If there are more,
    all of them are shown.
    """
    expected = {
        (one["function"], one["kind"]): one.get("count", 1) for one in target.get("equivalent", ())
    }
    groups: dict[tuple[str, str], list[str]] = {}
    meta = json.loads((folder / "mutants" / f"{target['file']}.meta").read_text(encoding="utf-8"))
    for name, code in meta["exit_code_by_key"].items():
        if code is None or code in NOTICED:
            continue
        shown = subprocess.run(
            [*mutmut, "show", name], cwd=folder, capture_output=True, text=True, check=True
        ).stdout
        gone, new = changed_lines(shown)
        if bare(gone) == bare(new):
            continue
        group = groups.setdefault((function_of(name), kind_of(gone, new)), [])
        group.append(f"  {name} (exit code {code})\n    - {gone}\n    + {new}")
    for (function, kind), mistakes in groups.items():
        allowed = expected.get((function, kind), 0)
        if len(mistakes) > allowed:
            yield f"  {function}: {kind}: {len(mistakes)} unnoticed, {allowed} of them equivalent"
            yield from mistakes


def main() -> None:
    """The command line."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", help="names of the table; all by default")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--table", type=Path, help="another table of targets")
    wanted = parser.parse_args()
    if wanted.table is not None:
        table = tomllib.loads(wanted.table.read_text(encoding="utf-8"))
    if unknown := set(wanted.targets) - set(table):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are: {', '.join(table)}")
    mutmut, open_targets = [sys.executable, "-m", "mutmut"], 0
    for name in wanted.targets or table:
        target, folder = table[name], ROOT / "build" / "mutants" / name
        copy_tree(target, folder)
        run = [*mutmut, "run", "--max-children", str(wanted.jobs), *patterns(target)]
        done = subprocess.run(run, cwd=folder, capture_output=True, text=True)
        if done.returncode or not (folder / "mutants" / f"{target['file']}.meta").exists():
            sys.exit(
                f"{name}: mutmut ended with "
                f"{done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
            )
        found = list(unnoticed(target, folder, mutmut))
        tried = (re.findall(r"(\d+)/\d+", done.stdout) or ["0"])[-1]
        print(f"{name}: {tried} mistakes, {len(found)} unnoticed", *found, sep="\n", flush=True)
        open_targets += bool(found)
    sys.exit(1 if open_targets else 0)


if __name__ == "__main__":
    main()
