"""A day's work as data: what a model that knows what to do reads and writes, and what comes of it.

`TASKS` holds every task, in the form of `tests.work.task.Task`; nothing here imports pytest. Each
is done at the defaults, with the documented options alone. To drive one through another program:

- write ``files`` into a folder, and let the program work in it on ``question``, then on each of
  ``later``;
- let a `tests.work.model.ScriptedModel` be its model: a completions server (``url``) that does the
  tasks that its `begin` is given. It writes a step only if the prompt shows what the step needs;
  else it answers 500, and ``faults`` says what is missing. ``prompts`` are those it was sent;
- ``after`` says what must stand in the folder then, and ``answer`` what the answer fits.

The calls of the steps are those of our own tools: for a program with other tools they have to be
translated. `tests.work.doors` and `tests.work.gateway_client` do all this for ``ask``, ``chat`` and
a client of the gateway.
"""

from __future__ import annotations

from typing import Final

from tests.work.changing import CHANGING
from tests.work.conversations import CONVERSATIONS
from tests.work.faulty_models import FAULTY_MODELS
from tests.work.other_tools import OTHER_TOOLS
from tests.work.reading import READING
from tests.work.task import Step as Step
from tests.work.task import Task as Task
from tests.work.writing import WRITING

TASKS: Final = (*WRITING, *CHANGING, *READING, *OTHER_TOOLS, *CONVERSATIONS, *FAULTY_MODELS)
