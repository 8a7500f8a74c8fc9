"""The house keeps its shape: imports point downwards, in no circle, and nobody asks a method what it is."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

import fedseed
import fedseed_papers

SOURCE = Path(fedseed.__file__).parent
# from top to bottom; rooms on one floor do not need each other
FLOORS = [
    ("cli", "extension"),
    ("experiments", "flower"),
    ("runs",),
    ("federation",),
    ("reports", "tracking"),
    ("transport",),
    ("orbit",),
    ("attacks", "privacy"),
    ("methods",),
    ("training",),
    ("objectives",),
    ("tasks", "models", "aggregation"),
    ("weights",),
    ("optimizers",),
    ("randomness",),
    ("registry", "durable", "errors", "text", "interpreter", "metrics"),
]
FLOOR = {f"fedseed.{room}": number for number, floor in enumerate(FLOORS) for room in floor}


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("fedseed", cache_dir=None)


def room(module):
    return ".".join(module.split(".")[:2])


def test_every_room_has_a_floor(graph):
    assert {room(module) for module in graph.modules} - {"fedseed"} == set(FLOOR)


def test_no_import_points_upwards(graph):
    """Imports inside functions count as well."""
    upwards = [
        (module, other)
        for module in graph.modules
        for other in graph.find_modules_directly_imported_by(module)
        if module != "fedseed" and other != "fedseed" and FLOOR[room(module)] > FLOOR[room(other)]
    ]
    assert upwards == []


def circles(left):
    """Modules are taken away whose imports are all gone; what stays stands in a circle."""
    while free := {module for module, needs in left.items() if not needs & left.keys() - {module}}:
        left = {module: needs for module, needs in left.items() if module not in free}
    return sorted(left)


def test_no_imports_in_a_circle(graph):
    assert circles({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}) == []


def test_the_core_does_not_know_the_papers_package():
    """It is installed or not; its own imports stand in no circle and name no private parts."""
    both = grimp.build_graph("fedseed", "fedseed_papers", cache_dir=None)
    papers = {module for module in both.modules if room(module).startswith("fedseed_papers")}
    assert len(papers) > 10
    for module in both.modules - papers:
        assert not both.find_modules_directly_imported_by(module) & papers, module
    assert circles({module: both.find_modules_directly_imported_by(module) & papers for module in papers}) == []


def test_nobody_reaches_into_anothers_private_parts():
    """Not by an import, and not through an attribute that is another file's."""
    found = []
    for path in [*SOURCE.rglob("*.py"), *Path(fedseed_papers.__file__).parent.rglob("*.py")]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        own = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        reached = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedseed"):
                found += [f"{path.name}: {alias.name}" for alias in node.names if alias.name.startswith("_")]
            if isinstance(node, ast.Attribute) and re.fullmatch(r"_[a-z]\w*", node.attr):
                if ast.unparse(node.value) in ("self", "cls", "super()"):
                    own.add(node.attr)
                else:
                    reached.append(node)
        found += [f"{path.name}: {ast.unparse(node)}" for node in reached if node.attr not in own]
    outside = ("os._exit",)  # other libraries' own
    assert [text for text in found if not text.endswith(outside)] == []


ASKING = re.compile(
    r"isinstance\([^()]*\b(?:Ferret|FedKSeed|FeedSign|ZOFedSGD|MeZO|FedMeZO|FedZO|FedAvg|FedSGD|FedIT|FedPTuning"
    r"|FedPrompt|TopK|Sign|Feedback|Dense|Averaged|Stepwise|ZerothOrder)\b"
    r"|type\((?:self\.)?method\)|method\.dense\b|method\.name ==|method\.code =="
)


def test_nobody_asks_which_method_it_has():
    """Nor whether it is dense: what others may know, a method declares (`fedseed.methods.base`)."""
    for path in SOURCE.rglob("*.py"):
        if "methods" not in path.parts:
            found = ASKING.findall(path.read_text(encoding="utf-8"))
            assert not found, f"{path}: {found}"


def test_methods_say_nothing_of_what_wraps_them():
    """Nor of what carries their messages."""
    others = re.compile(r"\b(?:privacy|private|attack\w*|secure\w*|audit\w*|transport\w*|nats)\b", re.IGNORECASE)
    found = {path.name: others.findall(path.read_text(encoding="utf-8")) for path in (SOURCE / "methods").glob("*.py")}
    assert {name: words for name, words in found.items() if words} == {}


def test_a_method_takes_few_names():
    """Ferret, FedKSeed and FedMeZO 35, MeZO, FeedSign and FedAvg 25 (`scripts/count_names.py`)."""
    script = SOURCE.parents[1] / "scripts" / "count_names.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode in (0, 1) and "MeZO" in done.stdout, done.stderr
    assert done.returncode == 0, done.stdout


def test_coordinators_rooms_name_no_torch():
    """`methods/`, `aggregation/`, the orbit's format and the coordinator import no torch, not even later."""
    free = ["methods", "aggregation", "privacy", "tracking", "transport"]
    files = [path for name in free for path in (SOURCE / name).rglob("*.py")]
    files += [SOURCE / "orbit" / f"{name}.py" for name in ("header", "record", "writer", "edit")]
    files += [
        SOURCE / "federation" / "coordinator.py",
        SOURCE / "weights" / "change.py",
        SOURCE / "weights" / "layout.py",
    ]
    for path in files:
        if path.name == "tensorboard.py":  # torch's writer, if somebody asks for it
            continue
        assert not re.search(r"^\s*(?:import|from) torch", path.read_text(encoding="utf-8"), re.MULTILINE), path
