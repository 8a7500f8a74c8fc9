"""The house keeps its shape: imports point downwards, in no circle, nobody asks a method what it
is, all is told.
"""

import ast
import importlib
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import grimp
import pytest

import fedseed
import fedseed_papers
from support.documents import ROOT

SOURCE = Path(fedseed.__file__).parent
# from top to bottom; rooms on one floor do not need each other
FLOORS = [
    floor.split()
    for floor in (
        "__main__",
        "cli extension",
        "experiments flower own",
        "runs",
        "recipe",
        "decentralised",
        "federation",
        "reports tracking",
        "transport",
        "orbit",
        "attacks privacy",
        "methods",
        "training",
        "objectives",
        "tasks models aggregation",
        "weights",
        "optimizers",
        "randomness",
        "registry durable errors hinting text processes actors metrics threads",
    )
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
    assert (
        circles(
            {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
        )
        == []
    )


def test_the_core_does_not_know_the_papers_package():
    """It is installed or not; its own imports stand in no circle and name no private parts."""
    both = grimp.build_graph("fedseed", "fedseed_papers", cache_dir=None)
    papers = {module for module in both.modules if room(module).startswith("fedseed_papers")}
    assert len(papers) > 10
    for module in both.modules - papers:
        assert not both.find_modules_directly_imported_by(module) & papers, module
    assert (
        circles(
            {module: both.find_modules_directly_imported_by(module) & papers for module in papers}
        )
        == []
    )


@cache
def nodes(path):
    """All nodes of a file, its body's first one first."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def test_nobody_reaches_into_anothers_private_parts():
    """Not by an import, and not through an attribute that is another file's."""
    found = []
    for path in [*SOURCE.rglob("*.py"), *Path(fedseed_papers.__file__).parent.rglob("*.py")]:
        own, reached = set(), []
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef):
                own.add(node.name)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedseed"):
                found += [
                    f"{path.name}: {alias.name}"
                    for alias in node.names
                    if alias.name.startswith("_")
                ]
            if isinstance(node, ast.Attribute) and re.fullmatch(r"_[a-z]\w*", node.attr):
                if ast.unparse(node.value) in ("self", "cls", "super()"):
                    own.add(node.attr)
                else:
                    reached.append(node)
        found += [f"{path.name}: {ast.unparse(node)}" for node in reached if node.attr not in own]
    outside = ("os._exit", "._is_hf_initialized", "._cdata", "._schema")  # other libraries' own
    assert [text for text in found if not text.endswith(outside)] == []


ASKING = re.compile(
    r"isinstance\([^()]*\b(?:Ferret|FedKSeed|FeedSign|ZOFedSGD|MeZO|FedMeZO|FedZO|FedAvg|FedSGD|FedIT|FedPTuning"
    r"|FedPrompt|RandOpt|TopK|Sign|Feedback|Dense|Averaged|Stepwise|ZerothOrder)\b"
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
    others = re.compile(
        r"\b(?:privacy|private|attack\w*|secure\w*|audit\w*|transport\w*|nats)\b", re.IGNORECASE
    )
    found = {
        path.name: others.findall(path.read_text(encoding="utf-8"))
        for path in (SOURCE / "methods").glob("*.py")
    }
    assert {name: words for name, words in found.items() if words} == {}


def test_a_method_takes_few_names():
    """Ferret, FedKSeed and FedMeZO 35, MeZO, FeedSign and FedAvg 25 (`scripts/count_names.py`)."""
    script = SOURCE.parents[1] / "scripts" / "count_names.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode in (0, 1) and "MeZO" in done.stdout, done.stderr
    assert done.returncode == 0, done.stdout


def test_coordinator_and_client_import_nothing_of_each_other(graph):
    sides = ["fedseed.federation.coordinator", "fedseed.federation.client"]
    for importer, imported in (sides, sides[::-1]):
        assert graph.find_descendants(importer)
        assert not graph.direct_import_exists(
            importer=importer, imported=imported, as_packages=True
        )


def test_coordinators_rooms_name_no_torch():
    """`methods/`, `aggregation/`, the orbit's format and the coordinator import no torch, not even
    later.
    """
    free = ["methods", "aggregation", "privacy", "tracking", "transport", "federation/coordinator"]
    files = [path for name in free for path in (SOURCE / name).rglob("*.py")]
    files += [SOURCE / "orbit" / f"{name}.py" for name in ("header", "record", "writer", "edit")]
    files += [SOURCE / name for name in ("weights/change.py", "weights/layout.py")]
    names_torch = re.compile(r"^\s*(?:import|from) torch", re.MULTILINE)
    found = [path.name for path in files if names_torch.search(path.read_text(encoding="utf-8"))]
    assert found == []


LIGHT = [
    "fedseed",
    "fedseed.methods",
    "fedseed.orbit",
    "fedseed.federation.messages",
    "fedseed.federation.coordinator.coordinator",
    "fedseed.federation.coordinator.network",
    "fedseed.federation.control",
    "fedseed.runs.folder",
    "fedseed.runs.loop",
    "fedseed.runs.network",
    "fedseed.recipe.settings",
    "fedseed.runs.parties",
    "fedseed.transport.memory",
    "fedseed.transport.nats",
    "fedseed.transport.keys",
    "fedseed.cli.network",
    "fedseed.cli.app",
    "fedseed.cli.running",
    "fedseed.flower.server",
    "fedseed.tasks.instructions",
    "fedseed.tasks.natural_instructions",
    "fedseed.tasks.own",
    "fedseed.reports.partition",
    "fedseed.reports.pages",
    "fedseed.reports.comparison",
    "fedseed.reports.prometheus",
]


@pytest.mark.long
def test_the_coordinators_side_imports_neither_torch_nor_transformers():
    """One process for all: what none of them brings, nobody does."""
    code = f"""
import importlib, sys
for module in {LIGHT}:
    importlib.import_module(module)
    print(module, *({{'torch', 'transformers'}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == [*LIGHT, ""]


def test_only_the_transport_knows_nats():
    """And it knows little else; what talks over it knows what a transport is, and none of them."""
    graph = grimp.build_graph("fedseed", include_external_packages=True, cache_dir=None)
    users = {
        module
        for library in ("nats", "nkeys")
        for module in graph.find_modules_that_directly_import(library)
    }
    assert users and all(module.startswith("fedseed.transport.") for module in users)
    allowed = (
        "fedseed.transport",
        "fedseed.errors",
        "fedseed.durable",
        "fedseed.registry",
        "fedseed.text",
    )
    for module in graph.modules:
        needs = graph.find_modules_directly_imported_by(module)
        if module.startswith("fedseed.transport."):
            assert all(name.startswith(allowed) for name in needs if name.startswith("fedseed")), (
                module
            )
        if module.startswith("fedseed.federation."):
            assert not any(
                name.startswith(("fedseed.transport.nats", "fedseed.transport.memory"))
                for name in needs
            )


# -- what a reader meets
# ---------------------------------------------------------------------------------------------

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
MOST_ATTRIBUTES, MOST_PARAMETERS = 20, 8


def attributes(name, classes):
    """The instance attributes of a class and its bases."""
    node, found = classes.get(name), set()
    if node is None:
        return found
    for base in node.bases:
        found |= attributes(ast.unparse(base).rpartition(".")[2], classes)
    for inner in ast.walk(node):
        if (
            isinstance(inner, ast.Attribute)
            and isinstance(inner.ctx, ast.Store)
            and ast.unparse(inner.value) == "self"
        ):
            found.add(inner.attr)
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        found |= {part.target.id for part in node.body if isinstance(part, ast.AnnAssign)}
    return found


def test_classes_are_small():
    files = [*(SOURCE / "federation").rglob("*.py"), *(SOURCE / "transport").glob("*.py")]
    runs = ("loop", "simulation", "network", "joining", "assembly", "model_setup")
    files += [SOURCE / "runs" / f"{name}.py" for name in runs]
    classes = {
        n.name: n
        for path in SOURCE.rglob("*.py")
        for n in nodes(path)
        if isinstance(n, ast.ClassDef)
    }
    inside = [
        node.name
        for path in files
        for node in nodes(path)[0].body
        if isinstance(node, ast.ClassDef)
    ]
    counts = {name: len(attributes(name, classes)) for name in inside}
    assert (
        len(counts) > 50
        and {name: count for name, count in counts.items() if count > MOST_ATTRIBUTES} == {}
    )


def test_no_function_takes_more_than_eight_parameters():
    """Triton's kernels neither."""
    long = {}
    for path in SOURCE.rglob("*.py"):
        for node in nodes(path):
            if isinstance(node, FUNCTIONS):
                taken = [
                    a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                ]
                if len([name for name in taken if name not in ("self", "cls")]) > MOST_PARAMETERS:
                    long[f"{path.relative_to(SOURCE)}: {node.name}"] = taken
    assert not long


def inherited(name, classes, seen=()):
    """The names that a class' bases define.

    None: a base is another library's, and nobody here knows.
    """
    found = set()
    for base in (
        ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in classes[name].bases
    ):
        if base in ("ABC", "Protocol", "object", "Generic", "Exception", *seen):
            continue
        above = inherited(base, classes, (*seen, name)) if base in classes else None
        if above is None:
            return None
        found |= above | {node.name for node in classes[base].body if isinstance(node, FUNCTIONS)}
    return found


def undocumented(nodes):
    """Public functions and classes without a docstring."""
    for node in nodes:
        if (
            not isinstance(node, FUNCTIONS | ast.ClassDef)
            or node.name.startswith("_")
            or ast.get_docstring(node)
        ):
            continue
        if not any(ast.unparse(d).endswith(".setter") for d in node.decorator_list):
            yield node


def test_every_public_function_that_overrides_none_says_what_it_does():
    files = sorted(SOURCE.rglob("*.py"))
    classes = {n.name: n for path in files for n in nodes(path) if isinstance(n, ast.ClassDef)}
    missing = []
    for path in files:
        tree = nodes(path)[0]
        missing += [f"{path}: {node.name}" for node in undocumented(tree.body)]
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                above = inherited(node.name, classes)
                inner = (
                    undocumented(n for n in node.body if isinstance(n, FUNCTIONS))
                    if above is not None
                    else ()
                )
                missing += [f"{path}: {node.name}.{n.name}" for n in inner if n.name not in above]
    assert missing == []


def test_what_stands_beside_the_package_imports_names_that_are_there():
    found = {
        (path.name, node.module, alias.name)
        for folder in ("benchmarks", "examples", "scripts")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").split(".")[0] in ("fedseed", "fedseed_papers")
        for alias in node.names
    }
    assert len(found) > 100
    missing = []
    for file, module, name in found:
        there = importlib.import_module(module)
        if not hasattr(there, name) and not (
            hasattr(there, "__path__") and find_spec(f"{module}.{name}")
        ):
            missing.append((file, module, name))
    assert not missing
