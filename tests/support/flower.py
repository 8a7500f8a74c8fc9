"""A Grid in this process: records serialized and read back, nodes that fail and lie.

Flower's messages if there.
"""

import itertools
import uuid
from types import SimpleNamespace

import tomli_w

try:
    from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:
    from support.flower_grid import ConfigRecord, Context, Error, Message, RecordDict

    class TaskIdentity:
        """Flower's messages ask it which process they are made in."""


from fedseed.flower import client
from fedseed.flower.server import coordinate
from fedseed.recipe.settings import Recipe
from fedseed.transport import flower_wire as wire
from support import problem as problems
from support.heard import Heard
from support.network import federation_of
from support.parts import part_of

PAIR = [{"client": "client-0,client-3"}, {"client": "client-[124]"}]


def copied(content):
    """Records as they are after having travelled."""
    return RecordDict(
        {
            name: ConfigRecord.inflate(record.deflate())
            for name, record in content.config_records.items()
        }
    )


class Grid:
    """Flower's Grid as far as a ServerApp sees it.

    Args:
        configs: the nodes' configurations.
        recipe: file of the recipe.
        load: makes model and examples in place of the recipe.
        processes: every message is answered by a process that knows nothing; otherwise one answers
            all, as an actor.
    """

    def __init__(self, configs, recipe="", load=None, processes=True, run_config=None):
        # of each its configuration, whether it is there, and what Flower keeps of it
        self.nodes = {
            number: SimpleNamespace(number=number, config=config, there=True, context=None)
            for number, config in enumerate(configs, start=11)
        }
        self.run_id = uuid.uuid4().int >> 80
        # as of Flower's processes
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self.run_id, 1, 1
        self.run_config = run_config or {}
        self.processes = processes
        self.answered = []  # kinds of messages, by node
        # a test's own: before a message is answered; an error's text, or its code and text,
        # or "lost"
        self.at = lambda node, message: None
        # what a node that lies says in place of what it would say
        self.changed = lambda node, table: table
        self._replies = {}
        self._ids = itertools.count()
        self._reply = lambda message, context: client.reply(message, context, recipe, load)

    @property
    def context(self):
        """The ServerApp's."""
        return Context(self.run_id, 0, {}, RecordDict(), self.run_config)

    def get_node_ids(self):
        return [number for number, node in self.nodes.items() if node.there]

    def push_messages(self, messages):
        made = []
        for message in messages:
            identity = str(next(self._ids))
            message.metadata.__dict__["_message_id"] = identity
            made.append(identity)
            self._answer(identity, message)
        return made

    def _answer(self, identity, message):
        node = self.nodes[message.metadata.dst_node_id]
        failure = self.at(node, message)
        if failure == "lost" or not node.there:
            return
        self.answered.append((node.number, message.metadata.message_type))
        if failure:
            code, text = failure if isinstance(failure, tuple) else (0, failure)
            self._replies[identity] = Message(Error(code, text), reply_to=message)
            return
        if self.processes:
            client._SITES.clear()
        if node.context is None:
            node.context = Context(
                self.run_id, node.number, node.config, RecordDict(), self.run_config
            )
        message.content = copied(message.content)
        reply = self._reply(message, node.context)
        table = self.changed(node, wire.table(reply))
        reply.content = copied(wire.content(table) if table else RecordDict())
        node.context.state = copied(node.context.state)
        self._replies[identity] = reply

    def pull_messages(self, identities):
        return [self._replies.pop(identity) for identity in identities if identity in self._replies]


def written(folder, method, **more):
    """The recipe's file, and what is in it; `method`: a name, or a table."""
    table = problems.METHODS[method] if isinstance(method, str) else method
    federation = {"joint": False, "deadline": 30.0, **more.pop("federation", {})}
    recipe = {"seed": 3, "rounds": 6, "evaluation": {"every": 2}, "method": table, **more}
    recipe["federation"] = federation
    path = folder / "recipe.toml"
    path.write_text(tomli_w.dumps(recipe))
    return path, recipe


def loading(problem, recipe, figures=None):
    """The recipe, and what makes a process' part of it.

    `figures`: what of each of its clients is measured, by name.
    """
    checked = Recipe.model_validate(recipe)

    def load(names):
        hosted = part_of(federation_of(problem, checked), names or ["*"])
        if figures is not None:
            hosted.evaluate = lambda model: {
                "by_client": {name: figures(name) for name in hosted.items}
            }
        return hosted

    return checked, load


def grid(path, problem, recipe, out, configs=PAIR, figures=None, **more):
    """Nodes of a recipe of the small problem."""
    return Grid(
        configs, path, loading(problem, recipe, figures)[1], run_config={"out": str(out)}, **more
    )


def run(grid, path):
    """The result, and what was said."""
    said = Heard()
    return coordinate(grid, grid.context, path, said), said.said
