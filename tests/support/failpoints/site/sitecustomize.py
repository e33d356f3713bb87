"""Python imports this module at its start, because ``tests.support.failpoints.environment`` names its folder."""

import os
from pathlib import Path

from tests.support.failpoints import VARIABLE, install

install(Path(os.environ[VARIABLE]))
