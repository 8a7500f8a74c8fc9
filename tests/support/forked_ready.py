"""What every forked process would do again, done once."""

import os

os.environ["COLUMNS"] = "200"  # a console knows the width from when it was made

import gc
import sys

import pytest  # noqa: F401

import fedseed.cli.app
import fedseed.reports.plots
import fedseed.reports.tables
import fedseed.runs.assembly  # noqa: F401
import support.compiled
import support.network
import support.worker_runs

for name, module in list(sys.modules.items()):  # of those that were there
    if name.startswith("fedseed.cli.") and hasattr(module, "console"):
        module.console.width = int(os.environ["COLUMNS"])
support.compiled.load()
gc.collect()
gc.freeze()  # what is there stays: forked processes need no copies of it to see that
