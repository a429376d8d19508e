"""The harness's own command line, with the model "lapidary"."""

from lm_eval.__main__ import cli_evaluate

from . import LapidaryLM  # noqa: F401 (registers itself)

cli_evaluate()
