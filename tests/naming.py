"""How a value is shown in the name of a test: the same in every process, or tests could not be shared out."""

import re
from typing import Any


def shown(value: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
