"""The commands of `dml`, one per file. To add a command, add a file here and a line in
`COMMANDS`.
"""

from __future__ import annotations

import click

from dml_train.commands.data import data
from dml_train.commands.demo import demo
from dml_train.commands.embed import embed
from dml_train.commands.evaluate import evaluate_command
from dml_train.commands.export import export
from dml_train.commands.list_plugins import list_plugins
from dml_train.commands.protocol import protocol
from dml_train.commands.recipes import recipes
from dml_train.commands.report import report
from dml_train.commands.reproduce import reproduce
from dml_train.commands.search import search
from dml_train.commands.train import train
from dml_train.commands.tune import tune

COMMANDS: tuple[click.Command, ...] = (
    data,
    demo,
    embed,
    evaluate_command,
    export,
    list_plugins,
    protocol,
    recipes,
    report,
    reproduce,
    search,
    train,
    tune,
)
