"""Memory of this process, as Linux tells it; also for programs that tests run."""

import re
from pathlib import Path

STATUS = Path("/proc/self/status")


def memory(field: str = "VmRSS") -> int:
    """Bytes of what is resident, or, of `VmHWM`, that were resident at most."""
    found = re.search(rf"^{field}:\s*(\d+)", STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
