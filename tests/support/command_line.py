"""What a command imports before it runs; for forked processes, which find it there."""

import transformers.models.llama.modeling_llama  # noqa: F401

import fedseed.cli.app
import fedseed.reports.plots
import fedseed.reports.tables
import fedseed.runs.assembly  # noqa: F401
